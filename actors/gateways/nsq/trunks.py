"""Trunks: the connections of the gateway to the broker's actors, which all its consumers share.

A client has a socket for each of its links. With a consumer for each NSQ client, each message would
wake the threads of another socket here and at the channel. So all links of this gateway to one
endpoint are *branches* of one trunk. A branch has a number. It follows the trunk's name in the
envelope, as a client's does behind the ZeroMQ gateway, so the channel can tell the consumers apart.

The links do not know of this: a branch has the methods of a link's own connection, and the engine
of a consumer gets its news from `BranchEvents` in place of a set of descriptors. When the
connection of a trunk is lost, all its links are lost, and begin again on a new trunk.

A trunk has no high-water mark. What it holds is bounded by the credits of the consumers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import zmq

from ....transport.client.link.connection import LinkConnection
from ....transport.system import Ready
from ....transport.wire import sockets
from ....transport.wire.codec import encode
from ....transport.wire.credentials import Credentials
from ....transport.wire.handshake import HANDSHAKE_EVENTS
from ....transport.wire.protocol import Bye

RECEIVE_MAX: Final = 1_000  # the most messages that one turn of the loop takes from a trunk
UNUSED_S: Final = 1.0  # how long a trunk without branches stays
LINGER_MS: Final = 200
_LOST: Final = [b"", encode(Bye(is_lost=True))]
_OVER_EVENTS: Final = sockets.GONE_EVENTS | sockets.RETRY_EVENTS | HANDSHAKE_EVENTS


class BranchEvents:
    """The links of one engine that have news. It takes the place of the engine's `EventSet`.

    Branches report their news by themselves, under negative numbers. A link to another broker has a
    connection of its own, and the loop watches its descriptors.
    """

    def __init__(self) -> None:
        self._ready: dict[int, None] = {}
        self._call: Callable[[], object] = bool
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watched: set[int] = set()

    def register(self, fd: int) -> None:
        if fd >= 0:
            self._watched.add(fd)
            if self._loop is not None:
                self._loop.add_reader(fd, self._on_readable, fd)

    def unregister(self, fd: int) -> None:
        self._ready.pop(fd, None)
        if fd in self._watched:
            self._watched.discard(fd)
            if self._loop is not None:
                self._loop.remove_reader(fd)

    def attach(self, loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
        self._loop, self._call = loop, call
        for fd in self._watched:
            loop.add_reader(fd, self._on_readable, fd)

    def detach(self) -> None:
        if self._loop is not None:
            for fd in self._watched:
                self._loop.remove_reader(fd)
        self._loop, self._call = None, bool

    def close(self) -> None:
        self.detach()

    def _on_readable(self, fd: int) -> None:
        self.note(fd)
        self._call()

    def poll(self, timeout_s: float) -> Ready:
        ready, self._ready = self._ready, {}
        return [(fd, 1) for fd in ready]

    def note(self, fd: int) -> None:
        self._ready[fd] = None

    def turn(self) -> None:
        """Let the engine process the news."""
        if self._ready:
            self._call()


class Branch(LinkConnection):
    """The connection of one link over a trunk. Its descriptors are negative, for `events` only."""

    def __init__(self, trunk: Trunk, number: int, events: BranchEvents, seen: int) -> None:
        self.fds = -2 * number, -2 * number - 1
        self.events = events
        self._trunk = trunk
        self._name = b"%d" % number
        self._inbox: deque[list[Any]] = deque()
        self._seen = seen  # the events of the trunk that the link has not read

    def send(self, frames: list[Any]) -> bool:
        self._trunk.send([self._name, *frames])
        return True

    def flush(self) -> bool:
        return True

    def receive(self) -> list[Any] | None:
        return self._inbox.popleft() if self._inbox else None

    def read_events(self) -> int:
        seen, self._seen = self._seen, 0
        return seen

    def bytes_moved(self) -> int:
        return self._trunk.bytes_moved()

    def close(self, linger_ms: int) -> None:
        """Leave the trunk. Without a linger, the link has sent no Bye, so this does."""
        if not linger_ms:
            self._trunk.send([self._name, *_LOST])
        self._trunk.leave(self._name)

    # From the trunk

    def take(self, frames: list[Any]) -> None:
        self._inbox.append(frames)
        self.events.note(self.fds[0])

    def report(self, events: int) -> None:
        self._seen |= events
        self.events.note(self.fds[1])


class Trunk:
    """A connection, with the branches that share it. `on_over` is called when it is closed here."""

    def __init__(self, name: bytes, endpoint: str, on_over: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_over = on_over
        self._branches: dict[bytes, Branch] = {}
        self._socket = sockets.make_dealer()
        for option in (zmq.SNDHWM, zmq.RCVHWM):
            self._socket.setsockopt(option, 0)
        self._socket.setsockopt(zmq.ROUTING_ID, name)
        self._monitor = sockets.watch(self._socket)
        try:
            sockets.connect(self._socket, endpoint)
        except zmq.ZMQError:
            sockets.close(self._socket, self._monitor)
            raise
        self._events = 0  # all events so far, for new branches
        self._descriptor = -1
        self._outbox: list[list[Any]] = []
        self._unused: asyncio.TimerHandle | None = None  # since the last branch has left
        self._is_open = True
        self._is_planned = False
        self._fds = int(self._socket.getsockopt(zmq.FD)), int(self._monitor.getsockopt(zmq.FD))
        for fd, call in zip(self._fds, (self._turn, self._look), strict=True):
            self._loop.add_reader(fd, call)
            self._loop.call_soon(call)  # what came before is not seen otherwise

    def join(self, number: int, events: BranchEvents) -> Branch:
        if self._unused is not None:
            self._unused.cancel()
        branch = Branch(self, number, events, self._events)
        self._branches[b"%d" % number] = branch
        return branch

    def leave(self, name: bytes) -> None:
        self._branches.pop(name, None)
        if not self._branches:
            self._unused = self._loop.call_later(UNUSED_S, self._end)

    def send(self, frames: list[Any]) -> None:
        """Send frames at the end of this turn of the loop, together with those of other links.

        The answers of many consumers wake ZeroMQ's thread and the peer once.
        """
        if self._is_open:
            self._outbox.append(frames)
            self._plan()

    def _flush(self) -> None:
        """Send all frames. The pipe takes them, because it has no mark."""
        outbox, self._outbox = self._outbox, []
        for frames in outbox:
            sockets.send_frames(self._socket, frames)

    def bytes_moved(self) -> int:
        return sum(sockets.bytes_moved(self._descriptor))

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._flush()
            for fd in self._fds:
                self._loop.remove_reader(fd)
            sockets.close(self._socket, self._monitor, LINGER_MS)

    def _end(self) -> None:
        if self._is_open:
            self._on_over()
            self.close()

    def _plan(self) -> None:
        if not self._is_planned:
            self._is_planned = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Send, and check the socket: its descriptor is edge-triggered, and a send may take its
        event.
        """
        self._is_planned = False
        if self._is_open:
            self._flush()
            self._receive()

    def _receive(self) -> None:
        """Give what has arrived to the branches, and let their engines turn."""
        if not sockets.readable(self._socket):
            return
        engines: dict[BranchEvents, None] = {}
        for _ in range(RECEIVE_MAX):
            frames = sockets.recv_frames(self._socket)
            if frames is None:
                break
            if self._descriptor < 0:
                self._descriptor = sockets.descriptor_of(frames[-1])
            branch = self._branches.get(frames[0].bytes)
            if branch is not None:
                branch.take(frames[1:])
                engines[branch.events] = None
        else:
            self._plan()
        for events in engines:
            self._loop.call_soon(events.turn)

    def _look(self) -> None:
        """Pass the monitor's events on."""
        if not self._is_open:
            return
        events = sockets.read_events(self._monitor)
        if not events:
            return
        self._receive()  # the last messages of the peer come first
        self._events |= events
        for branch in self._branches.values():
            branch.report(events)
            self._loop.call_soon(branch.events.turn)
        if events & _OVER_EVENTS:
            self._end()


class Trunks:
    """The trunks of a gateway. `name` is the gateway's name at the actors."""

    def __init__(self, name: str) -> None:
        self._name = name.encode()
        self._trunks: dict[str, Trunk] = {}
        self._number = 0

    def connect(
        self,
        events: BranchEvents,
        endpoint: str,
        credentials: Credentials | None,
        *,
        leaves: bool,
    ) -> LinkConnection:
        """Return a branch to an actor of this broker. Raises `zmq.ZMQError`.

        Another broker's gateway knows no branches, so each link to it has its own connection.
        """
        if not endpoint.startswith("ipc://"):
            return LinkConnection(endpoint, credentials, leaves=leaves)
        self._number += 1
        trunk = self._trunks.get(endpoint)
        if trunk is None:
            trunk = Trunk(self._name, endpoint, lambda: self._trunks.pop(endpoint, None))
            self._trunks[endpoint] = trunk
        return trunk.join(self._number, events)

    def close(self) -> None:
        for trunk in self._trunks.values():
            trunk.close()
        self._trunks.clear()
