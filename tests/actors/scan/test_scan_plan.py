"""Tests of which channels are scanned and when, in virtual time, with the same numbers
as in NSQ.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from zsq.actors.scan.scan_plan import ScanPlan, pool_size
from zsq.actors.settings import options

S = 1_000_000_000
NOW = 100 * S
LATER = NOW + 60 * S


def plan_of(count: int) -> ScanPlan:
    """Return a plan of the channels 0 to count - 1. None of them is due."""
    plan = ScanPlan()
    plan.set_channels((key, f"ipc://{key}") for key in range(count))
    while chosen := [key for key, _ in plan.select(NOW, lambda n: 0)]:
        for key in chosen:
            plan.answered(key, 0)
        if len(chosen) < options.SCAN_SELECTION:
            break
    return plan


def picking(seed: int = 0) -> Callable[[int], int]:
    return random.Random(seed).randrange


def keys(plan: ScanPlan, now_ns: int = NOW, pick: Callable[[int], int] | None = None) -> list[int]:
    return [key for key, _ in plan.select(now_ns, pick or picking())]


@pytest.mark.parametrize(
    ("channels", "workers"), [(0, 1), (1, 1), (7, 1), (8, 2), (12, 3), (16, 4), (17, 4), (1_000, 4)]
)
def test_the_pool_is_a_quarter_of_the_channels(channels: int, workers: int) -> None:
    assert pool_size(channels) == workers


def test_a_new_channel_is_due_at_once() -> None:
    plan = ScanPlan()
    plan.set_channels([(1, "ipc://1"), (2, "ipc://2")])
    assert sorted(plan.select(NOW, picking())) == [(1, "ipc://1"), (2, "ipc://2")]
    plan.set_channels([(2, "ipc://2"), (3, "ipc://3")])
    assert 3 in keys(plan)
    assert len(plan) == 2


def test_one_round_takes_twenty_channels_and_those_that_are_due_first() -> None:
    plan = plan_of(1_000)
    for key in range(500, 530):
        plan.hint(key, NOW - 1_000 + key)
    first = keys(plan)
    assert first == list(range(500, 520))
    second = keys(plan)
    assert second[:10] == list(range(520, 530))
    assert len(second) == len(set(second)) <= options.SCAN_SELECTION
    assert len(second) > 15, "filled up with random ones"


def test_a_plan_of_few_channels_selects_only_those() -> None:
    assert ScanPlan().select(NOW, picking()) == []
    assert set(keys(plan_of(3))) <= {0, 1, 2}


def test_an_answer_decides_when_a_channel_is_due_again() -> None:
    plan = plan_of(100)
    plan.answered(7, NOW + S)
    plan.answered(8, LATER)
    assert plan.wait_ms(NOW) == options.SCAN_IDLE_MS
    assert plan.wait_ms(NOW + S - 5_000_000) == 6
    assert plan.wait_ms(NOW + S) == plan.wait_ms(NOW + 9 * S) == 1
    assert keys(plan, NOW + S)[0] == 7
    plan.answered(7, 0)
    assert keys(plan, NOW + 2 * S, lambda n: 50) == [50]


def test_a_hint_makes_a_channel_due_earlier() -> None:
    plan = plan_of(100)
    plan.answered(7, LATER)
    plan.hint(7, NOW + S)
    plan.hint(1_000, NOW)  # a hint for a channel that was removed
    assert keys(plan, NOW + S, lambda n: 50) == [7, 50]


@pytest.mark.parametrize("answer_due_ns", [0, LATER])
def test_a_hint_is_not_undone_by_an_older_answer(answer_due_ns: int) -> None:
    """The channel first answers a worker and then sends a hint to the loop. The worker's report
    arrives last.
    """
    plan = plan_of(100)
    plan.hint(7, NOW)
    assert 7 in keys(plan)
    plan.hint(7, NOW + S)
    assert 7 not in keys(plan, NOW + S), "it is asked already"
    plan.answered(7, answer_due_ns)
    assert keys(plan, NOW + S)[0] == 7
    plan.answered(7, answer_due_ns)
    assert 7 not in keys(plan, NOW + 2 * S, lambda n: 50)


def test_a_channel_that_is_being_asked_is_in_no_other_round() -> None:
    """Until it answers or misses the scan, the channel is selected neither because it is due nor at
    random.
    """
    plan = plan_of(3)
    plan.hint(1, NOW)
    assert 1 in keys(plan, NOW, lambda n: 1)
    plan.hint(1, NOW)
    plan.hint(2, NOW)
    assert keys(plan, NOW, lambda n: 1) == [2]
    assert plan.wait_ms(NOW) == options.SCAN_IDLE_MS, "nobody is waited for who is asked already"
    plan.answered(1, 0)
    assert keys(plan, NOW, lambda n: 1) == [1], "the hint still holds"


def test_a_channel_that_misses_scans_is_asked_less_and_less_often() -> None:
    """The channel is not selected at random either. Otherwise it would be in each round if there
    are few channels.
    """
    plan = plan_of(1)
    asked = []
    now = NOW
    plan.hint(0, now)
    while now < NOW + 20 * S:
        if keys(plan, now) == [0]:
            asked.append((now - NOW) / S)
            plan.missed(0, now)
        now += S // 2
    assert asked == [0, 1, 3, 7, 11, 15, 16, 18], "at 11 s it is found hung, and counted anew"


def test_a_hint_does_not_delay_a_channel_that_missed_a_scan() -> None:
    plan = plan_of(1)
    for hint_s, due_s in ((0.5, 0.5), (60.0, 1.0)):
        assert keys(plan, NOW) == [0]
        plan.missed(0, NOW)
        plan.hint(0, NOW + int(hint_s * S))
        assert keys(plan, NOW + int(due_s * S) - 1) == []
        assert keys(plan, NOW + int(due_s * S)) == [0]
        plan.answered(0, 0)


def test_a_hint_before_the_scan_was_missed_counts() -> None:
    plan = plan_of(1)
    assert keys(plan) == [0]
    plan.hint(0, NOW + S // 2)
    plan.missed(0, NOW)
    assert keys(plan, NOW + S // 2) == [0]


def test_channels_of_a_lost_worker_are_asked_again_at_once() -> None:
    plan = plan_of(1_000)
    plan.hint(7, NOW)
    assert 7 in keys(plan)
    plan.lost(7, NOW)
    plan.lost(1_000, NOW)
    assert keys(plan, NOW, lambda n: 50) == [7, 50]


def test_an_answer_after_all_forgives_and_is_news() -> None:
    plan = plan_of(2)
    for second in (0, 5, 9):
        plan.missed(0, NOW + second * S)
    assert keys(plan, NOW, lambda n: 0) == [], "in 4 s"
    plan.spoke(0, NOW + 10 * S)
    assert keys(plan, NOW + 10 * S - 1, lambda n: 1) == [1]
    assert keys(plan, NOW + 10 * S, lambda n: 1) == [0]
    assert not plan.missed(0, NOW + 11 * S), "counted anew"


def test_an_answer_after_all_puts_nothing_off() -> None:
    plan = plan_of(1)
    for said in (0, LATER):
        plan.hint(0, NOW)
        assert keys(plan) == [0]
        plan.missed(0, NOW)
        plan.spoke(0, said)
        assert plan.wait_ms(NOW + S - 5_000_000) == 6
        assert keys(plan, NOW + S) == [0]
        plan.hint(0, NOW + S)
        plan.spoke(0, said)
        plan.answered(0, LATER)
        assert keys(plan, NOW + S) == [0], "of two that come while it is asked, the earlier"
        plan.answered(0, 0)


@pytest.mark.parametrize(
    ("seconds", "hung_at"),
    [
        ([0, 1, 2, 3], None),
        ([0, 5, 9.9], None),
        ([0, 5, 10], 10),
        ([0, 11, 12], 12),
        ([0, 1, 2, 3, 10.5], 10.5),
        ([0, 60], None),
    ],
)
def test_a_channel_hangs_after_three_missed_scans_and_ten_seconds(
    seconds: list[float], hung_at: float | None
) -> None:
    plan = plan_of(5)
    assert [second for second in seconds if plan.missed(3, NOW + int(second * S))] == (
        [] if hung_at is None else [hung_at]
    )


def test_an_answer_forgives_misses() -> None:
    plan = plan_of(5)
    for second in (0, 5, 9):
        plan.missed(3, NOW + second * S)
    plan.answered(3, 0)
    assert not any(plan.missed(3, NOW + second * S) for second in (11, 15))


def test_results_of_removed_channels_are_ignored() -> None:
    plan = plan_of(5)
    assert plan.set_channels([(1, "ipc://1")]) == {key: f"ipc://{key}" for key in (0, 2, 3, 4)}
    plan.answered(4, LATER)
    plan.lost(4, NOW)
    plan.spoke(4, NOW)
    assert not any(plan.missed(3, NOW + second * S) for second in (0, 10, 20))
    assert keys(plan, LATER) == [1]


@pytest.mark.parametrize("due", [1, 20, 40])
def test_with_a_thousand_channels_an_expiry_is_met_within_two_rounds(due: int) -> None:
    plan = plan_of(1_000)
    chosen = random.Random(due).sample(range(1_000), due)
    for key in range(1_000):
        plan.answered(key, NOW + 2 * S if key in chosen else LATER)
    pick = picking(due)
    met: set[int] = set()
    for _ in range(2):
        met.update(keys(plan, NOW + 2 * S, pick))
    assert met >= set(chosen)


def test_random_scans_reach_every_channel_in_the_end() -> None:
    """There are no hints. Each round selects 20 of 100 channels at random, and there are ten rounds
    per second.
    """
    plan = plan_of(100)
    pick = picking(3)
    met: set[int] = set()
    for _ in range(100):
        met.update(found := keys(plan, NOW, pick))
        for key in found:
            plan.answered(key, 0)
    assert len(met) == 100
