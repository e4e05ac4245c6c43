"""Statistics that many ask for at once: the broker is asked for them once.

Whoever asks while an answer is on its way may have seen something happen that this answer does not know of; so it gets the next one, and
all who wait share that. At any time there is one question about all, and one about each topic, on its way: a crowd of scrapers costs no
more than one that hurries.

What the gateway asks of its broker: a part of `aio.Admin`, so that tests can stand in for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, Protocol

from .....transport.reports import BrokerStats


class BrokerClient(Protocol):
    """Each raises ZsqError."""

    async def create_topic(self, name: str) -> object: ...

    async def create_channel(self, topic: str, channel: str) -> object: ...

    async def delete_topic(self, name: str, force: bool = False) -> object: ...

    async def delete_channel(self, topic: str, channel: str, force: bool = False) -> object: ...

    async def pause(self, topic: str, channel: str | None = None) -> object: ...

    async def unpause(self, topic: str, channel: str | None = None) -> object: ...

    async def empty(self, topic: str, channel: str | None = None) -> object: ...

    async def stats(self, topic: str | None = None, channel: str | None = None) -> BrokerStats: ...


class SharedStats:
    def __init__(self, broker: BrokerClient) -> None:
        self._broker = broker
        self._now: dict[str, asyncio.Task[BrokerStats]] = {}
        self._next: dict[str, asyncio.Task[BrokerStats]] = {}
        self._last: BrokerStats | None = None
        self._last_ns = 0
        self.asked = 0

    async def fresh(self, topic: str = "") -> BrokerStats:
        """Of everything, or of one topic (NotFound): as it is now, or a little later."""
        if (waiting := self._next.get(topic)) is not None:
            return await asyncio.shield(waiting)
        before = self._now.get(topic)
        if before is None:
            task = self._now[topic] = self._task(self._ask(topic))
        else:
            task = self._next[topic] = self._task(self._after(topic, before))
        return await asyncio.shield(task)

    async def recent(self, age_s: float) -> BrokerStats:
        """Of everything, not older than that."""
        if self._last is not None and time.monotonic_ns() - self._last_ns <= age_s * 1e9:
            return self._last
        return await self.fresh()

    async def _after(self, topic: str, before: asyncio.Task[BrokerStats]) -> BrokerStats:
        await asyncio.wait((before,))
        own = asyncio.current_task()
        assert own is not None
        del self._next[topic]
        self._now[topic] = own
        return await self._ask(topic)

    async def _ask(self, topic: str) -> BrokerStats:
        self.asked += 1
        begun_ns = time.monotonic_ns()
        try:
            found = await self._broker.stats(topic or None)
        finally:
            if self._now.get(topic) is asyncio.current_task():
                del self._now[topic]
        if not topic:
            self._last, self._last_ns = found, begun_ns
        return found

    @staticmethod
    def _task(ask: Coroutine[Any, Any, BrokerStats]) -> asyncio.Task[BrokerStats]:
        task = asyncio.get_running_loop().create_task(ask)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # whoever waited for it may have left
        return task
