"""A far link: a TCP proxy that delays all bytes, and counts the round trips that a client needs."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, NamedTuple

PIECE: Final = 65_536


class _Piece(NamedTuple):
    due_s: float
    data: bytes
    trips: int  # the round trips that were made when it was sent


class FarLink:
    """A proxy to a port of this machine. `url` is its own address.

    `round_trips`: The round trips that were needed for what has come to the client so far. What it
    sends comes half a trip later than what it has received before. A new connection needs one.
    """

    def __init__(self, url: str, one_way_s: float) -> None:
        self._target = int(url.rpartition(":")[2])
        self._one_way_s = one_way_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = self.round_trips = 0
        self._ends: list[socket.socket] = []
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                server = socket.create_connection(("127.0.0.1", self._target))
                self.connections += 1
                self._ends += [client, server]
                for end in (client, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._connect(client, server)

    def close(self) -> None:
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        until = time.monotonic() + 5
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _connect(self, client: socket.socket, server: socket.socket) -> None:
        """Pass on what two ends send, each piece half a trip later."""
        began_s, at_server = time.monotonic(), self.round_trips
        connected_s, shaken = began_s + 2 * self._one_way_s, self.round_trips + 1
        there: SimpleQueue[_Piece] = SimpleQueue()
        back: SimpleQueue[_Piece] = SimpleQueue()

        def read_client() -> None:
            with contextlib.suppress(OSError):
                while data := client.recv(PIECE):
                    sent_s = max(time.monotonic(), connected_s)
                    trips = max(self.round_trips, shaken)
                    there.put(_Piece(sent_s + self._one_way_s, data, trips))
            there.put(_Piece(time.monotonic() + self._one_way_s, b"", 0))

        def write_server() -> None:
            nonlocal at_server
            while (piece := self._next(there)).data:
                at_server = max(at_server, piece.trips)
                with contextlib.suppress(OSError):
                    server.sendall(piece.data)
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_WR)

        def read_server() -> None:
            with contextlib.suppress(OSError):
                while data := server.recv(PIECE):
                    due_s = max(time.monotonic() + self._one_way_s, connected_s)
                    back.put(_Piece(due_s, data, at_server))
            back.put(_Piece(time.monotonic() + self._one_way_s, b"", 0))

        def write_client() -> None:
            while (piece := self._next(back)).data:
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
