"""Sync marks: when each part of a topic's log was synced, as far as it is not in the bucket. Pure.

A mark is a place between two blocks. So it is also a place where a piece of a tick may end.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

MARKS_MAX: Final = 4_096


class Mark(NamedTuple):
    """A sync of the log: all before this place was synced at `time_ns` (monotonic)."""

    chunk: int
    position: int
    offset: int
    time_ns: int

    @property
    def place(self) -> tuple[int, int]:
        return self.chunk, self.position


class SyncMarks:
    """The marks in the order of the log. At most `MARKS_MAX` are kept."""

    def __init__(self) -> None:
        self._marks: deque[Mark] = deque()

    def __bool__(self) -> bool:
        return bool(self._marks)

    def note(self, mark: Mark, known: int, *, force: bool = False) -> None:
        """Add a mark if it is beyond the last one, and beyond the offset `known`."""
        last = self._marks[-1].offset if self._marks else -1
        if mark.offset <= max(known, last) and not force:
            return
        if len(self._marks) >= MARKS_MAX:  # keep the first and the last, and half of the others
            kept = list(self._marks)
            self._marks = deque([kept[0], *kept[1:-1:2], kept[-1]])
        self._marks.append(mark)

    def drop(self, shipped_end: int) -> None:
        """Forget the marks of what is shipped."""
        while self._marks and self._marks[0].offset <= shipped_end:
            self._marks.popleft()

    def clear(self) -> None:
        self._marks.clear()

    def age(self, time_ns: int) -> None:
        """Note that the first part was already there at this time."""
        if self._marks and time_ns < self._marks[0].time_ns:
            self._marks[0] = self._marks[0]._replace(time_ns=time_ns)

    def since_ns(self, beyond: int = -1) -> int:
        """Return since when the first part beyond an offset is synced, 0 if there is none."""
        return next((one.time_ns for one in self._marks if one.offset > beyond), 0)

    def last_within(self, begin: tuple[int, int], end: tuple[int, int]) -> tuple[int, int] | None:
        """Return the last marked place behind `begin` that is not behind `end`."""
        fitting = [one.place for one in self._marks if begin < one.place <= end]
        return fitting[-1] if fitting else None

    def offset_at(self, place: tuple[int, int]) -> int:
        """Return the largest offset that is known to be before this place, -1 for none."""
        return max((one.offset for one in self._marks if one.place <= place), default=-1)
