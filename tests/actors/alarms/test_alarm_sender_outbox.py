"""Tests of an outbox, which holds the events still to be sent to one receiver: tries, pauses, and
when it gives up.
"""

from __future__ import annotations

from typing import Any

from zsq.actors.alarms.alarm_sender import BATCH_MAX, PAUSE_S, TRIES_MAX, WAITING_MAX, Outbox

S = 1_000_000_000


def events(first: int, count: int) -> list[Any]:
    return [{"n": first + i} for i in range(count)]


def numbers(batch: list[Any]) -> list[int]:
    return [event["n"] for event in batch]


def test_events_that_arrive_during_a_try_are_sent_together_later() -> None:
    box = Outbox()
    assert box.begin(0) == []
    assert box.idle()
    box.add(events(0, 2))
    assert numbers(box.begin(0)) == [0, 1]
    box.add(events(2, 3))
    assert box.begin(0) == [], "one try at a time"
    assert not box.idle()
    assert not box.went("", 0)
    assert numbers(box.begin(0)) == [2, 3, 4]
    box.went("", 0)
    assert box.statistics() == {"sent_count": 5, "waiting": 0, "failed_count": 0, "trouble": ""}


def test_a_batch_is_bounded() -> None:
    box = Outbox()
    box.add(events(0, BATCH_MAX + 1))
    assert len(box.begin(0)) == BATCH_MAX
    box.went("", 0)
    assert numbers(box.begin(0)) == [BATCH_MAX]


def test_a_failed_try_is_repeated_with_growing_pauses_and_then_given_up() -> None:
    box = Outbox()
    box.add(events(0, 2))
    now = 0
    pauses = []
    for _ in range(TRIES_MAX - 1):
        assert numbers(box.begin(now)) == [0, 1]
        assert not box.went("refused", now)
        box.add(events(9, 1))
        pause = next(s for s in range(1, 100) if box._due_ns <= now + s * S)
        assert box.begin(now + pause * S - 1) == []
        pauses.append(pause)
        now += pause * S
    assert pauses == [PAUSE_S * 2**i for i in range(TRIES_MAX - 1)]
    assert numbers(box.begin(now)) == [0, 1]
    assert box.went("refused", now), "given up"
    assert box.missed == 2
    assert numbers(box.begin(now)) == [9] * (TRIES_MAX - 1), (
        "the newer ones have tries of their own, at once"
    )
    assert not box.went("", now)
    found = box.statistics()
    assert (found["failed_count"], found["sent_count"], found["trouble"], box.missed) == (
        2,
        TRIES_MAX - 1,
        "",
        0,
    )


def test_waiting_is_bounded_and_the_oldest_go() -> None:
    box = Outbox()
    box.add(events(0, WAITING_MAX + 5))
    assert numbers(box.begin(0))[0] == 5
    assert box.missed == 5
    assert box.statistics()["failed_count"] == 5
