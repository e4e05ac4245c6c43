"""Tests of the backoff of a consumer, as a machine without messages."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

import zsq
from zsq.transport.client.core.consumer_backoff import (
    BACKOFF_TABLE,
    BackoffState,
    ConsumerBackoff,
    Outcome,
    backoff_of,
)
from zsq.transport.client.link.timeouts import FAR_NS
from zsq.transport.errors import UsageError

S: Final = 1_000_000_000
OPEN, WAITING, PROBING, TESTING = BackoffState
SUCCESS, FAILURE, NEITHER = Outcome


def machine(**settings: Any) -> ConsumerBackoff:
    return ConsumerBackoff(zsq.Backoff(**settings))


def fail(backoff: ConsumerBackoff, count: int = 1, now_ns: int = 0) -> list[bool]:
    return [backoff.ended(backoff.ticket, FAILURE, now_ns) for _ in range(count)]


def probe(backoff: ConsumerBackoff, outcome: Outcome) -> float:
    """Wait, probe, and return how long the next wait is, in seconds. 0: it is over."""
    now_ns = backoff.until_ns
    assert not backoff.due(now_ns - 1), "the wait is not over"
    assert backoff.due(now_ns)
    assert backoff.limit == 1, "one message"
    backoff.taken(now_ns)
    assert backoff.limit == 0, "until its handler has ended"
    backoff.ended(backoff.ticket, outcome, now_ns)
    return (backoff.until_ns - now_ns) / S if backoff.state is WAITING else 0


def test_a_consumer_backs_off_after_failures_in_a_row() -> None:
    backoff = machine()
    assert backoff.limit is None
    assert fail(backoff, 4) == [False] * 4
    assert backoff.ended(backoff.ticket, SUCCESS, 0) is False, "the row is over"
    assert backoff.ended(backoff.ticket, NEITHER, 0) is False
    assert fail(backoff, 5) == [False] * 4 + [True]
    assert [backoff.state, backoff.limit, backoff.until_ns] == [WAITING, 0, 2 * S]


def test_each_failed_probe_doubles_the_wait_up_to_the_maximum() -> None:
    backoff = machine()
    fail(backoff, 5)
    waits = [probe(backoff, FAILURE) for _ in range(7)]
    assert waits == [4, 8, 16, 32, 64, 120, 120]
    waits = [probe(backoff, SUCCESS) for _ in range(7)]
    assert waits == [64, 32, 16, 8, 4, 2, 0]
    assert (backoff.state, backoff.limit, backoff.until_ns) == (OPEN, None, FAR_NS)


def test_a_probe_that_neither_succeeds_nor_fails_is_repeated_after_the_same_wait() -> None:
    backoff = machine(multiplier=3)
    fail(backoff, 5)
    assert [probe(backoff, NEITHER), probe(backoff, NEITHER)] == [6, 6]


def test_handlers_that_began_before_the_backoff_change_nothing() -> None:
    backoff = machine(failures=1)
    old = backoff.ticket
    fail(backoff)
    assert backoff.ended(old, FAILURE, 0) is False
    assert backoff.ended(backoff.ticket, SUCCESS, 0) is False, "nothing counts in a wait"
    backoff.due(2 * S)
    backoff.taken(2 * S)
    assert backoff.ended(old, SUCCESS, 2 * S) is False
    assert backoff.state is TESTING


def test_a_probe_whose_link_is_lost_is_repeated() -> None:
    backoff = machine(failures=1)
    assert backoff.lost(0) is False
    fail(backoff)
    assert backoff.lost(0) is False
    backoff.due(2 * S)
    assert backoff.lost(2 * S) is False
    backoff.taken(2 * S)
    ticket = backoff.ticket
    assert backoff.lost(3 * S) is True
    assert (backoff.state, backoff.level, backoff.until_ns) == (WAITING, 1, 5 * S)
    assert backoff.ended(ticket, SUCCESS, 3 * S) is False, "it may begin once more"


def test_the_time_until_the_probe_is_told() -> None:
    backoff = machine(failures=1)
    assert backoff.probe_ms(0) == 0
    fail(backoff)
    assert [backoff.probe_ms(0), backoff.probe_ms(S // 2), backoff.probe_ms(3 * S)] == [
        2000,
        1500,
        1,
    ]
    backoff.due(3 * S)
    assert backoff.probe_ms(3 * S) == 1
    backoff.taken(3 * S)
    assert backoff.probe_ms(3 * S) == 1


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"multiplier": 0}, "multiplier must be above 0"),
        ({"multiplier": -1}, "multiplier must be above 0"),
        ({"multiplier": float("nan")}, "multiplier must be above 0"),
        ({"multiplier": "1"}, "multiplier must be a number, not str"),
        ({"maximum": 0.5}, "not above maximum"),
        ({"maximum": 3601}, "maximum not above 3600 s"),
        ({"failures": 0}, "failures must be at least 1, not 0"),
        ({"failures": 1.5}, "failures must be a whole number"),
    ],
)
def test_settings_out_of_their_limits_are_refused(settings: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        zsq.Backoff(**settings)


def test_run_takes_a_flag_or_settings() -> None:
    assert backoff_of(False) is None
    usual = backoff_of(True)
    assert usual is not None
    assert repr(usual.settings) == "Backoff(1.0, 120.0, failures=5)"
    own = backoff_of(zsq.Backoff(0.5, 8))
    assert own is not None
    assert own.settings.wait_s(2) == 2
    for value in (None, 1, "yes"):
        with pytest.raises(UsageError, match="backoff must be True, False or a zsq"):
            backoff_of(value)  # type: ignore[arg-type]


def test_each_state_but_open_has_an_end() -> None:
    assert set(BACKOFF_TABLE) == set(BackoffState)
    reached = {WAITING} | {
        step.after for events in BACKOFF_TABLE.values() for step in events.values()
    }
    assert reached == set(BackoffState) - {OPEN}, "OPEN is WAITING at level 0"


@given(
    st.lists(st.sampled_from(["success", "failure", "neither", "old", "due", "taken", "lost"])),
    st.integers(1, 3),
    st.sampled_from([0.25, 1.0, 120.0]),
)
def test_whatever_happens_the_consumer_gets_no_second_probe_and_goes_on_at_last(
    events: list[str], failures: int, multiplier: float
) -> None:
    backoff, now_ns = machine(multiplier=multiplier, failures=failures), 0
    for event in events:
        before = (backoff.state, backoff.level, backoff.ticket)
        if event == "due":
            now_ns = max(now_ns, min(backoff.until_ns, now_ns + 200 * S))
            backoff.due(now_ns)
        elif event == "taken" and backoff.limit == 1:
            backoff.taken(now_ns)
            assert backoff.limit == 0
        elif event == "lost":
            backoff.lost(now_ns)
        elif event in ("success", "failure", "neither"):
            backoff.ended(backoff.ticket, Outcome(event), now_ns)
        elif event == "old":
            backoff.ended(backoff.ticket - 1, FAILURE, now_ns)
            assert before == (backoff.state, backoff.level, backoff.ticket)
        assert abs(backoff.level - before[1]) <= 1
        assert (backoff.level == 0) == (backoff.state is OPEN) == (backoff.limit is None)
        assert (backoff.until_ns < FAR_NS) == (backoff.state is WAITING)
        assert backoff.until_ns == FAR_NS or backoff.until_ns <= now_ns + 120 * S
        assert (backoff.probe_ms(now_ns) == 0) == (backoff.state is OPEN)
        assert (backoff.ticket == before[2]) == (before[:2] == (backoff.state, backoff.level)), (
            "a state of its own has a ticket of its own"
        )
    for _ in range(20):
        if backoff.state is OPEN:
            break
        backoff.due(FAR_NS - 1)
        if backoff.limit == 1:
            backoff.taken(0)
        backoff.ended(backoff.ticket, SUCCESS, 0)
    assert backoff.state is OPEN
