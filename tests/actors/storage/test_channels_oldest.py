"""Tests of the age of the oldest unfinished message. Storage determines it with as few reads of the
log as possible.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.stage_bench import Bench

from zsq.actors.storage.channels import LOOKS_MAX, Floor, OldestTimes
from zsq.storage.log.damage import Bad
from zsq.storage.log.log_format import CHUNK_HEADER_BYTES
from zsq.transport.block.block import pack
from zsq.transport.block.block_format import Header


class Log:
    """A log of blocks with ten messages each. Block n was stored at second n."""

    def __init__(self) -> None:
        self.looks: list[int] = []
        self.unreadable: set[int] = set()

    def header_at(self, offset: int) -> Header | None:
        self.looks.append(offset)
        number = offset // 10
        return (
            None
            if number in self.unreadable
            else Header(0, 0, 128, 10, number * 10, number, 0, 0, 0)
        )


def test_one_look_into_the_log_serves_all_offsets_of_a_block() -> None:
    log = Log()
    oldest = OldestTimes(log.header_at)
    for offset in range(30, 40):
        assert oldest.refresh(
            [Floor("a", offset, 100), Floor("b", offset - 1 if offset > 30 else 30, 100)]
        ) == {"a": 3, "b": 3}
    assert log.looks == [30]
    assert oldest.refresh([Floor("a", 40, 100), Floor("b", 39, 100)]) == {"a": 4, "b": 3}
    assert oldest.refresh([Floor("a", 29, 100)]) == {"a": 2}, "moved back; b is gone"
    assert log.looks == [30, 40, 29]


def test_a_channel_without_unfinished_messages_has_no_oldest_time() -> None:
    log = Log()
    oldest = OldestTimes(log.header_at)
    assert oldest.refresh([Floor("a", 50, 50), Floor("b", 60, 50)]) == {}
    assert log.looks == []
    assert oldest.refresh([Floor("a", 50, 51)]) == {"a": 5}
    assert oldest.refresh([Floor("a", 51, 51)]) == {}
    assert oldest.refresh([Floor("a", 51, 52)]) == {"a": 5}, (
        "it was forgotten, and is looked up again"
    )


def test_a_thousand_channels_in_one_block_share_one_look() -> None:
    log = Log()
    found = OldestTimes(log.header_at).refresh(
        [Floor(str(number), 70 + number % 10, 100) for number in range(1_000)]
    )
    assert (len(found), set(found.values()), len(log.looks)) == (1_000, {7}, 1)


def test_looks_are_bounded_and_every_channel_gets_one_in_time() -> None:
    log = Log()
    oldest = OldestTimes(log.header_at)
    floors = [Floor(str(number), number * 10, 10_000) for number in range(3 * LOOKS_MAX + 50)]
    for calls in range(1, 4):
        assert len(oldest.refresh(floors)) == calls * LOOKS_MAX
    assert len(oldest.refresh(floors)) == len(floors)
    moved = [Floor(str(number), number * 10 + 10, 10_000) for number in range(3 * LOOKS_MAX + 50)]
    found = oldest.refresh(moved)
    assert len(found) == len(floors), "those that were not looked at keep what was known"
    for _ in range(20):
        found = oldest.refresh(moved)
    assert found == {str(number): number + 1 for number in range(3 * LOOKS_MAX + 50)}


def test_times_stay_recent_although_all_channels_move_all_the_time() -> None:
    oldest = OldestTimes(Log().header_at)
    channels = 3 * LOOKS_MAX + 50
    for second in range(20):
        found = oldest.refresh(
            [
                Floor(str(number), (second * channels + number) * 10, 1 << 40)
                for number in range(channels)
            ]
        )
        if second >= 5:
            assert (
                min(found[str(number)] - number for number in range(channels))
                >= (second - 4) * channels
            )


def test_a_time_that_cannot_be_read_is_left_out_and_read_again() -> None:
    log = Log()
    log.unreadable = {3}
    oldest = OldestTimes(log.header_at)
    assert oldest.refresh([Floor("a", 35, 100), Floor("b", 42, 100)]) == {"b": 4}
    log.unreadable = set()
    assert oldest.refresh([Floor("a", 35, 100), Floor("b", 42, 100)]) == {"a": 3, "b": 4}


@pytest.mark.parametrize("kept", [True, False], ids=["ring", "file"])
def test_the_log_finds_the_header_of_the_block_at_an_offset(tmp_path: Path, kept: bool) -> None:
    log = Bench(str(tmp_path / "topic")).store.log
    base = 1_700_000_000_000_000_000
    for number in range(50):
        log.append([pack([b"x"] * 10)], base + number)
    if not kept:
        log.reader.ring.clear()
    for offset in (0, 9, 10, 251, 499):
        header = log.reader.header_at(offset)
        assert header is not None
        assert (header.first_offset, header.time_ns) == (offset // 10 * 10, base + offset // 10)


def test_a_damaged_block_is_passed_over_without_an_error(tmp_path: Path) -> None:
    """A known hole is skipped. Damage that is found here is no error and is not reported, because
    the next reader of that place reports it.
    """
    bench = Bench(str(tmp_path / "topic"))
    log = bench.store.log
    for number in range(3):
        log.append([pack([b"x"] * 10)], 1_000 + number)
    log.reader.ring.clear()
    log.reader.damage.note(Bad(0, CHUNK_HEADER_BYTES, 0, 0, 10, "made up"))
    header = log.reader.header_at(4)
    assert header is not None
    assert (header.first_offset, header.time_ns) == (10, 1_001)
