"""An indexed heap of deadlines: what is in flight and what is deferred. Pure.

One structure serves both (NSQ has two near-twins). heapq with lazy deletion: removing or moving a key leaves its old
entry behind, to be skipped when it comes up; when more than half of the entries are such, the heap is built
anew, so its size is bounded by twice the live keys. Rejected: a heap with a position index in Python
(every sift step is interpreted; heapq runs in C).
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_SLACK: Final = 64  # stale entries that are not worth a rebuild


class DeadlineHeap(Generic[K]):
    """Keys with due times (ns). All operations O(log n) or better, amortised."""

    __slots__ = ("_due", "_heap", "_serial")

    def __init__(self) -> None:
        self._due: dict[K, tuple[int, int]] = {}
        self._heap: list[tuple[int, int, K]] = []
        self._serial = 0  # keys need not be comparable, and a moved key's old entry must not match

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: K) -> bool:
        return key in self._due

    def set(self, key: K, due_ns: int) -> None:
        """Add the key, or move it."""
        self._serial += 1
        self._due[key] = (due_ns, self._serial)
        heapq.heappush(self._heap, (due_ns, self._serial, key))
        if len(self._heap) > 2 * len(self._due) + _SLACK:
            self._heap = [(due, serial, key) for key, (due, serial) in self._due.items()]
            heapq.heapify(self._heap)

    def remove(self, key: K) -> bool:
        return self._due.pop(key, None) is not None

    def due_of(self, key: K) -> int:
        """When this key is due; `KeyError` if it is not there."""
        return self._due[key][0]

    def next_due(self) -> int | None:
        """The earliest due time, or None."""
        while self._heap:
            due_ns, serial, key = self._heap[0]
            if self._due.get(key) == (due_ns, serial):
                return due_ns
            heapq.heappop(self._heap)
        return None

    def pop_due(self, now_ns: int) -> K | None:
        """Take out one key that is due at `now_ns`, the earliest first, or None."""
        due = self.next_due()
        if due is None or due > now_ns:
            return None
        key = heapq.heappop(self._heap)[2]
        del self._due[key]
        return key

    def items(self) -> Iterator[tuple[int, K]]:
        """(due_ns, key), in no order."""
        return ((due, key) for key, (due, _) in self._due.items())

    def clear(self) -> None:
        self._due.clear()
        self._heap.clear()
