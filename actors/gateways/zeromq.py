"""The ZeroMQ gateway: links of clients elsewhere, forwarded to the actors without looking into blocks.

A link begins with Open; what follows is passed on as it came, with the client's routing id as one more part of the
envelope, so the actors see each client apart. Only words that a client may say are let through (by their opcode: one
byte of the control frame); the inner words of actors are not to be had from outside.

PUSH writers have no link: their blocks come in at a port of their own and name, in one frame before all else, the storage
that they are for. Nothing waits for one that does not take more: the block is dropped, and the writer learns of the gap on its link.

Who a client is, and so what it may do, says its key (`curve.py`): when it opens a link, with each order, and again when the rules change.

Who opened which stage: pushes are anonymous by their form, and taken only from the user that opened the stage they name. Pure.

A stage is known from OpenStage, which is said on a link, until that link ends; whoever goes on with it says OpenStage again.

How much of what was sent to a peer still waits in its pipe: what a client asks for and does not read shall not fill the memory.

ZeroMQ counts messages, and 20,000 answers of a megabyte are 20 GB. Nobody tells how full a pipe is, but a frame that is sent without a
copy says when libzmq has let go of it: it went to the kernel, or the peer is gone. So answers of some size go out as such frames and are
counted. Small ones are not worth it: the mark bounds them. Consumers and producers have credit, which bounds each of them; what is sent to
consumers in large frames is counted too, because thousands of consumers have thousands of credits.

There is one bound for each client, and a budget for all of them. Nobody's pipe can be emptied from here, so over the budget nothing more is
sent to a client that holds more than an equal share. Those who read hold little, and go on. What a client that never reads holds is given
back when the system ends its connection (`gateway.py`, TCP_MAXRT).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import zmq

from ...transport.errors import E_BAD_COMMAND, E_FORBIDDEN, E_HELLO, E_LIMIT, E_NOT_FOUND, E_TOO_BIG, E_UNREACHABLE, UsageError, ZsqError
from ...transport.wire import protocol as p
from ...transport.wire.codec import decode, encode
from ..runtime.actor import Actor, StartFailed
from ..runtime.port import Mail, Port, user_label
from ..runtime.process import memory_bytes
from ..security import policy
from ..security.access import AccessError
from ..security.curve import ZAP_ENDPOINT, CurveAuthentication
from ..settings import options
from ..settings.starts import ZeroMqStart

Place = tuple[bytes, bytes]  # route, stage


class StageOwners:
    def __init__(self) -> None:
        self._owners: dict[Place, tuple[str, int]] = {}  # the user's key, and on how many links it is open
        self._of_links: dict[bytes, set[Place]] = {}

    def opened(self, client: bytes, place: Place, key: str) -> None:
        """A link has a bounded number of stages. Storage refuses what is over it, and so nothing for it is to be let in."""
        of_link = self._of_links.setdefault(client, set())
        if place in of_link or len(of_link) >= options.STAGES_PER_LINK_MAX:
            return
        owner, links = self._owners.get(place, (key, 0))
        if owner == key:
            of_link.add(place)
            self._owners[place] = key, links + 1

    def ended(self, client: bytes) -> None:
        for place in self._of_links.pop(client, ()):
            key, links = self._owners.pop(place)
            if links > 1:
                self._owners[place] = key, links - 1

    def permits(self, place: Place, key: str) -> bool:
        found = self._owners.get(place)
        return found is not None and found[0] == key

    def __len__(self) -> int:
        return len(self._owners)


COUNTED_BYTES_MIN: Final = 4 * 1024
DELIVERY_COUNTED_BYTES_MIN: Final = 32 * 1024  # to count a frame takes some 10 microseconds
UNREAD_BYTES_MAX: Final = 64 * 1024 * 1024
SETTLE_NS: Final = 50_000_000  # over the budget it is found out so often who has read meanwhile
SHARE_OF_MEMORY: Final = 4  # the budget of all is a quarter,
BUDGET_BYTES_MIN: Final = 256 * 1024 * 1024
BUDGET_BYTES_MAX: Final = 4 * 1024 * 1024 * 1024


def budget_bytes() -> int:
    """For all clients of a gateway, by the machine's memory."""
    return min(max(memory_bytes() // SHARE_OF_MEMORY, BUDGET_BYTES_MIN), BUDGET_BYTES_MAX)


class Unread:
    """`budget`: bytes for all clients."""

    def __init__(self, budget: int = BUDGET_BYTES_MAX) -> None:
        self._budget = budget
        self._settled_ns = 0
        self.total = 0
        self._held: dict[bytes, deque[tuple[zmq.MessageTracker, int]]] = {}
        self._bytes: dict[bytes, int] = {}

    def bytes_of(self, client: bytes) -> int:
        held = self._held.get(client)
        if held is None:
            return 0
        while held and held[0][0].done:  # a pipe lets go in the order in which it was filled
            size = held.popleft()[1]
            self._bytes[client] -= size
            self.total -= size
        if held:
            return self._bytes[client]
        del self._held[client], self._bytes[client]
        return 0

    def full(self, client: bytes) -> bool:
        """Return True if nothing more is to be sent to it."""
        mine = self.bytes_of(client)
        return mine > UNREAD_BYTES_MAX or (mine > 0 and self._over() and mine > self._budget // len(self._held))

    def _over(self) -> bool:
        if self.total <= self._budget:
            return False
        now_ns = time.monotonic_ns()
        if now_ns - self._settled_ns >= SETTLE_NS:
            self._settled_ns = now_ns
            self.settle()
        return self.total > self._budget

    def counted(self, client: bytes, frames: Sequence[Any], least: int = COUNTED_BYTES_MIN) -> list[Any]:
        """The same frames, as they are to be sent; those of at least so many bytes are counted."""
        return [self._counted(client, frame) if len(frame) >= least else frame for frame in frames]

    def _counted(self, client: bytes, frame: Any) -> Any:
        made = zmq.Frame(getattr(frame, "buffer", frame), track=True, copy=False)
        assert made.tracker is not None
        self._held.setdefault(client, deque()).append((made.tracker, len(made)))
        self._bytes[client] = self._bytes.get(client, 0) + len(made)
        self.total += len(made)
        return made

    def settle(self) -> None:
        """Now and then: forget who has read all."""
        for client in list(self._held):
            self.bytes_of(client)


ALLOWED: Final[dict[str, frozenset[int]]] = {
    "supervisor": frozenset(w.op for w in (p.Lookup, p.Manage, p.Stats, p.Beat, p.Bye)),
    "topic": frozenset(w.op for w in (p.Hello, p.Pub, p.PubDelayed, p.Beat, p.Bye)),
    "reader": frozenset(w.op for w in (p.Fetch, p.OffsetAt, p.Measure, p.Beat, p.Bye)),
    "stage": frozenset(w.op for w in (p.OpenStage, p.Seal, p.Commit, p.Abort, p.Beat, p.Bye)),
    "channel": frozenset(w.op for w in (p.Sub, p.Ready, p.Fin, p.Req, p.Touch, p.Beat, p.Bye)),
}
_ASKING: Final = frozenset({"supervisor", "reader"})  # links without credit: as many answers as there are questions
_LOOKED_AT: Final = frozenset(w.op for w in (p.Lookup, p.Manage, p.Stats, p.OpenStage))  # rare ones; the others are passed on unread
VIA: Final = "zeromq"  # in the audit log
PUSH_FRAMES: Final = 5  # route, empty, control, header, columns
LINKS_MAX: Final = 10_000
_COMPLAINT_CHARS: Final = 500
_SILENT_NS: Final = 3 * p.HEARTBEAT_MS_MAX * 1_000_000  # a link without a word for so long is forgotten
_TOLD: Final = ("uuid", "node", "message_bytes", "settings")  # of the answer to Lookup, to a client


class _ClientLink(NamedTuple):
    opened: p.Open
    endpoint: str
    port: Port
    key: str  # whose it is
    route: bytes  # of a stage's link: that of its pushes
    envelope: tuple[bytes, ...]  # by which its actor knows it: the client, behind the user's label for a stage's link

    @property
    def kind(self) -> str:
        return self.opened.kind


class PushRoute:
    """Where the pushes for one storage go. ZeroMQ counts messages, memory bytes: so its mark follows the largest block of late."""

    def __init__(self, endpoint: str, port: Port) -> None:
        self.endpoint = endpoint
        self.port = port
        self._largest = 0

    def send(self, frames: Sequence[Any]) -> bool:
        """False: there is no room, or it is no whole push."""
        if len(frames) != PUSH_FRAMES:
            return False
        size = len(frames[-1])
        if size > self._largest:
            self._set(size)
        return self.port.send_frames(frames)

    def relax(self) -> None:
        """Now and then: smaller blocks may come now."""
        self._set(0)

    def _set(self, largest: int) -> None:
        self._largest = largest
        fitting = options.PUSH_GATEWAY_BYTES // max(1, largest)
        mark = min(options.PUSH_GATEWAY_MARK, max(options.PUSH_GATEWAY_MARK_MIN, fitting))
        self.port.socket.setsockopt(zmq.SNDHWM, mark)


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
            self.zap.socket.bind(ZAP_ENDPOINT)  # before anybody can connect
            self._listen(self.zap)
        self.owners = StageOwners()
        self.unread = Unread(budget_bytes())
        listen = self.given.listen
        self.front = self._bind(Port(self.context, zmq.ROUTER), listen, "--listen")
        self.pushes = self._bind(Port(self.context, zmq.PULL, mark=options.PUSH_MARK), self.given.push, "--listen-push")
        self.push_port = int(self.pushes.socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
        self.routes: dict[bytes, PushRoute] = {}
        self.pushes_dropped = 0
        self.actors: dict[str, Port] = {}  # endpoint -> our dealer there
        self.links: dict[bytes, _ClientLink] = {}
        self._seen: dict[bytes, int] = {}
        self._opens: dict[int, tuple[bytes, p.Open, str]] = {}
        self._request = 0
        self.asking = self.open_dealer(self.given.supervisor, f"asking-{self.key}".encode())
        self.asking.route(p.Done, self.on_done)
        self.asking.route(p.Failed, self.on_failed)
        self.every(30_000, self._forget)
        self.obey_reload(p.ReloadGateway, self.take_rules)
        return {"endpoint": self.front.socket.getsockopt_string(zmq.LAST_ENDPOINT), "push_port": self.push_port}

    def _bind(self, port: Port, listen: str, option: str) -> Port:
        port.socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        port.socket.setsockopt(zmq.BACKLOG, 1_024)
        port.socket.setsockopt(
            zmq.TCP_MAXRT, _SILENT_NS // 1_000_000
        )  # who takes nothing for so long loses the connection, and what waits in it
        self.doors.guard(port)
        try:
            port.socket.bind(f"tcp://{listen}")
        except zmq.ZMQError as error:
            reason = zmq.strerror(error.errno or 0)
            raise StartFailed(f"cannot listen on tcp://{listen}: {reason}; is another broker running? choose another {option}") from None
        return self._listen(port)

    def _routing_id(self) -> bytes:
        return f"gateway-{self.key}".encode()

    def _drain(self, port: Port) -> None:
        """Forward without decoding; only Open is for the gateway itself."""
        if port is self.front:
            self._forward_in()
        elif port is self.pushes:
            self._forward_pushes()
        elif port is self.zap:
            self.doors.answer(port)
        elif port is self.supervisor or port is self.asking:
            super()._drain(port)
        else:
            self._forward_out(port)

    def _forward_in(self) -> None:
        for _ in range(options.DRAIN_MAX):
            try:
                frames: list[Any] = self.front.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._worked = True
            client = frames[0].bytes
            if len(frames) < 3 or len(frames) > p.FRAMES_MAX or len(frames[1]):
                continue
            control = frames[2].buffer
            op = control[1] if len(control) > 1 else 0
            link, key = self.links.get(client), self.doors.key(frames[2])
            if link is not None and (link.key != key or op == p.Open.op):
                self._drop(client)  # whoever goes on under this routing id begins anew
                link = None
            if op == p.Open.op:
                self._open(client, frames[2], key)
            elif link is None:
                self._fail(client, 0, E_HELLO, "open a link first")
            elif op not in ALLOWED[link.kind]:
                self._fail(client, 0, E_BAD_COMMAND, f"a {link.kind} link does not take opcode {op}")
            else:
                self._seen[client] = time.monotonic_ns()
                if op in _LOOKED_AT and not self._look(client, link, frames):
                    continue
                if not link.port.send_frames([*link.envelope, *frames[1:]]):
                    self._end_link(client)
                elif op == p.Bye.op:
                    self._forget_link(client)

    def _look(self, client: bytes, link: _ClientLink, frames: list[Any]) -> bool:
        """Whether this word may pass. Who says it is put into an order here: nobody else knows."""
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
            self._fail(client, getattr(message, "request", 0), error.code, error.text)
            self._complain(error, frames[2])
            return False
        return True

    def _by(self, key: str, frame: Any) -> dict[str, str]:
        return {"user": self.doors.principal(key).name, "from": self.doors.address(frame), "via": VIA}

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
        """Whether the stage was opened by who pushes to it, on a link that is open."""
        if not self.doors.closed:
            return True
        try:
            message = decode(frames[2].buffer) if len(frames) == PUSH_FRAMES else None
        except UsageError:
            return False
        return isinstance(message, p.Push) and self.owners.permits((frames[0].bytes, message.stage), self.doors.key(frames[2]))

    def _forward_out(self, port: Port) -> None:
        for _ in range(options.DRAIN_MAX):
            try:
                frames: list[Any] = port.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            if len(frames) > 1 and len(frames[1]):  # a label is before the client: the envelope ends with an empty frame
                del frames[0]
            client = frames[0].bytes
            link = self.links.get(client)
            if link is None or link.port is not port:
                continue  # to a link that ended meanwhile
            if self.doors.closed and link.kind == "supervisor":
                frames[2] = self._only_visible(frames[2], self.doors.principal(link.key))
            if link.kind in _ASKING:
                frames = self.unread.counted(client, frames)
            elif link.kind == "channel":
                frames = self.unread.counted(client, frames, DELIVERY_COUNTED_BYTES_MIN)
            if self.unread.full(client) or not self.front.send_frames(frames):
                self._drop(client)  # the client is gone or stuck: its consumer's messages go to others at once

    def _only_visible(self, control: Any, principal: policy.Principal) -> Any:
        message = decode(control.buffer)
        return encode(p.Done(message.request, policy.visible(message.data, principal))) if isinstance(message, p.Done) else control

    def _open(self, client: bytes, control: Any, key: str) -> None:
        try:
            message = decode(control.bytes)
            if not isinstance(message, p.Open):
                raise UsageError(E_BAD_COMMAND, "a link begins with Open")
            if message.kind not in ALLOWED:
                raise UsageError(E_BAD_COMMAND, f"there is no link of kind {message.kind!r}, only {', '.join(ALLOWED)}")
            if self.doors.chose_its_name(client, control):
                raise UsageError(E_BAD_COMMAND, "a client does not choose its routing id")
            principal = self.doors.principal(key)
            policy.check_open(principal, message)
            if message.kind == "stage":
                p.check_stage_topic(message.topic)
            if self.unread.full(client):
                raise ZsqError(E_LIMIT, "this client does not read what it asked for")
            if len(self.links) >= LINKS_MAX:
                raise ZsqError(E_LIMIT, f"this gateway has {LINKS_MAX} links already")
            if message.kind == "supervisor":
                self._attach(client, message, key, self.given.supervisor, {})
                return
            channel = message.channel if message.kind == "channel" else ""
            create = message.create and principal.may(policy.Action.CREATE, message.topic, channel)
            by = self._by(key, control) | {"create": policy.first_use(principal, message.topic)}
            asked = p.Lookup(self._request + 1, message.topic, channel, create, message.settings, by)
            if len(self._opens) >= LINKS_MAX or not self.asking.send((), asked):
                raise ZsqError(E_LIMIT, "too many links are being opened")
        except ZsqError as error:
            self._fail(client, 0, error.code, error.text)
            self._complain(error, control)
            return
        self._request += 1
        self._opens[self._request] = (client, message, key)

    def _complain(self, error: ZsqError, frame: Any) -> None:
        if error.code in (E_FORBIDDEN, E_TOO_BIG):
            self.doors.complain(f"{self.doors.address(frame)}: {error.text[:_COMPLAINT_CHARS]}")

    def _attach(self, client: bytes, message: p.Open, key: str, endpoint: str, data: dict[str, Any]) -> None:
        port = self.actors.get(endpoint)
        if port is None:
            port = self.actors[endpoint] = self.open_dealer(endpoint, self._routing_id())
        self.links[client] = _ClientLink(message, endpoint, port, key, data.get("route", b""), self._envelope(client, message.kind, key))
        self._seen[client] = time.monotonic_ns()
        self.front.send((client,), p.Done(message.request, data))

    def _envelope(self, client: bytes, kind: str, key: str) -> tuple[bytes, ...]:
        """Stages and transactions belong to users, so storage is told with each word whose it is."""
        return (user_label(self.doors.principal(key).name), client) if kind == "stage" and self.doors.closed else (client,)

    def _route(self, endpoint: str) -> bytes:
        """The name that pushes to this storage bear: of this one life of it, so that what is meant for its predecessor leads nowhere."""
        name = endpoint.rpartition("/")[2].encode()
        if name not in self.routes:
            port = Port(self.context, zmq.PUSH, mark=options.PUSH_GATEWAY_MARK)
            port.socket.connect(endpoint)
            self.routes[name] = PushRoute(endpoint, port)
        return name

    def on_done(self, port: Port, mail: Mail, message: p.Done) -> None:
        client, asked, key = self._opens.pop(message.request, (b"", None, ""))
        if asked is None:
            return
        try:
            policy.check_open(self.doors.principal(key), asked)  # the rules may have changed meanwhile
        except ZsqError as error:
            self._fail(client, asked.request, error.code, error.text)
            return
        data: dict[str, Any] = {name: message.data[name] for name in _TOLD if name in message.data}
        if asked.kind == "stage":
            data |= {"push_port": self.push_port, "route": self._route(message.data["push"])}
        self._attach(client, asked, key, message.data[asked.kind], data)

    def on_failed(self, port: Port, mail: Mail, message: p.Failed) -> None:
        client, asked, _ = self._opens.pop(message.request, (b"", None, ""))
        if asked is None:
            return
        code, text = message.code, message.text
        if code == E_NOT_FOUND and asked.create:
            code, text = E_FORBIDDEN, f"{text}, and {policy.NOT_CREATED}"
        self._fail(client, asked.request, code, text)

    def _fail(self, client: bytes, request: int, code: str, text: str) -> None:
        self.front.send((client,), p.Failed(request, code, text))

    def _forget_link(self, client: bytes) -> _ClientLink | None:
        self.owners.ended(client)
        self._seen.pop(client, None)
        return self.links.pop(client, None)

    def _drop(self, client: bytes) -> None:
        """The other end hears that its client is gone."""
        link = self._forget_link(client)
        if link is not None:
            link.port.send(link.envelope, p.Bye())

    def _end_link(self, client: bytes) -> None:
        if self._forget_link(client) is not None:
            self.front.send_frames([client, b"", encode(p.Bye())])

    def take_rules(self, told: p.ReloadGateway) -> None:
        """New rules: what they do not permit any more ends now."""
        self.doors.reload(told.access_file)
        for client, link in list(self.links.items()):
            try:
                policy.check_open(self.doors.principal(link.key), link.opened)
            except ZsqError as error:
                self._fail(client, 0, error.code, error.text)
                self._drop(client)
                continue
            if link.envelope != self._envelope(client, link.kind, link.key):  # its key is another user's now
                self._drop(client)
                self.front.send((client,), p.Bye())

    def on_gone(self, who: str) -> None:
        """An actor died: its clients are told to look for the successor."""
        port = self.actors.pop(who, None)
        if port is not None:
            self.close_port(port)
        for name in [name for name, route in self.routes.items() if route.endpoint == who]:
            self.routes.pop(name).port.close()
        for client in [client for client, link in self.links.items() if link.endpoint == who]:
            self._end_link(client)

    def _forget(self) -> None:
        self.unread.settle()
        for route in self.routes.values():
            route.relax()
        limit = time.monotonic_ns() - _SILENT_NS
        for client in [client for client, seen_ns in self._seen.items() if seen_ns < limit]:
            self._drop(client)

    def on_stop(self) -> bool:
        for client in list(self.links):
            self._end_link(client)
        for client, asked, _ in self._opens.values():
            self._fail(client, asked.request, E_UNREACHABLE, "the gateway is stopping")
        for route in self.routes.values():
            route.port.close()
        return True

    def statistics(self) -> dict[str, int]:
        dropped, refused = self.pushes_dropped, self.doors.refused
        return {"links": len(self.links), "actors": len(self.actors), "pushes_dropped": dropped, "clients_refused": refused}
