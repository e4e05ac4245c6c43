"""The console's API without a broker. A fake records each call, and answers with the statistics and
messages that the test sets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

from starlette.requests import Request
from support.http_api import CHANNEL, TOPIC, Site

from zsq.actors.gateways.http.console.cluster import no_admin
from zsq.actors.gateways.http.console.console import Console
from zsq.actors.gateways.http.consume.consume_handlers import ConsumePaths
from zsq.actors.gateways.http.messages.messages import MessagePaths
from zsq.actors.gateways.http.web.authority import HttpAuthority, Rights, give
from zsq.actors.gateways.http.web.limits import HttpLimits
from zsq.actors.gateways.http.web.places import Limiters, RequestPlace, give_place
from zsq.actors.security.access import Access
from zsq.actors.security.policy import EVERYBODY, AccessPolicy, Principal
from zsq.actors.statistics.overview import CHANNEL_FIELDS, TOPIC_FIELDS
from zsq.transport.block.block import Block, missing
from zsq.transport.client.core.message import Fetched
from zsq.transport.errors import E_NOT_FOUND, NotFound

_TEXTS = {"health": "OK", "state": "up", "sync": "always", "closed": "", "paused": False}
ROW = {**dict.fromkeys((*TOPIC_FIELDS, *CHANNEL_FIELDS), 0), **_TEXTS}
BROKER = {
    "version": "1", "node": 1, "uuid": "u", "start_ms": 1, "health": "OK", "alarms": 0, "alarmed_ns": 0, "processes": 5, "restarts": 0,
    "clustered": False,
}  # fmt: skip
ALARMS: dict[str, Any] = {"now": (), "recent": (), "receivers": ()}


class FakeSource:
    """A fake broker with topics and channels. A call that it does not know is recorded and answered
    with an empty result.
    """

    def __init__(self) -> None:
        self.topics: dict[str, list[str]] = {"t": ["c"]}
        self.values: dict[str, Any] = {}
        self.broker: dict[str, Any] = dict(BROKER)
        self.calls: list[tuple[Any, ...]] = []
        self.overviews = 0
        self.closed = 0
        self.fails: Exception | None = None
        self.answers: dict[str, Any] = {}
        self.blocks: list[Block] = []
        self.reads: list[tuple[int, int]] = []

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any, **options: Any) -> Any:
            self.calls.append((name, *arguments, *([options] if options else [])))
            return self.answers.get(name, {})

        return call

    async def audit(self, count: int = 100) -> list[dict[str, Any]]:
        self.calls.append(("audit", count))
        return []

    async def overview(
        self, since: int = 0, *, processes: bool = False, alarms: bool = False
    ) -> dict[str, Any]:
        self.overviews += 1
        if self.fails is not None:
            raise self.fails
        row = ROW | self.values
        topic, channel = (
            tuple(row[name] for name in TOPIC_FIELDS),
            tuple(row[name] for name in CHANNEL_FIELDS),
        )
        found: dict[str, Any] = {
            "version": self.overviews,
            "whole": True,
            "topic_fields": TOPIC_FIELDS,
            "channel_fields": CHANNEL_FIELDS,
        }
        found |= {
            "topics": {
                name: (topic, dict.fromkeys(channels, channel))
                for name, channels in self.topics.items()
            }
        }
        found |= {"broker": dict(self.broker), "alarms": ALARMS}
        return found | {
            "processes": (
                {
                    "name": "supervisor",
                    "kind": "supervisor",
                    "pid": 1 << 22,
                    "state": "up",
                    "restarts": 0,
                },
            )
        }

    async def stats(
        self, topic: str | None = None, channel: str | None = None, *, partial: bool = False
    ) -> dict[str, Any]:
        if topic not in self.topics:
            raise NotFound(E_NOT_FOUND, f"topic {topic!r} does not exist")
        rows = [
            {**CHANNEL, "channel_name": name, "rates": {}, "drain_s": 0, "depth": 10}
            for name in self.topics[topic]
        ]
        own = {
            "topic_name": topic,
            "uuid": "u",
            "rates": {},
            "closed": "",
            "head": 10,
            "start": 0,
            "kept_count": 10,
            "log_bytes": 100,
            "stages": 0,
        }
        return {
            "topics": [{**TOPIC, **own, "channels": rows}],
            "producers": [],
            "processes": [],
            "alarms": [],
        }

    @asynccontextmanager
    async def reader(self, topic: str) -> AsyncIterator[Any]:
        if topic not in self.topics:
            raise NotFound(E_NOT_FOUND, f"topic {topic!r} does not exist")
        yield self

    async def publish_many(self, topic: str, bodies: list[bytes], **more: Any) -> Any:
        """Publish as a producer does. The receipt contains the answer that the test has set for
        "publish": an offset, or the keys of delayed messages.
        """
        self.calls.append(
            (
                "publish",
                topic,
                bodies,
                {name: value for name, value in more.items() if value is not None},
            )
        )
        said = self.answers.get("publish", 0)
        if isinstance(said, Exception):
            raise said
        keys = said if isinstance(said, list) else []
        offset = -1 if keys else said
        return SimpleNamespace(offset=offset, part=None, delayed_keys=lambda: keys)

    async def close(self, timeout: float | None = None) -> None:
        self.closed += 1

    async def bounds(self) -> tuple[int, int]:
        return (self.blocks[0].first_offset, self.blocks[-1].next_offset) if self.blocks else (0, 0)

    async def newest(self, count: int) -> int:
        return max(0, (await self.bounds())[1] - count)

    async def offset_at(self, time_ns: int) -> int:
        self.calls.append(("offset_at", time_ns))
        return 3

    async def read(self, offset: int, max_bytes: int = 1 << 20) -> Fetched:
        self.reads.append((offset, max_bytes))
        found: list[Block] = []
        size = 0
        for block in self.blocks:
            if block.next_offset > offset and (not found or size < max_bytes):
                found.append(block)
                size += block.length
        start, head = await self.bounds()
        after = found[-1].next_offset if found else max(offset, head)
        lost = missing(max(offset, start), found, after)
        return Fetched(start, head, found, after, lost)


class Visitor:
    """A client whose permissions the test changes while something of the client goes on."""

    def __init__(self, principal: Principal = EVERYBODY) -> None:
        self.principal = principal
        self.rights = Rights(principal, self._now)

    async def _now(self) -> Principal:
        return self.principal

    def renew(self, access: str = "") -> None:
        """Read the rules again."""
        self.principal = Principal(self.principal.name, AccessPolicy(Access.parse(access)))

    def request(self, site: ConsoleSite, method: str, query: str) -> Request:
        """Return a request of this client, as it comes to its handler."""
        request = Request(
            {"type": "http", "method": method, "query_string": query.encode(), "headers": []}
        )
        give(request, self.rights)
        give_place(request.scope, RequestPlace(site.limiters.requests, "a visitor"))
        return request


class ConsoleSite(Site):
    """The API on a fake broker. The console's sampler, which collects statistics, runs in the same
    event loop, and only during a call.
    """

    def __init__(
        self,
        folder: str = "",
        authority: HttpAuthority | None = None,
        limits: HttpLimits | None = None,
        open_admin: Callable[[str], Any] = no_admin,
    ) -> None:
        self.source = FakeSource()
        limiters = Limiters(limits or HttpLimits())
        self.console = Console(
            cast("Any", self.source),
            cast("Any", self.source.reader),
            lambda: cast("Any", self.source),
            "ipc:///nowhere",
            limiters,
            folder,
            open_admin,
        )
        self.messages = MessagePaths(cast("Any", self.source.reader), self.console.node, limiters)
        consume = ConsumePaths("ipc:///nowhere", limiters)
        consume.close()  # it answers at once that the broker is stopping
        super().__init__(
            limiters=limiters,
            consume=consume,
            console=self.console,
            messages=self.messages,
            authority=authority,
        )
        self.runner.run(self._start())

    async def _start(self) -> None:
        self.console.start()

    def within(self, make: Callable[[], Awaitable[Any]], timeout_s: float = 10.0) -> Any:
        """Run this coroutine in the loop."""

        async def run() -> Any:
            async with asyncio.timeout(timeout_s):
                return await make()

        return self.runner.run(run())

    def close(self) -> None:
        self.runner.run(self.console.close())
        super().close()
