"""Rows that a predecessor left, of an ordered channel: nobody knows their slots before their blocks are read. Pure.

Until all of them are sorted nothing of the channel goes out: any of them may be ahead of it in its slot. Blocks may come in any order, so
what is found waits for the last one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from ..transport.block import Block
from ..transport.protocol import Run
from .dying import REJECTED
from .lease import Hole
from .ranges import take, total
from .slots import LOOSE, slots_of


class Sorted(NamedTuple):
    """A message with its slot; a run of them where the slot is LOOSE. `due_ns`: it is deferred, and lies in the store."""

    start: int
    messages: int
    slot: int
    attempts: int
    due_ns: int


class Unsorted:
    def __init__(self) -> None:
        self._rows: list[Hole] = []  # as they are in the store
        self._left: list[Hole] = []  # what is not sorted yet, ascending
        self._found: list[Sorted] = []
        self._ascending = True

    def __bool__(self) -> bool:
        """There was something to sort, and `done` did not take it."""
        return bool(self._rows)

    def add(self, row: Hole) -> None:
        self._rows.append(row)
        self._left.append(row)
        self._ascending = False

    def _order(self) -> None:
        if not self._ascending:
            self._left.sort()
            self._ascending = True

    def wanted(self, limit: int, near: int) -> list[int]:
        """Offsets whose blocks are needed; none lies within `near` of another, for one read brings both."""
        self._order()
        found: list[int] = []
        for start, count, _, _ in self._left:
            at = max(start, found[-1] + near) if found else start
            while at < start + count:
                if len(found) >= limit:
                    return found
                found.append(at)
                at += near
        return found

    def sort(self, block: Block) -> None:
        """What lies in this block."""
        self._order()
        first, stop = block.first_offset, block.next_offset
        low = bisect_left(self._left, (first,))
        if low and self._left[low - 1][0] + self._left[low - 1][1] > first:
            low -= 1
        high = bisect_left(self._left, (stop,))
        if low == high:
            return
        slots = slots_of(block)
        left: list[Hole] = []
        for start, count, attempts, due_ns in self._left[low:high]:
            begin, end = max(start, first), min(start + count, stop)
            if start < begin:
                left.append((start, begin - start, attempts, due_ns))
            self._found += (
                Sorted(at, messages, slot, attempts, due_ns) for at, messages, slot in by_slot(slots, first, begin - first, end - first)
            )
            if end < start + count:
                left.append((end, start + count - end, attempts, due_ns))
        self._left[low:high] = left

    def is_done(self) -> bool:
        return not self._left

    def done(self) -> list[Sorted]:
        """All, in the order of their offsets."""
        assert self.is_done()
        found = sorted(self._found)
        self.__init__()  # type: ignore[misc]
        return found

    def remove(self, start: int, stop: int) -> int:
        """Give up what lies there; how many messages that were, without deferred ones: those are counted when they are due."""
        before = self.messages()
        self._rows, self._left = _without(self._rows, start, stop), _without(self._left, start, stop)
        self._found = [one for found in self._found for one in _cut(found, start, stop)]
        return before - self.messages()

    def runs(self) -> Iterator[Run]:
        """The rows, without deferred ones."""
        return (row[:3] for row in self._rows if not row[3])

    def messages(self) -> int:
        """Of `runs`, without those that are on their way to the dead letters."""
        return total(run for run in self.runs() if run[2] < REJECTED)


def by_slot(slots: list[int] | None, first_offset: int, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """(offset, messages, slot) of these indexes of a block: each by itself, those without a key as runs."""
    if slots is None:
        if start < stop:
            yield first_offset + start, stop - start, LOOSE
        return
    at = start
    while at < stop:
        slot = slots[at]
        end = at + 1
        if slot == LOOSE:
            while end < stop and slots[end] == LOOSE:
                end += 1
        yield first_offset + at, end - at, slot
        at = end


def _without(rows: list[Hole], start: int, stop: int) -> list[Hole]:
    found: list[Hole] = []
    for row in rows:
        found += ((*run, row[3]) for run in take([row[:3]], [(start, stop - start)])[1])
    return found


def _cut(one: Sorted, start: int, stop: int) -> list[Sorted]:
    left = take([(one.start, one.messages, 0)], [(start, stop - start)])[1]
    return [one._replace(start=first, messages=count) for first, count, _ in left]
