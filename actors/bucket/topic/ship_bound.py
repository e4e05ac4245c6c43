"""Ship bound: when the publishes of a topic wait for the bucket, and when they are refused.

A publish waits when the oldest synced byte that is not in the bucket is older than the bound, and
it is refused after `patience_s` more. It also waits when more is not in the bucket than the bucket
takes within the bound (`sync_marks.py`), and when the reserved offsets are used up
(`offset_reserve.py`).
"""

from __future__ import annotations

import time
from typing import Final

from ....storage.log.log import Log
from ....transport.units import NS_PER_S
from .change_queue import ChangeQueue
from .offset_reserve import OffsetReserve
from .piece_window import Shipped
from .sync_marks import ShipPace, SyncMark, SyncMarks

ALARM_S: Final = 5.0  # an alarm is raised when publishes have waited this long


def earliest(*times_ns: int) -> int:
    """Return the earliest of these times that are not 0, or 0."""
    return min(filter(None, times_ns), default=0)


class ShipBound:
    """The bound of one topic."""

    def __init__(
        self,
        log: Log,
        marks: SyncMarks,
        queue: ChangeQueue,
        reserve: OffsetReserve,
        shipped: Shipped,
        lag_s: float,
        patience_s: float,
    ) -> None:
        self._log = log
        self._marks = marks
        self._queue = queue
        self._reserve = reserve
        self._shipped = shipped
        self._patience_ns = int(patience_s * NS_PER_S)
        self.lag_ns = int(lag_s * NS_PER_S)
        self._pace = ShipPace(self.lag_ns)
        self.held_ns = 0
        """Since when publishes wait (monotonic), 0 if they do not."""

    def set(self, lag_s: float) -> None:
        self.lag_ns = self._pace.bound_ns = int(lag_s * NS_PER_S)

    def note_sync(self, *, force: bool = False) -> None:
        """Note how much of the log is synced."""
        synced = self._log.written_bytes - self._log.unsynced_bytes
        place = self._log.synced_place
        mark = SyncMark(*place, time.monotonic_ns(), synced, self._pace.shipped)
        self._marks.note(mark, self._shipped.end, force=force)

    def note_shipped(self) -> None:
        """Note that more of the log is shipped."""
        if (dropped := self._marks.drop(self._shipped.end)) is not None:
            self._pace.note(*dropped, time.monotonic_ns())

    @property
    def oldest_ns(self) -> int:
        """Since when the oldest message that is not shipped waits, 0 for none."""
        return earliest(self._marks.since_ns(), self._queue.delayed_ns)

    def _is_late(self, now_ns: int) -> bool:
        """Return True if the oldest synced message that is not shipped is older than the bound."""
        return self.oldest_ns > 0 and now_ns - self.oldest_ns > self.lag_ns

    def is_reached(self, messages: int) -> bool:
        """Return True if publishes of so many messages must wait, however long they have waited."""
        now = time.monotonic_ns()
        lacks_offsets = self._reserve.lacks(messages)
        is_full = bool(self._marks) and self._pace.is_full(self._log.written_bytes)
        if not (self._is_late(now) or lacks_offsets or is_full):
            self.held_ns = 0
            return False
        self.held_ns = self.held_ns or now
        return True

    def release(self) -> None:
        """Note that no publish waits."""
        self.held_ns = 0

    @property
    def is_overdue(self) -> bool:
        """True if publishes or commits have waited so long that they are refused."""
        since = earliest(self.held_ns, self._reserve.waiting_ns)
        return since > 0 and time.monotonic_ns() - since > self._patience_ns

    @property
    def is_commit_overdue(self) -> bool:
        """True if a commit has waited for offsets so long that it is refused."""
        since = self._reserve.waiting_ns
        return since > 0 and time.monotonic_ns() - since > self._patience_ns

    @property
    def is_alarm(self) -> bool:
        return self.held_ns > 0 and time.monotonic_ns() - self.held_ns > ALARM_S * NS_PER_S

    def waiting(self, trouble: str, *, is_known: bool) -> str:
        """Return why publishes wait, or "". `trouble` is what the archive actor said last."""
        since = self.held_ns or self._reserve.waiting_ns
        if not since:
            return ""
        if not is_known:
            why = trouble or "the broker has no answer from the bucket"
            return f"publishing waits until the topic knows what the bucket has: {why}"
        late_s = (time.monotonic_ns() - (self.oldest_ns or since)) / NS_PER_S
        return (
            f"publishing waits, because the oldest message that the bucket does not have is "
            f"{late_s:.1f} s old, and --bucket-lag is {self.lag_ns / NS_PER_S:g} s"
            + (f": {trouble}" if trouble else "")
        )
