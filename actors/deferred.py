"""A channel's messages that were requeued with a delay: on disk only, once that is committed. Pure.

Ten million of them cost this side a few numbers. A row's life:

    put          handed in; goes with the next commit, unless it is due before that
    take         the commit is on its way
    committed    it lies in the state store, ordered by due time; here it only counts
    came         the store named it as due: it is the channel's own again, and the commit that makes it a live row takes it from the store

The store is not asked again before that commit is done: it would name the same rows. `held` bounds what is asked for: a channel
without consumers leaves what is due where it lies.

No delay is longer than an hour. A due time beyond that was told by a clock that was wrong, and is set right since: it counts as due. The
store names such rows with any answer (`StateStore.due`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..transport.protocol import Run
from . import options

Row = tuple[int, int, int, int]  # start, count, attempts, due_ns


class Deferred:
    """`rows` and `messages`: how many there are in all; `next_due_ns`: of those in the store, 0 for none. Wall clock."""

    def __init__(self, rows: int = 0, messages: int = 0, next_due_ns: int = 0, rows_max: int = 0) -> None:
        self.rows = rows
        self._rows_max = rows_max or 1 << 62
        self.messages = messages
        self.next_due_ns = next_due_ns
        self.wanted = False
        """Ask the store what is due, as soon as `may_ask`."""
        self._new: list[Row] = []
        self._out: list[Row] = []
        self._came = self._came_out = False
        self._clear = False
        self._asked = 0  # request of the question on its way

    @property
    def uncommitted(self) -> int:
        """Rows that are still held here."""
        return len(self._new) + len(self._out)

    def shown(self, stored: Iterable[Row]) -> list[Row]:
        """What is deferred, the one due next first. `stored`: what the store named; it may not know yet that some came, or were cleared."""
        if self._clear:
            stored = ()
        elif self._came or self._came_out:
            stored = (row for row in stored if self.next_due_ns and row[3] >= self.next_due_ns)
        return sorted((*self._new, *self._out, *stored), key=lambda row: row[3])

    def limit(self, rows_max: int) -> None:
        """No more rows than that, either."""
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
        """For the commit that begins: rows to write, and whether all that were there before go."""
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
        """All of them are given up."""
        self.rows = self.messages = self.next_due_ns = 0
        self.wanted = False
        self._new, self._out = [], []
        self._came = False
        self._clear = True
        self._asked = 0  # its answer is about what is gone

    # Due

    def due(self, wall_ns: int, held: int) -> list[Run]:
        """What is due of those that no commit has taken; and whether to ask the store."""
        if self.next_due_ns and is_due(self.next_due_ns, wall_ns) and held < options.DUE_HELD_MAX:
            self.wanted = True
        due = [row[:3] for row in self._new if is_due(row[3], wall_ns)]
        if due:
            self._new = [row for row in self._new if not is_due(row[3], wall_ns)]
            self._back(due)
        return due

    def may_ask(self, held: int) -> bool:
        """Nothing that the store named before is still to be taken from it."""
        settled = not self._asked and not self._came and not self._came_out and not self._clear
        return self.wanted and held < options.DUE_HELD_MAX and settled

    def ask(self, request: int) -> None:
        """The question goes out."""
        self._asked = request

    def answered(self, request: int) -> bool:
        """False: it is not the answer to the question that is out, or nobody wants it now."""
        if not self._asked or request != self._asked:
            return False
        self._asked = 0
        return True

    def failed(self, request: int) -> None:
        """That question has no answer: the next scan asks again."""
        if self.answered(request):
            self.wanted = False

    def came(self, rows: Sequence[Row], next_due_ns: int, wall_ns: int) -> list[Run]:
        """What the store named: live again, with the next commit."""
        self.next_due_ns = next_due_ns
        self.wanted = bool(next_due_ns) and is_due(next_due_ns, wall_ns)
        self._came = self._came or bool(rows)
        runs = [(start, count, attempts) for start, count, attempts, _ in rows]
        self._back(runs)
        return runs

    def _back(self, runs: Sequence[Run]) -> None:
        self.rows -= len(runs)
        self.messages -= sum(run[1] for run in runs)

    def next_due(self, wall_ns: int, held: int) -> int:
        """When `due` has something to say; 0: never, as far as is known."""
        times = [row[3] for row in self._new]
        if self.next_due_ns and not self.wanted and held < options.DUE_HELD_MAX:
            times.append(self.next_due_ns)
        return min((wall_ns if is_due(due_ns, wall_ns) else due_ns for due_ns in times), default=0)


def is_due(due_ns: int, wall_ns: int) -> bool:
    return due_ns <= wall_ns or due_ns > wall_ns + options.DUE_LATEST_NS
