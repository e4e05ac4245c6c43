"""The application: every path of nsqd's and nsqlookupd's HTTP API, /metrics, and the console, over one broker.

`make_app` puts the handlers together, and the guard around them, which keeps the bounds. It opens nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from ...transport.errors import ZsqError
from ..nsq.options import NsqOptions
from .authority import Authority, Handler
from .body import Asked
from .broker import Broker
from .config import Change, Config, settings
from .console.console import Console
from .errors import ApiError, api_error, from_zsq
from .guard import Doors, Guard
from .limits import Budget, HttpLimits
from .lookup import Lookup, Node, Tombstones
from .manage import Management
from .metrics import RequestMetrics
from .needs import need_of
from .origins import Origins
from .publish import Publisher, Publishing
from .responses import refusal
from .sharing import SharedStats
from .telling import Telling


class Parts:
    """What an application is made of, for its shell and for tests."""

    def __init__(self, broker: Broker, publisher: Publisher, node: Node, limits: HttpLimits) -> None:
        self.limits = limits
        self.budget = Budget(limits.bodies_bytes_max)
        self.stats = SharedStats(broker)
        self.tombstones = Tombstones()
        self.metrics = RequestMetrics()
        self.publishing = Publishing(publisher, broker, limits, self.budget)
        self.asked = Asked(limits.body_s, self.budget)
        self.management = Management(broker, self.asked, self.tombstones)
        self.lookup = Lookup(node, self.stats, self.tombstones, self.asked)


def make_app(
    broker: Broker,
    publisher: Publisher,
    node: Node,
    *,
    nsq: NsqOptions | None = None,
    limits: HttpLimits = HttpLimits(),  # noqa: B008 - frozen
    log_level: str = "info",
    changes: Mapping[str, Change] | None = None,
    authority: Authority | None = None,
    origins: Origins | None = None,
    console: Console | None = None,
) -> Guard:
    """`nsq`: the NSQ gateway beside this one, None where there is none. `changes`: by option of /config, what takes up a new value.
    `authority`: who may do what; None: everybody all. `origins`: by which names it may be called; None: by addresses and as localhost."""
    authority = authority or Authority()
    parts = Parts(broker, publisher, node, limits)
    told = nsq or NsqOptions()
    config = Config(settings(node, limits, told, log_level), limits, parts.budget, changes or {})
    telling = Telling(parts.stats, parts.publishing.failures, node, told, parts.metrics, parts.asked)
    table = paths(parts, telling, config) | (console.paths() if console is not None else {})
    for path, methods in table.items():
        for method, handler in methods.items():
            methods[method] = authority.guarded(need_of(method, path), handler)
    starlette = Starlette(
        routes=[Route(path, _by_method(methods), methods=list(methods)) for path, methods in table.items()],
        exception_handlers={
            ApiError: _refused,
            ZsqError: _refused_by_broker,
            HTTPException: _not_there,
            ClientDisconnect: _left,
            Exception: _defect,
        },
    )
    starlette.router.redirect_slashes = False  # a redirect would name the host that the request named
    doors = Doors(origins or Origins(), authority, told.tls.required == "true")
    return Guard(starlette, limits, parts.metrics, parts.budget, tuple(table), doors)


def paths(parts: Parts, telling: Telling, config: Config) -> dict[str, dict[str, Handler]]:
    """Every path, its methods and their handlers."""
    manage, publishing, lookup = parts.management, parts.publishing, parts.lookup
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
        "/ping": telling.ping,
        "/info": telling.info,
        "/stats": telling.stats,
        "/metrics": telling.metrics,
        "/lookup": lookup.lookup,
        "/topics": lookup.topics,
        "/channels": lookup.channels,
        "/nodes": lookup.nodes,
    }
    table: dict[str, dict[str, Handler]] = {
        path: {"POST": handler} for path, handler in post.items()
    }  # first: it is searched in this order
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
    return refusal(from_zsq(error))


async def _not_there(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        return refusal(ApiError(405, "METHOD_NOT_ALLOWED", hint=dict(error.headers or {})))
    return refusal(api_error("NOT_FOUND"))


async def _left(request: Request, error: Exception) -> Response:
    """In the middle of its body: this answer is heard by nobody."""
    return refusal(api_error("REQUEST_TIMEOUT"))


async def _defect(request: Request, error: Exception) -> Response:
    """The guard logs it."""
    return refusal(api_error("INTERNAL_ERROR"))
