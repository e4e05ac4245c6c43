"""Around the whole application: who is turned away at the door, how many requests at once, how long each, and that the refused read why.

A client that sends a large body and is refused before it is read would find its connection reset, and the answer lost with it. So what
still comes is thrown away for a while (bounded by size and by time) behind the answer, and then the connection is closed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .authority import Authority
from .errors import ApiError, api_error
from .limits import Budget, HttpLimits
from .metrics import RequestMetrics
from .origins import Origins
from .responses import refusal

log = logging.getLogger("zsq")

_CLOSE: Final = (b"connection", b"close")
LIVE: Final = "/api/live"  # ends by itself, and loses its connection where nothing of it is taken
OTHER: Final = "other"  # a path that is not there, for metrics


class Doors:
    """What is refused before it is looked at: without TLS where that is required, and what browsers send for other pages."""

    def __init__(self, origins: Origins, authority: Authority, tls_required: bool) -> None:
        self._origins = origins
        self._authority = authority
        self._tls_required = tls_required

    def refusal(self, scope: Scope) -> ApiError | None:
        if self._tls_required and scope["scheme"] != "https":
            return api_error("TLS_REQUIRED")
        return self._origins.refusal(scope, any_name=self._authority.everybody_shows_who_they_are)


class Guard:
    """`paths`: those that metrics know; the last part of one may be a parameter."""

    def __init__(
        self, app: ASGIApp, limits: HttpLimits, counted: RequestMetrics, budget: Budget, paths: tuple[str, ...], doors: Doors
    ) -> None:
        self._app = app
        self._limits = limits
        self._budget = budget
        self._doors = doors
        self._exact = {path: path for path in paths if "{" not in path}
        self._open = {path.partition("{")[0]: path for path in paths if "{" in path}
        self.metrics = counted
        self.active = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"this application does not speak {scope['type']}")
        exchange = Exchange(scope, receive, send, self._limits)
        begun_ns = time.monotonic_ns()
        self.active += 1
        self.metrics.active.set(self.active)
        try:
            await self._answer(scope, exchange)
        finally:
            self.active -= 1
            self.metrics.active.set(self.active)
            self.metrics.bodies.set(self._budget.held)
            if exchange.status and not exchange.gone:
                self.metrics.answered(self.known(scope["path"]), exchange.status, begun_ns)

    async def _answer(self, scope: Scope, exchange: Exchange) -> None:
        refused = self._doors.refusal(scope) or self._refuses()
        try:
            if refused is None:
                async with asyncio.timeout(None if scope["path"] == LIVE else self._limits.request_s):
                    await self._app(scope, exchange.receive, exchange.send)
        except TimeoutError:
            refused = ApiError(503, f"E_TIMEOUT not answered within {self._limits.request_s:g} s")
        except Exception:
            log.exception("%s %s", scope["method"], scope["path"][:200])
            refused = api_error("INTERNAL_ERROR")
        if refused is not None and not exchange.status:
            await refusal(refused)(scope, exchange.receive, exchange.send)

    def _refuses(self) -> ApiError | None:
        if self.active > self._limits.requests_max:
            return ApiError(503, f"E_LIMIT more than {self._limits.requests_max} requests at once; try again", hint={"retry-after": "1"})
        return None

    def known(self, path: str) -> str:
        found = self._exact.get(path)
        if found is None:
            begin, slash, rest = path.rpartition("/")
            found = self._open.get(begin + slash) if rest else None
            if found is None:  # files lie in folders, too
                found = next((one for begin, one in self._open.items() if one.endswith(":path}") and path.startswith(begin)), OTHER)
        return found


class Exchange:
    """One request and its answer, on their way through."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, limits: HttpLimits) -> None:
        self._receive = receive
        self._send = send
        self._limits = limits
        headers = dict(scope["headers"])
        self._unread = b"transfer-encoding" in headers or headers.get(b"content-length", b"0").strip(b"0") != b""
        self.status = 0
        self.gone = False  # it left in the middle of its body: nobody hears the answer

    async def receive(self) -> Message:
        message = await self._receive()
        self.gone = self.gone or message["type"] == "http.disconnect"
        if message["type"] != "http.request" or not message.get("more_body", False):
            self._unread = False
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self._unread:
                message = {**message, "headers": [*message["headers"], _CLOSE]}
        elif self._unread and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            await self._linger()
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)

    async def _linger(self) -> None:
        left = self._limits.linger_bytes
        try:
            async with asyncio.timeout(self._limits.linger_s):
                while self._unread and left > 0:
                    left -= len((await self.receive()).get("body", b""))
        except TimeoutError:
            pass
