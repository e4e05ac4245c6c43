"""Handlers of nsqlookupd's HTTP API, so that clients that ask nsqlookupd find this node.

The broker knows what nsqlookupd learns by registration. Each topic has one producer, which is this
node, if the broker has an NSQ gateway that clients can reach over TCP. As in nsqlookupd, a
tombstone hides the node from lookups of a topic for 45 s.

A topic with parts exists here if one of its parts does. Its channels are those of the parts here.
So an answer never waits for another broker. Each broker of a cluster answers for itself, and a
client that asks all of them finds all brokers that have a part.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import asdict
from typing import Final, TypedDict, cast

from starlette.requests import Request
from starlette.responses import Response

from .....transport.nsq.lookup import Node, by_topic
from .....transport.wire.actions import Action
from ....runtime.listening import join_place
from ....security.policy import Principal
from ..web.authority import principal_of
from ..web.body import QueryRequest, legal
from ..web.responses import answer, api_error, nothing

TOMBSTONE_S: Final = 45.0  # the default of nsqlookupd's --tombstone-lifetime
TOMBSTONES_MAX: Final = 10_000


class LookupPeer(TypedDict):
    """A node in nsqlookupd's form."""

    remote_address: str
    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str
    topology_zone: str
    topology_region: str


class Tombstones:
    """The topics for which lookups do not show this node.

    As in nsqlookupd, they are kept only in memory.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._until_s: dict[str, float] = {}

    def add(self, topic: str) -> None:
        self._until_s = {
            name: until for name, until in self._until_s.items() if until > self._clock_s()
        }
        if len(self._until_s) < TOMBSTONES_MAX:
            self._until_s[topic] = self._clock_s() + TOMBSTONE_S

    def remove(self, topic: str) -> None:
        self._until_s.pop(topic, None)

    def hides(self, topic: str) -> bool:
        return self._until_s.get(topic, 0.0) > self._clock_s()


Names = Mapping[str, Collection[str]]


class LookupHandlers:
    """The handlers of nsqlookupd's paths.

    `names` returns the topics of this broker, with the names of their channels.
    """

    def __init__(
        self,
        node: Node,
        names: Callable[[], Awaitable[Names]],
        tombstones: Tombstones,
        query: QueryRequest,
    ) -> None:
        self._node = node
        self._names = names
        self._tombstones = tombstones
        self._query = query

    async def lookup(self, request: Request) -> Response:
        topic = (await self._query(request)).existing_topic()
        channels = await self._channels_of(topic)
        if channels is None:
            raise api_error("TOPIC_NOT_FOUND")
        return answer(
            {
                "channels": channels,
                "producers": [] if self._tombstones.hides(topic) else self._producers(),
            }
        )

    async def channels(self, request: Request) -> Response:
        """Return a topic's channels. As in nsqlookupd, a topic that does not exist has none."""
        topic = (await self._query(request)).get("topic")
        if topic is None:
            raise api_error("MISSING_ARG_TOPIC")
        return answer({"channels": await self._channels_of(topic) or []})

    async def topics(self, request: Request) -> Response:
        await self._query(request)
        return answer({"topics": await self._topics(principal_of(request))})

    async def nodes(self, request: Request) -> Response:
        await self._query(request)
        topics = await self._topics(principal_of(request))
        rows = [
            {
                **peer,
                "tombstones": [self._tombstones.hides(topic) for topic in topics],
                "topics": topics,
            }
            for peer in self._producers()
        ]
        return answer({"producers": rows})

    async def tombstone(self, request: Request) -> Response:
        parameters = await self._query(request)
        topic = parameters.get("topic")
        if topic is None:
            raise api_error("MISSING_ARG_TOPIC")
        node = parameters.get("node")
        if node is None:
            raise api_error("MISSING_ARG_NODE")
        name = join_place(self._node.broadcast_address, self._node.http_port)  # as in nsqadmin
        if node == name and await self._channels_of(topic) is not None:
            self._tombstones.add(topic)
        return nothing()

    def _producers(self) -> list[LookupPeer]:
        node = self._node
        remote_address = f"{node.broadcast_address}:{node.tcp_port}"
        peer = cast("LookupPeer", {"remote_address": remote_address, **asdict(node)})
        return [peer] if node.tcp_port > 0 else []

    async def _topics(self, principal: Principal) -> list[str]:
        names = sorted(by_topic(await self._names()))
        return [name for name in names if principal.may(Action.SEE, name)]

    async def _channels_of(self, topic: str) -> list[str] | None:
        if not legal(topic):
            return None
        names = await self._names()
        channels = names.get(topic, by_topic(names).get(topic))
        return None if channels is None else sorted(channels)
