"""Session of an NSQ client: a state machine that gets commands and sends replies and heartbeats.

nsqd carries out one command after the other, and replies before it reads the next. This session
replies to a publish when it is durable, and accepts further publishes before that. So replies wait
in a queue in the order of their commands, and the first is sent as soon as it is known. A fatal
error waits in the queue too, because the publishes before it were valid and must get their replies.
SUB, AUTH, permissions and upgrades are different. Later commands depend on them, so the session
takes no further command until they are answered (`_blocked`).

The session takes no command while too many replies wait (`Answers.full`). `reading` is then False,
and the caller must stop reading. The caller must also stop reading from a client that does not read
its replies. One call carries out at most COMMANDS_PIECE commands. If there are more, `more` is
True, and the caller calls `go_on` after it has processed the other connections.

If AUTH is required, the commands and replies of a client that has not authenticated are limited to
BYTES_BEFORE_AUTH_MAX bytes in total. The client must send AUTH within `auth_deadline_ms`. It must
not publish before that, so the session refuses a publish before its body has arrived. If
unauthenticated clients use too much memory, the longest idle connections with `stranger` True are
closed. Every TLS handshake has the same deadline.

Texts, codes, and the order in which errors are found are those of nsqd 1.3. The parser calls
`_check` before it checks the rest of a command, and `_check` refuses commands that the state does
not allow. SESSION_TABLE defines the states. Nothing here does I/O or reads a clock. Times are
arguments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import Any, Final

from . import errors as e
from .backend import Authorized, Backend
from .commands import Auth, Cls, Dpub, Fins, Identify, Mpub, Nop, Pub, Rdy, Req, Sub, Touch
from .errors import NsqError, quoted, shown
from .identify import ClientIdentity, decode, go_json
from .limits import BYTES_BEFORE_AUTH_MAX, NsqLimits
from .parser import Parser
from .wire import CLOSE_WAIT, HEARTBEAT, MAGIC, OK, RESPONSE, error_frame, frame

PENDING_MAX: Final = 1000
PENDING_BYTES_MAX: Final = 8 * 1024 * 1024


class Pending:
    """A reply in the queue: its bytes when they are known, and a function to call afterwards."""

    __slots__ = ("data", "size", "then")

    def __init__(
        self, data: bytes | None, size: int = 0, then: Callable[[], None] | None = None
    ) -> None:
        self.data = data
        self.size = size
        self.then = then


class Answers:
    """The replies of a client, which are sent in the order of its commands."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._queue: deque[Pending] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def full(self) -> bool:
        return len(self._queue) > PENDING_MAX or self._bytes > PENDING_BYTES_MAX

    def expect(self, size: int) -> Pending:
        """Add a place for a reply that is not known yet.

        `size`: the bytes that the publish takes in memory until then.
        """
        pending = Pending(None, size)
        self._queue.append(pending)
        self._bytes += size
        return pending

    def tell(self, pending: Pending, data: bytes, then: Callable[[], None] | None = None) -> None:
        """Set a reply that was expected."""
        self._bytes -= pending.size
        pending.data = data
        queue = self._queue
        # The usual case of a client that publishes one message at a time.
        if then is None and len(queue) == 1 and queue[0] is pending:
            queue.clear()
            self._write(data)
            return
        pending.then = then
        self._flush()

    def say(self, data: bytes, then: Callable[[], None] | None = None) -> None:
        """Write `data` and call `then` after all earlier replies are written."""
        if self._queue:
            self._queue.append(Pending(data, 0, then))
            return
        if data:
            self._write(data)
        if then is not None:
            then()

    def clear(self) -> None:
        self._queue.clear()
        self._bytes = 0

    def _flush(self) -> None:
        """Write the known replies at the front at once, up to a reply with a function to call."""
        queue = self._queue
        while queue and queue[0].data is not None:
            pieces: list[bytes] = []
            then = None
            while then is None and queue and (data := queue[0].data) is not None:
                pieces.append(data)
                then = queue.popleft().then
            self._write(b"".join(pieces))
            if then is not None:
                then()


class State(IntEnum):
    """The states, with the numbers that nsqd's statistics show.

    nsqd has no number for MAGIC, which is before its first state.
    """

    MAGIC = -1  # waiting for the four bytes of the protocol's version
    INIT = 0
    ENDED = 1
    SUBSCRIBED = 3
    CLOSING = 4  # CLS was received: messages in flight may still be answered


_ALWAYS: Final = (b"PUB", b"MPUB", b"DPUB", b"NOP")
SESSION_TABLE: Final[dict[State, dict[bytes, State]]] = {
    State.MAGIC: {},
    State.INIT: {
        b"IDENTIFY": State.INIT, b"AUTH": State.INIT, b"SUB": State.SUBSCRIBED,
        **dict.fromkeys(_ALWAYS, State.INIT),
    },
    State.SUBSCRIBED: {
        b"RDY": State.SUBSCRIBED, b"FIN": State.SUBSCRIBED, b"REQ": State.SUBSCRIBED, b"TOUCH": State.SUBSCRIBED,
        b"CLS": State.CLOSING,
        **dict.fromkeys(_ALWAYS, State.SUBSCRIBED),
    },
    State.CLOSING: {
        b"RDY": State.CLOSING,  # RDY has no effect in this state
        b"FIN": State.CLOSING, b"REQ": State.CLOSING, b"TOUCH": State.CLOSING,
        **dict.fromkeys(_ALWAYS, State.CLOSING),
    },
    State.ENDED: {},
}  # fmt: skip
"""The commands that each state allows, and the state after them (for SUB: after its reply).

A command without an entry ends the connection.
"""

COMMANDS: Final = frozenset(name for row in SESSION_TABLE.values() for name in row)


TOPICS_COUNTED_MAX: Final = 100  # the most topics of one client whose publishes are counted
NEVER: Final = 1 << 62
COMMANDS_PIECE: Final = 512  # the most commands of one call; they take some milliseconds
IDENTIFY_WEIGHT: Final = 50  # an IDENTIFY counts as 50 commands, because of its JSON
# A new client is checked this often. This is the shortest interval of heartbeats.
UNKNOWN_LOOK_NS: Final = 1_000_000_000
_MS: Final = 1_000_000


class Session:
    """The session of one connection.

    `write` sends bytes to the client. The session does not call it after `backend.close`.
    """

    def __init__(
        self, limits: NsqLimits, backend: Backend, write: Callable[[bytes], object], now_ns: int
    ) -> None:
        self._limits = limits
        self._asks = limits.auth_required or limits.auth_offered
        self._backend = backend
        self._write = write
        self._parser = Parser(limits, self._check, self._before_body if self._asks else None)
        self._magic = b""
        self._answers = Answers(write)
        self._blocked = False  # True while later commands must wait for the reply to the last one
        self._upgrading = False  # True while a layer is added; `backend` takes the received bytes
        self._last = False  # True when the last reply is in the queue
        self._eof = False
        self._working = False
        self.more = False  # True if complete commands may wait in the parser
        self._left = 0  # the number of commands that the present call may still carry out
        self.failed = False  # True if an error ends the connection; the client may still send
        self._guarded = limits.auth_required  # True until AUTH succeeds
        # The bytes of commands and replies while `_guarded` is True.
        self._guest_bytes = 0
        self._asking = False  # True while the session waits for the result of AUTH
        # The deadline for AUTH while `_guarded` is True, or for the TLS handshake.
        self._hurry_ns = now_ns + limits.auth_deadline_ms * _MS
        self._layers: list[str] = []  # layers that must still be added
        self._now_ns = now_ns
        self._heard_ns = now_ns
        self._beat_ns = now_ns + limits.client_timeout_ms // 2 * _MS
        self.state = State.MAGIC
        self.identity = ClientIdentity.unknown(limits)
        self.wrapped: tuple[str, ...] = ()  # layers in use
        self.authorized: Authorized | None = None
        self.topic = ""
        self.channel = ""
        self.ready = 0
        self.messages = 0
        self.finishes = 0
        self.requeues = 0
        self.published: dict[str, int] = {}
        self._handlers: Final[dict[type, Callable[[Any], None]]] = {
            Pub: self._on_pub,
            Fins: self._on_fins,
            Mpub: self._on_mpub,
            Rdy: self._on_rdy,
            Nop: self._on_nop,
            Req: self._on_req,
            Touch: self._on_touch,
            Dpub: self._on_dpub,
            Sub: self._on_sub,
            Cls: self._on_cls,
            Identify: self._on_identify,
            Auth: self._on_auth,
        }

    # Called by the owner of the connection

    @property
    def reading(self) -> bool:
        """True if the caller should continue to read from the client."""
        return (
            (not self._blocked or self._upgrading)
            and not self._answers.full
            and not self._last
            and self.state is not State.ENDED
        )

    @property
    def pending(self) -> int:
        return len(self._answers)

    @property
    def held(self) -> int:
        """The received bytes that wait in the parser."""
        return self._parser.held

    @property
    def heard_ns(self) -> int:
        """The time when the last command was complete."""
        return self._heard_ns

    @property
    def stranger(self) -> bool:
        """True if the client has neither authenticated nor begun to work.

        If such clients use too much memory, the longest idle of their connections are closed.
        """
        limits = self._limits
        if (
            self._last
            or self.state in (State.MAGIC, State.ENDED)
            or (limits.tls_required and "tls" not in self.wrapped)
        ):
            return True
        if self.authorized is not None or not self._asks:
            return False
        return limits.auth_required or (self.state is State.INIT and not self.published)

    def receive(self, data: bytes, now_ns: int) -> None:
        if self.state is State.ENDED or self._last:
            return
        self._now_ns = now_ns
        if self._guarded:
            self._guest_bytes += len(data)
        if self.state is State.MAGIC:
            data = self._take_magic(data)
        self._parser.push(data)
        self._work()

    def go_on(self, now_ns: int) -> None:
        """Carry out the next complete commands. The caller calls this while `more` is True."""
        self._now_ns = now_ns
        self._work()

    def on_eof(self) -> None:
        """Note that the client sends no more bytes, but may still read.

        The commands that it has sent are carried out and answered.
        """
        self._eof = True
        if self._upgrading:
            self._end()
        self._work()

    def on_closed(self) -> None:
        """Note that the connection is gone."""
        self.state = State.ENDED
        self.more = False
        self._answers.clear()
        self._parser.take_rest()

    def on_messages(self, frames: bytes, count: int) -> None:
        if self.state is not State.ENDED:
            self.messages += count
            self._write(frames)

    def probe(self) -> None:
        """Write an extra heartbeat, to find out whether the connection still exists."""
        if (
            self.identity.heartbeat_ms
            and not self._upgrading
            and self.state not in (State.MAGIC, State.ENDED)
        ):
            self._write(HEARTBEAT)

    def on_refused(self, what: str, id: bytes) -> None:
        """Tell the client that a FIN, REQ or TOUCH (`what`) failed.

        The backend had accepted it, but the message was no longer in flight to this client.
        """
        self._say(self._failed(what, id))

    def on_time(self, now_ns: int, *, reading: bool = True) -> int:
        """Send heartbeats and check deadlines. Return the latest time for the next call.

        `reading`: False if the caller does not read from the client at the moment. Then the client
        does not count as silent. A new client is checked often, because it may still request a
        shorter interval.
        """
        if not reading:
            self._heard_ns = now_ns
        due_ns = self._on_time(now_ns)
        return (
            min(due_ns, now_ns + UNKNOWN_LOOK_NS)
            if self.state in (State.MAGIC, State.INIT)
            else due_ns
        )

    def _on_time(self, now_ns: int) -> int:
        if self.state is State.ENDED:
            return NEVER
        self._now_ns = now_ns
        hurry_ns = self._hurry()
        if not hurry_ns:
            return NEVER
        if self.state is State.MAGIC:
            return min(
                hurry_ns, self._deadline(self._heard_ns + self._limits.client_timeout_ms * _MS)
            )
        interval_ns = self.identity.heartbeat_ms * _MS
        if not interval_ns:
            return hurry_ns
        if self._answers or (self._blocked and not self._upgrading):
            self._heard_ns = now_ns  # the client waits for replies, so it does not count as silent
        due_ns = self._deadline(self._heard_ns + 2 * interval_ns)
        if due_ns == NEVER:
            return NEVER
        if now_ns >= self._beat_ns:
            self._beat_ns = now_ns + interval_ns
            if not self._upgrading:
                self._write(HEARTBEAT)
        return min(due_ns, self._beat_ns, hurry_ns)

    def _hurry(self) -> int:
        """Return the deadline for AUTH or TLS, or NEVER if there is none now.

        Returns 0 if the deadline has passed. The connection then ends.
        """
        without_tls = "tls" not in self.wrapped and (
            self._limits.tls_required or (self._upgrading and self.identity.tls)
        )
        if not without_tls and (not self._guarded or self._asking or self._last):
            return NEVER
        if self._now_ns < self._hurry_ns:
            return self._hurry_ns
        if without_tls or self.state is State.MAGIC:
            self._end()
        else:
            self._end_after(
                error_frame(
                    NsqError(
                        e.E_AUTH_FIRST,
                        f"AUTH required within {self._limits.auth_deadline_ms / 1000:g} s",
                    )
                )
            )
        return 0

    def _deadline(self, due_ns: int) -> int:
        if self._now_ns < due_ns:
            return due_ns
        self._end()
        return NEVER

    # Commands

    def _take_magic(self, data: bytes) -> bytes:
        """Return the data after the magic."""
        missing = len(MAGIC) - len(self._magic)
        self._magic += data[:missing]
        if len(self._magic) < len(MAGIC):
            return b""
        if self._magic != MAGIC:
            self._end_after(error_frame(NsqError(e.E_BAD_PROTOCOL)))
            return b""
        self.state = State.INIT
        self._heard_ns = self._now_ns
        self._beat_ns = self._now_ns + self.identity.heartbeat_ms * _MS
        return data[missing:]

    def _work(self) -> None:
        """Carry out commands until none is left or one must wait, but at most COMMANDS_PIECE."""
        if self._working:
            return  # the backend has answered at once, while a command is carried out
        self._working = True
        self.more = False
        self._left = COMMANDS_PIECE
        try:
            while not (
                self._blocked or self._last or self._answers.full or self.state is State.ENDED
            ):
                if self._left <= 0:
                    self.more = True
                    break
                self._left -= 1
                command = self._parser.take()
                if command is None:
                    if self._eof and not (self._blocked or self._last):
                        self._end_after(error_frame(self._parser.unfinished()))
                    break
                self._heard_ns = self._now_ns
                self._handlers[type(command)](command)
            if self._guarded and self._guest_bytes - self._parser.held > BYTES_BEFORE_AUTH_MAX:
                raise NsqError(
                    e.E_AUTH_FIRST, f"AUTH required before more than {BYTES_BEFORE_AUTH_MAX} bytes"
                )
        except NsqError as error:
            self._end_after(error_frame(error))
        finally:
            self._working = False

    def _check(self, name: bytes) -> None:
        """Raise `NsqError` if the state does not allow this command.

        The parser refuses unknown commands.
        """
        if self._limits.tls_required and name != b"IDENTIFY" and "tls" not in self.wrapped:
            raise NsqError(e.E_INVALID, f"cannot {shown(name)} in current state (TLS required)")
        if name not in SESSION_TABLE[self.state]:
            if name in COMMANDS:
                raise NsqError(e.E_INVALID, f"cannot {shown(name)} in current state")
        elif name == b"IDENTIFY" and self.wrapped:  # nsqd accepts this and puts TLS over TLS
            raise NsqError(e.E_INVALID, "cannot IDENTIFY in current state")
        elif name == b"SUB" and not self.identity.heartbeat_ms:
            raise NsqError(e.E_INVALID, "cannot SUB with heartbeats disabled")

    def _before_body(self, name: str, topic: str) -> None:
        """Refuse a publish without permission before its body arrives.

        The permission is checked again when the body has arrived.
        """
        self._permit(name, topic, "", _nothing)

    def _on_nop(self, command: Nop) -> None:
        pass

    def _on_identify(self, command: Identify) -> None:
        self._left -= IDENTIFY_WEIGHT
        self.identity = decode(command.body, self._limits)
        self._beat_ns = self._now_ns + self.identity.heartbeat_ms * _MS
        self._layers = list(self.identity.layers)
        self._blocked = bool(self._layers)
        self._say(frame(RESPONSE, self.identity.answer()), self._upgrade if self._layers else None)

    def _on_auth(self, command: Auth) -> None:
        if self.authorized is not None:
            raise NsqError(e.E_INVALID, "AUTH already set")
        if not self._asks:
            raise NsqError(e.E_AUTH_DISABLED, "AUTH disabled")
        self._blocked = self._asking = True
        self._backend.authenticate(command.secret, self.identity, self._on_authenticated)

    def _on_sub(self, command: Sub) -> None:
        self._permit("SUB", command.topic, command.channel, partial(self._subscribe, command))

    def _subscribe(self, command: Sub) -> None:
        self.topic, self.channel = command
        self._blocked = True
        self._backend.subscribe(command.topic, command.channel, self.identity, self._on_subscribed)

    def _on_rdy(self, command: Rdy) -> None:
        if self.state is State.SUBSCRIBED:
            self.ready = command.ready
            self._backend.set_ready(command.ready)

    def _on_fins(self, command: Fins) -> None:
        failed = self._backend.finish(command.ids)
        self.finishes += len(command.ids) - len(failed)
        if failed:
            self._say(b"".join(self._failed("FIN", id) for id in failed))

    def _on_req(self, command: Req) -> None:
        if self._backend.requeue(command.id, command.timeout_ms):
            self.requeues += 1
        else:
            self._say(self._failed("REQ", command.id))

    def _on_touch(self, command: Touch) -> None:
        if not self._backend.touch(command.id):
            self._say(self._failed("TOUCH", command.id))

    def _on_cls(self, command: Cls) -> None:
        self.state = State.CLOSING
        self._parser.ignores_ready = True  # as in nsqd, RDY then has no effect, whatever its count
        self.ready = 0
        self._backend.leave()
        self._say(CLOSE_WAIT)

    def _on_pub(self, command: Pub) -> None:
        topic, body = command
        if self._asks:
            self._permit(
                "PUB", topic, "", partial(self._publish, "PUB", topic, [body], 0, len(body))
            )
        else:
            self._publish("PUB", topic, [body], 0, len(body))

    def _on_dpub(self, command: Dpub) -> None:
        topic, defer_ms, body = command
        self._permit(
            "DPUB", topic, "", partial(self._publish, "DPUB", topic, [body], defer_ms, len(body))
        )

    def _on_mpub(self, command: Mpub) -> None:
        topic, bodies, size = command
        self._permit("MPUB", topic, "", partial(self._publish, "MPUB", topic, bodies, 0, size))

    def _publish(
        self, name: str, topic: str, bodies: list[bytes], defer_ms: int, size: int
    ) -> None:
        answer = self._answers.expect(size)
        count = self.published.get(topic)
        if count is not None or len(self.published) < TOPICS_COUNTED_MAX:
            self.published[topic] = (count or 0) + len(bodies)
        self._backend.publish(topic, bodies, defer_ms, partial(self._on_published, answer, name))

    # Results from the backend

    def _on_published(self, answer: Pending, name: str, why: str) -> None:
        if answer.data is not None or self.state is State.ENDED:
            return
        full = self._answers.full
        if why:
            self._last = self.failed = True  # so later commands are not carried out
            error = NsqError(f"E_{name}_FAILED", f"{name} failed {why}")
            self._answers.tell(answer, error_frame(error), self._end)
        else:
            self._answers.tell(answer, OK)
        if full:
            self._work()

    def _on_subscribed(self, why: str) -> None:
        if self.state is State.ENDED:
            return
        if why:
            self._resume(NsqError(e.E_SUB_FAILED, f"SUB failed {why}"))
            return
        self.state = SESSION_TABLE[State.INIT][b"SUB"]
        self._say(OK)
        self._resume()

    def _on_authenticated(self, granted: Authorized | str) -> None:
        self._asking = False
        if self.state is State.ENDED:
            return
        if isinstance(granted, str):
            self._resume(NsqError(e.E_AUTH_FAILED, "AUTH failed"))
        elif not granted.permission_count:
            self._resume(NsqError(e.E_UNAUTHORIZED, "AUTH no authorizations found"))
        else:
            self.authorized = granted
            self._guarded = False
            names = ("identity", "identity_url", "permission_count")
            self._say(frame(RESPONSE, go_json({name: getattr(granted, name) for name in names})))
            self._resume()

    def _permit(self, name: str, topic: str, channel: str, then: Callable[[], None]) -> None:
        """Call `then` if the client has the permission."""
        if not self._asks:
            then()
            return
        if self.authorized is None and self._limits.auth_required:
            raise NsqError(e.E_AUTH_FIRST, f"AUTH required before {name}")
        self._blocked = True
        permission = "subscribe" if channel else "publish"
        self._backend.permitted(
            permission, topic, channel, partial(self._on_permitted, name, topic, channel, then)
        )

    def _on_permitted(
        self, name: str, topic: str, channel: str, then: Callable[[], None], why: str
    ) -> None:
        if self.state is State.ENDED:
            return
        if why == e.E_AUTH_FAILED:
            self._resume(NsqError(e.E_AUTH_FAILED, "AUTH failed"))
        elif why:
            asked = f"{quoted(topic.encode())} {quoted(channel.encode())}"
            self._resume(NsqError(e.E_UNAUTHORIZED, f"AUTH failed for {name} on {asked}"))
        else:
            self._blocked = False
            then()
            self._work()

    def _upgrade(self) -> None:
        """Add the next layer. The bytes that wait in the parser belong to it."""
        self._upgrading = True
        layer = self._layers.pop(0)
        if layer == "tls":
            self._hurry_ns = max(self._hurry_ns, self._now_ns + self._limits.auth_deadline_ms * _MS)
        rest = self._parser.take_rest()
        if self._guarded:
            self._guest_bytes -= len(rest)  # they are counted again when they are unpacked
        self._backend.upgrade(layer, self.identity, rest, partial(self._on_upgraded, layer))

    def _on_upgraded(self, layer: str, why: str) -> None:
        self._upgrading = False
        if self.state is State.ENDED:
            return
        if why:
            self._resume(NsqError(e.E_IDENTIFY_FAILED, f"IDENTIFY failed {why}"))
            return
        self.wrapped += (layer,)
        self._say(OK)
        if self._layers:
            self._upgrade()
        else:
            self._resume()

    def _resume(self, error: NsqError | None = None) -> None:
        """Continue with commands after a wait, or end the connection with this error."""
        self._blocked = False
        if error is not None:
            self._end_after(error_frame(error))
        self._work()

    # Writing

    def _say(self, data: bytes, then: Callable[[], None] | None = None) -> None:
        """Write this after all earlier replies are written."""
        if self.state is not State.ENDED:
            if self._guarded:
                self._guest_bytes += len(data)
            self._answers.say(data, then)

    def _end_after(self, data: bytes) -> None:
        self._last = self.failed = True
        self._say(data, self._end)

    def _end(self) -> None:
        if self.state is not State.ENDED:
            self.on_closed()
            self._backend.close()

    def _failed(self, what: str, id: bytes) -> bytes:
        why = (
            "client does not own message" if self._backend.held_by_other(id) else "ID not in flight"
        )
        return error_frame(
            NsqError(f"E_{what}_FAILED", f"{what} {shown(id)} failed {why}", fatal=False)
        )


def _nothing() -> None:
    """Do nothing. The command is carried out when its body has arrived."""
