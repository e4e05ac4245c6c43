"""Deferred messages of a channel. No I/O.

These messages were requeued with a delay. Once that is committed, they are only on disk: for ten
million of them, this process keeps only a few numbers. A row has these states:

    put          handed in: goes with the next commit, unless it is due before that
    take         the commit is on its way
    committed    in the state store, ordered by due time: here it is only counted
    came         the state store returned it as due: it belongs to the channel again. The next
                 commit removes the deferred row from the state store, or replaces it by a row
                 that is not deferred.

The state store is not asked again before that commit is done, because it would return the same
rows. It is also not asked while the channel holds many rows (`DUE_HELD_MAX`). So a channel without
consumers leaves due rows in the state store.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...transport.wire.protocol import Run
from ..primitives.ranges import Range, cut_out, touching
from ..settings import options

Row = tuple[int, int, int, int]  # start, count, attempts, due_ns


class Deferred:
    """The deferred messages of a channel.

    `rows` and `messages` count all of them. `next_due_ns` is the earliest due time in the state
    store by the wall clock, or 0 if the state store has no deferred messages.
    """

    def __init__(
        self, rows: int = 0, messages: int = 0, next_due_ns: int = 0, rows_max: int = 0
    ) -> None:
        self.rows = rows
        self._rows_max = rows_max or 1 << 62
        self.messages = messages
        self.next_due_ns = next_due_ns
        self.wanted = False
        """True if the state store must be asked for due rows as soon as `may_ask` allows it."""
        self._new: list[Row] = []
        self._out: list[Row] = []
        self._came = self._came_out = False
        self._clear = False
        self._asked = 0  # number of the unanswered request

    @property
    def uncommitted(self) -> int:
        """The number of rows that are held in memory, because they are not committed yet."""
        return len(self._new) + len(self._out)

    def shown(self, stored: Iterable[Row]) -> list[Row]:
        """Return the deferred rows, the next due first.

        `stored` are the rows that the state store returned. The state store may not know yet that
        some of them became due or were cleared.
        """
        if self._clear:
            stored = ()
        elif self._came or self._came_out:
            stored = (row for row in stored if self.next_due_ns and row[3] >= self.next_due_ns)
        return sorted((*self._new, *self._out, *stored), key=lambda row: row[3])

    def rows_here(self) -> Sequence[Row]:
        """Return the rows that are not committed yet."""
        return (*self._new, *self._out)

    def limit(self, rows_max: int) -> None:
        """Lower the limit of rows to `rows_max` if the limit is higher."""
        self._rows_max = min(self._rows_max, rows_max)

    def is_full(self) -> bool:
        return self.rows >= min(self._rows_max, options.DEFERRED_ROWS_MAX)

    def put(self, runs: Iterable[Run], due_ns: int) -> None:
        for start, count, attempts in runs:
            self._new.append((start, count, attempts, due_ns))
            self.rows += 1
            self.messages += count

    # Commits

    def take(self) -> tuple[Sequence[Row], bool]:
        """Return the rows to write with the commit that begins.

        The second value is True if all rows that were written before must be removed.
        """
        self._out, self._new = self._new, []
        self._came_out, self._came = self._came, False
        clear, self._clear = self._clear, False
        return self._out, clear

    def committed(self) -> None:
        for row in self._out:
            self.next_due_ns = min(self.next_due_ns or row[3], row[3])
        self._out = []
        self._came_out = False

    def clear(self) -> None:
        """Give up all deferred messages."""
        self.rows = self.messages = self.next_due_ns = 0
        self.wanted = False
        self._new, self._out = [], []
        self._came = False
        self._clear = True
        self._asked = 0  # the reply to an open request describes rows that are gone

    # Due

    def due(self, wall_ns: int, held: int) -> list[Run]:
        """Return the due messages that are in no commit yet.

        Also set `wanted` if the state store has due messages and must be asked for them.
        """
        if 0 < self.next_due_ns <= wall_ns and held < options.DUE_HELD_MAX:
            self.wanted = True
        due = [row[:3] for row in self._new if row[3] <= wall_ns]
        if due:
            self._new = [row for row in self._new if row[3] > wall_ns]
            self._back(due)
        return due

    def may_ask(self, held: int) -> bool:
        """Return True if the state store may be asked what is due.

        It is asked only after all rows that it returned before have been removed from it.
        """
        return self.wanted and held < options.DUE_HELD_MAX and self.is_settled()

    def ask(self, request: int) -> None:
        """Note that the request is sent."""
        self._asked = request

    def answered(self, request: int) -> bool:
        """Return True if this is the reply to the unanswered request, and it is still wanted."""
        if not self._asked or request != self._asked:
            return False
        self._asked = 0
        return True

    def failed(self, request: int) -> None:
        """Note that this request failed. The next scan asks again."""
        if self.answered(request):
            self.wanted = False

    def came(self, rows: Sequence[Row], next_due_ns: int, wall_ns: int) -> list[Run]:
        """Take the due rows that the state store returned.

        With the next commit they are no longer deferred.
        """
        self.next_due_ns = next_due_ns
        self.wanted = 0 < next_due_ns <= wall_ns
        self._came = self._came or bool(rows)
        runs = [(start, count, attempts) for start, count, attempts, _ in rows]
        self._back(runs)
        return runs

    def _back(self, runs: Sequence[Run]) -> None:
        self.rows -= len(runs)
        self.messages -= sum(run[1] for run in runs)

    def is_settled(self) -> bool:
        """Return True if the state store knows all rows, except those in `rows_here`.

        No request is unanswered then, and the rows that came due are removed from the store.
        """
        return not (self._asked or self._came or self._came_out or self._clear)

    def is_on_way(self, ranges: Sequence[Range]) -> bool:
        """Return True if a row with some of these messages is on its way to the state store."""
        return any(touching(ranges, row[0], row[0] + row[1]) for row in self._out)

    def cut_out(self, stored: Sequence[Row], ranges: Sequence[Range]) -> None:
        """Remove the messages of these ranges.

        `stored` are the rows in the state store that have some of them. The next commit removes
        these rows, or replaces them by what is left of them. Rows on their way to the state store
        are not changed.
        """
        self._came = self._came or bool(stored)
        rows, self._new = [*self._new, *stored], []
        self._back([row[:3] for row in rows])
        for row in rows:
            self.put(cut_out((row[:3],), ranges), row[3])

    def next_due(self, wall_ns: int, held: int) -> int:
        """Return when `due` may next return messages, or 0 for never, as far as is known."""
        times = [row[3] for row in self._new]
        if self.next_due_ns and not self.wanted and held < options.DUE_HELD_MAX:
            times.append(self.next_due_ns)
        return min((max(due_ns, wall_ns) for due_ns in times), default=0)
