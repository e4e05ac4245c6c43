"""Tests of limits in the console's back end: how many messages it reads, how much memory it uses,
and how long it keeps values from a silent broker.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import pytest

from zsq.actors.gateways.http.console import read_handlers, sampler
from zsq.transport.block.block import Block, pack
from zsq.transport.client.core.message import Fetched
from zsq.transport.errors import E_TIMEOUT, ZsqError


class Log:
    """A log whose blocks are read one by one. From the offset `damaged` on it returns nothing, and
    a reader cannot continue.
    """

    def __init__(self, blocks: list[Block], damaged: int = 1 << 40) -> None:
        self.blocks, self.damaged, self.reads = blocks, damaged, 0

    async def read(self, at: int, size: int) -> Any:
        self.reads += 1
        assert self.reads < 20, "it does not end"
        found = [
            block
            for block in self.blocks
            if block.first_offset <= at < min(block.next_offset, self.damaged)
        ]
        return Fetched(0, 1 << 20, found, found[-1].next_offset if found else at)


def read(log: Any, first: int, head: int, count: int) -> tuple[list[int], int]:
    found, at, _ = asyncio.run(read_handlers._read("t", log, first, head, count))
    return [one.offset for one in found], at


def blocks(*counts: int) -> list[Block]:
    made: list[Block] = []
    for count in counts:
        block = pack([b"x" * 100] * count)
        first = made[-1].next_offset if made else 0
        made.append(Block(block.header._replace(first_offset=first), block.payload, block.columns))
    return made


def test_messages_are_read_up_to_a_count_a_size_and_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert read(Log(blocks(3, 3, 3)), 1, 9, 5) == ([1, 2, 3, 4, 5], 6)
    assert read(Log(blocks(3, 3, 3)), 7, 9, 5) == ([7, 8], 9)
    monkeypatch.setattr(read_handlers, "HELD_BYTES_MAX", 350)
    assert read(Log(blocks(3, 3, 3)), 0, 9, 9) == ([0, 1, 2, 3], 4)


def test_reading_ends_where_there_is_no_way_on() -> None:
    log = Log(blocks(3, 3), damaged=3)
    assert read(log, 0, 6, 9) == ([0, 1, 2], 3)
    assert log.reads == 2


def test_memory_is_measured_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[list[int]] = []

    def measure(pids: list[int]) -> dict[int, int]:
        measured.append(pids)
        return dict.fromkeys(pids, len(measured))

    async def main() -> None:
        harness: Any = object.__new__(read_handlers.ReadHandlers)
        harness._memory, harness._measuring = (-read_handlers.MEMORY_AGE_S, {}), asyncio.Lock()
        assert await harness._memory_of([7]) == await harness._memory_of([7]) == {7: 1}
        harness._memory = asyncio.get_running_loop().time() - read_handlers.MEMORY_AGE_S - 1, {7: 1}
        assert await harness._memory_of([7]) == {7: 2}

    monkeypatch.setattr(read_handlers, "_measured", measure)
    asyncio.run(main())
    assert measured == [[7], [7]]


@pytest.mark.parametrize("age", [-1.0, 1.0])
def test_histories_have_a_hole_where_the_broker_was_silent_for_long(
    age: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[int] = []

    class Silent:
        async def overview(self, since: int = 0, **more: bool) -> Any:
            made.closing = True
            raise ZsqError(E_TIMEOUT, "no answer")

    made = sampler.Sampler(cast("Any", Silent()))
    monkeypatch.setattr(made.history, "lost", lost.append)
    made._sampled_s = time.monotonic() - sampler.LOST_S - age
    asyncio.run(made.run())
    assert len(lost) == (age > 0)
