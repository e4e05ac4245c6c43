"""Tests of rates: they are computed from the growth of counters within the last minute."""

from __future__ import annotations

from zsq.actors.primitives.rates import RateMeter

S = 1_000_000_000
HOUR = 3_600


def rate(meter: RateMeter, second: float, count: int) -> float:
    return meter.rates(int(second * S), {"a": count, "idle": 5}).get("a", 0.0)


def run(meter: RateMeter, begin: int, end: int, a_second: int, count: int = 0) -> int:
    """Pulse once a second, with a growth of `a_second` before each pulse. Return the count."""
    for second in range(begin + 1, end + 1):
        count += a_second
        meter.note(second * S, {"a": count, "idle": 5})
    return count


def meter_at(second: int = 0) -> RateMeter:
    return RateMeter(second * S, {"a": 0, "idle": 5})


def test_even_growth_is_seen_from_the_first_seconds_on() -> None:
    meter = meter_at()
    for second in range(1, 200):
        run(meter, second - 1, second, 10, (second - 1) * 10)
        assert rate(meter, second, second * 10) == 10.0
    assert len(meter._samples) <= 20, "some samples of the last minute, not all"


def test_a_counter_that_just_began_gives_no_peak() -> None:
    assert rate(meter_at(), 0.001, 50) == 50.0


def test_a_counter_that_did_not_grow_is_left_out() -> None:
    meter = meter_at()
    run(meter, 0, 10, 1)
    assert meter.rates(10 * S, {"a": 10, "idle": 5}) == {"a": 1.0}


def test_a_burst_counts_for_a_minute_and_not_longer() -> None:
    meter = meter_at()
    count = run(meter, 0, 100, 0)
    count = run(meter, 100, 103, 200, count)
    run(meter, 103, 150, 0, count)
    assert rate(meter, 150, count) == 10.0
    run(meter, 150, 158, 0, count)
    assert rate(meter, 158, count) == 10.0
    run(meter, 158, 169, 0, count)
    assert rate(meter, 169, count) == 0.0, (
        "the minute's begin lies behind the burst and the samples next to it"
    )


def test_after_an_idle_hour_the_rate_is_of_the_last_minute() -> None:
    """An idle actor rarely sends a pulse, so there is not one for each second."""
    meter = meter_at()
    count = run(meter, 0, 10, 100)
    for second in (40, 70, 100, HOUR):
        meter.note(second * S, {"a": count, "idle": 5})
    assert rate(meter, HOUR, count) == 0.0
    # A burst, and the pulse that it causes.
    meter.note((HOUR + 50) * S, {"a": count + 600, "idle": 5})
    assert rate(meter, HOUR + 50, count + 600) == 10.0
    assert rate(meter, HOUR + 100, count + 600) == 10.0, (
        "it is not spread over the idle time before"
    )
    assert len(meter._samples) <= 4, "what is idle keeps next to nothing"


def test_half_a_minute_ago_growth_stopped() -> None:
    meter = meter_at()
    count = run(meter, 0, 120, 10)
    run(meter, 120, 150, 0, count)
    assert rate(meter, 150, count) == 5.0
