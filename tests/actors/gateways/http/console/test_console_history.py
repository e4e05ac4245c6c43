"""Tests of the console's rings of values: one value per second and one per ten seconds, although
values are reported rarely. A value that was always 0 takes no memory.
"""

from __future__ import annotations

import math
import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsq.actors.gateways.http.console.history import (
    CHANNEL_FIGURES,
    COARSE,
    FINE,
    STEP_S,
    TRACKS_MAX,
    Figure,
    History,
    stride,
    thinned,
)

_NAN = math.nan


def plain(begin: int, notes: list[tuple[int, float]], now: int) -> dict[int, float]:
    """Return the value of each second, computed in the simplest way."""
    found: dict[int, float] = {}
    value, rest = _NAN, [*notes]
    for second in range(begin, now):
        while rest and rest[0][0] <= second:
            value = rest.pop(0)[1]
        found[second] = value
    return found


def same(one: float, other: float) -> bool:
    return one == pytest.approx(other, rel=1e-5, nan_ok=True)


@given(
    st.lists(
        st.tuples(st.integers(0, 900), st.sampled_from([_NAN, 0.0, 0.0, 1.5, 7.0, 1e6])),
        max_size=12,
    ),
    st.integers(10_000, 10_020),
    st.booleans(),
)
def test_a_value_reported_only_on_change_is_kept_for_each_second(
    told: list[tuple[int, float]], begin: int, mean: bool
) -> None:
    figure, notes, second = Figure(begin, mean), [], begin
    for gap, value in told:
        second += gap
        figure.note(value, second)
        notes.append((second, value))
    now = second + 17
    wanted = plain(begin, notes, now)
    fine = figure.last("5m", now)
    assert len(fine) == FINE
    assert all(same(value, wanted.get(now - FINE + at, _NAN)) for at, value in enumerate(fine))
    coarse = figure.last("2h", now)
    assert len(coarse) == COARSE
    for at, value in enumerate(coarse):
        first = (now // STEP_S - COARSE + at) * STEP_S
        ten = [wanted.get(one, _NAN) for one in range(first, first + STEP_S)]
        # If part of the ten seconds is unknown, the value may be known or not.
        if all(one == one for one in ten):
            assert same(value, sum(ten) / STEP_S if mean else max(ten))
        elif all(one != one for one in ten):
            assert value != value
    assert figure.last("5m", now) == pytest.approx(fine, nan_ok=True)


def test_a_value_that_was_always_0_takes_no_memory() -> None:
    for value in (0.0, _NAN):
        figure = Figure(100, False)
        figure.note(value, 100)
        figure.note(value, 200)
        figure.last("5m", 200)
        figure.last("2h", 200)
        assert figure._fine is None
    figure.note(1.0, 250)
    figure.last("5m", 251)
    assert figure._fine is not None


class Counted(float):
    """A number that counts how often it is multiplied, which happens once per step of the coarse
    ring.
    """

    times = 0

    def __mul__(self, other: float) -> float:
        Counted.times += 1
        return float(self) * other


def test_a_day_without_news_is_filled_in_bounded_steps() -> None:
    """The number of steps has a limit however long the silence was, because the gateway does
    nothing else in the meantime.
    """
    for second in (86_400, 8_640_000):
        figure, Counted.times = Figure(0, True), 0
        figure.note(Counted(2.0), 0)
        figure.note(3.0, second)
        assert Counted.times <= COARSE + 1
        assert figure.last("2h", second) == [2.0] * COARSE


def row(**values: Any) -> Any:
    return SimpleNamespace(values={"requeues": 1.0, "timeouts": 2.0} | values, channels={})


def test_a_history_knows_each_topic_and_channel() -> None:
    history = History()
    history.note(
        [("t", "", row(**{"in": 5.0, "backlog": 3})), ("t", "c", row(depth=9, p50_ms=None))], 100
    )
    assert history.series("t", "", "5m", ["in", "backlog"], 300, 102) == {
        "in": [None] * 298 + [5, 5],
        "backlog": [None] * 298 + [3, 3],
    }
    found = history.series("t", "c", "5m", ["depth", "again", "p50_ms"], 150, 102)
    assert (found["depth"][-1], found["again"][-1], found["p50_ms"][-1], len(found["depth"])) == (
        9,
        3,
        None,
        150,
    )
    assert history.series("t", "other", "2h", ["depth"], 10, 102) == {"depth": [None] * 10}
    history.lost(110)
    history.note([("t", "c", row(depth=1))], 120)
    assert history.series("t", "c", "5m", ["depth"], 300, 121)["depth"][-22:] == [
        None,
        *[9] * 10,
        *[None] * 10,
        1,
    ]
    history.keep_only({"t": row()})
    assert history.series("t", "c", "5m", ["depth"], 300, 121)["depth"] == [None] * 300
    assert history.series("t", "", "5m", ["in"], 300, 121)["in"][-20] == 5


def test_the_number_of_tracks_is_bounded() -> None:
    history = History()
    history.note((("t", str(number), row(depth=1)) for number in range(TRACKS_MAX + 5)), 1)
    assert len(history._tracks) == TRACKS_MAX


def test_the_memory_for_the_history_of_a_channel_is_bounded() -> None:
    tracemalloc.start()
    try:
        history = History()
        for second in range(3):
            moving = dict.fromkeys(CHANNEL_FIGURES, second + 0.5)
            history.note(
                [("t", str(number), row(**moving, requeues=second)) for number in range(50)], second
            )
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held / 50 < 40_000


def test_values_are_made_fewer_from_the_newest_on() -> None:
    assert (stride("5m", 60), stride("5m", 300), stride("2h", 7), stride("5m", 10_000)) == (
        5,
        1,
        103,
        1,
    )
    assert thinned([9.0, 1.0, 2.0, 3.0, 4.0], 2, mean=True) == [1.5, 3.5]
    assert thinned([9.0, 1.0, 2.0, 3.0, 4.0], 2, mean=False) == [2.0, 4.0]
    assert thinned([_NAN, 1.0], 2, mean=True) == [1.0]
