"""TLS before HTTP: a connection counts, and has its time, from its first byte, not from the end of its handshake.

An event loop that is told to listen with TLS makes a connection known when its handshake is over. Before that nobody counts it: who opens
many and says nothing takes a descriptor and some 100 KB each, for as long as the handshake may take. So connections are accepted here, one
by one, and each is led through the handshake. (Rejected: `start_tls` from a plain listener. uvloop begins to read before it, and what came
is lost.)

New files are taken up by the one context there is, after a trial with another: what is half loaded would end every handshake.
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
ACCEPTED_MAX: Final = 64  # in one turn of the loop
PAUSE_S: Final = 1.0  # after one that could not be accepted: there are no descriptors


class Certificates:
    """The context of new connections. `UsageError` where the files are not good, or only one is given; `context` None without any."""

    def __init__(self, cert: str, key: str) -> None:
        self.context = server_context(cert=cert, key=key)

    def reload(self, cert: str, key: str) -> None:
        """`UsageError`: what is in force stays."""
        server_context(cert=cert, key=key)
        if self.context is not None:
            self.context.load_cert_chain(cert, key)


class TlsListener:
    """On a socket that listens. `inside` makes what speaks behind the handshake; while `full` says so, who comes is turned away."""

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
        self._tasks: dict[asyncio.Task[None], socket.socket] = {}  # the oldest first
        self._closed = False
        self._open()

    @property
    def waiting(self) -> int:
        """Connections in their handshake."""
        return len(self._tasks)

    def _open(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_MAX):
            try:
                one, _ = self._sock.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError:
                self._loop.remove_reader(self._sock)
                self._loop.call_later(PAUSE_S, self._open)
                return
            if self._full():
                one.close()
                continue
            one.setblocking(False)
            task = self._loop.create_task(self._lead_in(one))
            self._tasks[task] = one
            task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)

    def drop_oldest(self) -> bool:
        """End the handshake that takes longest so far; False: there is none."""
        if not self._tasks:
            return False
        task = next(iter(self._tasks))
        sock = self._tasks.pop(task)
        task.add_done_callback(lambda _: sock.close())  # one that had not begun yet does not close it
        task.cancel()
        return True

    async def _lead_in(self, one: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._inside, one, ssl=self._context, ssl_handshake_timeout=self._handshake_s, ssl_shutdown_timeout=SHUTDOWN_S
            )
        except OSError:  # it speaks something else, or too slowly, or left; ssl.SSLError is one
            one.close()
        except asyncio.CancelledError:
            one.close()
            raise

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(Exception):
            self._loop.remove_reader(self._sock)
        self._sock.close()
        for task in list(self._tasks):
            task.cancel()
