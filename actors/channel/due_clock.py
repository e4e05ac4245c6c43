"""Due clock: the clock by which a channel decides which deferred messages are due.

The delay of a requeue is a duration. The wall clock may be set while it runs, by a person or by the
first answer of a time server. Then a message would come too early or too late by as much. So while
the process lives, this clock counts the time that has passed since its start, including the time of
a suspended machine, and does not follow the wall clock.

The state store keeps due times of the wall clock, because only that one goes on over a restart. So
this clock begins at the wall clock, and follows it again whenever no message is deferred. Messages
that were deferred before a restart have no other clock than the wall clock. So when the delays of
this process are over, this clock also follows a wall clock that was set forward.

A wall clock that was set back is noticed, because the channel's row has the time of this clock at
each commit with deferred messages. The clock of the next process goes on from there. So after a
restart, no message waits longer than its delay, and no due time is ever further ahead of this clock
than the longest delay.

A delay above an hour means a date rather than a duration. So the clock ignores a wall clock that is
set forward for an hour at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from ...transport.units import NS_PER_S
from ..primitives.boot_clock import boot_ns

HOLD_NS_MAX: Final = 3_600 * NS_PER_S


class DueClock:
    """`not_before_ns` is the earliest time at which this clock may begin."""

    def __init__(
        self, passed_ns: Callable[[], int] = boot_ns, wall_ns: Callable[[], int] | None = None, not_before_ns: int = 0
    ) -> None:  # fmt: skip
        self._passed_ns = passed_ns
        self._wall_ns = wall_ns or time.time_ns
        self._ahead_ns = self._held_until_ns = 0
        self.follow()
        self._ahead_ns = max(self._ahead_ns, not_before_ns - passed_ns())

    def follow(self) -> None:
        """Take the wall clock as it is now. No message may be deferred."""
        self._ahead_ns = self._wall_ns() - self._passed_ns()

    def hold(self, delay_ns: int) -> None:
        """Note that a message is deferred for this time, during which the wall clock may be set."""
        held_until_ns = self.now_ns() + min(max(0, delay_ns), HOLD_NS_MAX)
        self._held_until_ns = max(self._held_until_ns, held_until_ns)

    def now_ns(self) -> int:
        now_ns = self._passed_ns() + self._ahead_ns
        if now_ns < self._held_until_ns or self._wall_ns() <= now_ns:
            return now_ns
        self.follow()
        return self._passed_ns() + self._ahead_ns
