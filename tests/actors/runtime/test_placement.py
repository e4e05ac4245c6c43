"""Tests of the placement of topics: which share a host, and which have processes of their own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsq.actors.runtime.placement import (
    NEW,
    QUIET,
    ROOM,
    HostLoad,
    Load,
    Past,
    free_number,
    place,
    room,
    to_end,
)

S = 1_000_000_000


@pytest.mark.parametrize(
    ("hosts", "actors", "ends", "number"),
    [
        ([], 3, 0, NEW),
        ([HostLoad(1, 10, 0), HostLoad(2, 20, 0)], 3, 0, 2),  # the fullest
        ([HostLoad(1, ROOM - 3, 0)], 3, 0, 1),
        ([HostLoad(1, ROOM - 2, 0)], 3, 0, NEW),
        ([HostLoad(1, 0, 0)], ROOM, 0, 1),
        ([HostLoad(1, 0, 0)], ROOM + 1, 0, NEW),  # alone
        ([], 33, 1, None),
        ([HostLoad(1, 5, 0, is_left=True)], 3, 0, NEW),
        ([HostLoad(1, 5, 0)], 3, 1, NEW),  # its host ended, so it shares with fewer
        ([HostLoad(1, 5, 1)], 3, 1, 1),
        ([HostLoad(1, 5, 1)], 3, 0, NEW),
        ([], 3, 3, None),
    ],
)
def test_a_topic_shares_the_fullest_host_that_has_room_and_the_same_past(
    hosts: list[HostLoad], actors: int, ends: int, number: int | None
) -> None:
    assert place(hosts, actors, ends) == number


def test_each_unexplained_end_leaves_a_quarter_of_the_room_until_a_topic_is_alone() -> None:
    assert [room(ends) for ends in range(5)] == [128, 32, 8, 2, 0]


@given(st.lists(st.integers(1, 300), max_size=80))
def test_hosts_never_have_more_actors_than_room(sizes: list[int]) -> None:
    hosts: dict[int, int] = {}
    for actors in sizes:
        loads = [HostLoad(number, count, 0) for number, count in hosts.items()]
        number = place(loads, actors, 0)
        if number == NEW:
            number = free_number(loads)
            assert number not in hosts
        assert number is not None
        hosts[number] = hosts.get(number, 0) + actors
    alone = {actors for actors in sizes if actors > ROOM}
    assert all(count <= ROOM or count in alone for count in hosts.values())


def test_ends_are_forgotten_an_hour_after_the_last_one() -> None:
    past = Past()
    past.add(S, is_cause=False)
    past.add(10 * S, is_cause=True)
    past.look(3_609 * S)
    assert (past.ends, past.is_cause) == (1, True)
    past.look(3_610 * S)
    assert (past.ends, past.is_cause) == (0, False)


def test_an_end_whose_cause_does_not_pass_is_not_forgotten() -> None:
    past = Past()
    past.add(S, is_cause=False, passes=False)
    past.add(2 * S, is_cause=False)
    past.look(1_000_000 * S)
    assert past.ends == 2


@pytest.mark.parametrize(
    ("hosts", "ended"),
    [
        ([HostLoad(1, 0, 0)], []),  # one is kept for the next topic
        ([HostLoad(1, 0, 0), HostLoad(2, 0, 0)], [2]),
        ([HostLoad(1, 0, 0), HostLoad(2, 5, 0)], [1]),
        ([HostLoad(1, 0, 0), HostLoad(2, ROOM, 0)], []),
        ([HostLoad(1, 0, 0), HostLoad(2, 5, 0, is_left=True)], []),
        ([HostLoad(1, 0, 1), HostLoad(2, 0, 0)], [1]),
    ],
)
def test_empty_hosts_end_but_one(hosts: list[HostLoad], ended: list[int]) -> None:
    assert to_end(hosts) == ended


def loads(*shares: float, busy_at: float = 0.2) -> Load:
    """Return the load of an actor that took these shares of a core, each for one second."""
    load = Load(busy_at)
    cpu_ns = 0
    load.add(1, 0, S)
    for second, share in enumerate(shares, 2):
        cpu_ns += int(share * S)
        load.add(1, cpu_ns, second * S)
    return load


def test_a_topic_is_busy_by_the_time_of_all_its_actors() -> None:
    load = loads(0.15)
    assert not load.is_busy
    load.add(2, 5 * S, 1 * S)  # it took that before
    assert not load.is_busy
    load.add(2, 5 * S + S // 10, 2 * S)
    assert load.share == pytest.approx(0.25)
    assert load.is_busy
    load.forget()
    assert not load.is_busy


def test_a_topic_is_quiet_when_nothing_happened_for_long() -> None:
    between = 0.2 * QUIET * 2
    load = loads(0.5, between, 0.0, 0.0)
    assert not load.is_busy
    assert not load.is_quiet(3, 5 * S)
    assert load.is_quiet(3, 6 * S)  # since the end of the third second
    assert not load.is_quiet(float("inf"), 1_000 * S)


def test_between_quiet_and_busy_a_topic_stays_where_it_is() -> None:
    load = loads(*[0.2 * QUIET * 2] * 500)
    assert not load.is_busy
    assert not load.is_quiet(2, 502 * S)


def test_a_topic_without_pulses_is_neither() -> None:
    load = Load(0.2)
    assert not load.is_busy
    assert not load.is_quiet(0, S)
