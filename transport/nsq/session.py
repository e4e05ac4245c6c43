"""Session of an NSQ client: a state machine that gets commands and sends replies and heartbeats.

`SESSION_TABLE`, at the end of this file, has a row for each command that a state allows: what the
session does, and the state after it. nsqd carries out one command after the other, and replies
before it reads the next. This session replies to a publish when it is durable, and accepts further
publishes before that. So replies wait in a queue in the order of their commands, and the first is
sent as soon as it is known. A fatal error waits in the queue too, because the publishes before it
were valid and must get their replies. SUB, AUTH, permissions and upgrades are different. Later
commands depend on them, so the session takes no further command until they are answered (`Wait`).

The session takes no command while too many replies wait (`ReplyQueue.full`). `reading` is then
False, and the caller must stop reading. The caller must also stop reading from a client that does
not read its replies. One call carries out at most COMMANDS_PIECE commands. If there are more,
`more` is True, and the caller calls `go_on` after it has processed the other connections.

If AUTH is required, the commands and replies of a client that has not authenticated are limited to
BYTES_BEFORE_AUTH_MAX bytes in total. The client must send AUTH within `auth_deadline_ms`. It must
not publish before that, so the session refuses a publish before its body has arrived. If
unauthenticated clients use too much memory, the longest idle connections with `stranger` True are
closed. Every TLS handshake has the same deadline.

Texts, codes, and the order in which errors are found are those of nsqd 1.3. The parser calls
`_check` before it checks the rest of a command, and `_check` refuses commands that the state does
not allow. Nothing here does I/O or reads a clock. Times are arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from functools import partial
from typing import Any, Final, NamedTuple

from ..units import NS_PER_MS, NS_PER_S
from . import errors as e
from .backend import Authorized, Backend
from .commands import Auth, Cls, Dpub, Fins, Identify, Mpub, Nop, Pub, Rdy, Req, Sub, Touch
from .errors import NsqError, quoted, shown
from .identify import ClientIdentity, decode, go_json
from .limits import BYTES_BEFORE_AUTH_MAX, NsqLimits
from .parser import Parser
from .reply_queue import PendingReply, ReplyQueue
from .wire import CLOSE_WAIT, HEARTBEAT, MAGIC, OK, RESPONSE, error_frame, frame


class State(IntEnum):
    """States of a session, with the numbers that nsqd's statistics show.

    nsqd has no number for the states before its first one.
    """

    MAGIC = -2  # waiting for the four bytes of the protocol's version
    PLAIN = -1  # the limits require TLS, which is not in use yet
    INIT = 0
    ENDED = 1
    SUBSCRIBED = 3
    CLOSING = 4  # CLS was received: messages in flight may still be answered


class Wait(Enum):
    """Events that must happen before the session takes the next command."""

    NOTHING = auto()
    REPLIES = auto()  # the replies before that of an IDENTIFY with layers
    TLS = auto()  # the TLS handshake
    LAYER = auto()  # another layer
    AUTH = auto()  # the auth server's answer
    PERMISSION = auto()
    SUBSCRIPTION = auto()
    END = auto()  # it takes no more commands: the last reply is in the queue, or it has ended


_UPGRADES: Final = (Wait.TLS, Wait.LAYER)
_READING: Final = (Wait.NOTHING, *_UPGRADES)


@dataclass(slots=True)
class Consumption:
    """Subscription of the client as the session counts it, from its SUB on."""

    topic: str = ""
    channel: str = ""
    ready: int = 0
    messages: int = 0
    finishes: int = 0
    requeues: int = 0


TOPICS_COUNTED_MAX: Final = 100  # the most topics of one client whose publishes are counted
NEVER: Final = 1 << 62
COMMANDS_PIECE: Final = 512  # the most commands of one call; they take some milliseconds
IDENTIFY_WEIGHT: Final = 50  # an IDENTIFY counts as 50 commands, because of its JSON
# A new client is checked this often. This is the shortest interval of heartbeats.
UNKNOWN_LOOK_NS: Final = NS_PER_S


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
        self._replies = ReplyQueue(write)
        self._wait = Wait.NOTHING
        self._eof = False
        self._working = False
        self.more = False  # True if complete commands may wait in the parser
        self._left = 0  # the number of commands that the present call may still carry out
        self.failed = False  # True if an error ends the connection; the client may still send
        # The bytes of commands and replies before AUTH, or None if AUTH is not or no more required.
        self._guest_bytes: int | None = 0 if limits.auth_required else None
        # The deadline for AUTH, or for the TLS handshake.
        self._handshake_due_ns = now_ns + limits.auth_deadline_ms * NS_PER_MS
        self._now_ns = now_ns
        self._heard_ns = now_ns
        self._beat_ns = now_ns + limits.client_timeout_ms // 2 * NS_PER_MS
        self._enter(State.MAGIC)
        self._step = _IGNORED
        self.identity = ClientIdentity.unknown(limits)
        self.wrapped: tuple[str, ...] = ()  # layers in use
        self.authorized: Authorized | None = None
        self.consumption = Consumption()
        self.published: dict[str, int] = {}

    def _enter(self, state: State) -> None:
        self.state = state
        self._steps = SESSION_TABLE[state]

    # Called by the owner of the connection

    @property
    def reading(self) -> bool:
        """True if the caller should continue to read from the client."""
        return self._wait in _READING and not self._replies.full

    @property
    def pending(self) -> int:
        return len(self._replies)

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
        if self._wait is Wait.END or self.state in (State.MAGIC, State.PLAIN):
            return True
        if self.authorized is not None or not self._asks:
            return False
        return self._limits.auth_required or (self.state is State.INIT and not self.published)

    def receive(self, data: bytes, now_ns: int) -> None:
        if self._wait is Wait.END:
            return
        self._now_ns = now_ns
        if self._guest_bytes is not None:
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
        if self._wait in _UPGRADES:
            self._end()
        self._work()

    def on_closed(self) -> None:
        """Note that the connection is gone."""
        self._enter(State.ENDED)
        self._wait = Wait.END
        self.more = False
        self._replies.clear()
        self._parser.take_rest()

    def on_messages(self, frames: bytes, count: int) -> None:
        if self.state is not State.ENDED:
            self.consumption.messages += count
            self._write(frames)

    def probe(self) -> None:
        """Write an extra heartbeat, to find out whether the connection still exists."""
        if (
            self.identity.heartbeat_ms
            and self._wait not in _UPGRADES
            and self.state not in (State.MAGIC, State.ENDED)
        ):
            self._write(HEARTBEAT)

    def on_refused(self, name: str, id: bytes) -> None:
        """Tell the client that a FIN, REQ or TOUCH (`name`) failed.

        The backend had accepted it, but the message was no longer in flight to this client.
        """
        self._reply(self._not_in_flight(name, id))

    def on_time(self, now_ns: int, *, reading: bool = True) -> int:
        """Send heartbeats and check deadlines. Return the latest time for the next call.

        `reading`: False if the caller does not read from the client at the moment. Then the client
        does not count as silent. A new client is checked often, because it may still request a
        shorter interval.
        """
        if not reading:
            self._heard_ns = now_ns
        due_ns = self._on_time(now_ns)
        return min(due_ns, now_ns + UNKNOWN_LOOK_NS) if self.state <= State.INIT else due_ns

    def _on_time(self, now_ns: int) -> int:
        if self.state is State.ENDED:
            return NEVER
        self._now_ns = now_ns
        handshake_due_ns = self._check_handshake()
        if not handshake_due_ns:
            return NEVER
        if self.state is State.MAGIC:
            timeout_ns = self._limits.client_timeout_ms * NS_PER_MS
            return min(handshake_due_ns, self._deadline(self._heard_ns + timeout_ns))
        interval_ns = self.identity.heartbeat_ms * NS_PER_MS
        if not interval_ns:
            return handshake_due_ns
        if self._replies or self._wait not in _READING:
            self._heard_ns = now_ns  # the client waits for replies, so it does not count as silent
        due_ns = self._deadline(self._heard_ns + 2 * interval_ns)
        if due_ns == NEVER:
            return NEVER
        if now_ns >= self._beat_ns:
            self._beat_ns = now_ns + interval_ns
            if self._wait not in _UPGRADES:
                self._write(HEARTBEAT)
        return min(due_ns, self._beat_ns, handshake_due_ns)

    def _check_handshake(self) -> int:
        """Return the deadline for AUTH or TLS, or NEVER if there is none now.

        Returns 0 if the deadline has passed. The connection then ends.
        """
        needs_tls = (
            self.state is State.PLAIN
            or self._wait is Wait.TLS
            or (self.state is State.MAGIC and self._limits.tls_required)
        )
        if not needs_tls and (self._guest_bytes is None or self._wait in (Wait.AUTH, Wait.END)):
            return NEVER
        if self._now_ns < self._handshake_due_ns:
            return self._handshake_due_ns
        if needs_tls or self.state is State.MAGIC:
            self._end()
        else:
            deadline_s = self._limits.auth_deadline_ms / 1000
            self._fail(NsqError(e.E_AUTH_FIRST, f"AUTH required within {deadline_s:g} s"))
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
            self._fail(NsqError(e.E_BAD_PROTOCOL))
            return b""
        self._enter(State.PLAIN if self._limits.tls_required else State.INIT)
        self._heard_ns = self._now_ns
        self._beat_ns = self._now_ns + self.identity.heartbeat_ms * NS_PER_MS
        return data[missing:]

    def _work(self) -> None:
        """Carry out commands until none is left or one must wait, but at most COMMANDS_PIECE."""
        if self._working:
            return  # the backend has answered at once, while a command is carried out
        self._working = True
        self.more = False
        self._left = COMMANDS_PIECE
        try:
            while self._wait is Wait.NOTHING and not self._replies.full:
                if self._left <= 0:
                    self.more = True
                    break
                self._left -= 1
                command = self._parser.take()
                if command is None:
                    if self._eof and self._wait is Wait.NOTHING:
                        self._fail(self._parser.unfinished())
                    break
                self._heard_ns = self._now_ns
                self._step.action(self, command)
                if self._step.after is not None:
                    self._settle()
            if (
                self._guest_bytes is not None
                and self._guest_bytes - self._parser.held > BYTES_BEFORE_AUTH_MAX
            ):
                raise NsqError(
                    e.E_AUTH_FIRST, f"AUTH required before more than {BYTES_BEFORE_AUTH_MAX} bytes"
                )
        except NsqError as error:
            self._fail(error)
        finally:
            self._working = False

    def _check(self, name: bytes) -> None:
        """Find the command's step. Raise `NsqError` if the state does not allow the command.

        The parser refuses unknown commands.
        """
        step = self._steps.get(name)
        if step is not None:
            if step.guard is not None:
                step.guard(self)
            self._step = step
        elif self.state is State.PLAIN:
            raise NsqError(e.E_INVALID, f"cannot {shown(name)} in current state (TLS required)")
        elif name in COMMANDS:
            raise NsqError(e.E_INVALID, f"cannot {shown(name)} in current state")

    def _settle(self) -> None:
        """Enter the state after the last command, if that command was answered."""
        if self._step.after is not None and self._wait is Wait.NOTHING:
            self._enter(self._step.after)

    def _refuse_over_layers(self) -> None:
        if self.wrapped:  # nsqd accepts this and puts TLS over TLS
            raise NsqError(e.E_INVALID, "cannot IDENTIFY in current state")

    def _refuse_without_heartbeats(self) -> None:
        if not self.identity.heartbeat_ms:
            raise NsqError(e.E_INVALID, "cannot SUB with heartbeats disabled")

    def _before_body(self, name: str, topic: str) -> None:
        """Refuse a publish without permission before its body arrives.

        The permission is checked again when the body has arrived.
        """
        self._permit(name, topic, "", _nothing)

    def _ignore(self, command: Nop | Rdy) -> None:
        """Do nothing."""

    def _identify(self, command: Identify) -> None:
        self._left -= IDENTIFY_WEIGHT
        self.identity = decode(command.body, self._limits)
        self._beat_ns = self._now_ns + self.identity.heartbeat_ms * NS_PER_MS
        layers = self.identity.layers
        if layers:
            self._wait = Wait.REPLIES
        self._reply(
            frame(RESPONSE, self.identity.answer()),
            partial(self._upgrade, layers) if layers else None,
        )

    def _authenticate(self, command: Auth) -> None:
        if self.authorized is not None:
            raise NsqError(e.E_INVALID, "AUTH already set")
        if not self._asks:
            raise NsqError(e.E_AUTH_DISABLED, "AUTH disabled")
        self._wait = Wait.AUTH
        self._backend.authenticate(command.secret, self.identity, self._on_authenticated)

    def _sub(self, command: Sub) -> None:
        self._permit("SUB", command.topic, command.channel, partial(self._subscribe, command))

    def _subscribe(self, command: Sub) -> None:
        self.consumption = Consumption(command.topic, command.channel)
        self._wait = Wait.SUBSCRIPTION
        self._backend.subscribe(command.topic, command.channel, self.identity, self._on_subscribed)

    def _set_ready(self, command: Rdy) -> None:
        self.consumption.ready = command.ready
        self._backend.set_ready(command.ready)

    def _finish(self, command: Fins) -> None:
        missing = self._backend.finish(command.ids)
        self.consumption.finishes += len(command.ids) - len(missing)
        if missing:
            self._reply(b"".join(self._not_in_flight("FIN", id) for id in missing))

    def _requeue(self, command: Req) -> None:
        if self._backend.requeue(command.id, command.timeout_ms):
            self.consumption.requeues += 1
        else:
            self._reply(self._not_in_flight("REQ", command.id))

    def _touch(self, command: Touch) -> None:
        if not self._backend.touch(command.id):
            self._reply(self._not_in_flight("TOUCH", command.id))

    def _leave(self, command: Cls) -> None:
        self._parser.ignores_ready = True  # as in nsqd, RDY then has no effect, whatever its count
        self.consumption.ready = 0
        self._backend.leave()
        self._reply(CLOSE_WAIT)

    def _pub(self, command: Pub) -> None:
        topic, body = command
        if self._asks:
            self._permit(
                "PUB", topic, "", partial(self._publish, "PUB", topic, [body], 0, len(body))
            )
        else:
            self._publish("PUB", topic, [body], 0, len(body))

    def _dpub(self, command: Dpub) -> None:
        topic, defer_ms, body = command
        self._permit(
            "DPUB", topic, "", partial(self._publish, "DPUB", topic, [body], defer_ms, len(body))
        )

    def _mpub(self, command: Mpub) -> None:
        topic, bodies, size = command
        self._permit("MPUB", topic, "", partial(self._publish, "MPUB", topic, bodies, 0, size))

    def _publish(
        self, name: str, topic: str, bodies: list[bytes], defer_ms: int, size: int
    ) -> None:
        reply = self._replies.expect(size)
        count = self.published.get(topic)
        if count is not None or len(self.published) < TOPICS_COUNTED_MAX:
            self.published[topic] = (count or 0) + len(bodies)
        self._backend.publish(topic, bodies, defer_ms, partial(self._on_published, reply, name))

    # Results from the backend

    def _on_published(self, reply: PendingReply, name: str, why: str) -> None:
        if reply.data is not None or self.state is State.ENDED:
            return
        full = self._replies.full
        if why:
            self._stop()  # so later commands are not carried out
            error = NsqError(f"E_{name}_FAILED", f"{name} failed {why}")
            self._replies.resolve(reply, error_frame(error), self._end)
        else:
            self._replies.resolve(reply, OK)
        if full:
            self._work()

    def _on_subscribed(self, why: str) -> None:
        if self._wait is Wait.SUBSCRIPTION:
            self._resume(NsqError(e.E_SUB_FAILED, f"SUB failed {why}") if why else OK)

    def _on_authenticated(self, granted: Authorized | str) -> None:
        if self._wait is not Wait.AUTH:
            return
        if isinstance(granted, str):
            self._resume(NsqError(e.E_AUTH_FAILED, "AUTH failed"))
        elif not granted.permission_count:
            self._resume(NsqError(e.E_UNAUTHORIZED, "AUTH no authorizations found"))
        else:
            self.authorized = granted
            self._guest_bytes = None
            names = ("identity", "identity_url", "permission_count")
            self._resume(frame(RESPONSE, go_json({name: getattr(granted, name) for name in names})))

    def _permit(self, name: str, topic: str, channel: str, then: Callable[[], None]) -> None:
        """Call `then` if the client has the permission."""
        if not self._asks:
            then()
            return
        if self._guest_bytes is not None:
            raise NsqError(e.E_AUTH_FIRST, f"AUTH required before {name}")
        self._wait = Wait.PERMISSION
        permission = "subscribe" if channel else "publish"
        self._backend.permitted(
            permission, topic, channel, partial(self._on_permitted, name, topic, channel, then)
        )

    def _on_permitted(
        self, name: str, topic: str, channel: str, then: Callable[[], None], why: str
    ) -> None:
        if self._wait is not Wait.PERMISSION:
            return
        if why == e.E_AUTH_FAILED:
            self._resume(NsqError(e.E_AUTH_FAILED, "AUTH failed"))
        elif why:
            place = f"{quoted(topic.encode())} {quoted(channel.encode())}"
            self._resume(NsqError(e.E_UNAUTHORIZED, f"AUTH failed for {name} on {place}"))
        else:
            self._wait = Wait.NOTHING
            then()
            self._work()

    def _upgrade(self, layers: tuple[str, ...]) -> None:
        """Add the first of these layers. The bytes that wait in the parser belong to it."""
        self._wait = Wait.TLS if layers[0] == "tls" else Wait.LAYER
        if self._wait is Wait.TLS:
            due_ns = self._now_ns + self._limits.auth_deadline_ms * NS_PER_MS
            self._handshake_due_ns = max(self._handshake_due_ns, due_ns)
        rest = self._parser.take_rest()
        if self._guest_bytes is not None:
            self._guest_bytes -= len(rest)  # they are counted again when they are unpacked
        self._backend.upgrade(layers[0], self.identity, rest, partial(self._on_upgraded, layers))

    def _on_upgraded(self, layers: tuple[str, ...], why: str) -> None:
        if self._wait not in _UPGRADES:
            return
        if why:
            self._resume(NsqError(e.E_IDENTIFY_FAILED, f"IDENTIFY failed {why}"))
            return
        self.wrapped += layers[:1]
        if layers[0] == "tls":
            self._enter(State.INIT)
        if len(layers) > 1:
            self._reply(OK)
            self._upgrade(layers[1:])
        else:
            self._resume(OK)

    def _resume(self, result: bytes | NsqError) -> None:
        """Reply after a wait, and continue with commands or end the connection with this error."""
        self._wait = Wait.NOTHING
        if isinstance(result, NsqError):
            self._fail(result)
        else:
            self._settle()
            self._reply(result)
        self._work()

    # Writing

    def _reply(self, data: bytes, then: Callable[[], None] | None = None) -> None:
        """Write this after all earlier replies are written."""
        if self.state is not State.ENDED:
            if self._guest_bytes is not None:
                self._guest_bytes += len(data)
            self._replies.add(data, then)

    def _fail(self, error: NsqError) -> None:
        """End the connection after all earlier replies and this error are written."""
        self._stop()
        self._reply(error_frame(error), self._end)

    def _stop(self) -> None:
        self._wait = Wait.END
        self.failed = True

    def _end(self) -> None:
        if self.state is not State.ENDED:
            self.on_closed()
            self._backend.close()

    def _not_in_flight(self, name: str, id: bytes) -> bytes:
        why = (
            "client does not own message" if self._backend.held_by_other(id) else "ID not in flight"
        )
        return error_frame(
            NsqError(f"E_{name}_FAILED", f"{name} {shown(id)} failed {why}", fatal=False)
        )


def _nothing() -> None:
    """Do nothing. The command is carried out when its body has arrived."""


class Step(NamedTuple):
    """A row of the table: what a command does in a state, and the state after its reply.

    `after` is None if the state stays. `guard` may refuse the command by an `NsqError`.
    """

    action: Callable[[Session, Any], None]
    after: State | None = None
    guard: Callable[[Session], None] | None = None


_IGNORED: Final = Step(Session._ignore)
_IDENTIFIED: Final = Step(Session._identify, guard=Session._refuse_over_layers)
_ALWAYS: Final = {
    b"PUB": Step(Session._pub),
    b"MPUB": Step(Session._mpub),
    b"DPUB": Step(Session._dpub),
    b"NOP": _IGNORED,
}
_IN_FLIGHT: Final = {
    b"FIN": Step(Session._finish),
    b"REQ": Step(Session._requeue),
    b"TOUCH": Step(Session._touch),
}
SESSION_TABLE: Final[dict[State, dict[bytes, Step]]] = {
    State.MAGIC: {},  # the magic leads to PLAIN or INIT
    State.PLAIN: {b"IDENTIFY": _IDENTIFIED},  # TLS leads to INIT
    State.INIT: {
        b"IDENTIFY": _IDENTIFIED,
        b"AUTH": Step(Session._authenticate),
        b"SUB": Step(Session._sub, State.SUBSCRIBED, guard=Session._refuse_without_heartbeats),
        **_ALWAYS,
    },
    State.SUBSCRIBED: {
        b"RDY": Step(Session._set_ready),
        b"CLS": Step(Session._leave, State.CLOSING),
        **_IN_FLIGHT,
        **_ALWAYS,
    },
    State.CLOSING: {b"RDY": _IGNORED, **_IN_FLIGHT, **_ALWAYS},
    State.ENDED: {},
}
"""The steps of the commands that each state allows.

Any other command ends the connection with E_INVALID "cannot NAME in current state". In PLAIN,
" (TLS required)" follows. Every state may be left for ENDED: after a fatal error, a deadline that
passed, or the end of the connection.
"""

COMMANDS: Final = frozenset(name for steps in SESSION_TABLE.values() for name in steps)
