"""What is known of each chunk, and what is done with it: size, times, bytes written, reads from the ring and from the file. Pure.

EQueue's chunk statistics: totals since this process began, and the rate over the last full second. Only chunks with which anything
was done have counters. Facts of sealed chunks are learnt when they are opened for a reader, or by a survey in some other thread, and never
asked for again, as such a chunk does not change: so telling about ten thousand chunks opens none. A read is counted where it begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

ROWS_MAX: Final = 1000
_NS_PER_S: Final = 1_000_000_000


class ChunkState(StrEnum):
    NEW = "new"
    """The last one, and empty."""
    ONGOING = "ongoing"
    """The last one: appended to."""
    SEALED = "sealed"
    """With a footer; never written again."""
    ADOPTED = "adopted"
    """Sealed, and written as a staged file before it became a chunk."""


class Facts(NamedTuple):
    """Of a sealed chunk. `bytes`: of the file; `next_offset`: behind its last message, or -1 where its footer is damaged."""

    bytes: int
    state: ChunkState
    first_time_ns: int
    last_time_ns: int
    next_offset: int


class Activity:
    """Counts of one chunk. `rates` are those of the last full second."""

    __slots__ = ("_before", "file_bytes", "file_reads", "rates", "ring_bytes", "ring_reads", "written_bytes")

    def __init__(self) -> None:
        self.written_bytes = self.ring_reads = self.ring_bytes = self.file_reads = self.file_bytes = 0
        self._before = self.rates = (0, 0, 0, 0, 0)

    def counts(self) -> tuple[int, int, int, int, int]:
        return self.written_bytes, self.ring_reads, self.ring_bytes, self.file_reads, self.file_bytes

    def roll(self, elapsed_ns: int) -> bool:
        """A second is over; False if nothing was done in it."""
        now = self.counts()
        self.rates = tuple((new - old) * _NS_PER_S // elapsed_ns for new, old in zip(now, self._before, strict=True))  # type: ignore[assignment]
        moved = now != self._before
        self._before = now
        return moved

    def add(self, other: Activity) -> None:
        """`other`'s chunk is gone; its counts are not."""
        self.written_bytes += other.written_bytes
        self.ring_reads += other.ring_reads
        self.ring_bytes += other.ring_bytes
        self.file_reads += other.file_reads
        self.file_bytes += other.file_bytes


COUNTS: Final = ("written_bytes", "ring_reads", "ring_read_bytes", "file_reads", "file_read_bytes")


class ChunkBook:
    """`facts` by the chunk's first offset."""

    def __init__(self) -> None:
        self.facts: dict[int, Facts] = {}
        self._activities: dict[int, Activity] = {}
        self._moved: set[int] = set()
        self._gone = Activity()
        self._rolled_ns = 0

    def of(self, base: int) -> Activity:
        """Where to count what is done with this chunk."""
        found = self._activities.get(base)
        if found is None:
            found = self._activities[base] = Activity()
        self._moved.add(base)
        return found

    def tick(self, now_ns: int) -> None:
        """About once a second."""
        elapsed_ns = now_ns - self._rolled_ns
        if elapsed_ns < _NS_PER_S // 2:
            return
        self._rolled_ns = now_ns
        self._moved = {base for base in self._moved if base in self._activities and self._activities[base].roll(elapsed_ns)}

    def forget_below(self, start: int) -> None:
        """These chunks were removed."""
        for base in [base for base in self._activities if base < start]:
            self._gone.add(self._activities.pop(base))
        for base in [base for base in self.facts if base < start]:
            del self.facts[base]

    def rows(self, bases: Sequence[int], active: Facts, bad: dict[int, int], rows_max: int = ROWS_MAX) -> dict[str, Any]:
        """The newest chunks one by one, the older ones in a sum, and all in a sum.

        `active`: of the last one; `bad`: damaged blocks by chunk.
        """
        ends = [*bases[1:], active.next_offset]
        rows = []
        for base, end in zip(bases[-rows_max:], ends[-rows_max:], strict=True):
            facts = active if base == bases[-1] else self.facts.get(base)
            row: dict[str, Any] = {"first_offset": base, "messages": end - base, "bytes": None, "state": "sealed"}
            row |= {"first_time_ns": None, "last_time_ns": None}
            if facts is not None:
                row |= {"bytes": facts.bytes, "state": str(facts.state)}
                row |= {"first_time_ns": facts.first_time_ns or None, "last_time_ns": facts.last_time_ns or None}
            rows.append(row | _counted([self._activities[base]] if base in self._activities else []) | {"bad": bad.get(base, 0)})
        older = bases[:-rows_max]
        found = {"chunks": rows, "total": self._sum(bases, ends[-1] - bases[0], active, bad, [self._gone])}
        if older:
            found["older"] = self._sum(older, bases[-rows_max] - bases[0], None, bad, [])
        return found

    def _sum(
        self, bases: Sequence[int], messages: int, active: Facts | None, bad: dict[int, int], more: Iterable[Activity]
    ) -> dict[str, Any]:
        known = [self.facts[base] for base in bases if base in self.facts]
        size = sum(facts.bytes for facts in known)
        if active is not None and bases[-1] not in self.facts:
            size += active.bytes
        activities = [*more, *(self._activities[base] for base in bases if base in self._activities)]
        totals = {"chunks": len(bases), "messages": messages, "bytes": size}
        return totals | _counted(activities) | {"bad": sum(bad.get(base, 0) for base in bases)}


def _counted(activities: Sequence[Activity]) -> dict[str, int]:
    """Totals by their names, and rates by the same with _s."""
    totals = [sum(column) for column in zip(*(activity.counts() for activity in activities), strict=True)] or [0] * len(COUNTS)
    rates = [sum(column) for column in zip(*(activity.rates for activity in activities), strict=True)] or [0] * len(COUNTS)
    return dict(zip(COUNTS, totals, strict=True)) | {f"{name}_s": rate for name, rate in zip(COUNTS, rates, strict=True)}
