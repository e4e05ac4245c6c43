"""Tick plan: when the next tick is sent. Pure.

A tick is sent when its pieces have `TICK_BYTES`, or when the oldest of them must go now to be in
the bucket within the bound. Until then it waits, because requests cost money. All topics send their
pieces at the same moments, the multiples of the period on the machine's monotonic clock. So one
tick has the pieces of all of them. With hundreds of topics on a small machine, the pieces arrive
over a tenth of a second. So the tick waits for the topics that sent a piece in the period before,
as long as the bound allows, and pieces that come too late for it go together in the next one.

If somebody waits for a piece, it goes at once. But while another tick is on its way, it waits for
more pieces up to `URGENT_BYTES`. So the number of small ticks does not grow with the number of
publishers.
"""

from __future__ import annotations

from typing import Final

from ....storage.bucket.shipping.tick_format import TICK_BYTES, WINDOW

URGENT_BYTES: Final = 1024 * 1024
NEVER: Final = 1 << 62
# Parts of the bound, in 32nds: the period, its least, and the time to wait for the topics' pieces.
# The rest is for the upload.
PERIOD: Final = 28
PERIOD_LEAST: Final = 8
COLLECT: Final = 3
# Uploads that are faster than this, and than 1/32 of the bound, need no shorter period.
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

        It is 28/32 of the bound, less two uploads. It changes only in steps of 1/16 of the bound,
        so that the topics agree on it.
        """
        step = self.lag_ns // 16
        fast_ns = min(FAST_NS, self.lag_ns // 32)
        steps = -(-2 * max(0, self.upload_ns - fast_ns) // step)
        return max(PERIOD_LEAST, PERIOD - 2 * steps) * (self.lag_ns // 32)

    @property
    def collect_ns(self) -> int:
        """The time to wait for the pieces of all topics."""
        return COLLECT * (self.lag_ns // 32)

    def due_ns(
        self,
        size: int,
        oldest_ns: int,
        urgent: bool,
        flights: int,
        *,
        is_complete: bool = False,
        last_ns: int = 0,
    ) -> int:
        """Return the monotonic time at which the waiting pieces must be sent, 0 for now.

        `size` is their total size, `oldest_ns` since when the oldest waits, and `flights` the
        number of ticks on their way. With `is_complete`, all pieces of this period are there.
        `last_ns` is when the last tick was sent. Return `NEVER` if the next event decides.
        """
        if flights >= WINDOW or not size:
            return NEVER
        if size >= TICK_BYTES:
            return 0
        if urgent and (not flights or size >= URGENT_BYTES):
            return 0
        if is_complete:
            return 0
        return max(oldest_ns + self.period_ns, last_ns) + self.collect_ns


class Crowd:
    """The topics that send a piece in each period."""

    def __init__(self) -> None:
        self._period = -1
        self._seen: set[str] = set()  # topics that have sent a piece in this period
        self._missing: set[str] = set()  # topics that did so in the period before, and not in this
        self._is_due = False

    def _turn(self, now_ns: int, plan: TickPlan) -> None:
        period = now_ns // plan.period_ns
        if period != self._period:
            is_next = period == self._period + 1
            self._missing = self._seen if is_next else set()
            self._period, self._seen, self._is_due = period, set(), bool(self._missing)

    def came(self, uuid: str, now_ns: int, plan: TickPlan) -> None:
        """Note a piece of a topic."""
        self._turn(now_ns, plan)
        self._seen.add(uuid)
        self._missing.discard(uuid)

    def is_complete(self, now_ns: int, plan: TickPlan) -> bool:
        """Return True if all topics that send in each period have done so. It is True once a
        period, and only at its beginning.
        """
        self._turn(now_ns, plan)
        if not self._is_due or self._missing:
            return False
        self._is_due = False
        return now_ns % plan.period_ns <= plan.collect_ns
