"""nsqlookupd's answers for this one node, so that clients which are set up for discovery find it.

What nsqlookupd learns by registration the broker knows: every topic there is has one producer, this node, as long as it has an NSQ gateway
that clients can reach over TCP. A tombstone hides the node from those who look a topic up, for 45 s, as nsqlookupd does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypedDict

from starlette.requests import Request
from starlette.responses import Response

from .....transport.errors import NotFound
from ....security.policy import Action, Principal
from ..web.authority import principal_of
from ..web.body import QueryRequest, legal
from ..web.responses import answer, api_error, nothing
from .broker import SharedStats

TOMBSTONE_S: Final = 45.0  # nsqlookupd's --tombstone-lifetime
TOMBSTONES_MAX: Final = 10_000


class LookupPeer(TypedDict):
    """A node as nsqlookupd tells of it."""

    remote_address: str
    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str
    topology_zone: str
    topology_region: str


@dataclass(frozen=True, slots=True)
class LookupNode:
    """How this node shows itself. A port of -1: there is none, or it is a unix socket (as nsqd says it)."""

    version: str
    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    topology_region: str = ""
    topology_zone: str = ""

    @property
    def name(self) -> str:
        """What nsqadmin calls it."""
        host = f"[{self.broadcast_address}]" if ":" in self.broadcast_address else self.broadcast_address
        return f"{host}:{self.http_port}"

    def peer(self) -> LookupPeer:
        return {
            "remote_address": f"{self.broadcast_address}:{self.tcp_port}",
            "hostname": self.hostname,
            "broadcast_address": self.broadcast_address,
            "tcp_port": self.tcp_port,
            "http_port": self.http_port,
            "version": self.version,
            "topology_zone": self.topology_zone,
            "topology_region": self.topology_region,
        }


class Tombstones:
    """Topics that this node is not to be found for. They are forgotten with the process, as with nsqlookupd."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._until_s: dict[str, float] = {}

    def add(self, topic: str) -> None:
        self._until_s = {name: until for name, until in self._until_s.items() if until > self._clock_s()}
        if len(self._until_s) < TOMBSTONES_MAX:
            self._until_s[topic] = self._clock_s() + TOMBSTONE_S

    def remove(self, topic: str) -> None:
        self._until_s.pop(topic, None)

    def hides(self, topic: str) -> bool:
        return self._until_s.get(topic, 0.0) > self._clock_s()


class LookupHandlers:
    """The handlers."""

    def __init__(self, node: LookupNode, stats: SharedStats, tombstones: Tombstones, asked: QueryRequest) -> None:
        self._node = node
        self._stats = stats
        self._tombstones = tombstones
        self._asked = asked

    async def lookup(self, request: Request) -> Response:
        topic = (await self._asked(request)).existing_topic()
        channels = await self._channels_of(topic)
        if channels is None:
            raise api_error("TOPIC_NOT_FOUND")
        return answer({"channels": channels, "producers": [] if self._tombstones.hides(topic) else self._producers()})

    async def channels(self, request: Request) -> Response:
        """Of a topic that is not there: none, as nsqlookupd says it."""
        topic = (await self._asked(request)).get("topic")
        if topic is None:
            raise api_error("MISSING_ARG_TOPIC")
        return answer({"channels": await self._channels_of(topic) or []})

    async def topics(self, request: Request) -> Response:
        await self._asked(request)
        return answer({"topics": await self._topics(principal_of(request))})

    async def nodes(self, request: Request) -> Response:
        await self._asked(request)
        topics = await self._topics(principal_of(request))
        rows = [{**peer, "tombstones": [self._tombstones.hides(topic) for topic in topics], "topics": topics} for peer in self._producers()]
        return answer({"producers": rows})

    async def tombstone(self, request: Request) -> Response:
        parameters = await self._asked(request)
        topic = parameters.get("topic")
        if topic is None:
            raise api_error("MISSING_ARG_TOPIC")
        node = parameters.get("node")
        if node is None:
            raise api_error("MISSING_ARG_NODE")
        if node == self._node.name and await self._channels_of(topic) is not None:
            self._tombstones.add(topic)
        return nothing()

    def _producers(self) -> list[LookupPeer]:
        return [self._node.peer()] if self._node.tcp_port > 0 else []

    async def _topics(self, principal: Principal) -> list[str]:
        names = [row["topic_name"] for row in (await self._stats.fresh())["topics"]]
        return [name for name in names if principal.may(Action.SEE, name)]

    async def _channels_of(self, topic: str) -> list[str] | None:
        if not legal(topic):
            return None
        try:
            found = await self._stats.fresh(topic)
        except NotFound:
            return None
        return [row["channel_name"] for row in found["topics"][0]["channels"]]
