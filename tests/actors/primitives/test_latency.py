"""Tests of latencies: percentiles are right within 1%, cover the last ten minutes, and can be added
up.
"""

from __future__ import annotations

import math
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zsq.actors.primitives.latency import (
    COUNT_MAX,
    LATENCY_NS_MAX,
    LATENCY_NS_MIN,
    QUANTILES,
    LatencyWindow,
    merged,
)
from zsq.actors.settings.options import CONSUMER_LATENCY_SLOT_S

S = 1_000_000_000
MS = 1_000_000


def values(window: LatencyWindow, second: float) -> dict[float, int]:
    return {
        row["quantile"]: row["value"]
        for row in merged([window.bins(int(second * S))])["percentiles"]
    }


def count(window: LatencyWindow, second: float) -> int:
    return int(merged([window.bins(int(second * S))])["count"])


def test_quantiles_of_evenly_spread_values_are_within_one_percent() -> None:
    window = LatencyWindow()
    for number in range(1, 1_001):
        window.add(number * MS, 1, 5 * S)
    found = values(window, 5)
    assert [*found] == list(QUANTILES)
    for quantile, value in found.items():
        assert value == pytest.approx(quantile * 1_000 * MS, rel=0.011)


def test_one_call_of_add_counts_many_messages() -> None:
    window = LatencyWindow()
    window.add(1 * MS, 990, S)
    window.add(50 * MS, 10, S)
    found = values(window, 1)
    assert count(window, 1) == 1_000
    assert found[0.5] == pytest.approx(MS, rel=0.01)
    assert found[0.95] == pytest.approx(MS, rel=0.01)
    assert found[1.0] == pytest.approx(50 * MS, rel=0.01)


def test_a_window_without_values_has_no_percentiles() -> None:
    assert merged([]) == merged([LatencyWindow().bins(S)]) == {"count": 0, "percentiles": []}


def test_values_are_forgotten_after_ten_minutes_and_not_before() -> None:
    window = LatencyWindow()
    window.add(MS, 7, 29 * S)
    window.add(9 * MS, 3, 300 * S)
    assert count(window, 29 + 600) == 10
    assert count(window, 30 + 630) == 3
    assert values(window, 30 + 630)[0.5] == pytest.approx(9 * MS, rel=0.01)
    assert count(window, 300 + 631) == 0
    assert window._stores == [], "what is idle holds nothing"


def test_a_clock_that_is_put_back_costs_the_window_and_no_more() -> None:
    window = LatencyWindow()
    window.add(MS, 7, 100_000 * S)
    window.add(MS, 2, 5_000 * S)
    assert count(window, 5_000) == 2


def test_sums_are_those_of_all_messages() -> None:
    """A topic merges the values of its channels in this way. Percentiles of percentiles would give
    1 ms and 100 ms equal weight.
    """
    fast, slow = LatencyWindow(), LatencyWindow(120)
    fast.add(1 * MS, 9_900, S)
    slow.add(100 * MS, 100, S)
    found = merged([fast.bins(S), slow.bins(S)])
    assert found["count"] == 10_000
    by = {row["quantile"]: row["value"] for row in found["percentiles"]}
    assert by[0.5] == pytest.approx(MS, rel=0.01)
    assert by[0.99] == pytest.approx(MS, rel=0.01)
    assert by[1.0] == pytest.approx(100 * MS, rel=0.01)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-5, 1 << 62), st.integers(1, 1_000)), min_size=1, max_size=60)
)
def test_any_latency_is_taken_and_right_within_its_bounds(rows: list[tuple[int, int]]) -> None:
    window = LatencyWindow()
    for latency_ns, messages in rows:
        window.add(latency_ns, messages, S)
    ordered = [
        min(max(latency, LATENCY_NS_MIN), LATENCY_NS_MAX)
        for latency, messages in sorted(rows)
        for _ in range(messages)
    ]
    assert count(window, 1) == len(ordered)
    for quantile, value in values(window, 1).items():
        exact = ordered[math.floor(quantile * (len(ordered) - 1))]
        assert abs(value - exact) <= 0.01 * exact + 1, "a nanosecond by rounding"
    assert len(window._stores[0][1].bins) <= 1_560, "bounded, whatever comes"


def size(window: LatencyWindow) -> int:
    """Return the size of the window with all objects that belong to it alone."""
    parts = [
        part
        for slot, store in window._stores
        for part in ((slot, store), slot, store, store.first, store.bins)
    ]
    return sum(sys.getsizeof(part) for part in (window, window._stores, *parts))


@pytest.mark.parametrize(
    ("least_ns", "most_ns", "limit"),
    [(MS, 3_600 * S, 20_000), (LATENCY_NS_MIN, LATENCY_NS_MAX, 40_000)],
)
def test_a_consumer_s_window_takes_what_the_options_say(
    least_ns: int, most_ns: int, limit: int
) -> None:
    window = LatencyWindow(CONSUMER_LATENCY_SLOT_S)
    for second in range(0, 720, CONSUMER_LATENCY_SLOT_S):
        latency: float = least_ns
        while latency <= most_ns:
            window.add(int(latency), 1_000, second * S)
            latency *= 1.01
    assert len(window._stores) == 6
    assert size(window) <= limit


def test_counts_do_not_run_over() -> None:
    window = LatencyWindow()
    for _ in range(3):
        window.add(MS, COUNT_MAX - 1, S)
    assert count(window, 1) == COUNT_MAX


def test_recent_values_are_those_of_the_last_two_slots() -> None:
    window = LatencyWindow(30)
    assert window.recent(5 * S) == ()
    for number in range(1, 101):
        window.add(number * MS, 1, 5 * S)
    for found, wanted in zip(window.recent(31 * S), (50, 95, 99), strict=True):
        assert found == pytest.approx(wanted * MS, rel=0.03)
    # This value is shorter than all before, so the two slots begin with different bins.
    window.add(1, 10_000, 32 * S)
    assert window.recent(32 * S)[0] == pytest.approx(LATENCY_NS_MIN, rel=0.02)
    assert window.recent(89 * S)[2] == pytest.approx(LATENCY_NS_MIN, rel=0.02)
    assert window.recent(95 * S) == ()
