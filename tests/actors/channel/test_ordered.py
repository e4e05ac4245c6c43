"""Tests of ordered channels: what blocks a key, what frees it, how consumers share the messages,
and what happens first at a start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest

from tests.actors.conftest import ChannelHarness, S
from zsq.actors.channel.core import ChannelCore
from zsq.actors.channel.dying import REJECTED
from zsq.actors.channel.lease import Hole, OutgoingDelivery
from zsq.actors.settings import options
from zsq.transport.block.block import Block, pack, with_place
from zsq.transport.wire.protocol import DEAD

A, B, C = (b"a",), (b"b",), (b"c",)
ALL: tuple[tuple[int, int], ...] = ()


class OrderedChannelHarness(ChannelHarness):
    """A harness that publishes messages by their keys, given as letters: `take_keys("aab.")`
    publishes a block of two messages with key a, one with key b, and one without a key.
    """

    def __init__(self, next_offset: int = 0, holes: Sequence[Hole] = (), **settings: Any) -> None:
        super().__init__(next_offset, holes, ordered=True, **settings)
        if any(hole[3] for hole in holes):  # an ordered channel loads its deferred rows, too
            channel = self.channel
            self.channel = ChannelCore(
                5, next_offset, holes, {}, False, channel.supply.deferred, channel.settings, "c"
            )
        self.blocks: dict[int, Block] = {}

    def take_keys(self, keys: str, tags: str = "", age_s: float = 0.0) -> None:
        self.blocks[self.end] = block_of(keys, tags)
        self.take_in(self.blocks[self.end], age_s)

    def offsets(self) -> list[int]:
        """Return the offsets that are delivered now."""
        return [
            start + i
            for pending in self.send()
            for start, count, _ in pending.runs
            for i in range(count)
        ]

    def finish(self, pending: OutgoingDelivery, *offsets: int) -> None:
        assert not self.channel.fin(
            pending.peer, pending.token, [(offset, 1) for offset in offsets]
        )


def block_of(keys: str, tags: str = "") -> Block:
    found = [None if key == "." else key.encode() for key in keys]
    return pack(
        [b"x"] * len(keys),
        keys=found if any(found) else None,
        tags=[tag.encode() for tag in tags] if tags else None,
    )


@pytest.fixture
def keyed() -> OrderedChannelHarness:
    harness = OrderedChannelHarness()
    harness.join(A, 100)
    return harness


def test_one_of_a_key_is_out_and_the_next_follows_its_finish(keyed: OrderedChannelHarness) -> None:
    keyed.take_keys("aab.a.b")
    pending = keyed.send_one()
    assert pending.runs == ((0, 1, 1), (2, 2, 1), (5, 1, 1))
    keyed.finish(pending, 2, 3)
    assert keyed.offsets() == [6]
    keyed.finish(pending, 0)
    assert keyed.offsets() == [1]
    assert keyed.stats() == (1, 3, 0), "4 is parked, and waits"


def test_a_parked_message_needs_no_commit_before_its_first_delivery(
    keyed: OrderedChannelHarness,
) -> None:
    keyed.take_keys("aaaa")
    first = keyed.send_one()
    changes = keyed.commit()
    assert changes.next_offset == 4
    assert changes.holes_put == ((0, 1, 1, 0), (1, 3, 0, 0)), "neighbours are one row, never sent"
    keyed.finish(first, 0)
    assert keyed.send_one().runs == ((1, 1, 1),)
    changes = keyed.commit()
    assert (changes.holes_put, changes.holes_gone) == (((1, 1, 1, 0), (2, 2, 0, 0)), (0,))


@pytest.mark.parametrize("how", ["requeue", "delay", "timeout", "lost"])
def test_a_message_that_comes_again_stops_its_key(keyed: OrderedChannelHarness, how: str) -> None:
    keyed.take_keys("aa")
    keyed.take_keys("b")
    first = keyed.send_one()
    keyed.finish(first, 2)
    if how == "requeue":
        keyed.channel.req(A, first.token, ALL, 0, keyed.wall_ns)
    elif how == "delay":
        keyed.channel.req(A, first.token, ALL, 5_000, keyed.wall_ns)
    elif how == "lost":
        keyed.join(A, 100)
    keyed.scan(61 if how == "timeout" else 0)
    keyed.join(B, 100)
    keyed.take_keys("b")
    assert keyed.offsets() == [3], "the others go on"
    keyed.commit()
    if how == "delay":
        assert keyed.offsets() == []
        keyed.scan(6)
        keyed.commit()
        keyed.commit()
    (again,) = keyed.send()
    assert again.runs == ((0, 1, 2),)
    keyed.channel.fin(again.peer, again.token, ALL)
    assert keyed.offsets() == [1]


def test_a_rejected_message_blocks_its_key_until_it_is_a_dead_letter(
    keyed: OrderedChannelHarness,
) -> None:
    keyed.take_keys("aa")
    keyed.channel.req(A, keyed.send_one().token, ALL, DEAD, keyed.wall_ns)
    assert keyed.offsets() == []
    assert len(keyed.channel.supply.next_dead()) == 1
    assert keyed.offsets() == []
    keyed.channel.supply.dead()
    assert keyed.offsets() == [1]


def test_a_dropped_message_does_not_block_its_key(keyed: OrderedChannelHarness) -> None:
    """A deferred message was dropped. Its row is deleted when it is due, but its key is free at
    once.
    """
    keyed.take_keys("aab")
    pending = keyed.send_one()
    keyed.channel.req(A, pending.token, ((0, 1),), 60_000, keyed.wall_ns)
    keyed.commit()
    keyed.channel.supply.drop_below(1)
    assert keyed.offsets() == [1]
    keyed.take_keys("bb")
    assert keyed.offsets() == []
    keyed.channel.supply.drop_below(4)
    keyed.channel.req(A, pending.token, ((2, 1),), 60_000, keyed.wall_ns)
    assert keyed.offsets() == [4], "and so where it was dropped before"
    assert keyed.channel.counters["dropped_count"] == 1


def test_a_message_that_cannot_be_read_does_not_block_its_key(keyed: OrderedChannelHarness) -> None:
    keyed.take_keys("aa")
    keyed.take_keys("aa")
    first = keyed.send_one()
    keyed.commit()
    keyed.channel.supply.drop_blocks()
    keyed.finish(first, 0)
    assert keyed.offsets() == []
    assert keyed.channel.supply.wanted == {1}
    keyed.channel.supply.lost(1, 2)
    assert keyed.channel.counters["lost_count"] == 1
    assert keyed.offsets() == []
    keyed.channel.supply.shelve(with_place(block_of("aa"), 2, keyed.wall_ns))
    again = keyed.send_one()
    assert again.runs == ((2, 1, 1),)
    keyed.channel.req(A, again.token, ALL, 0, keyed.wall_ns)
    keyed.commit()
    keyed.channel.supply.drop_blocks()
    assert keyed.offsets() == []
    keyed.channel.supply.lost(2, 3)
    assert keyed.offsets() == []
    keyed.channel.supply.shelve(with_place(block_of("aa"), 2, keyed.wall_ns))
    assert keyed.offsets() == [3]


def test_a_start_sorts_all_rows_before_anything_goes_out() -> None:
    """The rows at the start are 0 (key a, deferred), 1 (b, never sent), 3 (a, never sent) and 4 (c,
    was in flight). Behind the cursor comes another message of key b.
    """
    harness = OrderedChannelHarness(
        6, [(4, 1, 1, 0), (1, 1, 0, 0), (3, 1, 0, 0), (0, 1, 1, 5_010 * S)]
    )
    harness.join(A, 100)
    harness.take_keys("b")
    harness.commit()
    assert harness.offsets() == []
    assert harness.channel.supply.wanted == {0}, "one read brings what lies near"
    harness.channel.supply.shelve(with_place(block_of("aba"), 0, harness.wall_ns))
    assert harness.offsets() == []
    harness.channel.supply.shelve(with_place(block_of("aca"), 3, harness.wall_ns))
    assert harness.send_one().runs == ((1, 1, 1),), (
        "3 waits for 0, 6 for 1, and 4 for the commit of its number"
    )
    harness.commit()
    harness.commit()
    assert harness.send_one().runs == ((4, 1, 2),)
    harness.scan(20)
    harness.commit()
    harness.commit()
    assert harness.send_one().runs == ((0, 1, 2),)
    assert harness.stats() == (2, 3, 0)


@pytest.mark.parametrize("attempts", [1, REJECTED + 1])
def test_attempts_of_messages_behind_a_removed_head_are_kept(attempts: int) -> None:
    """Row 1 was delivered once, at a moment when row 0 counted as removed. No file records that
    moment.
    """
    harness = OrderedChannelHarness(
        3, [(0, 1, 1, 5_010 * S), (1, 1, attempts, 0), (2, 1, 0, 0)], max_attempts=1
    )
    harness.join(A, 100)
    assert harness.offsets() == []
    harness.channel.supply.shelve(with_place(block_of("aaa"), 0, harness.wall_ns))
    assert harness.offsets() == []
    harness.channel.supply.drop_below(1)
    assert harness.offsets() == []
    assert [dead.death.run for dead in harness.channel.supply.next_dead()] == [(1, 1, 1)]
    assert harness.offsets() == []
    harness.channel.supply.dead()
    assert harness.offsets() == [2]


def test_rows_that_cannot_be_read_do_not_hold_up_a_start() -> None:
    harness = OrderedChannelHarness(6, [(0, 2, 0, 0), (4, 1, 1, 0)])
    harness.join(A, 100)
    assert harness.offsets() == []
    harness.channel.supply.lost(0, 3)
    assert harness.channel.counters["lost_count"] == 2
    harness.channel.supply.shelve(with_place(block_of("aca"), 3, harness.wall_ns))
    harness.send()
    harness.commit()
    assert harness.offsets() == [4]


def test_rows_far_apart_are_read_several_at_a_time() -> None:
    harness = OrderedChannelHarness(
        100_000, [(start, 1, 0, 0) for start in range(0, 100_000, 10_000)]
    )
    harness.join(A, 100)
    assert harness.offsets() == []
    assert harness.channel.supply.wanted == {0, 10_000, 20_000, 30_000}
    assert len(harness.channel.supply.wanted) == options.FETCHES_MAX


def test_a_seek_forgets_the_state_of_every_key(keyed: OrderedChannelHarness) -> None:
    keyed.take_keys("aab")
    keyed.channel.req(A, keyed.send_one().token, ((0, 1),), 60_000, keyed.wall_ns)
    keyed.channel.seek(0)
    keyed.commit()
    keyed.end = 0
    keyed.take_keys("aab")
    assert keyed.offsets() == [0, 2]
    assert keyed.stats() == (1, 2, 0)


def test_consumers_share_the_keys(keyed: OrderedChannelHarness) -> None:
    """The first consumer does not get all keys. A slow consumer that holds its share gets no more
    while others have room.
    """
    keyed.join(B, 100)
    keyed.join(C, 100)
    keyed.take_keys("abcdefghijkl" * 3)
    sent = keyed.send()
    held = {pending.peer: sum(run[1] for run in pending.runs) for pending in sent}
    assert held == {A: 4, B: 4, C: 4}
    for _ in range(2):
        for pending in [pending for pending in sent if pending.peer != A]:
            keyed.channel.fin(pending.peer, pending.token, ALL)
        sent = keyed.send()
        assert {pending.peer for pending in sent} <= {B, C}


def test_a_consumer_with_room_gets_the_messages_that_others_cannot_take(
    keyed: OrderedChannelHarness,
) -> None:
    keyed.join(B, 1)
    keyed.take_keys("abcdefghij")
    assert len(keyed.offsets()) == 10
    assert keyed.channel.consumers[A].in_flight == 9


def test_tags_age_and_samples_hold_up_no_key() -> None:
    harness = OrderedChannelHarness(tags="x", max_age_s=10)
    harness.join(A, 100)
    harness.take_keys("aaab", tags="yxxx")
    pending = harness.send_one()
    assert pending.runs == ((1, 1, 1), (3, 1, 1))
    harness.scan(11)
    harness.finish(pending, 1)
    harness.take_keys("ab", tags="xx")
    assert harness.offsets() == [4], "2 grew too old behind its head"
    harness.channel.req(A, pending.token, ((3, 1),), 0, harness.wall_ns)
    harness.commit()
    assert harness.offsets() == [5], "and 3 while it was to come again"
    counters = harness.channel.counters
    assert (counters["tag_skipped_count"], counters["expired_count"]) == (1, 2)


def test_messages_outside_of_the_sample_are_finished() -> None:
    drawn = iter([0.9, 0.1, 0.9, 0.9])
    harness = OrderedChannelHarness()
    harness.channel.supply.choice.random = lambda: next(drawn, 0.1)
    harness.join(A, 100, sample_rate=50)
    harness.take_keys("aaabb")
    assert harness.offsets() == [1]
    assert harness.channel.counters["sampled_count"] == 3
    harness.commit()
    assert harness.stats() == (1, 1, 0)


def test_the_number_of_parked_messages_is_bounded(keyed: OrderedChannelHarness) -> None:
    with mock.patch.object(options, "ORDERED_PARKED_MAX", 7):
        keyed.take_keys("a" * 20)
        keyed.take_keys("b")
        pending = keyed.send_one()
        assert keyed.channel.supply.statistics(21)["parked_count"] == 7
        assert keyed.offsets() == [], "b lies too far behind"
        keyed.finish(pending, 0)
        assert keyed.offsets() == [1]


def test_a_busy_ordered_channel_sorts_only_the_blocks_in_memory(
    keyed: OrderedChannelHarness,
) -> None:
    with mock.patch.multiple(options, CACHE_BYTES_MAX=200, ORDERED_BUSY=2):
        keyed.take_keys("aaaa")
        keyed.take_keys("aaaa")
        keyed.take_keys("bbbb")
        keyed.take_keys("cccc")
        keyed.send()
        keyed.send()
        assert keyed.channel.supply.next_offset == 12, "with a and b out there is enough to do"


def test_deferred_rows_are_bounded(keyed: OrderedChannelHarness) -> None:
    """The number of deferred rows has a limit, because a start sorts all of them."""
    with mock.patch.object(options, "ORDERED_DEFERRED_ROWS_MAX", 1):
        harness = OrderedChannelHarness()
    harness.join(A, 100)
    harness.take_keys("a")
    harness.channel.req(A, harness.send_one().token, ALL, 60_000, harness.wall_ns)
    harness.take_keys("b")
    assert harness.offsets() == []
    assert harness.channel.statistics(2)["deferred_full"]


def test_a_long_run_without_keys_goes_as_it_is(keyed: OrderedChannelHarness) -> None:
    keyed.take_keys("." * 500)
    pending = keyed.send_one()
    assert (pending.runs, len(pending.parts)) == (((0, 100, 1),), 1)
    keyed.channel.fin(A, pending.token, ALL)
    assert keyed.send_one().runs == ((100, 100, 1),)
