"""Tests of the numbers of attempts: they are on disk before a message is sent again, and a clean
stop of the channel uses none.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.actors.conftest import ChannelHarness
from zsq.actors.channel.redelivery import Redelivery, Suspects
from zsq.actors.channel.supply import back_over_unbegun
from zsq.transport.settings import ChannelSettings

if TYPE_CHECKING:
    from zsq.actors.channel.lease import Hole

A, B = (b"a",), (b"b",)
ALL: tuple[tuple[int, int], ...] = ()


def restarted(harness: ChannelHarness, rows: dict[int, Hole]) -> ChannelHarness:
    """Stop the channel cleanly and start it again. `rows` is what the store holds."""
    harness.channel.end()
    assert not harness.channel.waits_for_commit()
    save(harness, rows)
    assert not harness.channel.supply.dirty
    return ChannelHarness(harness.channel.supply.next_offset, list(rows.values()))


def save(harness: ChannelHarness, rows: dict[int, Hole]) -> None:
    changes = harness.commit()
    for start in changes.holes_gone:
        rows.pop(start, None)
    rows.update((row[0], row) for row in changes.holes_put)


@pytest.mark.parametrize("reports", [False, True])
def test_a_clean_restart_uses_no_attempt(harness: ChannelHarness, *, reports: bool) -> None:
    rows: dict[int, Hole] = {}
    harness.join(A, 4)
    harness.come(4)
    harness.channel.req(A, harness.send_one().token, ALL, 0, harness.wall_ns)
    for _ in range(4):
        harness.join(A, 4, reports=reports)
        save(harness, rows)
        harness.channel.supply.shelve(harness.block_at(0, 4))
        delivery = harness.send_one()
        assert delivery.runs == ((0, 4, 2),)
        harness.channel.note_begun(A, delivery.token, ALL, harness.now_ns)
        save(harness, rows)
        assert rows[0] == (0, 4, 2, 0), "a crash would use the attempt"
        harness = restarted(harness, rows)
        assert rows[0] == (0, 4, 1, 0)


def test_what_no_handler_has_begun_comes_before_newer_messages_after_a_restart() -> None:
    holes: list[Hole] = [(0, 1, 0, 0), (4, 3, 0, 0), (7, 5, 0, 0), (12, 8, 0, 0)]
    harness = ChannelHarness(20, holes)
    harness.end = 0
    harness.join(A, 100)
    harness.come(30)
    rows = {hole[0]: hole for hole in holes}
    save(harness, rows)
    assert rows == {0: (0, 1, 0, 0)}
    assert harness.told(harness.send()) == [("a", ((0, 1, 1),)), ("a", ((4, 26, 1),))]


@pytest.mark.parametrize(
    ("holes", "cursor"),
    [
        ([(4, 6, 1, 0)], 10),  # a handler has begun these
        ([(4, 6, 0, 99)], 10),  # these are deferred
        ([(4, 5, 0, 0)], 10),  # a later one is finished
        ([(2, 2, 0, 0), (4, 3, 1, 0), (7, 3, 0, 0)], 7),
    ],
)
def test_the_cursor_goes_back_over_unbegun_messages_only(holes: list[Hole], cursor: int) -> None:
    assert back_over_unbegun(10, holes) == cursor


def test_a_sample_is_not_drawn_again_from_messages_that_were_in_it() -> None:
    harness = ChannelHarness(10, [(4, 6, 0, 0)], random=lambda: 0.99, sampled=4)
    harness.join(A, 10, sample_rate=50)
    harness.commit()
    harness.channel.supply.shelve(harness.block_at(0, 10))
    assert harness.told(harness.send()) == [("a", ((4, 6, 1),))]


def test_a_start_writes_nothing(harness: ChannelHarness) -> None:
    harness = ChannelHarness(1_000_001, [(0, 1_000_000, 0, 0)])
    harness.join(A, 6)
    assert harness.commit().holes_put == ()
    harness.channel.supply.shelve(harness.block_at(0, 20))
    assert harness.told(harness.send()) == [("a", ((0, 6, 1),))]
    assert harness.stats() == (999_994, 6, 0)


@pytest.mark.parametrize("committed", [False, True])
def test_fewer_attempts_hold_for_what_waits(committed: bool) -> None:
    harness = ChannelHarness(5, [(0, 2, 1, 0), (2, 2, 0, 0)])
    rows: dict[int, Hole] = {0: (0, 2, 1, 0)}
    harness.join(A, 10)
    harness.channel.changes()
    if committed:
        harness.channel.supply.committed()
    harness.channel.configure(ChannelSettings(max_attempts=1))
    harness.channel.supply.committed()
    harness.channel.supply.shelve(harness.block_at(0, 4))
    assert harness.told(harness.send()) == [("a", ((2, 2, 1),))]
    save(harness, rows)
    assert rows[0] == (0, 2, 1, 0), "by the number of the last delivery that was made"
    assert [dead.death.run for dead in harness.channel.supply.next_dead()] == [(0, 2, 1)]


runs = st.lists(st.integers(1, 9), max_size=8)


@given(runs, runs, st.integers(0, 4))
def test_nothing_is_lost_between_returned_and_ready(
    first: list[int], more: list[int], commits: int
) -> None:
    again = Redelivery()
    offset = 0
    for counts in (first, more):
        for count in counts:
            again.returned.append((offset, count, 1))
            offset += count
        for _ in range(commits):
            again.begin_commit()
            again.committed()
    assert again.messages() == offset
    assert sorted(again.unsent()) == list(again.unsent())
    assert len(again.ready) == (len(first) + len(more) if commits else 0)


def test_what_came_back_between_two_commits_is_sent_in_the_order_of_offsets() -> None:
    again = Redelivery()
    again.returned = [(5, 1, 1)]
    again.begin_commit()
    again.returned = [(4, 1, 1), (1, 1, 1)]
    again.committed()
    again.begin_commit()
    again.committed()
    assert list(again.ready) == [(5, 1, 1), (1, 1, 1), (4, 1, 1)]


def test_groups_of_suspects_grow_while_their_consumers_stay() -> None:
    apart = Suspects()
    apart.ready.append((0, 100, 0))
    quotas = [apart.quota()]
    for _ in range(3):
        apart.stayed()
        quotas.append(apart.quota())
    assert quotas == [1, 2, 4, 8]
    apart.left([(0, 8, 0)])
    apart.stayed()
    assert apart.quota() == 1, "its group has lost its consumer, so it comes alone"
    apart.ready = deque([(8, 92, 0)])
    assert apart.quota() == 2
    apart.ready.appendleft((8, 1, 1))
    assert apart.quota() == 1, "a handler had begun it, so it comes alone"
