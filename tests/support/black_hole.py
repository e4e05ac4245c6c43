"""A black hole: a TCP proxy that can drop all bytes, as a firewall or a lost network does.

Its connections stay open. Those that were there when the hole began stay dead for ever, as those
are that a firewall has forgotten, or whose next retransmission is far away.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Final

PIECE: Final = 65_536


class BlackHole:
    """A proxy to a port of this machine. `url` is its own address."""

    def __init__(self, url: str) -> None:
        self._target = int(url.rpartition(":")[2])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self.left: set[int] = set()  # the numbers of those that their client has closed
        self._open = True  # new connections lead to the target
        self._lock = threading.Lock()
        self._living: set[socket.socket] = set()  # ends whose bytes are passed on
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def begin(self) -> None:
        """Drop all bytes of all connections, and of those that are made from now on."""
        with self._lock:
            self._open = False
            self._living.clear()

    def end(self) -> None:
        """Pass new connections on. Those that the hole has seen stay dead."""
        with self._lock:
            self._open = True

    def cut(self) -> None:
        """Let the present connections die. New ones are passed on."""
        self.begin()
        self.end()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                server = socket.create_connection(("127.0.0.1", self._target))
                with self._lock:
                    number, self.connections = self.connections, self.connections + 1
                    self._ends += [client, server]
                    if self._open:
                        self._living |= {client, server}
                for source, sink in ((client, server), (server, client)):
                    arguments = (source, sink, number if source is client else -1)
                    thread = threading.Thread(target=self._pump, args=arguments, daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _pump(self, source: socket.socket, sink: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(PIECE):
                if source in self._living:
                    sink.sendall(data)
        if number >= 0:
            self.left.add(number)
        if source in self._living:
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
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
