"""Tests of when a standby takes over."""

from __future__ import annotations

from zsq.actors.bucket.standby.patience import Patience
from zsq.storage.bucket.shipping.standbys import STRANGER_S
from zsq.storage.bucket.shipping.tick_format import TICK, Index

S = 1_000_000_000


def tick(lease_ms: int = 1_400, *, is_released: bool = False) -> Index:
    return Index(
        TICK, 7, 1, "a", "c", "host", 0, "", 0, (), -1, (), None, (), lease_ms, is_released
    )


def test_each_tick_begins_the_patience_anew() -> None:
    found = Patience(2.0, 0)
    for at_s in range(1, 10):
        found.saw(tick(), at_s * S)
        assert not found.is_over(at_s * S + 2 * S - 1)
    assert found.is_over(11 * S)
    assert found.quiet_s(11 * S) == 2.0


def test_a_standby_that_has_seen_nothing_waits_as_for_a_stranger() -> None:
    found = Patience(2.0, 5 * S)
    assert found.due_ns() == (5 + STRANGER_S) * S


def test_a_primary_that_has_not_heard_of_this_standby_gets_more_time() -> None:
    found = Patience(2.0, 0)
    found.saw(tick(0), S)
    assert found.due_ns() == (1 + STRANGER_S) * S


def test_a_longer_lease_than_expected_is_waited_for() -> None:
    found = Patience(2.0, 0)
    found.saw(tick(7_000), S)
    assert found.due_ns() == S + int(1.25 * 7 * S)


def test_a_released_log_is_taken_over_at_once() -> None:
    found = Patience(2.0, 0)
    found.saw(tick(is_released=True), S)
    assert found.is_over(S)
    found.saw(tick(), 2 * S)
    assert not found.is_over(2 * S)


def test_after_an_absence_of_the_bucket_it_waits_again() -> None:
    """Ticks may have been on their way, and a release may be old."""
    found = Patience(2.0, 0)
    found.saw(tick(is_released=True), S)
    found.waits_from(100 * S)
    assert not found.is_over(102 * S - 1)
    assert found.is_over(102 * S)
