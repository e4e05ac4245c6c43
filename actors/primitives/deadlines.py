"""Deadlines: an indexed heap of keys with due times. No I/O.

One structure serves all uses. (NSQ has two nearly equal structures, for messages in flight and for
deferred messages.) The structure here uses heapq with lazy deletion. If a key is removed or moved,
its old entry stays in the heap and is skipped later. When more than half of the entries are old,
the heap is rebuilt, so its size is at most about twice the number of keys. Rejected: a heap with a
position index in Python. Each step in that heap would run in the interpreter, while heapq runs in
C.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_SLACK: Final = 64  # up to this many stale entries do not cause a rebuild


class DeadlineHeap(Generic[K]):
    """Keys with due times in nanoseconds.

    All operations take O(log n) or less, amortised.
    """

    __slots__ = ("_due", "_heap", "_serial")

    def __init__(self) -> None:
        self._due: dict[K, tuple[int, int]] = {}
        self._heap: list[tuple[int, int, K]] = []
        # The number of the newest entry. It orders entries with the same due time, because keys may
        # not be comparable, and it distinguishes old entries from the present ones.
        self._serial = 0

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: K) -> bool:
        return key in self._due

    def set(self, key: K, due_ns: int) -> None:
        """Add the key, or move it to another due time."""
        self._serial += 1
        self._due[key] = (due_ns, self._serial)
        heapq.heappush(self._heap, (due_ns, self._serial, key))
        if len(self._heap) > 2 * len(self._due) + _SLACK:
            self._heap = [(due, serial, key) for key, (due, serial) in self._due.items()]
            heapq.heapify(self._heap)

    def remove(self, key: K) -> bool:
        return self._due.pop(key, None) is not None

    def due_of(self, key: K) -> int:
        """Return when this key is due. Raises `KeyError` if it is not in the heap."""
        return self._due[key][0]

    def next_due(self) -> int | None:
        """Return the earliest due time, or None."""
        while self._heap:
            due_ns, serial, key = self._heap[0]
            if self._due.get(key) == (due_ns, serial):
                return due_ns
            heapq.heappop(self._heap)
        return None

    def pop_due(self, now_ns: int) -> K | None:
        """Remove and return the key that is due first, or None if no key is due at `now_ns`."""
        due = self.next_due()
        if due is None or due > now_ns:
            return None
        key = heapq.heappop(self._heap)[2]
        del self._due[key]
        return key

    def items(self) -> Iterator[tuple[int, K]]:
        """Yield (due_ns, key) in no particular order."""
        return ((due, key) for key, (due, _) in self._due.items())

    def clear(self) -> None:
        self._due.clear()
        self._heap.clear()
