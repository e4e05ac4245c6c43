"""TLS listener: counts and limits connections from their first byte, before the TLS handshake ends.

An event loop that listens with TLS reports a connection only after its handshake. Until then the
connection is not counted, and a silent one uses a descriptor and about 100 KB for as long as the
handshake may take. So this listener accepts each connection and then starts its handshake.
(`start_tls` on a plain listener was rejected. uvloop reads bytes before `start_tls` is called, and
they are lost.)

New files are first loaded into a trial context and then into the context in use. A context that is
only half loaded would fail every handshake.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Final

from .....transport.nsq.tls import server_context

SHUTDOWN_S: Final = 2.0
ACCEPTED_MAX: Final = 64  # the most connections that are accepted in one turn of the loop
PAUSE_S: Final = 1.0  # the pause after an accept failed because no descriptors were left


class Certificates:
    """The TLS context of new connections. `context` is None if no files are given.

    Raises `UsageError` if the files are invalid or only one is given.
    """

    def __init__(self, cert: str, key: str) -> None:
        self.context = server_context(cert=cert, key=key)

    def reload(self, cert: str, key: str) -> None:
        """Load new files. Raises `UsageError` if they are invalid, and then keeps the old ones."""
        server_context(cert=cert, key=key)
        if self.context is not None:
            self.context.load_cert_chain(cert, key)


class TlsListener:
    """A TLS listener on a socket that is already listening.

    `inside` creates the protocol that runs inside TLS. While `full` returns True, new connections
    are closed.
    """

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        inside: Callable[[], asyncio.Protocol],
        full: Callable[[], bool],
        handshake_s: float,
    ) -> None:
        self._sock = sock
        self._context = context
        self._inside = inside
        self._full = full
        self._handshake_s = handshake_s
        self._loop = asyncio.get_running_loop()
        # The handshakes, the oldest first.
        self._tasks: dict[asyncio.Task[None], socket.socket] = {}
        self._closed = False
        self._open()

    @property
    def waiting(self) -> int:
        """The number of connections in their handshake."""
        return len(self._tasks)

    def _open(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_MAX):
            try:
                accepted, _ = self._sock.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError:
                self._loop.remove_reader(self._sock)
                self._loop.call_later(PAUSE_S, self._open)
                return
            if self._full():
                accepted.close()
                continue
            accepted.setblocking(False)
            task = self._loop.create_task(self._lead_in(accepted))
            self._tasks[task] = accepted
            task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)

    def drop_oldest(self) -> bool:
        """End the oldest handshake. Return False if there is none."""
        if not self._tasks:
            return False
        task = next(iter(self._tasks))
        sock = self._tasks.pop(task)
        # A task that has not started does not close the socket.
        task.add_done_callback(lambda _: sock.close())
        task.cancel()
        return True

    async def _lead_in(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._inside,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=self._handshake_s,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except OSError:
            # The client sent no TLS, was too slow, or is gone. (ssl.SSLError is an OSError.)
            accepted.close()
        except asyncio.CancelledError:
            accepted.close()
            raise

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(Exception):
            self._loop.remove_reader(self._sock)
        self._sock.close()
        for task in list(self._tasks):
            task.cancel()
