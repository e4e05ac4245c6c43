"""A slow link: a TCP proxy that passes a number of bytes each second, in each direction."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Final

PIECE_S: Final = 0.05  # a piece of the bytes of a second is passed this often


class SlowLink:
    """A proxy to a port of this machine. `url` is its own address."""

    def __init__(self, url: str, bytes_per_s: int) -> None:
        self._target = int(url.rpartition(":")[2])
        self._piece = max(1, int(bytes_per_s * PIECE_S))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.url = f"tcp://127.0.0.1:{self.port}"
        self._ends: list[socket.socket] = []
        self._closed = threading.Event()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def connections(self) -> int:
        """The number of connections that were made so far."""
        return len(self._ends) // 2

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                server = socket.create_connection(("127.0.0.1", self._target))
                for end in (client, server):
                    # What the kernel takes at once is not slow.
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * self._piece)
                    self._ends.append(end)
                for source, sink in ((client, server), (server, client)):
                    thread = threading.Thread(target=self._pump, args=(source, sink), daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(self._piece):
                sink.sendall(data)
                if self._closed.wait(PIECE_S * len(data) / self._piece):
                    return
            sink.shutdown(socket.SHUT_WR)

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
