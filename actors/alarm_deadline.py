"""The end of a try to tell an alarm: after so long its connection is shut down, by a thread of its own.

A socket's time-out is no such end: it begins anew with each byte, so somebody who sends one now and then would hold the try for ever.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any, Self


class Deadline:
    """A context, begun now. `over`: it has come; what the try then fails by says nothing of the reason."""

    def __init__(self, seconds: float) -> None:
        self.over = False
        self._lock = threading.Lock()
        self._held: list[socket.socket] = []
        self._timer = threading.Timer(seconds, self._cut)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            for held in self._held:
                held.close()
            self._held.clear()

    def connect(self, *arguments: Any, **more: Any) -> socket.socket:
        """As `socket.create_connection`."""
        return self.hold(socket.create_connection(*arguments, **more))

    def hold(self, connection: socket.socket) -> socket.socket:
        """It is shut down in the end. A copy of its descriptor is held: TLS takes the first one away, from its first byte on."""
        with self._lock:
            if self.over:
                connection.close()
                raise TimeoutError("timed out")
            self._held.append(connection.dup())
        return connection

    def _cut(self) -> None:
        with self._lock:
            self.over = True
            for held in self._held:
                with contextlib.suppress(OSError):  # it is closed already
                    held.shutdown(socket.SHUT_RDWR)
