"""TLS before HTTP: a connection counts, and has its time, from its first byte, not from the end of its handshake.

An event loop that is told to listen with TLS makes the connection known when the handshake is over. Before that nobody counts it: who opens
many and says nothing takes a descriptor and some 100 KB each, for as long as the handshake may take. So the listener is a plain one, and
each connection is led through the handshake here.

New files are taken up by the one context there is, after a trial with another: a listener's context cannot be exchanged, and what is half
loaded would end every handshake.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import Final, cast

from ...transport.nsq.tls import server_context

SHUTDOWN_S: Final = 2.0


class Certificates:
    """The context of new connections. `UsageError` where the files are not good, or only one is given; `context` None without any."""

    def __init__(self, cert: str, key: str) -> None:
        self.context = server_context(cert=cert, key=key)

    def reload(self, cert: str, key: str) -> None:
        """`UsageError`: what is in force stays."""
        server_context(cert=cert, key=key)
        if self.context is not None:
            self.context.load_cert_chain(cert, key)


class TlsDoor(asyncio.Protocol):
    """Stands where the HTTP connection will be, until the handshake is over. `inside` makes that; `waiting` holds all that are not over."""

    def __init__(
        self,
        context: ssl.SSLContext,
        inside: Callable[[], asyncio.Protocol],
        waiting: set[TlsDoor],
        handshake_s: float,
        *,
        turned_away: bool = False,
    ) -> None:
        self._turned_away = turned_away
        self._context = context
        self._inside = inside
        self._waiting = waiting
        self._handshake_s = handshake_s
        self._task: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        if self._turned_away:
            self.transport.abort()
            return
        self.transport.pause_reading()  # what comes is the handshake's, and not ours
        self._waiting.add(self)
        self._task = asyncio.get_running_loop().create_task(self._lead_in(self.transport))

    async def _lead_in(self, transport: asyncio.Transport) -> None:
        inside = self._inside()
        try:
            secure = await asyncio.get_running_loop().start_tls(
                transport, inside, self._context, server_side=True, ssl_handshake_timeout=self._handshake_s, ssl_shutdown_timeout=SHUTDOWN_S
            )
        except (OSError, ssl.SSLError):  # it speaks something else, or too slowly, or left
            transport.abort()
            return
        except BaseException:
            transport.abort()
            raise
        finally:
            self._waiting.discard(self)
        assert secure is not None
        inside.connection_made(secure)

    def connection_lost(self, exc: Exception | None) -> None:
        """In the handshake; behind it the connection is HTTP's."""

    def abort(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self.transport is not None:
            with contextlib.suppress(Exception):
                self.transport.abort()
