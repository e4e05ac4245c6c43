"""Tests of retry policies: the delay after each attempt, and which policies are refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import zsq
from zsq.transport.retries import CURVES, delays_of, retry_delay_s
from zsq.transport.settings import ChannelSettings


def delays(retries: zsq.Retries, attempts: int) -> list[float]:
    return [retries.delay_s(attempt, lambda: 0.5) for attempt in range(1, attempts + 1)]


@pytest.mark.parametrize(
    ("retries", "expected"),
    [
        (zsq.Retries(), [1, 2, 4, 8]),
        (zsq.Retries(first=50), [50, 100, 120, 120]),
        (zsq.Retries(curve="linear", first=50), [50, 100, 120, 120]),
        (zsq.Retries(curve="constant", first=7), [7, 7, 7, 7]),
        (zsq.Retries(curve="5s,1m,10m"), [5, 60, 600, 600]),
        (zsq.Retries(curve="1h30m"), [5400, 5400, 5400, 5400]),
        (zsq.Retries(curve=[5, timedelta(minutes=1)]), [5, 60, 60, 60]),
        (zsq.Retries(curve=[600], maximum=1, first=1), [600, 600, 600, 600]),
        (zsq.Retries(jitter=20), [0.9, 1.8, 3.6, 7.2]),
        (zsq.Retries(first=0, maximum=0), [0, 0, 0, 0]),
    ],
)
def test_each_curve_gives_its_delays(retries: zsq.Retries, expected: list[float]) -> None:
    assert delays(retries, 4) == pytest.approx(expected)


@given(
    curve=st.sampled_from([*CURVES, "5s,1m", "0s"]),
    first=st.floats(0, 100),
    jitter=st.integers(0, 100),
    attempts=st.integers(0, 70_000),
    draw=st.floats(0, 1, exclude_max=True),
)
def test_jitter_only_shortens_a_delay(
    curve: str, first: float, jitter: int, attempts: int, draw: float
) -> None:
    full = retry_delay_s(curve, first, 120, 0, attempts, lambda: draw)
    delay = retry_delay_s(curve, first, 120, jitter, attempts, lambda: draw)
    assert full * (1 - jitter / 100) <= delay * (1 + 1e-9)
    assert delay <= full <= 120


def test_the_last_attempt_is_known() -> None:
    retries = zsq.Retries(max_attempts=3)
    assert [retries.is_over(attempts) for attempts in (1, 2, 3, 4)] == [False, False, True, True]
    assert not zsq.Retries().is_over(70_000)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"max_attempts": -1}, "max_attempts must be a whole number from 0 to 65535, not -1"),
        ({"max_attempts": 1.5}, "max_attempts must be a whole number"),
        ({"jitter": 101}, "jitter must be a whole number from 0 to 100, not 101"),
        ({"jitter": True}, "jitter must be a whole number"),
        ({"first": "1"}, "first must be a number of seconds"),
        ({"first": 200}, "maximum must be a number of seconds from 200 to 31622400, not 120.0"),
        ({"maximum": float("nan")}, "maximum must be a number of seconds"),
        ({"curve": "steep"}, "a curve is exponential, linear, constant, or delays such as"),
        ({"curve": ""}, "a curve is exponential"),
        ({"curve": []}, "a curve has 1 to 64 delays, not 0"),
        ({"curve": [1] * 65}, "a curve has 1 to 64 delays, not 65"),
        ({"curve": 5}, "curve must be a text, or a list of delays, not 5"),
        ({"curve": b"5s"}, "curve must be a text, or a list of delays, not b'5s'"),
        ({"curve": [-1]}, "a delay must be a number of seconds from 0 to 31622400, not -1"),
        ({"curve": "1s,400d"}, "a delay must be a number of seconds"),
        ({"curve": ["5s"]}, "a delay must be a number of seconds"),
    ],
)
def test_a_wrong_policy_is_refused(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(zsq.UsageError) as refused:
        zsq.Retries(**wrong)
    assert refused.value.text.startswith(text)


def test_a_channel_has_the_same_curves() -> None:
    settings = ChannelSettings(backoff_curve="5s,1m", backoff_jitter=50)
    assert settings.backoff_ns(2, lambda: 1.0) == 30 * 10**9
    assert settings.backoff_longest_ns == 60 * 10**9
    for wrong in ({"backoff_curve": "5s,,1m"}, {"backoff_jitter": 101}, {"backoff_curve": 5}):
        with pytest.raises(zsq.UsageError):
            ChannelSettings(**wrong)
    assert delays_of("exponential") == ()
