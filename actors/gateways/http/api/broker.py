"""Statistics that simultaneous requests share.

While a request for statistics is running, its reply may lack changes that a new caller has already
seen. So a new caller gets the next reply, and all waiting callers share it. At any time at most one
request for all topics and one for each topic are running. Therefore, many scrapers cost no more
than one scraper that requests without pauses.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from .....transport.client.asyncio.aio import Admin
from .....transport.reports import BrokerStats


class SharedStats:
    def __init__(self, broker: Admin) -> None:
        self._broker = broker
        self._now: dict[str, asyncio.Task[BrokerStats]] = {}
        self._next: dict[str, asyncio.Task[BrokerStats]] = {}
        self._last: BrokerStats | None = None
        self._last_ns = 0
        self.asked = 0

    async def fresh(self, topic: str = "") -> BrokerStats:
        """Return the statistics of all topics or of one, not older than this call.

        Parts of a topic that do not answer are missing, and `unanswered` has their names. Raises
        `NotFound` if the topic does not exist.
        """
        if (waiting := self._next.get(topic)) is not None:
            return await asyncio.shield(waiting)
        before = self._now.get(topic)
        if before is None:
            task = self._now[topic] = self._task(self._ask(topic))
        else:
            task = self._next[topic] = self._task(self._after(topic, before))
        return await asyncio.shield(task)

    async def recent(self, age_s: float) -> BrokerStats:
        """Return the statistics of all topics, not older than `age_s`."""
        if self._last is not None and time.monotonic_ns() - self._last_ns <= age_s * 1e9:
            return self._last
        return await self.fresh()

    async def _after(self, topic: str, before: asyncio.Task[BrokerStats]) -> BrokerStats:
        await asyncio.wait((before,))
        task = asyncio.current_task()
        assert task is not None
        del self._next[topic]
        self._now[topic] = task
        return await self._ask(topic)

    async def _ask(self, topic: str) -> BrokerStats:
        self.asked += 1
        begun_ns = time.monotonic_ns()
        try:
            stats = await self._broker.stats(topic or None, partial=True)
        finally:
            if self._now.get(topic) is asyncio.current_task():
                del self._now[topic]
        if not topic:
            self._last, self._last_ns = stats, begun_ns
        return stats

    @staticmethod
    def _task(ask: Coroutine[Any, Any, BrokerStats]) -> asyncio.Task[BrokerStats]:
        task = asyncio.get_running_loop().create_task(ask)
        # The callers may be gone. So the task's error is read here, and asyncio does not log it.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task
