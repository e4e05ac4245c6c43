"""The rows of `#ephemeral` channels: in storage's memory, and gone with their processes. Pure.

Nobody comes after the process of such a channel, so what only a successor would read is not kept: holes that are not deferred. What
is deferred is, for the channel itself asks for it when it is due.

Rejected: rows in the state store that a start removes. Each commit of them would be a sync for something that no crash shall leave.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from typing import Any

from ..storage.state import DeferredTotal, HoleRow
from ..transport.protocol import Save

_BEHIND = 1 << 63  # no start is so high
_STALE_MAX = 1_000  # starts that are looked over now and then, beside those that hold


class MemoryRows:
    """By channel. `rows`: the channels' own ones."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self._deferred: dict[str, _Deferred] = {}

    def __contains__(self, channel: str) -> bool:
        return channel in self.rows

    def __bool__(self) -> bool:
        return bool(self.rows)

    def make(self, channel: str, row: dict[str, Any]) -> None:
        """Anew: what a predecessor of that name had is forgotten."""
        self.rows[channel] = row
        self._deferred[channel] = _Deferred()

    def drop(self, channel: str) -> None:
        del self.rows[channel], self._deferred[channel]

    def save(self, channel: str, pages: Iterable[Save]) -> None:
        """One commit, in effect at once."""
        pages = list(pages)
        self.rows[channel] |= pages[0].row
        deferred = self._deferred[channel]
        if pages[0].clear:
            deferred = self._deferred[channel] = _Deferred()
        for page in pages:
            for start in page.holes_gone:
                deferred.remove(start)
            for start, count, attempts, due_ns in page.holes_put:
                deferred.remove(start)
                if due_ns:
                    deferred.put(HoleRow(start, count, attempts, due_ns))

    def first(self, channel: str, start: int) -> int:
        """The lowest offset that it has not finished, as it said last; not below `start` of the log, which only grows."""
        row = self.rows[channel]
        first = max(int(row.get("first", row["next"])), start)
        deferred = self._deferred[channel].first(start)
        return first if deferred is None else min(first, deferred)

    def due(self, channel: str, until_ns: int, limit: int, late_ns: int) -> tuple[list[HoleRow], int]:
        """As `StateStore.due`."""
        return self._deferred[channel].due(until_ns, limit, late_ns)

    def deferred(self, channel: str) -> DeferredTotal:
        return self._deferred[channel].total()

    def deferred_rows(self, channel: str) -> Iterator[HoleRow]:
        """By their start."""
        return iter(sorted(self._deferred[channel].rows.values()))


class _Deferred:
    """One channel's deferred holes. A sorted list and not a heap: rows are taken back from anywhere, and there are few (`options`)."""

    def __init__(self) -> None:
        self.rows: dict[int, HoleRow] = {}
        self._by_due: list[tuple[int, int]] = []
        self._starts: list[int] = []  # a heap; of rows that are gone, too
        self._messages = 0

    def put(self, row: HoleRow) -> None:
        self.rows[row.start] = row
        self._messages += row[1]
        insort(self._by_due, (row.due_ns, row.start))
        heappush(self._starts, row.start)
        if len(self._starts) > 2 * len(self.rows) + _STALE_MAX:
            self._starts = sorted(self.rows)

    def remove(self, start: int) -> None:
        row = self.rows.pop(start, None)
        if row is not None:
            self._messages -= row[1]
            del self._by_due[bisect_left(self._by_due, (row.due_ns, start))]

    def first(self, start: int) -> int | None:
        """Asked many times a second, so no walk through all rows."""
        while self._starts:
            row = self.rows.get(self._starts[0])
            if row is not None and row.start + row.count > start:
                return max(row.start, start)
            heappop(self._starts)
        return None

    def total(self) -> DeferredTotal:
        if not self.rows:
            return DeferredTotal()
        return DeferredTotal(len(self.rows), self._messages, min(self.rows), self._by_due[0][0])

    def due(self, until_ns: int, limit: int, late_ns: int) -> tuple[list[HoleRow], int]:
        """The earliest that are due, then those whose due time cannot be, the latest first; when the one behind what is named is due."""
        early = bisect_right(self._by_due, (until_ns, _BEHIND))
        late = max(early, bisect_right(self._by_due, (late_ns, _BEHIND)))
        few = min(early, limit)
        many = max(late, len(self._by_due) - (limit - few))  # from there on late ones are named
        named = self._by_due[:few] + self._by_due[many:][::-1]
        left = self._by_due[few:many]
        return [self.rows[start] for _, start in named], left[0][0] if left else 0
