"""Tests of the pace of a live tail: small bursts are complete, floods are cut, and no message is
both shown and dropped.
"""

from __future__ import annotations

import random

import pytest

from zsq.actors.gateways.http.messages.pace import BEHIND_MAX, BURST, RATE, TailPace, Turn


@pytest.mark.parametrize(
    ("at", "head", "turn"),
    [
        (5, 5, Turn(5, 0, 0)),
        (5, 7, Turn(5, 2, 0)),
        (0, BURST, Turn(0, BURST, 0)),
        (0, BURST + 50, Turn(0, BURST, 0)),  # the rest comes later
        (0, BEHIND_MAX, Turn(0, BURST, 0)),
        (0, BEHIND_MAX + 1, Turn(BEHIND_MAX + 1 - BURST, BURST, BEHIND_MAX + 1 - BURST)),
        (10, 1_000_000, Turn(1_000_000 - BURST, BURST, 1_000_000 - BURST - 10)),
        (9, 5, Turn(9, 0, 0)),  # the topic was created again
    ],
)
def test_a_turn(at: int, head: int, turn: Turn) -> None:
    assert TailPace(0.0).turn(at, head, 0.0) == turn


def test_the_rate_holds_over_time() -> None:
    """A flood of 10,000 messages a second is shown at the rate, and all others are counted."""
    pace, at, head, shown, dropped = TailPace(0.0), 0, 0, 0, 0
    for step in range(1, 121):
        head += 5_000
        turn = pace.turn(at, head, step / 2)
        pace.shown(turn.take)
        at = turn.first + turn.take
        shown, dropped = shown + turn.take, dropped + turn.dropped
    assert BURST + 59 * RATE <= shown <= BURST + 60 * RATE
    assert shown + dropped == at == head


def test_a_burst_is_shown_completely() -> None:
    pace, at, shown = TailPace(0.0), 0, 0
    for step in range(30):
        turn = pace.turn(at, BEHIND_MAX, step / 2)
        assert turn.dropped == 0
        pace.shown(turn.take)
        at, shown = turn.first + turn.take, shown + turn.take
    assert shown == BEHIND_MAX


def test_each_message_is_shown_or_dropped_once() -> None:
    chance = random.Random(3)
    pace, at, head, now_s = TailPace(0.0), 0, 0, 0.0
    for _ in range(2_000):
        head += chance.choice([0, 0, 1, 3, 40, 700, 5_000])
        now_s += chance.choice([0.0, 0.1, 0.5, 20.0])
        turn = pace.turn(at, head, now_s)
        assert turn.first == at + turn.dropped
        assert 0 <= turn.take <= BURST
        assert turn.first + turn.take <= head
        pace.shown(turn.take)
        at = turn.first + turn.take
