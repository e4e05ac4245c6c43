"""Tests of what is published of the due times that have come, by policy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsq.actors.schedules.cron import Cron
from zsq.actors.schedules.plan import COUNTED_MAX, GRACE_S, RUNS_MAX, Plan, latest, plan
from zsq.actors.settings.schedule_settings import ALL, MISSED, ONE, SKIP


class Every(Cron):
    """Due times at a fixed interval. It counts those that were looked at."""

    def __init__(self, step_s: int = 3_600) -> None:
        self.step_s = step_s
        self.looked = 0

    def after(self, moment_s: int) -> Iterator[int]:
        due = (moment_s // self.step_s + 1) * self.step_s
        while True:
            self.looked += 1
            yield due
            due += self.step_s


H = 3_600


@pytest.mark.parametrize(
    ("policy", "now_s", "expected"),
    [
        (ONE, 5 * H - 1, Plan((), 0, 4 * H)),  # nothing is due
        *((policy, 5 * H, Plan((5 * H,), 0, 5 * H)) for policy in MISSED),
        *((policy, 5 * H + GRACE_S - 1, Plan((5 * H,), 0, 5 * H)) for policy in MISSED),
        (ONE, 5 * H + GRACE_S, Plan((5 * H,), 0, 5 * H)),
        (ALL, 5 * H + GRACE_S, Plan((5 * H,), 0, 5 * H)),
        (SKIP, 5 * H + GRACE_S, Plan((), 1, 5 * H)),
        (ONE, 7 * H + 5, Plan((7 * H,), 2, 7 * H)),
        (ALL, 7 * H + 5, Plan((5 * H, 6 * H, 7 * H), 0, 7 * H)),
        (SKIP, 7 * H + 5, Plan((7 * H,), 2, 7 * H)),
        (SKIP, 7 * H + 600, Plan((), 3, 7 * H)),
        (ONE, 3 * H, Plan((), 0, 4 * H)),  # the clock was set back
    ],
)
def test_each_policy(policy: str, now_s: int, expected: Plan) -> None:
    assert plan(Every(), policy, 4 * H, now_s) == expected


def test_all_is_bounded_and_the_rest_is_counted() -> None:
    found = plan(Every(60), ALL, 0, 1_500 * 60)
    assert found.publish == tuple(range(501 * 60, 1_501 * 60, 60))
    assert (len(found.publish), found.left_out) == (RUNS_MAX, 500)


@pytest.mark.parametrize("policy", MISSED)
def test_a_pause_of_years_is_not_searched_as_a_whole(policy: str) -> None:
    times = Every(60)
    found = plan(times, policy, 0, 1_790_000_000)
    assert len(found.publish) + found.left_out == COUNTED_MAX
    assert times.looked < 10 * COUNTED_MAX


@given(
    st.sampled_from(MISSED),
    st.integers(60, 5_000),
    st.integers(0, 10**6),
    st.lists(st.integers(0, 20_000), max_size=30),
)
def test_each_due_time_is_decided_once_whenever_the_plan_is_made(
    policy: str, step_s: int, begin: int, pauses: list[int]
) -> None:
    times, handled, now_s = Every(step_s), begin, begin
    published: list[int] = []
    left_out = 0
    for pause in pauses:
        now_s += pause
        found = plan(times, policy, handled, now_s)
        assert handled <= found.handled <= now_s
        published += found.publish
        left_out, handled = left_out + found.left_out, found.handled
    come = now_s // step_s - begin // step_s
    assert published == sorted(set(published))
    assert all(begin < due <= now_s for due in published)
    assert len(published) + left_out == come


@given(st.integers(1, 90_000), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 50))
def test_the_latest_due_times_are_found_at_any_distance(
    step_s: int, after: int, span: int, count: int
) -> None:
    found = latest(Every(step_s), after, after + span, count)
    every = [due for due in range(0, after + span + 1, step_s) if due > after]
    assert found == every[-count:]
