"""TailPace: how many messages a live tail shows, and which ones it leaves out. Pure.

A person reads a few messages a second, and a topic may get a hundred thousand. So a tail shows at
most RATE messages a second on average. What it has not shown yet stays in the topic's log and costs
the gateway no memory: a burst of up to BEHIND_MAX messages is shown late and completely. If the
tail is further behind, it drops the oldest of them, without reading them, and counts them.

Waiting for the reader without any drops was rejected, because the tail would show ever older
messages. So was dropping each message over the rate, because it would tear small bursts apart.
"""

from __future__ import annotations

from typing import Final, NamedTuple

RATE: Final = 50.0  # messages a second
BURST: Final = 100  # messages that may be shown at once, after a silence
BEHIND_MAX: Final = 500


class Turn(NamedTuple):
    """The messages to show now: `take` of them from `first` on.

    The `dropped` messages before `first` are left out.
    """

    first: int
    take: int
    dropped: int


class TailPace:
    """The pace of one tail. `now_s` is a time of any steady clock."""

    def __init__(self, now_s: float) -> None:
        self._allowed = float(BURST)
        self._then_s = now_s

    def turn(self, at: int, head: int, now_s: float) -> Turn:
        """Return what to show of the messages from `at` to `head` (exclusive)."""
        self._allowed = min(float(BURST), self._allowed + max(0.0, now_s - self._then_s) * RATE)
        self._then_s = now_s
        behind, count, dropped = max(0, head - at), int(self._allowed), 0
        if behind > BEHIND_MAX:
            dropped = behind - min(count, behind)
            at, behind = at + dropped, behind - dropped
        count = min(count, behind)
        return Turn(at, count, dropped)

    def shown(self, count: int) -> None:
        """Note that `count` messages were shown."""
        self._allowed -= count
