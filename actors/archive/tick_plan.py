"""Tick plan: when the next tick is sent. Pure.

A tick is sent when its pieces have `TICK_BYTES`, or when the oldest of them must go now to be in
the bucket within the bound. Until then it waits, because requests cost money. All topics send their
pieces at the same moments, the multiples of the period on the machine's monotonic clock. So one
tick has the pieces of all of them. If somebody waits for
a piece, it goes at once. But while another tick is on its way, it waits for more pieces up to
`URGENT_BYTES`. So the number of small ticks does not grow with the number of publishers.
"""

from __future__ import annotations

from typing import Final

from ...storage.shipping.tick_format import TICK_BYTES, WINDOW

URGENT_BYTES: Final = 1024 * 1024
NEVER: Final = 1 << 62
# The pieces of all topics arrive within this time after the beginning of a period.
COLLECT_NS: Final = 40_000_000
# Uploads that are faster than this need no shorter period.
FAST_NS: Final = 25_000_000
_OLD_SHARE: Final = 0.75  # the share of the older measurements in the mean duration of an upload


class TickPlan:
    """The plan of one broker's ticks. `lag_ns` is the bound (`--bucket-lag`)."""

    def __init__(self, lag_ns: int) -> None:
        self.lag_ns = lag_ns
        self.upload_ns = 0
        """The mean duration of the last uploads."""

    def uploaded(self, took_ns: int) -> None:
        """Note how long an upload took."""
        before = self.upload_ns or took_ns
        self.upload_ns = int(before * _OLD_SHARE + took_ns * (1 - _OLD_SHARE))

    @property
    def period_ns(self) -> int:
        """The time between two ticks.

        It is seven eighths of the bound, less two uploads. It changes only in steps of a sixteenth
        of the bound, so that the topics agree on it.
        """
        step = self.lag_ns // 16
        steps = -(-2 * max(0, self.upload_ns - FAST_NS) // step)
        return step * max(4, 14 - steps)

    def due_ns(self, size: int, oldest_ns: int, urgent: bool, flights: int) -> int:
        """Return the monotonic time at which the waiting pieces must be sent, 0 for now.

        `size` is their total size, `oldest_ns` since when the oldest waits, and `flights` the
        number of ticks on their way. Return `NEVER` if the next event decides.
        """
        if flights >= WINDOW or not size:
            return NEVER
        if size >= TICK_BYTES:
            return 0
        if urgent and (not flights or size >= URGENT_BYTES):
            return 0
        return oldest_ns + self.period_ns + min(COLLECT_NS, self.lag_ns // 16)
