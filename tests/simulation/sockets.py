"""Replacements for ZeroMQ's context, sockets, monitors and poller, on the simulated network.

They keep the properties of libzmq on which code can depend. A ROUTER with ROUTER_MANDATORY refuses
an unknown peer (EHOSTUNREACH) and a peer whose queue is full (EAGAIN). A message is sent and
arrives as a whole. The descriptor of a socket is *edge-triggered*: it signals only what happened
after the last call on the socket.
"""

from __future__ import annotations

import errno
import itertools
import struct
from collections import deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Final

import zmq

from .network import Connection, Message
from .world import MS, Process, the_world

FAKE_FD: Final = 1_000_000
_descriptors = itertools.count(FAKE_FD)
_EVENT: Final = struct.Struct("=HI")
_METADATA: Final = {"Identity": "", "Peer-Address": "10.0.0.1"}


class Frame:
    """A frame that was received or is to be sent, as `zmq.Frame`. A frame that was sent is released
    at once.
    """

    __slots__ = ("bytes", "descriptor", "more", "tracker")

    def __init__(
        self, data: Any = b"", more: bool = False, *, track: bool = False, copy: bool | None = None
    ) -> None:
        self.bytes = bytes(data)
        self.more = more
        self.descriptor = -1
        self.tracker = SimpleNamespace(done=True) if track else None

    @property
    def buffer(self) -> memoryview:
        return memoryview(self.bytes)

    def __len__(self) -> int:
        return len(self.bytes)

    def get(self, name: str | int) -> str | int:
        """Return what libzmq knows about the sender. In the simulation no peer has chosen a routing
        id or has a key.
        """
        if name == int(zmq.MessageOption.SRCFD):
            return self.descriptor
        if name not in _METADATA:
            raise zmq.ZMQError(errno.EINVAL)
        return _METADATA[name]


def _plain(frame: Any) -> bytes:
    return frame.bytes if isinstance(frame, Frame) else bytes(frame)


class Descriptor:
    """A number on which a process can wait, like a file descriptor."""

    def __init__(self, process: Process) -> None:
        self.fd = next(_descriptors)
        self.process = process
        DESCRIPTORS[self.fd] = self

    def readable(self) -> bool:
        return False

    def fileno(self) -> int:
        return self.fd


DESCRIPTORS: dict[int, Descriptor] = {}


def source_of(thing: Any) -> Any:
    """Return the simulated object behind a number, or None for a real descriptor."""
    return DESCRIPTORS.get(thing) if isinstance(thing, int) else thing


class Edge(Descriptor):
    """The descriptor of a socket."""

    def __init__(self, socket: SimSocket) -> None:
        super().__init__(socket.process)
        self.news = False

    def readable(self) -> bool:
        return self.news


class SimContext:
    """All sockets of a process. The simulated processes share one context, as they share one real
    process.
    """

    def __init__(self) -> None:
        self.closed = False
        self._sockets: list[SimSocket] = []

    def set(self, option: int, value: int) -> None:
        """Accept the limits of a real context, and ignore them."""

    def socket(self, kind: int) -> SimSocket:
        made = SimSocket(int(kind))
        self._sockets.append(made)
        return made

    def destroy(self, linger: int = 0) -> None:
        for socket in self._sockets:
            socket.close(linger)
        self.closed = True

    def term(self) -> None:
        self.closed = True


class SimSocket:
    """A ROUTER, DEALER, PULL or PUSH socket."""

    def __init__(self, kind: int) -> None:
        world = the_world()
        assert world.current is not None
        self.process = world.current.process
        self.process.sockets.append(self)
        self.network: Any = world.network
        self.kind = kind
        self.closed = False
        self.options: dict[int, Any] = {
            int(zmq.RECONNECT_IVL): 100,
            int(zmq.RECONNECT_IVL_MAX): 0,
            int(zmq.SNDHWM): 1000,
        }
        self.inbox: deque[tuple[int, Message]] = deque()  # (descriptor, message)
        # Used for a bound socket, or for a ROUTER that connected.
        self.peers: dict[bytes, Connection] = {}
        self.dialled: list[Connection] = []
        self.endpoints: list[str] = []
        self._parts: list[bytes] = []
        self._rest: deque[bytes] = deque()
        self._descriptor = -1
        self._next_id = b""
        self._names = 0
        self._monitor: Monitor | None = None
        self._edge: Edge | None = None
        # True if the program found nothing to read here, so that the next arrival must be
        # signalled.
        self._asleep = True

    # Methods that the network calls

    @property
    def alive(self) -> bool:
        return not self.closed and self.process.alive

    @property
    def send_mark(self) -> int:
        return int(self.options[int(zmq.SNDHWM)]) or 1 << 30

    @property
    def watched(self) -> bool:
        return self._monitor is not None

    def retry_marks(self) -> tuple[int, int]:
        return self.options[int(zmq.RECONNECT_IVL)], self.options[int(zmq.RECONNECT_IVL_MAX)]

    def accept(self, connection: Connection) -> None:
        wanted = connection.near.options.get(int(zmq.ROUTING_ID), b"")
        if wanted and wanted not in self.peers:
            name = wanted
        else:
            self._names += 1
            name = b"\0" + struct.pack(">I", self._names + 0x1000)
        connection.id_at_far = name
        self.peers[name] = connection

    def connected(self, connection: Connection) -> None:
        if self.kind == zmq.ROUTER:
            self.peers[connection.id_at_near] = connection

    def parted(self, connection: Connection) -> None:
        """Do nothing: the socket connects again by itself, with the same routing id."""

    def forget(self, connection: Connection) -> None:
        if self.peers.pop(connection.id_at_far, None) is not None:
            self.tell(zmq.EVENT_DISCONNECTED, connection.descriptor)

    def take(self, connection: Connection, routing_id: bytes, message: Message) -> None:
        if not self.alive:
            return
        self.inbox.append(
            (connection.descriptor, [routing_id, *message] if self.kind == zmq.ROUTER else message)
        )
        if self._asleep and self._edge is not None:
            self._edge.news = True
            self.process.wake(self._edge)
        self._asleep = False
        self.process.wake(self)

    def tell(self, event: int, descriptor: int = 0) -> None:
        if self._monitor is not None:
            self._monitor.told(event, descriptor)

    # Methods that a program calls

    def readable(self) -> bool:
        return bool(self.inbox or self._rest)

    def setsockopt(self, option: int, value: Any) -> None:
        if int(option) == int(zmq.CONNECT_ROUTING_ID):
            self._next_id = value
        else:
            self.options[int(option)] = value

    def getsockopt(self, option: int) -> Any:
        option = int(option)
        if option == int(zmq.RCVMORE):
            return int(bool(self._rest))
        if option == int(zmq.EVENTS):
            self._touch(looks=True)
            return int(zmq.POLLIN) if self.readable() else 0
        if option == int(zmq.FD):
            if self._edge is None:
                self._edge = Edge(self)
            return self._edge.fd
        return self.options[option]

    def get(self, option: int) -> Any:
        """The binding's own method, which the loop also calls with a monitor."""
        given: Any = self
        if isinstance(given, Monitor):
            return given.getsockopt(option)
        return SimSocket.getsockopt(self, option)

    def getsockopt_string(self, option: int) -> str:
        assert int(option) == int(zmq.LAST_ENDPOINT)
        return self.endpoints[-1]

    def _touch(self, *, looks: bool) -> None:
        """Clear the signal, as libzmq does at each call."""
        if self._edge is not None:
            self._edge.news = False
        if looks and not self.readable():
            self._asleep = True

    def bind(self, endpoint: str) -> None:
        if endpoint.startswith("tcp"):
            holder = self.network.bound.get(endpoint)
            if endpoint.endswith(":0"):
                endpoint = f"{endpoint[:-1]}{next(_descriptors)}"
            elif holder is not None and holder.alive:
                raise zmq.ZMQError(errno.EADDRINUSE)
        self.endpoints.append(endpoint)
        self.network.bind(self, endpoint)

    def connect(self, endpoint: str) -> None:
        connection = self.network.dial(self, endpoint, self._next_id)
        if self.kind == zmq.ROUTER:
            self.peers[self._next_id] = connection
            self._next_id = b""
        self.dialled.append(connection)

    def disconnect(self, endpoint: str) -> None:
        for connection in [one for one in self.dialled if one.endpoint == endpoint]:
            self.dialled.remove(connection)
            self.peers.pop(connection.id_at_near, None)
            connection.end_near(linger=False, killed=False)

    def close(self, linger: int | None = None) -> None:
        if not self.closed:
            self.end(linger=bool(linger), killed=False)

    def end(self, *, linger: bool, killed: bool) -> None:
        self.closed = True
        for connection in self.dialled:
            connection.end_near(linger=linger, killed=killed)
        for connection in list(self.peers.values()):
            if connection.far is self:
                connection.end_far(linger=linger, killed=killed)
        for endpoint in self.endpoints:
            if self.network.bound.get(endpoint) is self:
                del self.network.bound[endpoint]
        self.inbox.clear()
        self.process.sockets.remove(self)

    def send(self, frame: Any, flags: int = 0, copy: bool = True, track: bool = False) -> None:
        del copy, track
        self._touch(looks=False)
        if not self._parts:
            self._room(_plain(frame))
        self._parts.append(_plain(frame))
        if int(flags) & int(zmq.SNDMORE):
            return
        message, self._parts = self._parts, []
        if self.kind == zmq.ROUTER:
            peer = self.peers.get(message[0])
            # The peer may have disconnected between two frames. Then the rest is dropped.
            if peer is not None:
                peer.send(self, message[1:])
        elif self.dialled:
            self.dialled[0].send(self, message)

    def _room(self, first: bytes) -> None:
        """Check at the first frame whether the message is accepted at all."""
        if self.kind == zmq.ROUTER:
            peer = self.peers.get(first)
            if peer is None:
                if self.options.get(int(zmq.ROUTER_MANDATORY)):
                    raise zmq.ZMQError(errno.EHOSTUNREACH)
                return
        elif not self.dialled:
            raise zmq.Again()
        else:
            peer = self.dialled[0]
        flight = peer.out if peer.near is self else peer.back
        if the_world().now_ns < peer.jammed_until_ns or len(flight) >= self.send_mark:
            raise zmq.Again()

    def send_multipart(
        self, frames: Sequence[Any], flags: int = 0, copy: bool = True, track: bool = False
    ) -> None:
        last = len(frames) - 1
        for index, frame in enumerate(frames):
            self.send(frame, int(flags) if index == last else int(flags) | int(zmq.SNDMORE), copy)

    def recv(self, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        assert int(flags) & int(zmq.NOBLOCK), "nobody waits in a receive"
        self._touch(looks=True)
        if not self._rest:
            if not self.inbox:
                raise zmq.Again()
            self._descriptor, message = self.inbox.popleft()
            self._rest.extend(message)
        data = self._rest.popleft()
        if copy:
            return data
        frame = Frame(data, bool(self._rest))
        frame.descriptor = self._descriptor
        return frame

    def recv_multipart(self, flags: int = 0, copy: bool = True, track: bool = False) -> list[Any]:
        found = [self.recv(flags, copy)]
        while self._rest:
            found.append(self.recv(flags, copy))
        return found

    def poll(self, timeout: int | None = None, flags: int = 1) -> int:
        poller = SimPoller()
        poller.register(self, flags)
        return flags if poller.poll(timeout) else 0

    def get_monitor_socket(self, events: int = 0) -> Monitor:
        self._monitor = Monitor(self, int(events))
        return self._monitor

    def disable_monitor(self) -> None:
        self._monitor = None


class Monitor:
    """A monitor socket, which receives the events of a socket's connections."""

    def __init__(self, socket: SimSocket, events: int) -> None:
        self._mask = events
        self._inbox: deque[list[bytes]] = deque()
        self._edge = Edge(socket)
        self._socket = socket

    def setsockopt(self, option: int, value: int) -> None:
        assert (int(option), value) == (int(zmq.RCVHWM), 0), "nothing else is needed"

    def told(self, event: int, descriptor: int) -> None:
        if int(event) & self._mask:
            self._inbox.append([_EVENT.pack(int(event), descriptor), b""])
            self._edge.news = True
            self._socket.process.wake(self._edge)

    def getsockopt(self, option: int) -> int:
        if int(option) == int(zmq.EVENTS):
            self._edge.news = False
            return int(zmq.POLLIN) if self._inbox else 0
        assert int(option) == int(zmq.FD)
        return self._edge.fd

    def readable(self) -> bool:
        return bool(self._inbox)

    def recv_multipart(self, flags: int = 0) -> list[bytes]:
        self._edge.news = False
        if not self._inbox:
            raise zmq.Again()
        return self._inbox.popleft()

    def close(self, linger: int | None = None) -> None:
        """Do nothing: nothing more is read from it."""


class SimPoller:
    """Replaces zmq.Poller. Each poll takes a little time, so that other processes can run."""

    def __init__(self) -> None:
        self._things: dict[Any, Any] = {}  # number or socket -> the object to wait for

    def register(self, thing: Any, flags: int = 1) -> None:
        source = source_of(thing)
        if source is not None:
            self._things[thing] = source

    def unregister(self, thing: Any) -> None:
        self._things.pop(thing, None)

    def _ready(self) -> list[tuple[Any, int]]:
        return [(thing, 1) for thing, source in self._things.items() if source.readable()]

    def poll(self, timeout: float | None = None) -> list[tuple[Any, int]]:
        world = the_world()
        if (timeout is not None and timeout <= 0) or self._ready():
            world.pause(3_000, 40_000)
        else:
            limit = None if timeout is None or timeout < 0 else int(timeout * MS)
            world.wait(tuple(self._things.values()), lambda: bool(self._ready()), limit)
        return self._ready()
