"""The ZeroMQ gateway: links of clients elsewhere, forwarded to the actors without looking into blocks.

A link begins with Open; what follows is passed on as it came, with the client's routing id as one more part of the
envelope, so the actors see each client apart. Only words that a client may say are let through (by their opcode: one
byte of the control frame); the inner words of actors are not to be had from outside.

PUSH writers have no link: their blocks come in at a port of their own and name, in one frame before all else, the storage
that they are for. Nothing waits for one that does not take more: the block is dropped, and the writer learns of the gap on its link.

Who a client is, and so what it may do, says its key (`doors.py`): when it opens a link, with each order, and again when the rules change.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, cast

import zmq

from ..transport import protocol as p
from ..transport.codec import decode, encode
from ..transport.errors import E_BAD_COMMAND, E_FORBIDDEN, E_HELLO, E_LIMIT, E_UNREACHABLE, UsageError, ZsqError
from . import options, permissions, zap
from .access import AccessError, User
from .actor import Actor, StartFailed
from .doors import Doors
from .port import Mail, Port
from .security_options import SecurityOptions
from .seen import seen
from .stage_owners import StageOwners
from .unread import Unread

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
_SILENT_NS: Final = 3 * p.HEARTBEAT_MS_MAX * 1_000_000  # a link without a word for so long is forgotten


class _Link(NamedTuple):
    opened: p.Open
    endpoint: str
    port: Port
    key: str  # whose it is
    route: bytes  # of a stage's link: that of its pushes

    @property
    def kind(self) -> str:
        return self.opened.kind


class Route:
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


class Gateway(Actor):
    """Settings: listen and push ("host:port"), supervisor (endpoint), security (`SecurityOptions`)."""

    sockets_max = options.SOCKETS_MAX

    def on_start(self) -> dict[str, Any]:
        try:
            self.doors = Doors(self.settings.get("security") or SecurityOptions())
        except (AccessError, UsageError) as error:
            raise StartFailed(str(error)) from None
        self.zap: Port | None = None
        if self.doors.encrypts:
            self.zap = Port(self.context, zmq.ROUTER)
            self.zap.socket.bind(zap.ENDPOINT)  # before anybody can connect
            self._listen(self.zap)
        self.owners = StageOwners()
        self.unread = Unread()
        listen = self.settings["listen"]
        self.front = self._bind(Port(self.context, zmq.ROUTER), listen, "--listen")
        self.pushes = self._bind(Port(self.context, zmq.PULL, mark=options.PUSH_MARK), self.settings["push"], "--listen-push")
        self.push_port = int(self.pushes.socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
        self.routes: dict[bytes, Route] = {}
        self.pushes_dropped = 0
        self.actors: dict[str, Port] = {}  # endpoint -> our dealer there
        self.links: dict[bytes, _Link] = {}
        self._seen: dict[bytes, int] = {}
        self._opens: dict[int, tuple[bytes, p.Open, str]] = {}
        self._request = 0
        self.asking = self.open_dealer(self.settings["supervisor"])
        self.every(30_000, self._forget)
        return {"endpoint": self.front.socket.getsockopt_string(zmq.LAST_ENDPOINT), "push_port": self.push_port}

    def _bind(self, port: Port, listen: str, option: str) -> Port:
        port.socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        port.socket.setsockopt(zmq.BACKLOG, 1_024)
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
                if not link.port.send_frames(frames):
                    self._end_link(client)
                elif op == p.Bye.op:
                    self._forget_link(client)

    def _look(self, client: bytes, link: _Link, frames: list[Any]) -> bool:
        """Whether this word may pass. Who says it is put into an order here: nobody else knows."""
        word: p.Wire | None = None
        try:
            word = decode(frames[2].buffer)
            if isinstance(word, p.OpenStage):
                self.owners.opened(client, (link.route, word.stage), link.key)
                return True
            user = self.doors.user(link.key)
            permissions.check_word(user, word)
        except ZsqError as error:
            self._fail(client, getattr(word, "request", 0), error.code, error.text)
            self._complain(error, frames[2])
            return False
        if isinstance(word, (p.Manage, p.Lookup)):
            frames[2] = encode(replace(word, by=self._by(link.key, frames[2])))
        return True

    def _by(self, key: str, frame: Any) -> dict[str, str]:
        return {"user": self.doors.user(key).name, "from": self.doors.address(frame), "via": VIA}

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
            word = decode(frames[2].buffer) if len(frames) == PUSH_FRAMES else None
        except UsageError:
            return False
        return isinstance(word, p.Push) and self.owners.permits((frames[0].bytes, word.stage), self.doors.key(frames[2]))

    def _forward_out(self, port: Port) -> None:
        for _ in range(options.DRAIN_MAX):
            try:
                frames: list[Any] = port.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            client = frames[0].bytes
            link = self.links.get(client)
            if link is None or link.port is not port:
                continue  # to a link that ended meanwhile
            if self.doors.closed and link.kind == "supervisor":
                frames[2] = self._only_seen(frames[2], self.doors.user(link.key))
            if link.kind in _ASKING:
                frames = self.unread.counted(client, frames)
            if self.unread.full(client) or not self.front.send_frames(frames):
                self._drop(client)  # the client is gone or stuck: its consumer's messages go to others at once

    def _only_seen(self, control: Any, user: User) -> Any:
        word = decode(control.buffer)
        return encode(p.Done(word.request, seen(word.data, user))) if isinstance(word, p.Done) else control

    def _open(self, client: bytes, control: Any, key: str) -> None:
        try:
            word = decode(control.bytes)
            if not isinstance(word, p.Open):
                raise UsageError(E_BAD_COMMAND, "a link begins with Open")
            if word.kind not in ALLOWED:
                raise UsageError(E_BAD_COMMAND, f"there is no link of kind {word.kind!r}, only {', '.join(ALLOWED)}")
            if self.doors.chose_its_name(client, control):
                raise UsageError(E_BAD_COMMAND, "a client does not choose its routing id")
            self._check_open(word, key)
            if word.kind == "stage":
                p.check_stage_topic(word.topic)
            if self.unread.full(client):
                raise ZsqError(E_LIMIT, "this client does not read what it asked for")
            if len(self.links) >= LINKS_MAX:
                raise ZsqError(E_LIMIT, f"this gateway has {LINKS_MAX} links already")
            if word.kind == "supervisor":
                self._attach(client, word, key, self.settings["supervisor"], {})
                return
            channel = word.channel if word.kind == "channel" else ""
            asked = p.Lookup(self._request + 1, word.topic, channel, word.create, word.settings, self._by(key, control))
            if len(self._opens) >= LINKS_MAX or not self.asking.send((), asked):
                raise ZsqError(E_LIMIT, "too many links are being opened")
        except ZsqError as error:
            self._fail(client, 0, error.code, error.text)
            self._complain(error, control)
            return
        self._request += 1
        self._opens[self._request] = (client, word, key)

    def _complain(self, error: ZsqError, frame: Any) -> None:
        if error.code == E_FORBIDDEN:
            self.doors.complain(f"{self.doors.address(frame)}: {error.text}")

    def _check_open(self, word: p.Open, key: str) -> None:
        permissions.check_open(self.doors.user(key), word.kind, word.topic, word.channel, word.settings)

    def _attach(self, client: bytes, word: p.Open, key: str, endpoint: str, data: dict[str, Any]) -> None:
        port = self.actors.get(endpoint)
        if port is None:
            port = self.actors[endpoint] = self.open_dealer(endpoint, self._routing_id())
        self.links[client] = _Link(word, endpoint, port, key, data.get("route", b""))
        self._seen[client] = time.monotonic_ns()
        self.front.send((client,), p.Done(word.request, data))

    def _route(self, endpoint: str) -> bytes:
        """The name that pushes to this storage bear: of this one life of it, so that what is meant for its predecessor leads nowhere."""
        name = endpoint.rpartition("/")[2].encode()
        if name not in self.routes:
            port = Port(self.context, zmq.PUSH, mark=options.PUSH_GATEWAY_MARK)
            port.socket.connect(endpoint)
            self.routes[name] = Route(endpoint, port)
        return name

    def on_done_word(self, port: Port, mail: Mail) -> None:
        word = cast("p.Done", mail.word)
        client, asked, key = self._opens.pop(word.request, (b"", None, ""))
        if asked is None:
            return
        try:
            self._check_open(asked, key)  # the rules may have changed meanwhile
        except ZsqError as error:
            self._fail(client, asked.request, error.code, error.text)
            return
        data: dict[str, Any] = {"uuid": word.data["uuid"]}
        if asked.kind == "stage":
            data |= {"push_port": self.push_port, "route": self._route(word.data["push"])}
        self._attach(client, asked, key, word.data[asked.kind], data)

    def on_failed_word(self, port: Port, mail: Mail) -> None:
        word = cast("p.Failed", mail.word)
        client, asked, _ = self._opens.pop(word.request, (b"", None, ""))
        if asked is not None:
            self._fail(client, asked.request, word.code, word.text)

    def _fail(self, client: bytes, request: int, code: str, text: str) -> None:
        self.front.send((client,), p.Failed(request, code, text))

    def _forget_link(self, client: bytes) -> _Link | None:
        self.owners.ended(client)
        self._seen.pop(client, None)
        return self.links.pop(client, None)

    def _drop(self, client: bytes) -> None:
        """The other end hears that its client is gone."""
        link = self._forget_link(client)
        if link is not None:
            link.port.send((client,), p.Bye())

    def _end_link(self, client: bytes) -> None:
        if self._forget_link(client) is not None:
            self.front.send_frames([client, b"", encode(p.Bye())])

    def on_reload(self, told: dict[str, Any]) -> None:
        """New rules: what they do not permit any more ends now."""
        self.doors.reload(told["access_file"])
        for client, link in list(self.links.items()):
            try:
                self._check_open(link.opened, link.key)
            except ZsqError as error:
                self._fail(client, 0, error.code, error.text)
                self._drop(client)

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

    def statistics(self) -> dict[str, Any]:
        dropped, refused = self.pushes_dropped, self.doors.refused
        return {"links": len(self.links), "actors": len(self.actors), "pushes_dropped": dropped, "clients_refused": refused}
