"""Tests of the gatherer on a topic that does not answer: what is sent at once, and what is gathered
into larger blocks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from zsq.actors.gateways.shared import gatherer as module
from zsq.actors.gateways.shared.gatherer import AHEAD_MAX, BLOCK_BYTES, WORTH_BYTES, Gatherer
from zsq.transport.block.block_format import BLOCK_COUNT_MAX


class Counting(Gatherer):
    looks = 0

    def _may_go(self, *arguments: Any) -> bool:
        self.looks += 1
        return super()._may_go(*arguments)


def gathered(folder: Path, work: Callable[[Counting], Awaitable[None]]) -> None:
    async def run() -> None:
        gatherer = Counting(f"ipc://{folder}")
        try:
            await work(gatherer)
        finally:
            await gatherer.finish(0.0)

    uvloop.run(run())


async def publish(gatherer: Gatherer, *bodies: bytes, delay_ms: int = 0) -> None:
    """Publish, and let the loop make some turns."""
    gatherer.publish("topic", bodies, delay_ms, lambda why: None)
    await turns(5)


async def turns(count: int) -> None:
    """Wait for `count` turns of the loop."""
    for _ in range(count):
        turned = asyncio.Event()
        asyncio.get_running_loop().call_soon(turned.set)
        await turned.wait()


def test_small_publishes_are_gathered_while_enough_blocks_are_out(tmp_path: Path) -> None:
    async def work(gatherer: Counting) -> None:
        for _ in range(5):
            await publish(gatherer, b"body")
        assert (gatherer.blocks, gatherer.messages, gatherer.pending_bytes) == (
            AHEAD_MAX,
            AHEAD_MAX,
            20,
        )

    gathered(tmp_path, work)


def test_a_second_block_is_sent_only_if_it_is_large_enough(tmp_path: Path) -> None:
    async def half_as_many(gatherer: Counting) -> None:
        await ten(gatherer)
        for count in range(1, 5):
            await publish(gatherer, b"body")
            assert (gatherer.blocks, gatherer.messages) == (1, 10), count
        await publish(gatherer, b"body")
        assert (gatherer.blocks, gatherer.messages) == (2, 15)

    async def large(gatherer: Counting) -> None:
        await ten(gatherer)
        await publish(gatherer, bytes(WORTH_BYTES))
        assert (gatherer.blocks, gatherer.messages) == (2, 11)

    async def ten(gatherer: Counting) -> None:
        for _ in range(9):
            gatherer.publish("topic", [b"body"], 0, lambda why: None)
        await publish(gatherer, b"body")

    gathered(tmp_path, half_as_many)
    gathered(tmp_path, large)


def test_only_full_blocks_are_sent_while_enough_blocks_are_out(tmp_path: Path) -> None:
    async def work(gatherer: Counting) -> None:
        for _ in range(AHEAD_MAX + 3):
            await publish(gatherer, bytes(WORTH_BYTES))
        assert gatherer.blocks == AHEAD_MAX
        await publish(gatherer, bytes(BLOCK_BYTES))
        assert (gatherer.blocks, gatherer.idle) == (AHEAD_MAX + 1, False)

    gathered(tmp_path, work)


def test_a_block_has_a_bounded_number_of_bytes_and_messages(tmp_path: Path) -> None:
    async def work(gatherer: Counting) -> None:
        for _ in range(AHEAD_MAX):
            await publish(gatherer, bytes(WORTH_BYTES))
        for bodies in ([bytes(BLOCK_BYTES)], [b"1"], [b"2"], [b""] * (BLOCK_COUNT_MAX - 2), [b"3"]):
            gatherer.publish("topic", bodies, 0, lambda why: None)
        gathers = gatherer._gathers["topic", 0]
        assert [len(one.bodies) for one in gathers] == [1, BLOCK_COUNT_MAX, 1]
        await turns(5)
        assert gatherer.blocks == AHEAD_MAX + 2, "those that are full"

    gathered(tmp_path, work)


def test_a_publish_of_several_blocks_has_one_answer(tmp_path: Path) -> None:
    answers: list[str] = []

    async def work(gatherer: Counting) -> None:
        gatherer.publish("topic", [b"body"] * (2 * BLOCK_COUNT_MAX + 1), 0, answers.append)
        await turns(5)
        assert (gatherer.blocks, gatherer.messages) == (2, 2 * BLOCK_COUNT_MAX), (
            "the rest is gathered"
        )
        assert answers == []
        for out in [*gatherer._out["topic"]]:
            gatherer.engine.lanes["topic"].session.withdraw(out.pending)
            gatherer._answer(out.answers, out.size, "E_X why")
        assert answers == [], "a part of it is still to come"
        (rest,) = gatherer._gathers.pop(("topic", 0))
        gatherer._answer(rest.answers, rest.size, "")
        assert answers == ["E_X why"]

    gathered(tmp_path, work)


def test_the_bytes_of_unanswered_publishes_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is for all connections together. While it is reached, the gateway reads from none
    of them. It reads again when answers arrive.
    """
    monkeypatch.setattr(module, "PENDING_BYTES_MAX", 3 * BLOCK_BYTES)

    async def work(gatherer: Counting) -> None:
        for _ in range(3):
            await publish(gatherer, bytes(BLOCK_BYTES))
        assert not gatherer.full
        await publish(gatherer, b"body")
        assert gatherer.full
        out = gatherer._out["topic"][0]
        gatherer._answer(out.answers, out.size, "")
        assert not gatherer.full

    gathered(tmp_path, work)


def test_delays_share_no_block_and_do_not_wait_for_each_other(tmp_path: Path) -> None:
    async def work(gatherer: Counting) -> None:
        for delay_ms in (0, 0, 0, 0, 10, 20, 20, 20, 20, 30):
            await publish(gatherer, b"body", delay_ms=delay_ms)
        assert (gatherer.blocks, gatherer.messages) == (2 + 2 * AHEAD_MAX, 2 + 2 * AHEAD_MAX)

    gathered(tmp_path, work)


def test_gathered_messages_that_must_wait_cause_no_repeated_work(tmp_path: Path) -> None:
    async def work(gatherer: Counting) -> None:
        for _ in range(5):
            await publish(gatherer, b"body")
        before = gatherer.looks
        await turns(500)
        assert gatherer.looks - before < 20

    gathered(tmp_path, work)


def test_lanes_that_are_not_used_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients choose the names of topics, and each lane needs a link and a socket."""
    monkeypatch.setattr(module, "LANES_MAX", 5)

    async def work(gatherer: Counting) -> None:
        for number in range(8):
            gatherer.publish(f"topic{number}", [b"body"], 0, lambda why: None)
        await turns(5)
        assert len(gatherer.engine.lanes) == 8
        now = max(gatherer._used_ns.values())
        gatherer._drop_idle(now)
        assert len(gatherer.engine.lanes) == 8, "all of them wait for an answer"
        for name, lane in gatherer.engine.lanes.items():
            if name != "topic0":
                for out in gatherer._out[name]:
                    lane.session.withdraw(out.pending)
                gatherer._out[name].clear()
                del gatherer._out[name]
        gatherer._drop_idle(now)
        assert list(gatherer.engine.lanes) == ["topic0", "topic4", "topic5", "topic6", "topic7"]
        assert len(gatherer.engine.links) == 5
        gatherer._drop_idle(now + module.LANE_IDLE_NS)
        assert list(gatherer.engine.lanes) == list(gatherer._used_ns) == ["topic0"]
        await publish(gatherer, b"body")
        assert "topic" in gatherer.engine.lanes

    gathered(tmp_path, work)


def test_publishes_to_a_lost_topic_fail_at_once_when_the_broker_stops(tmp_path: Path) -> None:
    """If they did not fail, the publishes would wait up to 30 s for the topic to return."""
    answers: list[str] = []

    async def work(gatherer: Counting) -> None:
        for _ in range(AHEAD_MAX + 1):
            gatherer.publish("topic", [bytes(WORTH_BYTES)], 0, answers.append)
            await turns(5)
        gatherer.engine.lanes["topic"].link.restart(time.monotonic_ns(), "the connection was lost")
        await turns(5)
        assert answers == []
        gatherer.stop_waiting()
        gatherer.engine.lanes["topic"].link.restart(time.monotonic_ns(), "the connection was lost")
        await asyncio.wait_for(gatherer.finish(60.0), 5)
        assert [answer.split()[0] for answer in answers] == ["E_CLOSING"] * (AHEAD_MAX + 1)
        assert gatherer.idle

    gathered(tmp_path, work)
