"""ZeroMQ gateway: forwards the links of remote clients to the actors without reading blocks.

A link begins with Open. The gateway forwards later protocol messages unchanged and adds the
client's routing id to the envelope, so that the actors can tell clients apart. It checks the opcode
(the first value of the control frame) and forwards only the protocol messages that a client may
send. Clients cannot send the actors' internal protocol messages. The reply to an Open of a topic
with parts is a Spread, and no link begins: the client opens links to the parts, at the brokers that
have them.

Blocks of PUSH writers arrive at a separate port, without a link. The first frame names the topic's
storage. If that storage accepts no more blocks now, the gateway drops the block instead of waiting.
The writer learns of the gap on its link.

Requests to the supervisor, also the lookups for new links, wait for their turn (`questions.py`), so
that no client can keep the supervisor busy for itself.

The client's key (`curve.py`) identifies its user and thereby its permissions. The gateway checks
them when a link is opened, with each order, and when the rules change.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import zmq

from ...transport.block.block_format import decode_header, is_addressed
from ...transport.errors import (
    E_BAD_COMMAND,
    E_FORBIDDEN,
    E_HELLO,
    E_LIMIT,
    E_NOT_FOUND,
    E_TOO_BIG,
    E_UNREACHABLE,
    Refused,
    UsageError,
    ZsqError,
)
from ...transport.names import part_of
from ...transport.wire import protocol as p
from ...transport.wire.actions import Action
from ...transport.wire.address import read_run_id
from ...transport.wire.codec import decode, encode, opcode, request_of
from ...transport.wire.sockets import bytes_moved, descriptor_of
from ..runtime.actor import Actor, StartFailed
from ..runtime.link_ends import LinkEnds
from ..runtime.listening import bind, reason_of
from ..runtime.port import Mail, Port, user_label
from ..runtime.process import is_out_of_files
from ..security import policy
from ..security.access import ANONYMOUS, AccessError
from ..security.curve import ZAP_ENDPOINT, CurveAuthentication
from ..settings import options
from ..settings.starts import ZeroMqStart
from .limiter import Bound
from .questions import Questions, WaitingClient
from .stage_owners import StageOwners
from .unread import Unread, budget_bytes

ALLOWED: Final[dict[str, frozenset[int]]] = {
    "supervisor": frozenset(w.op for w in (p.Lookup, p.Manage, p.Stats, p.Beat, p.Bye)),
    "topic": frozenset(w.op for w in (p.Hello, p.Pub, p.PubDelayed, p.Beat, p.Bye)),
    "reader": frozenset(w.op for w in (p.Fetch, p.OffsetAt, p.Measure, p.Beat, p.Bye)),
    "stage": frozenset(w.op for w in (p.OpenStage, p.Seal, p.Commit, p.Abort, p.Beat, p.Bye)),
    "channel": frozenset(
        w.op for w in (p.Sub, p.Ready, p.Begun, p.Fin, p.Req, p.Touch, p.Beat, p.Bye)
    ),
}
# The gateway decodes protocol messages with these opcodes. It forwards all others unread.
_PUBLISHES: Final = frozenset((p.Pub.op, p.PubDelayed.op))
_LOOKED_AT: Final = frozenset(w.op for w in (p.Lookup, p.Manage, p.Stats, p.OpenStage))
# Smaller frames of deliveries are not counted, because counting takes about 10 microseconds each.
DELIVERY_COUNTED_BYTES_MIN: Final = 32 * 1024
VIA: Final = "zeromq"  # this gateway's name in the audit log
PUSH_FRAMES: Final = 5  # the frames of a push: route, empty, control, header, columns
LINKS_MAX: Final = 10_000
# Opens that are not answered. A user's clients may all connect at the same time.
OPENS_MAX: Final = Bound(2 * LINKS_MAX, LINKS_MAX)
OPENS_AHEAD_MAX: Final = 256
_COMPLAINT_CHARS: Final = 500
# While a producer is silent, the gateway looks this often whether its bytes arrive. A large block
# on a slow link may take longer than two heartbeats, which wait behind it.
MOVES_LOOK_MS: Final = 2_000.0
# A link that is silent for this long is dropped.
_SILENT_NS: Final = 3 * p.HEARTBEAT_MS_MAX * 1_000_000
# The fields of the reply to Lookup that a client gets.
_TOLD: Final = (
    "uuid",
    "node",
    "epoch",
    "message_bytes",
    "settings",
)


class _ClientLink(NamedTuple):
    opened: p.Open
    endpoint: str
    port: Port
    key: str  # the user's key
    route: bytes  # the first frame of the pushes, on the link of a stage
    envelope: tuple[bytes, ...]  # the client's id; on a stage's link the user's label precedes it
    descriptor: int = -1  # of the connection, if it is known

    @property
    def kind(self) -> str:
        return self.opened.kind


class _Opening(NamedTuple):
    """An Open that waits for the answer to its lookup."""

    client: bytes
    asked: p.Open
    key: str
    lookup: p.Lookup
    descriptor: int = -1


class PushRoute:
    """The socket for the pushes to one storage.

    ZeroMQ's high-water mark counts messages, but memory is limited in bytes. So the gateway sets
    the mark for blocks of the size of the largest recent one.
    """

    def __init__(self, endpoint: str, port: Port) -> None:
        self.endpoint = endpoint
        self.port = port
        self._largest = 0

    def send(self, frames: Sequence[Any]) -> bool:
        """Send a push. Return False if the pipe is full or the number of frames is wrong."""
        if len(frames) != PUSH_FRAMES:
            return False
        size = len(frames[-1])
        if size > self._largest:
            self._set(size)
        return self.port.send_frames(frames)

    def relax(self) -> None:
        """Reset the mark, because later blocks may be smaller. Called regularly."""
        self._set(0)

    def _set(self, largest: int) -> None:
        self._largest = largest
        fitting = options.PUSH_GATEWAY_BYTES // max(1, largest)
        mark = min(options.PUSH_GATEWAY_MARK, max(options.PUSH_GATEWAY_MARK_MIN, fitting))
        self.port.socket.setsockopt(zmq.SNDHWM, mark)


@contextlib.contextmanager
def _files_needed() -> Iterator[None]:
    """Refuse one link, and not end the gateway with all its links, if no descriptor is free."""
    try:
        yield
    except (zmq.ZMQError, OSError) as error:
        if not is_out_of_files(error):
            raise
        text = "the broker's gateway has no free file descriptor for another topic or channel"
        raise Refused(E_LIMIT, f"{text}; raise its limit (LimitNOFILE, ulimit -n)") from None


class ZeroMqGateway(Actor[ZeroMqStart]):
    sockets_max = options.SOCKETS_MAX

    def on_start(self) -> dict[str, Any]:
        try:
            self.doors = CurveAuthentication(self.given.security)
        except (AccessError, UsageError) as error:
            raise StartFailed(str(error)) from None
        self.zap: Port | None = None
        if self.doors.encrypts:
            self.zap = Port(self.context, zmq.ROUTER)
            self.zap.socket.bind(ZAP_ENDPOINT)  # this must come before any client can connect
            self._listen(self.zap)
        self.owners = StageOwners()
        self.unread = Unread(budget_bytes())
        listen = self.given.listen
        self.front = self._bind(Port(self.context, zmq.ROUTER), listen, "--listen")
        self.pushes = self._bind(
            Port(self.context, zmq.PULL, mark=options.PUSH_MARK), self.given.push, "--listen-push"
        )
        self.push_port = int(
            self.pushes.socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2]
        )
        self.ends = LinkEnds(
            self,
            self.front,
            lambda peer: peer[0] in self.links,
            lambda peer: self._drop(peer[0]),
        )
        self.routes: dict[bytes, PushRoute] = {}
        self.pushes_dropped = 0
        self.actors: dict[str, Port] = {}  # endpoint -> the gateway's dealer socket
        self.links: dict[bytes, _ClientLink] = {}
        self._seen: dict[bytes, int] = {}
        self._moved: dict[bytes, int] = {}  # of producers: bytes that had come at the last look
        self._opens: dict[int, _Opening] = {}  # by the ticket of the lookup
        self.lookups = Questions(OPENS_MAX, ahead_max=OPENS_AHEAD_MAX)
        self.questions = Questions()
        run_dir = self.given.supervisor.removeprefix("ipc://").rpartition("/")[0]
        run_id = read_run_id(run_dir)
        self.run_directory = (
            {"run": run_dir, "run_id": run_id} if run_id and not self.doors.encrypts else {}
        )
        self.asking = self.open_dealer(self.given.supervisor, f"asking-{self.key}".encode())
        self.asking.route(p.Done, self.on_done)
        self.asking.route(p.Failed, self.on_failed)
        self.asking.route(p.Spread, self.on_spread)
        self.every(30_000, self._forget)
        self.every(MOVES_LOOK_MS, self._look_for_moves)
        self.obey_reload(p.ReloadGateway, self.take_rules)
        return {
            "endpoint": self.front.socket.getsockopt_string(zmq.LAST_ENDPOINT),
            "push_port": self.push_port,
        }

    def _bind(self, port: Port, listen: str, option: str) -> Port:
        port.socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        port.socket.setsockopt(zmq.BACKLOG, 1_024)
        # A peer that reads nothing for this long loses its connection and the frames in its pipe.
        port.socket.setsockopt(zmq.TCP_MAXRT, _SILENT_NS // 1_000_000)
        self.doors.guard(port)
        try:
            bind(port.socket, listen)
        except (OSError, zmq.ZMQError) as error:
            text = (
                f"cannot listen on tcp://{listen}: {reason_of(error)}; choose another {option}, "
                "or stop the process that uses it"
            )
            raise StartFailed(text) from None
        return self._listen(port)

    def _routing_id(self) -> bytes:
        return f"gateway-{self.key}".encode()

    def _drain(self, port: Port) -> None:
        """Forward what the port received. Most protocol messages are not decoded."""
        if port is self.front:
            self._forward_in()
        elif port is self.pushes:
            self._forward_pushes()
        elif port is self.zap:
            self.doors.answer(port)
        elif port is self.supervisor or port is self.asking:
            super()._drain(port)
        elif port is self.actors.get(self.given.supervisor):
            self._answer_questions(port)
        else:
            self._forward_out(port)

    def _forward_in(self) -> None:
        for _ in range(options.DRAIN_MAX):
            try:
                frames: list[Any] = self.front.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            self._worked = True
            client = frames[0].bytes
            if len(frames) < 3 or len(frames) > p.FRAMES_MAX or len(frames[1]):
                continue
            op = opcode(frames[2].buffer)
            link, key = self.links.get(client), self.doors.key(frames[2])
            if link is not None and (link.key != key or op == p.Open.op):
                # Only an Open can begin a new link under this routing id.
                self._drop(client, is_lost=False)
                link = None
            if op == p.Open.op:
                self._open(client, frames[2], key)
            elif link is None:
                self._fail(client, 0, E_HELLO, "this connection has no open link: send Open first")
            elif op not in ALLOWED[link.kind]:
                text = f"opcode {op} is not allowed on a {link.kind} link, or not known"
                self._fail(client, request_of(frames[2].buffer), E_BAD_COMMAND, text)
            else:
                self._seen[client] = time.monotonic_ns()
                if op in _LOOKED_AT and not self._look(client, link, frames):
                    continue
                if op in _PUBLISHES and not self._may_address(client, link, frames):
                    continue
                if link.kind == "supervisor":
                    # The supervisor knows no links, so it need not know that one ends.
                    if op == p.Bye.op:
                        self._forget_link(client)
                    else:
                        self._wait_for_turn(client, link, frames[2])
                elif not link.port.send_frames([*link.envelope, *frames[1:]]):
                    self._end_link(client)
                elif op == p.Bye.op:
                    self._forget_link(client)
        self._send_questions()

    def _wait_for_turn(self, client: bytes, link: _ClientLink, control: Any) -> None:
        """Let a request to the supervisor wait for its turn."""
        frame = bytes(getattr(control, "buffer", control))
        try:
            message = decode(frame)
        except ZsqError as error:
            self._fail(client, request_of(frame), error.code, error.text)
            return
        same = (
            (message.topic, message.channel)
            if isinstance(message, p.Stats)
            else p.Beat.op
            if isinstance(message, p.Beat)
            else None
        )
        request = getattr(message, "request", 0)
        holder = self._holder(client, link.key)
        # A heartbeat shows that the link works. It must not wait behind requests that wait.
        holder = f"heartbeats of {holder}" if isinstance(message, p.Beat) else holder
        try:
            self.questions.ask(
                holder,
                WaitingClient(client, request),
                (frame, message, link.key),
                len(frame),
                same,
            )
        except ZsqError as error:
            self._fail(client, request, error.code, error.text)

    def _holder(self, client: bytes, key: str) -> str:
        """Return the user of a client, or its link if the client shows no user."""
        name = self.doors.principal(key).name if self.doors.closed else ""
        return f"user {name}" if name not in ("", ANONYMOUS) else f"link {client.hex()}"

    def _send_questions(self) -> None:
        """Send the requests whose turn it is."""
        now_ns = time.monotonic_ns()
        port = self.actors.get(self.given.supervisor)
        while port is not None and (turn := self.questions.next(now_ns)) is not None:
            ticket, (frame, message, key) = turn
            try:
                # The rules may have changed while the request waited.
                policy.check_message(self.doors.principal(key), message)
            except ZsqError as error:
                for client, request in self.questions.answered(ticket):
                    self._fail(client, request, error.code, error.text)
                continue
            if not port.send_frames([b"%d" % ticket, b"", frame]):
                for asker in self.questions.answered(ticket):
                    self._end_link(asker.client)
        while (turn := self.lookups.next(now_ns)) is not None:
            ticket, (opening,) = turn
            self._opens[ticket] = opening
            if not self.asking.send((), replace(opening.lookup, request=ticket)):
                self.lookups.answered(ticket)
                del self._opens[ticket]
                text = "the broker takes no more requests now; try again"
                self._fail(opening.client, opening.asked.request, E_LIMIT, text)

    def _look(self, client: bytes, link: _ClientLink, frames: list[Any]) -> bool:
        """Return True if this protocol message may be forwarded.

        Orders get the name of their user here, because only the gateway knows it.
        """
        message: p.Wire | None = None
        try:
            message = decode(frames[2].buffer)
            if isinstance(message, p.OpenStage):
                self.owners.opened(client, (link.route, message.stage), link.key)
                return True
            policy.check_message(self.doors.principal(link.key), message)
            if isinstance(message, (p.Manage, p.Lookup)):
                frames[2] = encode(replace(message, by=self._by(link.key, frames[2])))
        except ZsqError as error:
            self._fail(client, request_of(frames[2].buffer), error.code, error.text)
            self._complain(error, frames[2])
            return False
        return True

    def _may_address(self, client: bytes, link: _ClientLink, frames: list[Any]) -> bool:
        """Return True if the block has no messages for one channel, or the client may send them.

        Otherwise the client gets the answer that the topic would give.
        """
        if not self.doors.closed or len(frames) < 4 or not is_addressed(frames[3].buffer):
            return True
        try:
            policy.check_address(self.doors.principal(link.key), link.opened.topic)
        except ZsqError as error:
            with contextlib.suppress(ZsqError):
                sequence = decode_header(frames[3].buffer).sequence
                self.front.send((client,), p.Unstored(sequence, -1, error.code, error.text))
            self._complain(error, frames[2])
            return False
        return True

    def _by(self, key: str, frame: Any) -> dict[str, str]:
        return {
            "user": self.doors.principal(key).name,
            "from": self.doors.address(frame),
            "via": VIA,
        }

    def _forward_pushes(self) -> None:
        for _ in range(options.DRAIN_MAX):
            try:
                frames: list[Any] = self.pushes.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._worked = True
            route = self.routes.get(frames[0].bytes)
            if route is None or not self._may_push(frames) or not route.send(frames):
                self.pushes_dropped += 1

    def _may_push(self, frames: list[Any]) -> bool:
        """Return True if the pusher's user opened the stage, on a link that is still open."""
        if not self.doors.closed:
            return True
        try:
            message = decode(frames[2].buffer) if len(frames) == PUSH_FRAMES else None
        except UsageError:
            return False
        return isinstance(message, p.Push) and self.owners.permits(
            (frames[0].bytes, message.stage), self.doors.key(frames[2])
        )

    def _answer_questions(self, port: Port) -> None:
        """Send the answers of the supervisor to the clients that wait for them."""
        for _ in range(options.DRAIN_MAX):
            try:
                frames: list[Any] = port.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            self._worked = True
            ticket = int(frames[0].bytes)
            question = self.questions.asked(ticket)
            askers = self.questions.answered(ticket)
            principals = {
                asker.client: self.doors.principal(self.links[asker.client].key)
                for asker in askers
                if asker.client in self.links
            }
            message = None
            if self.doors.closed or len(askers) > 1:
                message = decode(frames[2].buffer)
            if self.doors.closed and principals and isinstance(message, p.Done):
                # All of them are clients of one user.
                principal = next(iter(principals.values()))
                kind = policy.kind_of(question[1])
                message = replace(message, data=policy.visible(message.data, principal, kind))
            for asker in askers:
                if asker.client not in self.links:
                    continue
                control = frames[2]
                if isinstance(message, p.Done | p.Failed | p.Spread):
                    control = encode(replace(message, request=asker.request))
                self._reply(asker.client, [asker.client, b"", control])
        self._send_questions()

    def _reply(self, client: bytes, frames: list[Any]) -> None:
        """Send an answer, which is counted, or end the link of a client that does not read."""
        frames = self.unread.counted(client, frames)
        if self.unread.full(client) or not self.front.send_frames(frames):
            self._drop(client)

    def _forward_out(self, port: Port) -> None:
        for _ in range(options.DRAIN_MAX):
            try:
                frames: list[Any] = port.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            # If the second frame is not empty, the first one is the user's label, and the second
            # one is the client's id.
            if len(frames) > 1 and len(frames[1]):
                del frames[0]
            client = frames[0].bytes
            link = self.links.get(client)
            if link is None or link.port is not port:
                continue  # the link has ended
            if link.kind == "reader":
                frames = self.unread.counted(client, frames)
            elif link.kind == "channel":
                frames = self.unread.counted(client, frames, DELIVERY_COUNTED_BYTES_MIN)
            if self.unread.full(client) or not self.front.send_frames(frames):
                # The client is gone or does not read. If it is a consumer, its messages go to other
                # consumers at once.
                self._drop(client)

    def _open(self, client: bytes, control: Any, key: str) -> None:
        try:
            message = decode(control.bytes)
            if not isinstance(message, p.Open):
                raise UsageError(E_BAD_COMMAND, "the first message of a link must be Open")
            self.ends.note((client,), descriptor_of(control))
            if message.kind not in ALLOWED:
                raise UsageError(
                    E_BAD_COMMAND,
                    f"link kind must be one of {', '.join(ALLOWED)}, not {message.kind!r}",
                )
            if self.doors.chose_its_name(client, control):
                raise UsageError(E_BAD_COMMAND, "a client must not set its own routing id")
            principal = self.doors.principal(key)
            policy.check_open(principal, message)
            if message.kind == "stage":
                p.check_stage_topic(message.topic)
            if self.unread.full(client):
                raise ZsqError(
                    E_LIMIT,
                    "this client has too many unread replies; read them, then open a new link",
                )
            if len(self.links) >= LINKS_MAX:
                raise ZsqError(
                    E_LIMIT,
                    (
                        f"this gateway has {LINKS_MAX} links already, which is the limit; close "
                        "some and try again"
                    ),
                )
            if message.kind == "supervisor":
                self._attach(client, message, key, self.given.supervisor, {})
                return
            channel = message.channel if message.kind == "channel" else ""
            create = message.create and principal.may(Action.CREATE, message.topic, channel)
            by = self._by(key, control) | {"create": policy.first_use(principal, message.topic)}
            lookup = p.Lookup(
                0, message.topic, channel, create, message.settings, by, message.is_back
            )
            self.lookups.ask(
                self._holder(client, key),
                WaitingClient(client, message.request),
                (_Opening(client, message, key, lookup, descriptor_of(control)),),
                len(encode(lookup)),
            )
        except ZsqError as error:
            self._fail(client, 0, error.code, error.text)
            self._complain(error, control)

    def _complain(self, error: ZsqError, frame: Any) -> None:
        if error.code in (E_FORBIDDEN, E_TOO_BIG):
            text = error.text[:_COMPLAINT_CHARS]
            self.doors.complaints.add("%s: %s", self.doors.address(frame), text)

    def _attach(
        self, client: bytes, message: p.Open, key: str, endpoint: str, data: dict[str, Any],
        descriptor: int = -1,
    ) -> None:  # fmt: skip
        port = self.actors.get(endpoint)
        if port is None:
            with _files_needed():
                port = self.open_dealer(endpoint, self._routing_id())
            self.actors[endpoint] = port
        # If a client on the same machine knows the run directory, it connects to the actors
        # directly. With access control it must not, because only the gateway checks permissions.
        if not self.doors.closed:
            data |= self.run_directory
        self.links[client] = _ClientLink(
            message,
            endpoint,
            port,
            key,
            data.get("route", b""),
            self._envelope(client, message.kind, key),
            descriptor,
        )
        self._seen[client] = time.monotonic_ns()
        if message.kind == "topic":
            self._moved[client] = bytes_moved(descriptor).received
        if not self.front.send((client,), p.Done(message.request, data)):
            self._drop(client)

    def _envelope(self, client: bytes, kind: str, key: str) -> tuple[bytes, ...]:
        """Return the envelope that the gateway adds to the link's protocol messages.

        Stages and transactions belong to users, so on the link of a stage it also names the user.
        """
        return (
            (user_label(self.doors.principal(key).name), client)
            if kind == "stage" and self.doors.closed
            else (client,)
        )

    def _route(self, endpoint: str) -> bytes:
        """Return the name that pushes to this storage carry in their first frame.

        After a restart of the topic, its storage has another name. So pushes for the old one are
        dropped.
        """
        name = endpoint.rpartition("/")[2].encode()
        if name not in self.routes:
            with _files_needed():
                port = Port(self.context, zmq.PUSH, mark=options.PUSH_GATEWAY_MARK)
            port.socket.connect(endpoint)
            self.routes[name] = PushRoute(endpoint, port)
        return name

    def on_done(self, port: Port, mail: Mail, message: p.Done) -> None:
        opening = self._opened(message.request)
        if opening is None:
            return
        client, opened, key, _, descriptor = opening
        data: dict[str, Any] = {name: message.data[name] for name in _TOLD if name in message.data}
        try:
            if opened.kind == "stage":
                data |= {"push_port": self.push_port, "route": self._route(message.data["push"])}
            self._attach(client, opened, key, message.data[opened.kind], data, descriptor)
        except Refused as error:
            self._fail(client, opened.request, error.code, error.text)

    def _answered(self, ticket: int) -> _Opening | None:
        """Forget a lookup, and send what waits for its answer."""
        self.lookups.answered(ticket)
        self._send_questions()
        return self._opens.pop(ticket, None)

    def on_spread(self, port: Port, mail: Mail, message: p.Spread) -> None:
        """Tell the client where the parts of the topic are."""
        opening = self._opened(message.request)
        if opening is not None:
            self.front.send((opening.client,), replace(message, request=opening.asked.request))

    def _opened(self, ticket: int) -> _Opening | None:
        """Return the Open that was answered, if its client may still open the link.

        If the rules have changed since Open, it is refused here.
        """
        opening = self._answered(ticket)
        if opening is not None:
            try:
                policy.check_open(self.doors.principal(opening.key), opening.asked)
            except ZsqError as error:
                self._fail(opening.client, opening.asked.request, error.code, error.text)
                return None
        return opening

    def on_failed(self, port: Port, mail: Mail, message: p.Failed) -> None:
        opening = self._answered(message.request)
        if opening is None:
            return
        opened, code, text = opening.asked, message.code, message.text
        lookup = opening.lookup
        was_permitted = lookup.create and lookup.by.get("create") == policy.TOPIC_TOO
        if (
            code == E_NOT_FOUND
            and opened.create
            and not was_permitted
            and part_of(opened.topic) is None
        ):
            code, text = E_FORBIDDEN, f"{text}, and {policy.NOT_CREATED}"
        self._fail(opening.client, opened.request, code, text)

    def _fail(self, client: bytes, request: int, code: str, text: str) -> None:
        self.front.send((client,), p.Failed(request, code, text))

    def _forget_link(self, client: bytes) -> _ClientLink | None:
        self.owners.ended(client)
        self.questions.left(client)
        self._seen.pop(client, None)
        self._moved.pop(client, None)
        return self.links.pop(client, None)

    def _drop(self, client: bytes, *, is_lost: bool = True) -> None:
        """Forget the link and tell its actor that the client is gone."""
        link = self._forget_link(client)
        if link is not None and link.kind != "supervisor":
            link.port.send(link.envelope, p.Bye(is_lost))

    def _end_link(self, client: bytes) -> None:
        if self._forget_link(client) is not None:
            self.front.send_frames([client, b"", encode(p.Bye())])

    def take_rules(self, order: p.ReloadGateway) -> None:
        """Load new rules, and end the links that they no longer permit."""
        self.doors.reload(order.access_file)
        for client, link in list(self.links.items()):
            try:
                policy.check_open(self.doors.principal(link.key), link.opened)
            except ZsqError as error:
                self._fail(client, 0, error.code, error.text)
                self._drop(client, is_lost=False)
                continue
            # The key belongs to another user now.
            if link.envelope != self._envelope(client, link.kind, link.key):
                self._drop(client, is_lost=False)
                self.front.send((client,), p.Bye())

    def on_gone(self, who: str) -> None:
        """End the links to an actor that died, so that its clients look for the successor."""
        port = self.actors.pop(who, None)
        if port is not None:
            self.close_port(port)
        for name in [name for name, route in self.routes.items() if route.endpoint == who]:
            self.routes.pop(name).port.close()
        for client in [client for client, link in self.links.items() if link.endpoint == who]:
            self._end_link(client)

    def _forget(self) -> None:
        self.unread.settle()
        now_ns = time.monotonic_ns()
        self.questions.expire(now_ns)
        for ticket in self.lookups.expire(now_ns):
            del self._opens[ticket]
        self._send_questions()
        for route in self.routes.values():
            route.relax()
        limit = time.monotonic_ns() - _SILENT_NS
        for client in [client for client, seen_ns in self._seen.items() if seen_ns < limit]:
            self._drop(client)

    def _look_for_moves(self) -> None:
        """Send a heartbeat for each producer that is silent while its bytes arrive.

        Only what comes from it counts. The system of a program that is stopped acknowledges what
        it gets.
        """
        now_ns = time.monotonic_ns()
        for client, before in list(self._moved.items()):
            if now_ns - self._seen[client] < MOVES_LOOK_MS * 1_000_000:
                continue
            link = self.links[client]
            self._moved[client] = bytes_moved(link.descriptor).received
            if self._moved[client] > before:
                self._seen[client] = now_ns
                link.port.send(link.envelope, p.Beat())

    def on_stop(self) -> bool:
        for client in list(self.links):
            self._end_link(client)
        waiting = [opening for (opening,) in self.lookups.waiting()]
        for client, opened, *_ in (*self._opens.values(), *waiting):
            self._fail(client, opened.request, E_UNREACHABLE, "the gateway is stopping")
        for route in self.routes.values():
            route.port.close()
        return True

    def statistics(self) -> dict[str, int]:
        dropped, refused = self.pushes_dropped, self.doors.complaints.count
        return {
            "links": len(self.links),
            "actors": len(self.actors),
            "pushes_dropped": dropped,
            "clients_refused": refused,
        }
