"""TCP proxies to a port of this machine, with the faults of networks: a far link delays all bytes,
a slow link passes few of them a second, and a black hole drops them.

They know nothing of what they pass on. `fault_proxy.py` is a proxy that understands HTTP.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, NamedTuple

PIECE: Final = 65_536
SLOW_PIECE_S: Final = 0.05  # a slow link passes a piece of the bytes of a second this often
CLOSE_S: Final = 5.0


class TcpProxy:
    """A proxy that passes all bytes on. `url` is its own address."""

    piece = PIECE

    def __init__(self, url: str, host: str = "127.0.0.1") -> None:
        self._target = int(url.rpartition(":")[2])
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        self.port = int(self._listener.getsockname()[1])
        self.url = f"tcp://{host}:{self.port}"
        self.connections = 0  # how many were made so far
        self._ends: list[socket.socket] = []  # a client, its server, the next client, ...
        self._cut: set[socket.socket] = set()  # clients whose server is not to know it
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def cut_clients(self) -> None:
        """Cut all current connections on the client's side. The server is not informed."""
        clients = self._ends[::2]
        self._cut.update(clients)
        for client in clients:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        until = time.monotonic() + CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                server = socket.create_connection(("127.0.0.1", self._target))
                self._ends += [client, server]
                self._connect(client, server)
                self.connections += 1

    def _connect(self, client: socket.socket, server: socket.socket) -> None:
        """Begin to pass on what the two ends send."""
        self._start(self._pump, client, server)
        self._start(self._pump, server, client)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(self.piece):
                self._pass_on(source, sink, data)
        if source not in self._cut:
            with contextlib.suppress(OSError):
                self._end(source, sink)

    def _pass_on(self, source: socket.socket, sink: socket.socket, data: bytes) -> None:
        sink.sendall(data)

    def _end(self, source: socket.socket, sink: socket.socket) -> None:
        """Tell the other end that this one sends nothing more."""
        sink.shutdown(socket.SHUT_WR)


class SlowLink(TcpProxy):
    """A proxy that passes a number of bytes each second, in each direction."""

    def __init__(self, url: str, bytes_per_s: int) -> None:
        self.piece = max(1, int(bytes_per_s * SLOW_PIECE_S))
        super().__init__(url)

    def _connect(self, client: socket.socket, server: socket.socket) -> None:
        for end in (client, server):
            # What the kernel takes at once is not slow.
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * self.piece)
        super()._connect(client, server)

    def _pass_on(self, source: socket.socket, sink: socket.socket, data: bytes) -> None:
        super()._pass_on(source, sink, data)
        self._closed.wait(SLOW_PIECE_S * len(data) / self.piece)


class BlackHole(TcpProxy):
    """A proxy that can drop all bytes, as a firewall or a lost network does.

    Its connections stay open. Those that were there when the hole began stay dead for ever, as
    those are that a firewall has forgotten, or whose next retransmission is far away.
    """

    def __init__(self, url: str) -> None:
        self.left: set[int] = set()  # the numbers of those that their client has closed
        self._is_open = True  # new connections lead to the target
        self._lock = threading.Lock()
        self._living: set[socket.socket] = set()  # ends whose bytes are passed on
        self._numbers: dict[socket.socket, int] = {}  # client's end -> number of the connection
        super().__init__(url)

    def begin(self) -> None:
        """Drop all bytes of all connections, and of those that are made from now on."""
        with self._lock:
            self._is_open = False
            self._living.clear()

    def end(self) -> None:
        """Pass new connections on. Those that the hole has seen stay dead."""
        with self._lock:
            self._is_open = True

    def cut(self) -> None:
        """Let the present connections die. New ones are passed on."""
        self.begin()
        self.end()

    def _connect(self, client: socket.socket, server: socket.socket) -> None:
        with self._lock:
            self._numbers[client] = self.connections
            if self._is_open:
                self._living |= {client, server}
        super()._connect(client, server)

    def _pass_on(self, source: socket.socket, sink: socket.socket, data: bytes) -> None:
        if source in self._living:
            super()._pass_on(source, sink, data)

    def _end(self, source: socket.socket, sink: socket.socket) -> None:
        if source in self._numbers:
            self.left.add(self._numbers[source])
        if source in self._living:
            super()._end(source, sink)


class _Piece(NamedTuple):
    due_s: float
    data: bytes
    trips: int  # the round trips that were made when it was sent


class FarLink(TcpProxy):
    """A proxy that delays all bytes, and counts the round trips that a client needs.

    `round_trips`: The round trips that were needed for what has come to the client so far. What it
    sends comes half a trip later than what it has received before. A new connection needs one.
    """

    def __init__(self, url: str, one_way_s: float) -> None:
        self._one_way_s = one_way_s
        self.round_trips = 0
        super().__init__(url)

    def _connect(self, client: socket.socket, server: socket.socket) -> None:
        """Pass on what two ends send, each piece half a trip later."""
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        trips_at_server = self.round_trips
        connected_s, connected_trips = (
            time.monotonic() + 2 * self._one_way_s,
            self.round_trips + 1,
        )
        to_server: SimpleQueue[_Piece] = SimpleQueue()
        to_client: SimpleQueue[_Piece] = SimpleQueue()

        def read_client() -> None:
            with contextlib.suppress(OSError):
                while data := client.recv(PIECE):
                    sent_s = max(time.monotonic(), connected_s)
                    trips = max(self.round_trips, connected_trips)
                    to_server.put(_Piece(sent_s + self._one_way_s, data, trips))
            to_server.put(_Piece(time.monotonic() + self._one_way_s, b"", 0))

        def write_server() -> None:
            nonlocal trips_at_server
            while (piece := self._next(to_server)).data:
                trips_at_server = max(trips_at_server, piece.trips)
                with contextlib.suppress(OSError):
                    server.sendall(piece.data)
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_WR)

        def read_server() -> None:
            with contextlib.suppress(OSError):
                while data := server.recv(PIECE):
                    due_s = max(time.monotonic() + self._one_way_s, connected_s)
                    to_client.put(_Piece(due_s, data, trips_at_server))
            to_client.put(_Piece(time.monotonic() + self._one_way_s, b"", 0))

        def write_client() -> None:
            while (piece := self._next(to_client)).data:
                self.round_trips = max(self.round_trips, piece.trips + 1)
                with contextlib.suppress(OSError):
                    client.sendall(piece.data)
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_WR)

        for work in (read_client, write_server, read_server, write_client):
            self._start(work)

    def _next(self, queue: SimpleQueue[_Piece]) -> _Piece:
        """Return the next piece when it is due."""
        piece = queue.get()
        self._closed.wait(max(0.0, piece.due_s - time.monotonic()))
        return piece
