"""What of a channel's rows lies in the state store, so that a commit names only what changed. Pure.

Rows of deferred messages are not kept here, for there may be ten million of them. So of those that come due each start is remembered
until the next commit has begun: that one writes them as live rows, or takes them from the store, whatever became of them meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from .deferred import Row
from .lease import Hole


class SavedRows:
    def __init__(self) -> None:
        self._rows: dict[int, tuple[int, int]] = {}  # start -> count, attempts; as of the last commit that began
        self._came: set[int] = set()  # starts of deferred rows that came due since

    def found(self, start: int, count: int, attempts: int) -> None:
        """A predecessor's row, not deferred."""
        self._rows[start] = (count, attempts)

    def came(self, rows: Iterable[Row]) -> None:
        """The store named them as due: it is not to keep them as they are."""
        self._came.update(row[0] for row in rows)

    def changes(self, rows: dict[int, tuple[int, int]], deferred: Sequence[Row]) -> tuple[tuple[Hole, ...], tuple[int, ...]]:
        """(rows to write, starts of rows to remove) of the commit that begins: after it these are there. A put of a start is enough where
        another row of it was, deferred or not."""
        saved: Mapping[int, tuple[int, int]] = self._rows
        put = (*((start, *row, 0) for start, row in rows.items() if saved.get(start) != row), *deferred)
        gone = (saved.keys() | self._came) - rows.keys() - {row[0] for row in deferred}
        self._rows, self._came = rows, set()
        return put, tuple(gone)
