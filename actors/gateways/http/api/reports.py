"""Handlers of /ping, /ready, /health, /info, /stats and /metrics."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from .....transport.errors import NotFound, ZsqError
from .....transport.nsq.lookup import Node
from .....transport.reports import BrokerStats
from .....transport.units import NS_PER_MS
from .....transport.wire.actions import Action
from ....security.policy import STATS, UNWELL, Principal, visible
from ....settings.options import NsqOptions
from ..web.authority import principal_of
from ..web.body import QueryRequest, legal
from ..web.responses import answer, plain, text
from . import metrics
from .broker import SharedStats
from .stats import as_nsq, as_text, health

# Statistics of this age are used again, because clients request /ping often.
HEALTH_AGE_S: Final = 1.0
PRIMARY: Final = "primary"  # a standby has its own gateway


class ReportHandlers:
    """The handlers of /ping, /ready, /health, /info, /stats and /metrics."""

    def __init__(
        self,
        stats: SharedStats,
        node: Node,
        nsq: NsqOptions,
        counted: metrics.RequestMetrics,
        query: QueryRequest,
    ) -> None:
        self._stats = stats
        self._node = node
        self._nsq = nsq
        self._counted = counted
        self._query = query

    async def ping(self, request: Request) -> Response:
        await self._query(request)
        try:
            health_text = self._health(
                await self._stats.recent(HEALTH_AGE_S), principal_of(request)
            )
        except ZsqError as error:
            health_text = f"NOK - the broker does not answer: {error}"
        return plain(health_text, 200 if health_text == "OK" else 500)

    async def ready(self, request: Request) -> Response:
        """Answer 200 while this broker is the primary and answers. A standby answers 503.

        A problem that /ping reports does not count: consumers can still take what is stored.
        """
        await self._query(request)
        try:
            await self._stats.recent(HEALTH_AGE_S)
        except ZsqError as error:
            return plain(f"NOK - the broker does not answer: {error}", 503)
        return plain("OK")

    async def health(self, request: Request) -> Response:
        """Answer 200 while the broker answers, whatever its role and its problems are."""
        await self._query(request)
        try:
            stats = await self._stats.recent(HEALTH_AGE_S)
        except ZsqError as error:
            health_text = f"NOK - the broker does not answer: {error}"
            return answer({"role": PRIMARY, "health": health_text}, 503)
        return answer({"role": PRIMARY, "health": self._health(stats, principal_of(request))})

    async def info(self, request: Request) -> Response:
        await self._query(request)
        node, nsq = self._node, self._nsq
        return answer(
            {
                "version": node.version,
                "broadcast_address": node.broadcast_address,
                "hostname": node.hostname,
                "http_port": node.http_port,
                "tcp_port": node.tcp_port,
                "start_time": int((await self._stats.recent(HEALTH_AGE_S))["start_time"]),
                "max_heartbeat_interval": nsq.max_heartbeat_interval_ms * NS_PER_MS,
                "max_output_buffer_size": nsq.max_output_buffer_size,
                "max_output_buffer_timeout": nsq.max_output_buffer_timeout_ms * NS_PER_MS,
                "max_deflate_level": nsq.max_deflate_level,
                "topology_zone": node.topology_zone,
                "topology_region": node.topology_region,
            }
        )

    async def stats(self, request: Request) -> Response:
        parameters = await self._query(request)
        topic, channel = parameters.get("topic") or "", parameters.get("channel") or ""
        stats, health_text = await self._about(topic, principal_of(request))
        shown = as_nsq(
            stats,
            health_text,
            topic,
            channel,
            clients=parameters.flag("include_clients", True),
            memory=parameters.flag("include_mem", True),
        )
        shown["version"] = self._node.version
        if parameters.get("format") == "json":
            return answer(shown)
        return text(as_text(shown, time.time() - shown["start_time"], str(stats["version"])))

    def _health(self, stats: BrokerStats, principal: Principal) -> str:
        """Return the broker's health. It names only topics that the principal may see."""
        health_text = health(stats)
        if health_text == "OK" or principal.may(Action.SEE_ALL):
            return health_text
        partly = health(visible(stats, principal, STATS))
        return f"NOK - {UNWELL}" if partly == "OK" else partly

    async def _about(self, topic: str, principal: Principal) -> tuple[BrokerStats, str]:
        """Return statistics and the health of the whole broker.

        With a `topic`, the statistics have only that topic, or none if it does not exist.
        """
        if not topic:
            stats = await self._stats.fresh()
            return visible(stats, principal, STATS), self._health(stats, principal)
        overall = await self._stats.recent(HEALTH_AGE_S)
        health_text = self._health(overall, principal)
        shown = visible(overall, principal, STATS)
        if legal(topic):
            try:
                of_topic = visible(await self._stats.fresh(topic), principal, STATS)
            except NotFound:
                pass
            else:
                # As in nsqd, the reply has the producers of all topics.
                return {
                    **of_topic,
                    "producers": shown.get("producers", ()),
                }, health_text
        return {**shown, "topics": []}, health_text

    async def metrics(self, request: Request) -> Response:
        await self._query(request)
        begun = time.monotonic()
        try:
            stats: BrokerStats | None = await self._stats.fresh()
        except ZsqError:
            stats = None
        took_s = time.monotonic() - begun
        healthy = stats is not None and health(stats) == "OK"
        if stats is not None:
            stats = visible(stats, principal_of(request), STATS)
        accept = request.headers.get("accept", "")
        body, kind = await asyncio.to_thread(
            metrics.render, stats, healthy, took_s, self._counted, accept
        )
        return Response(body, 200, {"content-type": kind})
