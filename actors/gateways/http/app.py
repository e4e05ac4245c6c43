"""ASGI application: nsqd's and nsqlookupd's HTTP API, /metrics, consuming, and the console.

`make_app` combines the handlers. It opens no sockets or files. `Guard` encloses the handlers. It
refuses forbidden requests and limits the number and duration of requests.

If a large body is refused before it is read and the connection is closed at once, the client gets a
reset and loses the answer. So after the answer, input is dropped up to a size and a time, and then
the connection is closed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ....transport.client.asyncio.aio import Admin
from ....transport.errors import ZsqError
from ....transport.nsq.lookup import Node
from ...settings.options import HttpOptions, NsqOptions
from .api.broker import SharedStats
from .api.config import Change, Config, settings
from .api.lookup import LookupHandlers, Tombstones
from .api.manage import ManagementHandlers
from .api.metrics import RequestMetrics
from .api.publish import GatheredPublisher, PublishHandlers
from .api.reports import ReportHandlers
from .console.console import Console
from .consume.consume_handlers import ConsumePaths
from .messages.messages import MessagePaths
from .web.authority import API, Handler, HttpAuthority
from .web.body import QueryRequest
from .web.limits import HttpLimits
from .web.origins import Origins
from .web.permissions import actions_of
from .web.places import Limiters, RequestPlace, give_place
from .web.responses import ApiError, api_error, from_zsq, refusal

log = logging.getLogger("zsq")

_CLOSE: Final = (b"connection", b"close")
# `request_s` does not limit these streams. They end by themselves, or when their client does not
# read them.
STREAMS: Final = frozenset({"/api/live", "/api/tail", "/api/download"})
OTHER: Final = "other"  # the name of all unknown paths in metrics


class Guard:
    """The outermost application, which keeps the limits and counts requests.

    It refuses requests without TLS if TLS is required, and requests that a browser sends for a page
    of another site. `paths` are the paths that metrics know. Parts of a path may be parameters.
    """

    def __init__(
        self,
        app: ASGIApp,
        limiters: Limiters,
        counted: RequestMetrics,
        paths: tuple[str, ...],
        origins: Origins,
        authority: HttpAuthority,
        *,
        tls_required: bool,
    ) -> None:
        self._app = app
        self._limits = limiters.limits
        self._limiters = limiters
        self._origins = origins
        self._authority = authority
        self._tls_required = tls_required
        self._exact = frozenset(path for path in paths if "{" not in path)
        self._patterns = {path: compile_path(path)[0] for path in paths if "{" in path}
        self.metrics = counted
        self.active = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"this application serves only http, not {scope['type']}")
        client = scope.get("client")
        place = RequestPlace(self._limiters.requests, f"address {client[0]}" if client else "")
        give_place(scope, place)
        exchange = Exchange(scope, receive, send, self._limits, place)
        begun_ns = time.monotonic_ns()
        self.active += 1
        self.metrics.active.set(self.active)
        try:
            await self._answer(scope, exchange)
        finally:
            place.give_back()
            self.active -= 1
            self.metrics.active.set(self.active)
            self.metrics.bodies.set(self._limiters.bodies.taken)
            if exchange.status and not exchange.gone:
                self.metrics.answered(self.known(scope["path"]), exchange.status, begun_ns)

    async def _answer(self, scope: Scope, exchange: Exchange) -> None:
        refused = self._refusal(scope)
        try:
            if refused is None:
                async with asyncio.timeout(
                    None if scope["path"] in STREAMS else self._limits.request_s
                ):
                    await self._app(scope, exchange.receive, exchange.send)
        except TimeoutError:
            refused = ApiError(
                503, f"E_TIMEOUT the request was not answered within {self._limits.request_s:g} s"
            )
        except Exception:
            log.exception("%s %s", scope["method"], scope["path"][:200])
            refused = api_error("INTERNAL_ERROR")
        if refused is not None and not exchange.status:
            await refusal(refused)(scope, exchange.receive, exchange.send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        if self._tls_required and scope["scheme"] != "https":
            # The port is 0 because the gateway has only one port, and that one is without TLS.
            return ApiError(403, "TLS_REQUIRED", more={"https_port": 0})
        return self._origins.refusal(scope, any_name=self._authority.everybody_shows_who_they_are)

    def known(self, path: str) -> str:
        """Return the path as in the table of paths, or OTHER."""
        if path in self._exact:
            return path
        matches = (name for name, pattern in self._patterns.items() if pattern.match(path))
        return next(matches, OTHER)


class Exchange:
    """A request and its answer. After a refusal it drops the rest of the body, without a place."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, limits: HttpLimits, place: RequestPlace
    ) -> None:
        self._place = place
        self._receive = receive
        self._send = send
        self._limits = limits
        headers = dict(scope["headers"])
        self._unread = (
            b"transfer-encoding" in headers
            or headers.get(b"content-length", b"0").strip(b"0") != b""
        )
        self.status = 0
        self.gone = False  # the client left during its body and gets no answer

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
            self._place.give_back()
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


def make_app(
    broker: Admin,
    publisher: GatheredPublisher,
    node: Node,
    *,
    options: HttpOptions | None = None,
    limiters: Limiters | None = None,
    log_level: str = "info",
    changes: Mapping[str, Change] | None = None,
    authority: HttpAuthority | None = None,
    origins: Origins | None = None,
    console: Console | None = None,
    messages: MessagePaths | None = None,
    consume: ConsumePaths | None = None,
) -> Guard:
    """Return the application.

    `options` has the options that /config and /info show. `changes` has the functions
    that apply new values of /config, by option. Without `authority`, everything is permitted.
    Without `origins`, Host may be an address or localhost.
    """
    authority = authority or HttpAuthority()
    limiters = limiters or Limiters(HttpLimits())
    options = options or HttpOptions()
    nsq = options.nsq or NsqOptions()
    metrics, query, tombstones = RequestMetrics(), QueryRequest(limiters), Tombstones()
    table = paths(
        PublishHandlers(publisher, broker, limiters),
        ManagementHandlers(broker, query, tombstones),
        LookupHandlers(node, broker.topics, tombstones, query),
        ReportHandlers(SharedStats(broker), node, nsq, metrics, query),
        Config(settings(node, limiters.limits, options, log_level), limiters, changes or {}),
    )
    for more in (console, messages, consume):
        table |= more.paths() if more is not None else {}
    for path, methods in table.items():
        for method, handler in methods.items():
            methods[method] = authority.guarded(actions_of(method, path), handler)
    starlette = Starlette(
        routes=[
            Route(path, _by_method(methods), methods=list(methods))
            for path, methods in table.items()
        ],
        exception_handlers={
            ApiError: _refused,
            ZsqError: _refused_by_broker,
            HTTPException: _not_there,
            ClientDisconnect: _left,
            Exception: _defect,
        },
    )
    starlette.router.redirect_slashes = False  # a redirect would contain the request's Host
    return Guard(
        starlette, limiters, metrics, tuple(table), origins or Origins(), authority,
        tls_required=nsq.tls.required == "true",
    )  # fmt: skip


def paths(
    publishing: PublishHandlers,
    manage: ManagementHandlers,
    lookup: LookupHandlers,
    reports: ReportHandlers,
    config: Config,
) -> dict[str, dict[str, Handler]]:
    """Return the handlers by path and method."""
    post: dict[str, Handler] = {
        "/pub": publishing.pub,
        "/mpub": publishing.mpub,
        "/topic/create": manage.create_topic,
        "/topic/delete": manage.delete_topic,
        "/topic/empty": manage.empty_topic,
        "/topic/pause": manage.pause_topic,
        "/topic/unpause": manage.unpause_topic,
        "/topic/tombstone": lookup.tombstone,
        "/channel/create": manage.create_channel,
        "/channel/delete": manage.delete_channel,
        "/channel/empty": manage.empty_channel,
        "/channel/pause": manage.pause_channel,
        "/channel/unpause": manage.unpause_channel,
    }
    get: dict[str, Handler] = {
        "/ping": reports.ping,
        "/ready": reports.ready,
        "/health": reports.health,
        "/info": reports.info,
        "/stats": reports.stats,
        "/metrics": reports.metrics,
        "/lookup": lookup.lookup,
        "/topics": lookup.topics,
        "/channels": lookup.channels,
        "/nodes": lookup.nodes,
    }
    # These routes come first, because routes are searched in this order.
    table: dict[str, dict[str, Handler]] = {
        path: {"POST": handler} for path, handler in post.items()
    }
    table |= {path: {"GET": handler} for path, handler in get.items()}
    table["/config/{option}"] = {"GET": config.get, "PUT": config.put}
    return table


def _by_method(methods: Mapping[str, Handler]) -> Handler:
    async def handle(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await methods[method](request)

    return handle


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return refusal(error)


async def _refused_by_broker(request: Request, error: Exception) -> Response:
    assert isinstance(error, ZsqError)
    return refusal(from_zsq(error, for_nsq=not request.scope["path"].startswith(API)))


async def _not_there(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        return refusal(ApiError(405, "METHOD_NOT_ALLOWED", hint=dict(error.headers or {})))
    return refusal(api_error("NOT_FOUND"))


async def _left(request: Request, error: Exception) -> Response:
    """Handle a client that left during its body. This answer is never read."""
    return refusal(api_error("REQUEST_TIMEOUT"))


async def _defect(request: Request, error: Exception) -> Response:
    """Answer an unexpected exception. `Guard` logs it."""
    return refusal(api_error("INTERNAL_ERROR"))
