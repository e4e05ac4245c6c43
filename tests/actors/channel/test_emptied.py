"""Tests of a channel whose topic was emptied: it skips the removed messages that it had not reached
yet.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.actors.conftest import ChannelHarness
from zsq.actors.primitives.ranges import unread
from zsq.actors.settings.options import EMPTIED_MAX
from zsq.transport.errors import Refused

A = (b"a",)


def runs(harness: ChannelHarness) -> list[tuple[int, int]]:
    found = []
    for pending in harness.send():
        found += [(first, count) for first, count, _ in pending.runs]
        assert harness.channel.fin(A, pending.token, (), harness.wall_ns) == []
    return found


@pytest.mark.parametrize("settings", [{}, {"ordered": True}, {"priorities": 2}])
def test_messages_before_and_after_a_skipped_range_are_delivered(settings: dict[str, Any]) -> None:
    harness = ChannelHarness(**settings)
    harness.join(A, 100)
    harness.come(5)
    assert harness.channel.skip(5, 9)
    supply = harness.channel.supply
    assert (supply.window_end, supply.statistics(9)["depth"], harness.channel.begin) == (9, 5, 4)
    harness.end = 9
    harness.come(3)
    assert supply.statistics(12)["depth"] == 8
    assert sum(count for _, count in runs(harness)) == 8
    assert supply.next_offset == 12
    harness.channel.changes()
    assert supply.emptied == []
    assert harness.channel.counters["lost_count"] == harness.channel.counters["dropped_count"] == 0


def test_a_channel_at_a_skipped_range_continues_after_it_at_once() -> None:
    harness = ChannelHarness(5)
    assert harness.channel.skip(5, 9)
    assert (harness.channel.supply.next_offset, harness.channel.supply.window_end) == (9, 9)
    assert harness.channel.changes().next_offset == 9
    assert not harness.channel.skip(5, 9), "asked twice, it does nothing more"


def test_blocks_that_came_before_the_order_are_given_up() -> None:
    """The topic was unpaused, so the channel got blocks, and then it was paused and emptied.
    Messages that had not been delivered at that time are no longer delivered.
    """
    harness = ChannelHarness()
    harness.come(5, 5)
    assert harness.channel.skip(5, 10)
    harness.join(A, 100)
    harness.end = 0
    harness.come(5)
    assert runs(harness) == [(0, 5)]
    assert harness.channel.supply.next_offset == 10


def test_a_second_time_makes_the_same_range_longer() -> None:
    harness = ChannelHarness()
    harness.channel.skip(5, 9)
    harness.channel.skip(9, 12)
    harness.channel.skip(20, 22)
    assert harness.channel.supply.emptied == [(5, 12), (20, 22)]
    assert unread(0, 25, harness.channel.supply.emptied) == 16


def test_a_channels_next_process_knows_the_skipped_range() -> None:
    harness = ChannelHarness(3)
    harness.channel.supply.go_on_without([[5, 9]])
    assert (harness.channel.supply.next_offset, harness.channel.supply.emptied) == (3, [(5, 9)])
    harness.channel.supply.go_on_without([[3, 9]])
    assert harness.channel.supply.next_offset == 9


def test_a_skip_is_refused_when_too_many_ranges_wait() -> None:
    harness = ChannelHarness()
    for at in range(EMPTIED_MAX):
        harness.channel.skip(10 * at + 5, 10 * at + 6)
    with pytest.raises(
        Refused, match=r"at most 100 ranges .* let the channel's consumers catch up"
    ):
        harness.channel.skip(1_000_000, 1_000_001)


def test_retention_does_not_count_emptied_messages_as_dropped() -> None:
    harness = ChannelHarness()
    harness.channel.skip(5, 9)
    harness.channel.supply.drop_below(10)
    assert harness.channel.counters["dropped_count"] == 6


def test_a_seek_back_leaves_out_only_what_is_still_to_be_passed() -> None:
    harness = ChannelHarness()
    harness.channel.skip(5, 9)
    harness.channel.seek(2)
    assert harness.channel.supply.emptied == [(5, 9)]
    harness.channel.seek(9)
    harness.channel.seek(0)
    assert harness.channel.supply.emptied == []
