"""Sync marks: when each part of a topic's log was synced, as far as it is not in the bucket, and
how much of it there may be. Pure.

A mark is a place between two blocks. So it is also a place where a piece of a tick may end.

If publishers are faster than the bucket, it is too late to stop them when the oldest message is as
old as the bound: what was stored meanwhile takes longer. So the bytes that are not in the bucket
are limited to what the bucket took in a time as long as the bound.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

MARKS_MAX: Final = 4_096
LIMIT_FIRST: Final = 16 << 20  # for each second of the bound
LIMIT_LEAST: Final = 1 << 20


class SyncMark(NamedTuple):
    """A sync of the log: all before this place was synced at `time_ns` (monotonic)."""

    chunk: int
    position: int
    offset: int
    time_ns: int
    written: int = 0
    """Bytes of the log that were synced then, since the process began."""
    shipped: int = 0
    """Bytes of them that were in the bucket then."""

    @property
    def place(self) -> tuple[int, int]:
        return self.chunk, self.position


class SyncMarks:
    """The marks in the order of the log. At most `MARKS_MAX` are kept."""

    def __init__(self) -> None:
        self._marks: deque[SyncMark] = deque()

    def __len__(self) -> int:
        return len(self._marks)

    def note(self, mark: SyncMark, known: int, *, force: bool = False) -> None:
        """Add a mark if it is beyond the last one, and beyond the offset `known`."""
        last = self._marks[-1].offset if self._marks else -1
        if mark.offset <= max(known, last) and not force:
            return
        if len(self._marks) >= MARKS_MAX:  # keep the first and the last, and half of the others
            kept = list(self._marks)
            self._marks = deque([kept[0], *kept[1:-1:2], kept[-1]])
        self._marks.append(mark)

    def drop(self, shipped_end: int) -> tuple[SyncMark, SyncMark] | None:
        """Forget the marks of what is shipped. Return the first and the last of them, if any."""
        first = last = None
        while self._marks and self._marks[0].offset <= shipped_end:
            last = self._marks.popleft()
            first = first or last
        return (first, last) if first is not None and last is not None else None

    def clear(self) -> None:
        self._marks.clear()

    def age(self, time_ns: int) -> None:
        """Note that the first part was already there at this time."""
        if self._marks and time_ns < self._marks[0].time_ns:
            self._marks[0] = self._marks[0]._replace(time_ns=time_ns)

    def since_ns(self, beyond: int = -1) -> int:
        """Return since when the first part beyond an offset is synced, 0 if there is none."""
        return next((mark.time_ns for mark in self._marks if mark.offset > beyond), 0)

    def last_within(self, begin: tuple[int, int], end: tuple[int, int]) -> tuple[int, int] | None:
        """Return the last marked place behind `begin` that is not behind `end`."""
        places = [mark.place for mark in self._marks if begin < mark.place <= end]
        return places[-1] if places else None

    def offset_at(self, place: tuple[int, int]) -> int:
        """Return the largest offset that is known to be before this place, -1 for none."""
        return max((mark.offset for mark in self._marks if mark.place <= place), default=-1)


class ShipPace:
    """The limit of the bytes of one topic that are on the disk and not in the bucket.

    Times are in ns. The limit begins low. It grows while it is reached and messages are shipped in
    less than half of the bound. It falls when they are later than the bound. Its aim is half of the
    bound, because a store is slow for a moment now and then.
    """

    def __init__(self, bound_ns: int) -> None:
        self.bound_ns = bound_ns
        self.shipped = 0
        """Bytes of the log that are in the bucket, since the process began."""
        self.limit = max(LIMIT_FIRST, LIMIT_FIRST * bound_ns // 1_000_000_000)
        self._was_full = False
        self._changed_ns = 0

    def is_full(self, written: int) -> bool:
        """Return True if no more may be written. `written` counts as `SyncMark.written`."""
        is_full = written - self.shipped > self.limit
        self._was_full = self._was_full or is_full
        return is_full

    def note(self, first: SyncMark, last: SyncMark, now_ns: int) -> None:
        """Note that all between these marks is in the bucket now."""
        self.shipped = max(self.shipped, last.written)
        age_ns, taken = now_ns - first.time_ns, first.written - first.shipped
        if age_ns > self.bound_ns:
            # With less, the bucket was slow or away, and not busy.
            if taken >= LIMIT_LEAST:
                in_time = taken * self.bound_ns // age_ns
                self.limit = min(self.limit, max(LIMIT_LEAST, in_time // 2))
            self._changed(now_ns)
        elif now_ns - self._changed_ns >= self.bound_ns:
            if self._was_full and age_ns < self.bound_ns // 2:
                self.limit += self.limit // 8 if age_ns > self.bound_ns // 4 else self.limit
            self._changed(now_ns)

    def _changed(self, now_ns: int) -> None:
        """Note a change of the limit. Its effect is seen after about the bound."""
        self._changed_ns, self._was_full = now_ns, False
