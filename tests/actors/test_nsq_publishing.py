"""The gatherer by itself, on a topic that does not answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import uvloop

from zsq.actors.nsq.publishing import AHEAD_MAX, Gatherer


class Counting(Gatherer):
    looks = 0

    def _may_go(self, waiting: Any) -> bool:
        self.looks += 1
        return super()._may_go(waiting)


def test_what_must_wait_is_not_looked_at_all_the_time(tmp_path: Path) -> None:
    async def run() -> int:
        gatherer = Counting(f"ipc://{tmp_path}")
        for _ in range(AHEAD_MAX + 5):
            gatherer.publish("topic", [b"body"], 0, lambda why: None)
            await asyncio.sleep(0.001)
        assert (gatherer.blocks, gatherer.idle) == (AHEAD_MAX, False)
        before = gatherer.looks
        await asyncio.sleep(0.2)
        looks = gatherer.looks - before
        await gatherer.finish(0.0)
        return looks

    assert uvloop.run(run()) < 20
