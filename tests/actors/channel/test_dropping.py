"""Tests of a channel when its topic removes the oldest messages: which messages are dropped, how
they are counted, and which stay until a consumer answers them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zsq.actors.channel.core import ChannelCore
from zsq.actors.primitives.ranges import Run, above, total

if TYPE_CHECKING:
    from tests.actors.conftest import ChannelHarness

A = (b"a",)
ALL: tuple[tuple[int, int], ...] = ()
S = 1_000_000_000


@pytest.fixture
def make(harness: ChannelHarness) -> type[ChannelHarness]:
    return type(harness)


def dropped(harness: ChannelHarness) -> int:
    return harness.channel.counters["dropped_count"]


def test_dropped_messages_that_were_not_delivered_are_skipped(harness: ChannelHarness) -> None:
    harness.come(10, 10)
    assert harness.channel.supply.drop_below(10)
    assert (
        harness.channel.supply.next_offset,
        harness.channel.supply.window_end,
        harness.channel.supply.window_bytes,
    ) == (10, 10, 0)
    assert dropped(harness) == 10
    assert harness.channel.changes().next_offset == 10
    assert harness.channel.counters["lost_count"] == 0
    assert not harness.channel.supply.drop_below(10)
    assert dropped(harness) == 10, "told twice, counted once"


def test_a_drop_below_the_next_offset_changes_nothing(harness: ChannelHarness) -> None:
    harness.join(A, 5)
    harness.come(10)
    harness.send()
    assert not harness.channel.supply.drop_below(3)
    assert (
        harness.channel.supply.next_offset,
        harness.channel.supply.window_end,
        dropped(harness),
    ) == (5, 10, 0)


def test_dropped_messages_stay_with_their_consumer_until_it_answers(
    harness: ChannelHarness,
) -> None:
    harness.join(A, 10)
    harness.come(10)
    token = harness.send_one().token
    assert not harness.channel.supply.drop_below(8)
    assert dropped(harness) == 0
    assert harness.channel.fin(A, token, [(0, 4)]) == []
    assert harness.channel.req(A, token, [(4, 6)], 0, harness.wall_ns) == []
    changes = harness.channel.changes()
    assert changes.holes_put == ((8, 2, 1, 0),)
    harness.channel.supply.committed()
    assert dropped(harness) == 4
    assert harness.told(harness.send()) == [("a", ((8, 2, 2),))]
    assert harness.channel.counters["finish_count"] == 4


def test_dropped_messages_are_not_delivered_again(harness: ChannelHarness) -> None:
    """The attempt number of the redelivery may be committed already, or its commit may be in
    progress.
    """
    harness.join(A, 6)
    harness.come(6)
    harness.channel.req(A, harness.send_one().token, ALL, 0, harness.wall_ns)
    assert harness.channel.changes().holes_put == ((0, 6, 1, 0),)
    harness.channel.supply.drop_below(4)
    harness.channel.supply.committed()
    assert dropped(harness) == 4
    changes = harness.channel.changes()
    assert (changes.holes_put, changes.holes_gone) == (((4, 2, 1, 0),), (0,))
    harness.channel.set_ready(A, 0)
    harness.channel.supply.drop_below(6)
    assert dropped(harness) == 6
    changes = harness.channel.changes()
    assert (changes.holes_put, changes.holes_gone) == ((), (4,))


def test_dropped_deferred_messages_are_removed_when_they_are_due(harness: ChannelHarness) -> None:
    """The row stays in the store until it is due. Then the channel tells the store to delete the
    row. Otherwise the store would report it again and again.
    """
    harness.join(A, 4)
    harness.come(4)
    harness.channel.req(A, harness.send_one().token, ALL, 5 * 1_000, harness.wall_ns)
    harness.commit()
    harness.channel.supply.drop_below(4)
    assert dropped(harness) == 0
    harness.channel.supply.came_due([(0, 4, 1, harness.wall_ns)], 0, harness.wall_ns)
    changes = harness.channel.changes()
    assert (changes.holes_put, changes.holes_gone) == ((), (0,))
    assert dropped(harness) == 4


def test_rows_below_the_start_are_found_when_the_channel_is_opened() -> None:
    """The topic's process ended after storage's commit and before the channel was informed."""
    channel = ChannelCore(7, 20, [(2, 5, 3, 0), (12, 4, 1, 0)], {"dropped_count": 1}, paused=False)
    channel.supply.drop_below(14)
    changes = channel.changes()
    assert changes.next_offset == 20
    assert changes.holes_put == ((14, 2, 1, 0),)
    assert set(changes.holes_gone) == {2, 12}
    assert channel.counters["dropped_count"] == 1 + 5 + 2


def test_blocks_below_the_new_start_are_not_requested(harness: ChannelHarness) -> None:
    harness.join(A, 10)
    harness.come(10)
    harness.send()
    harness.channel.supply.wanted |= {1, 5}
    harness.channel.supply.drop_below(5)
    assert harness.channel.supply.wanted == {5}


runs = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9), st.integers(1, 3)), max_size=8)


@given(runs, st.integers(0, 40))
def test_runs_are_cut_at_the_start(given_runs: list[Run], start: int) -> None:
    kept, below = above(given_runs, start)
    assert total(kept) + total(below) == total(given_runs)
    assert all(first >= start for first, _, _ in kept)
    assert all(first + count <= start for first, count, _ in below)


@pytest.mark.parametrize("start", [0, -1])
def test_a_start_of_zero_or_less_drops_nothing(start: int) -> None:
    assert above([(0, 3, 1)], start) == ([(0, 3, 1)], [])


steps = st.lists(
    st.one_of(
        st.tuples(st.just("come"), st.integers(1, 9)),
        st.tuples(st.just("send"), st.integers(1, 12)),
        st.tuples(st.just("fin"), st.integers(0, 3)),
        st.tuples(st.just("req"), st.sampled_from([0, 5])),
        st.tuples(st.just("scan"), st.integers(0, 70)),
        st.tuples(st.just("commit"), st.just(0)),
        st.tuples(st.just("drop"), st.integers(0, 10)),
    ),
    max_size=40,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(given_steps=steps)
def test_every_message_is_somewhere_and_none_is_counted_twice(
    make: type[ChannelHarness], given_steps: list[tuple[str, int]]
) -> None:
    """Whatever happens, and in whatever order, the finished, dropped, in-flight, waiting and
    deferred messages together are all messages that were published.
    """
    harness = make()
    channel = harness.channel
    harness.join(A, 0)
    held: list[tuple[int, tuple[Run, ...]]] = []
    start = 0
    for what, number in given_steps:
        if what == "come" and channel.supply.window_end == harness.end:
            harness.come(number)
        elif what == "send":
            channel.set_ready(A, number)
            # The second round sends the blocks that are fetched after the first.
            for _ in range(2):
                held += [(pending.token, pending.runs) for pending in harness.send()]
                for offset in sorted(channel.supply.wanted):
                    assert offset >= start, "what is gone is asked for"
                    channel.supply.shelve(harness.block_at(offset, 1))
        elif what == "fin" and held:
            token, _ = held.pop(number % len(held))
            channel.fin(A, token, ALL)
        elif what == "req" and held:
            token, _ = held.pop()
            channel.req(A, token, ALL, number * 1_000, harness.wall_ns)
        elif what == "scan":
            harness.scan(number)
        elif what == "commit":
            for gone in harness.commit().holes_gone:
                harness.kept.pop(gone, None)
        elif what == "drop":
            start = max(start, harness.end * number // 10)
            if channel.supply.drop_below(start):
                assert channel.supply.next_offset == channel.supply.window_end == start
                # The messages above the start are read again.
                while channel.supply.window_end < harness.end:
                    channel.supply.offer(
                        harness.block_at(channel.supply.window_end, 1), from_storage=True
                    )
        waiting, in_flight, deferred = harness.stats()
        counters = channel.counters
        assert counters["lost_count"] == 0
        assert (
            counters["finish_count"] + counters["dropped_count"] + waiting + in_flight + deferred
            == harness.end
        )
    harness.scan(10)
    harness.commit()
    assert all(first >= start for first, _, _ in channel.supply.again.ready)
    assert all(row[0] + row[1] > start for row in harness.commit().holes_put)
