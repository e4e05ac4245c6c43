"""Tests of channels with priorities: what overtakes, the shares of the levels, what is parked, read
again and bounded, and what happens at a start.
"""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest import mock

import pytest

from tests.actors.conftest import ChannelHarness
from zsq.actors.channel.core import ChannelCore
from zsq.actors.channel.priorities import Levels, level_of, levels_of
from zsq.actors.settings import options
from zsq.transport.block.block import Block, pack, with_place
from zsq.transport.errors import UsageError
from zsq.transport.settings import ChannelSettings
from zsq.transport.wire.codec import pack_headers

A, B = (b"a",), (b"b",)


class PriorityHarness(ChannelHarness):
    """A harness that publishes messages by their priorities, given as digits: `take("00.2")` is a
    block of four messages, the third one without the header.
    """

    def __init__(self, next_offset: int = 0, holes: Any = (), **given: Any) -> None:
        super().__init__(next_offset, holes, **{"priorities": 3, **given})
        self.blocks: list[Block] = []

    def take(self, priorities: str, age_s: float = 0.0) -> None:
        self.blocks.append(with_place(block_of(priorities), self.end, 0))
        self.take_in(block_of(priorities), age_s)

    def offsets(self) -> list[int]:
        """Return the offsets that are delivered now, in their order."""
        return [
            start + i
            for pending in self.send()
            for start, count, _ in pending.runs
            for i in range(count)
        ]

    def one_by_one(self, count: int) -> list[int]:
        """Return the offsets that a consumer of one message at a time receives and finishes."""
        found = []
        for _ in range(count):
            self.channel.rest()
            pending = self.channel.next_delivery(self.now_ns, self.wall_ns)
            if pending is None:
                self.read()
                pending = self.channel.next_delivery(self.now_ns, self.wall_ns)
            assert pending is not None
            found.append(pending.runs[0][0])
            self.channel.fin(pending.peer, pending.token, ())
        return found

    def read(self) -> list[int]:
        """Read the wanted blocks from the log, and return the offsets that were wanted."""
        wanted = sorted(self.channel.supply.wanted)
        for offset in wanted:
            (block,) = (b for b in self.blocks if b.first_offset <= offset < b.next_offset)
            self.channel.supply.shelve(block)
        return wanted

    def again(self) -> None:
        """Start the channel again with the rows that its last commit left."""
        changes = self.commit()
        live = [hole for hole in changes.holes_put if not hole[3]]
        self.channel = ChannelCore(
            6, changes.next_offset, live, {}, False, None, self.channel.settings, "c"
        )


def block_of(priorities: str) -> Block:
    headers = [pack_headers({} if one == "." else {"zsq-priority": int(one)}) for one in priorities]
    return pack([b"x"] * len(priorities), headers=headers if set(priorities) != {"."} else None)


@pytest.fixture
def channel() -> PriorityHarness:
    harness = PriorityHarness()
    harness.join(A, 1)
    return harness


@pytest.mark.parametrize(
    ("value", "level"),
    [
        (0, 0), (1, 1), (2, 2), (3, 2), (1 << 70, 2), (-1, 0), ("1", 1), ("2", 2), ("007", 2), ("9" * 9, 2),
        ("9" * 5_000, 2), ("0" * 30 + "1", 1), ("0" * 30, 0),
        ("", 0), ("-1", 0), ("1.0", 0), ("²", 0), ("high", 0), (1.0, 0), (True, 0), (None, 0), (b"1", 0), ((1,), 0),
    ],
)  # fmt: skip
def test_any_header_means_a_level(value: object, level: int) -> None:
    assert level_of(value, 3) == level


def test_blocks_without_the_header_are_not_unpacked() -> None:
    assert levels_of(pack([b"x"]), 3) is None
    assert levels_of(pack([b"x"], headers=[pack_headers({"a": "zsq-priority"})]), 3) is None
    assert levels_of(block_of("0"), 3) is None
    assert levels_of(block_of(".02"), 3) == b"\0\0\2"
    damaged = b"\xff zsq-priority"
    assert levels_of(pack([b"x", b"y"], headers=[damaged, damaged]), 3) is None


def test_urgent_messages_overtake_a_backlog(channel: PriorityHarness) -> None:
    for _ in range(5):
        channel.take("...")
    channel.take("..1.2")
    assert channel.one_by_one(4) == [19, 17, 0, 1]
    assert channel.stats() == (16, 0, 0)


def test_a_backlog_is_one_row_and_a_position(channel: PriorityHarness) -> None:
    channel.take("0" * 50)
    channel.take("." * 50)
    channel.take("2.")
    assert channel.one_by_one(2) == [100, 0]
    changes = channel.commit()
    assert changes.next_offset == 102
    assert changes.holes_put == ((1, 99, 0, 0), (101, 1, 0, 0))
    assert channel.channel.first() == 1, "the topic keeps everything from here on"
    shown = channel.channel.supply.shown()
    assert list(shown["parked"]) == [(1, 99, 0), (101, 1, 0)]


def test_a_peek_shows_urgent_messages_first(channel: PriorityHarness) -> None:
    channel.take("0012")
    assert channel.one_by_one(1) == [3]
    assert list(channel.channel.supply.shown()["parked"]) == [(2, 1, 0), (0, 2, 0)]


@pytest.mark.parametrize("comes", [True, False])
def test_a_new_consumer_gets_what_arrived_while_there_was_none(
    channel: PriorityHarness, comes: bool
) -> None:
    for _ in range(5):  # the blocks of the first four have been looked for
        channel.take("0" * 10)
    assert channel.one_by_one(2) == [0, 1]
    channel.channel.unsubscribe(A)
    channel.channel.rest()
    urgent = with_place(block_of("2"), 50, channel.wall_ns)
    channel.channel.supply.head = 51
    channel.join(A, 10)
    assert channel.offsets() == []
    assert channel.read() == [2], "it is requested meanwhile"
    assert channel.offsets() == [], "parked messages are here, and wait for the newest"
    if comes:
        channel.channel.supply.offer(urgent)
        assert channel.offsets()[:9] == [50, *range(2, 10)]
    else:
        channel.wall_ns += options.PARKED_HOLD_NS
        assert channel.offsets()[:8] == [*range(2, 10)]


def test_nothing_waits_when_everything_is_read(channel: PriorityHarness) -> None:
    channel.take("0" * 50)
    assert channel.one_by_one(2) == [0, 1]
    channel.channel.unsubscribe(A)
    channel.channel.rest()
    channel.channel.supply.head = 50
    channel.join(A, 10)
    channel.offsets()
    channel.read()
    assert channel.offsets() == [*range(2, 12)]


def test_each_level_has_its_share_while_all_have_messages(channel: PriorityHarness) -> None:
    for _ in range(10):
        channel.take("0" * 100 + "1" * 100 + "2" * 100)
    got = Counter(offset // 100 % 3 for offset in channel.one_by_one(420))
    assert got == {0: 20, 1: 80, 2: 320}


def test_a_level_that_was_empty_saves_up_nothing(channel: PriorityHarness) -> None:
    channel.take("0" * 40)
    assert channel.one_by_one(20) == [*range(20)]
    channel.take("2" * 100)
    got = channel.one_by_one(50)
    assert [at for at, offset in enumerate(got) if offset < 40] == [31, 48], "16 to 1"
    level = Levels(2)
    level.park(1, 0, 100)
    for _ in range(100):
        (high,) = level.next_piles()
        high.take(1)
        level.served(high, 1)
    level.park(0, 100, 1)
    assert level.at(0).used == pytest.approx(99 / 4), "as if it had had its share until now"


def test_a_delivery_has_one_level_and_all_messages_that_fit() -> None:
    harness = PriorityHarness()
    harness.join(A, 10)
    harness.take("0101012")
    assert [pending.runs for pending in harness.send()] == [
        ((6, 1, 1),),
        ((1, 1, 1), (3, 1, 1), (5, 1, 1)),
        ((0, 1, 1), (2, 1, 1), (4, 1, 1)),
    ]


def test_redeliveries_get_their_share_whatever_waits(channel: PriorityHarness) -> None:
    channel.take("0" * 5 + "2" * 20)
    first = channel.send_one()
    channel.channel.req(A, first.token, (), 0, channel.wall_ns)
    channel.commit()
    channel.commit()
    assert first.runs == ((5, 1, 1),)
    assert channel.send_one().runs == ((5, 1, 2),)


def test_a_start_sorts_the_stored_rows_again(channel: PriorityHarness) -> None:
    channel.take("0" * 6)
    channel.take("0101")
    channel.take("2")
    assert channel.one_by_one(1) == [10]
    channel.again()
    channel.join(A, 1)
    assert channel.channel.statistics(channel.end)["depth"] == 10
    assert channel.offsets() == []
    assert channel.read() == [0]
    assert channel.one_by_one(1) == [0], "sorted ones do not wait for later ones"
    channel.channel.rest()
    channel.channel.supply.look_ahead(0, channel.wall_ns)
    assert channel.read() == [6]
    assert channel.one_by_one(9) == [7, 9, 1, 2, 3, 4, 5, 6, 8]
    assert channel.stats() == (0, 0, 0)
    assert channel.channel.first() == 11


def test_a_start_sorts_no_block_that_memory_has_changed() -> None:
    harness = PriorityHarness()
    harness.take("02")
    harness.channel = ChannelCore(
        6, 2, [(0, 2, 0, 0)], {}, False, None, harness.channel.settings, "c"
    )
    harness.join(A, 1)
    assert harness.offsets() == []
    block = harness.blocks[0]
    flipped = Block(block.header, bytearray(block.payload))
    flipped.payload[bytes(flipped.payload).index(b"zsq-priority")] ^= 1
    harness.channel.supply.shelve(flipped)
    assert harness.channel.supply.corrupt_count == 1
    assert harness.offsets() == []
    assert harness.read() == [0], "it is requested again"
    assert harness.one_by_one(2) == [1, 0]


def test_after_a_start_no_message_overtakes_an_earlier_one_of_its_level() -> None:
    harness = PriorityHarness()
    for block in ("00", "20", "02"):
        harness.take(block)
    harness.channel = ChannelCore(
        6, 4, [(0, 2, 0, 0), (2, 2, 0, 0)], {}, False, None, harness.channel.settings, "c"
    )
    harness.channel.supply.offer(harness.blocks[2])
    harness.join(A, 1)
    assert harness.offsets() == [], "the urgent message at 5 may have an earlier one before it"
    harness.channel.supply.shelve(harness.blocks[1])
    assert harness.offsets() == [], "messages of the first block come before the one at 3"
    harness.channel.supply.shelve(harness.blocks[0])
    assert harness.one_by_one(6) == [2, 5, 0, 1, 3, 4]


def test_rows_are_bounded_and_the_rest_waits_in_the_window(channel: PriorityHarness) -> None:
    with mock.patch.object(options, "PARKED_ROWS_MAX", 5):
        channel.take("01" * 10 + "2")
        got = channel.one_by_one(21)
    assert sorted(got) == [*range(21)]
    assert got.index(20) > 10, "the urgent one was behind the bound"
    with mock.patch.object(options, "PARKED_ROWS_MAX", 5):
        channel.take("0" * 10 + "2")
        assert channel.one_by_one(1) == [31], "adjacent ones are one row"


def test_a_long_backlog_is_read_ahead_in_turns(channel: PriorityHarness) -> None:
    """The next turn follows at once, also while all consumers are busy."""
    with mock.patch.multiple(options, LOOKS_MAX=100, PARKED_LOOKS=50):
        channel.take(".")
        for _ in range(20):
            channel.take("." * 100)
        channel.take("2")
        assert channel.one_by_one(1) == [0]
        assert channel.channel.has_more()
        turns = 1
        while channel.channel.has_more():
            channel.channel.rest()
            channel.channel.next_delivery(channel.now_ns, channel.wall_ns)
            turns += 1
        assert 4 < turns < 10
        pending = channel.channel.next_delivery(channel.now_ns, channel.wall_ns)
        assert pending is None, "the consumer is busy since the first of these turns"
        channel.join(B, 1)
        assert channel.one_by_one(1) == [2001]
        channel.channel.rest()
        assert not channel.channel.has_more(), "nothing is left to read, so no turn follows"


def test_nothing_is_read_ahead_for_nobody() -> None:
    harness = PriorityHarness()
    harness.take("012")
    assert harness.offsets() == []
    assert harness.channel.supply.next_offset == 0
    harness.join(A, 9)
    harness.channel.paused = True
    assert harness.offsets() == []
    assert harness.channel.supply.next_offset == 0


def test_a_short_line_is_read_once_and_a_backlog_twice(channel: PriorityHarness) -> None:
    with mock.patch.object(options, "PARKED_KEPT", 5):
        channel.take("0000")
        channel.take("0000")
        channel.take("0000")
        channel.take("0002")
        channel.take("2")
        assert channel.one_by_one(5) == [15, 16, 0, 1, 2]
        assert not channel.channel.supply.wanted & {*range(4)}
        assert 8 in channel.channel.supply.wanted, "requested before its turn"
        assert channel.one_by_one(10) == [*range(3, 8), *range(8, 13)]


def test_a_level_whose_blocks_are_missing_lets_the_next_one_go(channel: PriorityHarness) -> None:
    channel.take("22")
    channel.take("00")
    supply = channel.channel.supply
    supply.look_ahead(0, channel.wall_ns)
    supply.shelve(channel.blocks[0])
    supply._shelf.clear()
    supply.shelve(channel.blocks[1])
    assert channel.one_by_one(1) == [2]
    assert channel.read() == [0]
    assert channel.one_by_one(3) == [0, 1, 3]


@pytest.mark.parametrize("age_s", [0, 100])
def test_old_messages_are_passed_at_the_delivery_too(age_s: int) -> None:
    harness = PriorityHarness(max_age_s=50)
    harness.join(A, 1)
    harness.take("00", age_s)
    harness.take("02")
    assert harness.one_by_one(1) == [3]
    harness.wall_ns += 60_000_000_000
    harness.channel.rest()
    assert harness.offsets() == []
    assert harness.channel.counters["expired_count"] == 3
    assert harness.stats() == (0, 0, 0)


def test_a_sample_takes_its_part_of_each_level() -> None:
    harness = PriorityHarness(random=iter([0.0, 0.9, 0.0, 0.9, 0.9, 0.0] + [0.9] * 9).__next__)
    harness.join(A, 100, sample_rate=50)
    harness.take("000222")
    assert harness.offsets() == [3, 5, 2]
    assert harness.channel.counters["sampled_count"] == 3


@pytest.mark.parametrize("how", ["lost", "dropped", "seek"])
def test_what_is_gone_is_not_parked(channel: PriorityHarness, how: str) -> None:
    channel.take("0" * 10)
    channel.take("2")
    assert channel.one_by_one(1) == [10]
    supply = channel.channel.supply
    if how == "lost":
        supply.lost(0, 10)
        assert channel.channel.counters["lost_count"] == 10
    elif how == "dropped":
        supply.drop_below(10)
        assert channel.channel.counters["dropped_count"] == 10
    else:
        channel.channel.seek(11)
        channel.commit()
    assert channel.offsets() == []
    assert channel.stats() == (0, 0, 0)
    assert channel.channel.first() == 11


def test_rows_that_are_not_sorted_yet_can_be_gone_too() -> None:
    harness = PriorityHarness(20, [(0, 4, 0, 0), (10, 4, 0, 0)])
    harness.join(A, 1)
    assert harness.stats()[0] == 8
    harness.channel.supply.drop_below(2)
    harness.channel.supply.lost(10, 14)
    assert harness.stats()[0] == 2
    assert (harness.channel.counters["dropped_count"], harness.channel.counters["lost_count"]) == (
        2,
        4,
    )
    assert harness.channel.first() == 2


def test_too_many_rows_behind_the_cursor_stop_new_messages(channel: PriorityHarness) -> None:
    with mock.patch.object(options, "HOLE_ROWS_MAX", 3):
        channel.take("0" * 20)
        for _ in range(5):
            for pending in channel.send():
                channel.channel.req(A, pending.token, (), 60_000, channel.wall_ns)
        assert channel.stats()[2] == 3


@pytest.mark.parametrize("priorities", [1, 11, -1, True, "3"])
def test_the_number_of_levels_is_checked(priorities: Any) -> None:
    with pytest.raises(UsageError, match="priorities must be a number from 2 to 10, or 0 for none"):
        ChannelSettings(priorities=priorities)


def test_a_channel_is_ordered_or_has_priorities() -> None:
    with pytest.raises(UsageError, match="not both"):
        ChannelSettings(priorities=3, ordered=True)
