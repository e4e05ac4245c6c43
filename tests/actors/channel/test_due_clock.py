"""Tests of the clock of deferred messages: it counts durations, whatever the wall clock does."""

from __future__ import annotations

import pytest

from zsq.actors.channel.due_clock import DueClock

S = 1_000_000_000


class Clocks:
    def __init__(self) -> None:
        self.passed_ns = 7 * S
        self.wall_ns = 1_000_000 * S

    def go(self, seconds: int) -> None:
        self.passed_ns += seconds * S
        self.wall_ns += seconds * S


@pytest.mark.parametrize("jump_s", [-86_400, -2_000, 3_600, 86_400])
def test_a_delay_takes_as_long_as_it_says_when_the_wall_clock_is_set(jump_s: int) -> None:
    clocks = Clocks()
    clock = DueClock(lambda: clocks.passed_ns, lambda: clocks.wall_ns)
    clock.hold(1_800 * S)
    assert clock.now_ns() == clocks.wall_ns, "due times in the store are of the wall clock"
    due_ns = clock.now_ns() + 1_800 * S
    clocks.wall_ns += jump_s * S
    clocks.go(1_799)
    assert clock.now_ns() < due_ns
    clocks.go(1)
    assert clock.now_ns() >= due_ns
    clock.follow()
    assert clock.now_ns() == clocks.wall_ns


def test_the_clock_of_the_next_process_goes_on_where_the_wall_clock_was_set_back() -> None:
    clocks = Clocks()
    known_ns = clocks.wall_ns
    clocks.wall_ns -= 86_400 * S
    clock = DueClock(lambda: clocks.passed_ns, lambda: clocks.wall_ns, known_ns)
    assert clock.now_ns() == known_ns
    clocks.go(60)
    assert clock.now_ns() == known_ns + 60 * S, "the rest of a delay takes as long as it says"
    clocks.wall_ns += 2 * 86_400 * S
    assert clock.now_ns() == clocks.wall_ns
    clocks.wall_ns = known_ns
    clock.follow()
    assert clock.now_ns() == known_ns, "when no message is deferred"


def test_messages_from_before_a_restart_come_when_the_wall_clock_is_set_right() -> None:
    clocks = Clocks()
    clocks.wall_ns -= 3_600 * S  # it was set back, and then the process started
    clock = DueClock(lambda: clocks.passed_ns, lambda: clocks.wall_ns)
    clock.hold(5 * S)
    clocks.wall_ns += 3_600 * S
    clocks.go(4)
    assert clock.now_ns() < clocks.wall_ns, "a delay of this process is not over"
    clocks.go(1)
    assert clock.now_ns() == clocks.wall_ns
    clocks.wall_ns -= 60 * S
    assert clock.now_ns() > clocks.wall_ns, "what is due stays due"
