"""Tests of the tick plan: when the next tick is sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsq.actors.bucket.archive.tick_plan import FAST_NS, NEVER, URGENT_BYTES, Crowd, TickPlan
from zsq.storage.bucket.shipping.tick_format import TICK_BYTES, WINDOW

S = 1_000_000_000


@pytest.mark.parametrize(
    ("size", "urgent", "flights", "expected"),
    [
        (0, True, 0, NEVER),
        (1, True, WINDOW, NEVER),
        (TICK_BYTES, True, WINDOW, NEVER),
        (TICK_BYTES, False, 0, 0),
        (TICK_BYTES, False, WINDOW - 1, 0),
        (1, True, 0, 0),
        (URGENT_BYTES, True, 1, 0),
    ],
)
def test_a_tick_is_sent_at_once_or_not_yet(
    size: int, urgent: bool, flights: int, expected: int
) -> None:
    assert TickPlan(S).due_ns(size, 5 * S, urgent, flights) == expected


@pytest.mark.parametrize(
    ("size", "urgent", "flights"),
    [(1, False, 0), (TICK_BYTES - 1, False, 1), (1, True, 1), (URGENT_BYTES - 1, True, 3)],
)
def test_other_ticks_wait_for_a_period(size: int, urgent: bool, flights: int) -> None:
    plan = TickPlan(S)
    due = 5 * S + plan.period_ns + plan.collect_ns
    assert plan.due_ns(size, 5 * S, urgent, flights) == due


def test_pieces_that_missed_their_tick_go_together_a_little_later() -> None:
    plan = TickPlan(S)
    sent = 5 * S + plan.period_ns + plan.collect_ns
    assert plan.due_ns(1, 5 * S, False, 1, last_ns=sent) == sent + plan.collect_ns
    assert plan.due_ns(1, sent, False, 0, last_ns=sent) == sent + plan.period_ns + plan.collect_ns


def test_a_tick_is_sent_when_all_topics_of_the_period_before_are_there() -> None:
    plan, crowd = TickPlan(S), Crowd()
    period = plan.period_ns
    for uuid in ("a", "b"):
        crowd.came(uuid, 10 * period, plan)
    assert not crowd.is_complete(10 * period, plan), "it is not known yet who sends"
    crowd.came("b", 11 * period, plan)
    crowd.came("c", 11 * period, plan)
    assert not crowd.is_complete(11 * period, plan)
    crowd.came("a", 11 * period + 5, plan)
    assert crowd.is_complete(11 * period + 5, plan)
    assert not crowd.is_complete(11 * period + 6, plan), "once in each period"
    for uuid in ("a", "b", "c"):
        crowd.came(uuid, 12 * period + plan.collect_ns + 1, plan)
    assert not crowd.is_complete(12 * period + plan.collect_ns + 1, plan), "only at its beginning"
    crowd.came("a", 14 * period, plan)
    assert not crowd.is_complete(14 * period, plan), "a period without pieces is between them"
    assert plan.due_ns(1, 14 * period, False, 0, is_complete=True) == 0


def test_a_slow_store_gets_its_ticks_earlier() -> None:
    plan = TickPlan(S)
    before = plan.due_ns(1, 0, False, 0)
    plan.uploaded(S // 10)
    assert plan.due_ns(1, 0, False, 0) <= before - 2 * (S // 10 - FAST_NS) + 32
    for _ in range(50):
        plan.uploaded(10 * S)
    assert plan.period_ns == S // 32 * 8, "never shorter than a quarter of the bound"


def test_the_period_does_not_change_with_each_measurement() -> None:
    """The topics would not agree on it."""
    plan = TickPlan(S)
    found = set()
    for took in range(FAST_NS, 5 * FAST_NS, FAST_NS // 100):
        plan.upload_ns = took
        found.add(plan.period_ns)
    assert len(found) <= 5


@given(
    lag=st.integers(10_000_000, 3600 * S),
    uploads=st.lists(st.integers(0, 60 * S), max_size=20),
    oldest=st.integers(0, 10**18),
)
def test_a_tick_is_never_due_before_a_quarter_or_after_the_bound(
    lag: int, uploads: list[int], oldest: int
) -> None:
    plan = TickPlan(lag)
    for took in uploads:
        plan.uploaded(took)
    due = plan.due_ns(1, oldest, False, 0)
    assert oldest + lag // 4 - 32 <= due <= oldest + lag
    if plan.upload_ns <= lag // 4:
        # The steps of the period are whole nanoseconds.
        assert due + plan.upload_ns <= oldest + lag + 64
