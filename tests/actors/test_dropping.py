"""A channel whose oldest messages are taken by the topic's bound: what goes, what is counted, what stays until it is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zsq.actors.delivery import Delivery
from zsq.actors.ranges import Run, above, total

if TYPE_CHECKING:
    from tests.actors.conftest import Desk

A = (b"a",)
ALL: tuple[tuple[int, int], ...] = ()
S = 1_000_000_000


@pytest.fixture
def make(desk: Desk) -> type[Desk]:
    return type(desk)


def dropped(desk: Desk) -> int:
    return desk.channel.counters["dropped_count"]


def test_what_was_not_taken_yet_is_stepped_over(desk: Desk) -> None:
    desk.come(10, 10)
    assert desk.channel.supply.drop_below(10)
    assert (desk.channel.supply.next_offset, desk.channel.supply.window_end, desk.channel.supply.window_bytes) == (10, 10, 0)
    assert dropped(desk) == 10
    assert desk.channel.changes().next_offset == 10
    assert desk.channel.counters["lost_count"] == 0
    assert not desk.channel.supply.drop_below(10)
    assert dropped(desk) == 10, "told twice, counted once"


def test_what_lies_above_stays(desk: Desk) -> None:
    desk.join(A, 5)
    desk.come(10)
    desk.send()
    assert not desk.channel.supply.drop_below(3)
    assert (desk.channel.supply.next_offset, desk.channel.supply.window_end, dropped(desk)) == (5, 10, 0)


def test_what_a_consumer_holds_is_its_until_it_answers(desk: Desk) -> None:
    desk.join(A, 10)
    desk.come(10)
    token = desk.send_one().token
    assert not desk.channel.supply.drop_below(8)
    assert dropped(desk) == 0
    assert desk.channel.fin(A, token, [(0, 4)]) == []
    assert desk.channel.req(A, token, [(4, 6)], 0, desk.wall_ns) == []
    changes = desk.channel.changes()
    assert changes.holes_put == ((8, 2, 2, 0),)
    desk.channel.supply.committed()
    assert dropped(desk) == 4
    assert desk.told(desk.send()) == [("a", ((8, 2, 2),))]
    assert desk.channel.counters["finish_count"] == 4


def test_what_waits_to_be_delivered_again_goes(desk: Desk) -> None:
    """Whether its number is committed, or about to be."""
    desk.join(A, 6)
    desk.come(6)
    desk.channel.req(A, desk.send_one().token, ALL, 0, desk.wall_ns)
    assert desk.channel.changes().holes_put == ((0, 6, 2, 0),)
    desk.channel.supply.drop_below(4)
    desk.channel.supply.committed()
    assert dropped(desk) == 4
    changes = desk.channel.changes()
    assert (changes.holes_put, changes.holes_gone) == (((4, 2, 2, 0),), (0,))
    desk.channel.set_ready(A, 0)
    desk.channel.supply.drop_below(6)
    assert dropped(desk) == 6
    changes = desk.channel.changes()
    assert (changes.holes_put, changes.holes_gone) == ((), (4,))


def test_what_was_deferred_goes_when_it_is_due(desk: Desk) -> None:
    """The store has its row until then; it is told that the row is gone, or it would name it for ever."""
    desk.join(A, 4)
    desk.come(4)
    desk.channel.req(A, desk.send_one().token, ALL, 5 * 1_000, desk.wall_ns)
    desk.commit()
    desk.channel.supply.drop_below(4)
    assert dropped(desk) == 0
    desk.channel.supply.came_due([(0, 4, 1, desk.wall_ns)], 0, desk.wall_ns)
    changes = desk.channel.changes()
    assert (changes.holes_put, changes.holes_gone) == ((), (0,))
    assert dropped(desk) == 4


def test_rows_below_the_start_are_found_when_the_channel_is_opened() -> None:
    """Storage died between its commit and telling."""
    channel = Delivery(7, 20, [(2, 5, 3, 0), (12, 4, 1, 0)], {"dropped_count": 1}, paused=False)
    channel.supply.drop_below(14)
    changes = channel.changes()
    assert changes.next_offset == 20
    assert changes.holes_put == ((14, 2, 1, 0),)
    assert set(changes.holes_gone) == {2, 12}
    assert channel.counters["dropped_count"] == 1 + 5 + 2


def test_blocks_wanted_below_it_are_not_asked_for(desk: Desk) -> None:
    desk.join(A, 10)
    desk.come(10)
    desk.send()
    desk.channel.supply.wanted |= {1, 5}
    desk.channel.supply.drop_below(5)
    assert desk.channel.supply.wanted == {5}


runs = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9), st.integers(1, 3)), max_size=8)


@given(runs, st.integers(0, 40))
def test_runs_are_cut_at_the_start(given_runs: list[Run], start: int) -> None:
    kept, below = above(given_runs, start)
    assert total(kept) + total(below) == total(given_runs)
    assert all(first >= start for first, _, _ in kept)
    assert all(first + count <= start for first, count, _ in below)


@pytest.mark.parametrize("start", [0, -1])
def test_no_start_takes_nothing(start: int) -> None:
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
def test_every_message_is_somewhere_and_none_is_counted_twice(make: type[Desk], given_steps: list[tuple[str, int]]) -> None:
    """Finished, dropped, held, waiting or deferred: together all that came, whatever happens in which order."""
    desk = make()
    channel = desk.channel
    desk.join(A, 0)
    held: list[tuple[int, tuple[Run, ...]]] = []
    start = 0
    for what, number in given_steps:
        if what == "come" and channel.supply.window_end == desk.end:
            desk.come(number)
        elif what == "send":
            channel.set_ready(A, number)
            for _ in range(2):  # what is not at hand is fetched
                held += [(parcel.token, parcel.runs) for parcel in desk.send()]
                for offset in sorted(channel.supply.wanted):
                    assert offset >= start, "what is gone is asked for"
                    channel.supply.shelve(desk.block_at(offset, 1))
        elif what == "fin" and held:
            token, _ = held.pop(number % len(held))
            channel.fin(A, token, ALL)
        elif what == "req" and held:
            token, _ = held.pop()
            channel.req(A, token, ALL, number * 1_000, desk.wall_ns)
        elif what == "scan":
            desk.scan(number)
        elif what == "commit":
            for gone in desk.commit().holes_gone:
                desk.kept.pop(gone, None)
        elif what == "drop":
            start = max(start, desk.end * number // 10)
            if channel.supply.drop_below(start):
                assert channel.supply.next_offset == channel.supply.window_end == start
                while channel.supply.window_end < desk.end:  # read again
                    channel.supply.offer(desk.block_at(channel.supply.window_end, 1), from_storage=True)
        waiting, in_flight, deferred = desk.stats()
        counters = channel.counters
        assert counters["lost_count"] == 0
        assert counters["finish_count"] + counters["dropped_count"] + waiting + in_flight + deferred == desk.end
    desk.scan(10)
    desk.commit()
    assert all(first >= start for first, _, _ in channel.supply.again.ready)
    assert all(row[0] + row[1] > start for row in desk.commit().holes_put)
