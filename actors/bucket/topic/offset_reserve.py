"""Offset reserve: the offsets that a topic may give out, and the commits that wait for more.

Each epoch reserves offsets in the log of ticks ahead of their use. A broker that takes over begins
behind them, so no offset has two contents. Publishes wait for offsets too: see `ship_bound.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ....storage.log.log import Log
from ...settings import options
from .piece_window import Shipped


class OffsetReserve:
    """The reserved offsets of one topic."""

    def __init__(self, log: Log, shipped: Shipped) -> None:
        self._log = log
        self._shipped = shipped
        self._begun_end = log.end
        self.promised: Callable[[], int] = lambda: 0
        """Returns the number of offsets that are reserved for commits that are being merged."""
        self.end = -1
        """The end of the offsets that are reserved in the log of ticks."""
        self.asked_end = -1
        """The end of those that a piece asks for."""
        self._wanted = 0  # offsets that publishes or a commit wait for
        self._commits: list[Callable[[], object]] = []
        self.waiting_ns = 0
        """Since when the first commit waits, 0 for none."""

    def begin(self, end: int) -> None:
        """Go on with what the log of ticks has."""
        self.end = self.asked_end = end

    @property
    def _taken_end(self) -> int:
        """The end of the offsets that are given out or promised."""
        return self._log.end + self.promised()

    @property
    def is_low(self) -> bool:
        """True if the next piece must ask for more."""
        return self._taken_end + self._wanted + options.SHIP_RESERVE // 2 > self.asked_end

    @property
    def is_nearly_used(self) -> bool:
        """True if the piece that asks for more must arrive soon."""
        return self.end < self._taken_end + self._wanted + options.SHIP_RESERVE // 4

    def lacks(self, messages: int) -> bool:
        """Return True if publishes of so many messages must wait. Then they are asked for."""
        runs_out = self._taken_end + messages > self.end
        if runs_out:
            self._wanted = max(self._wanted, messages)
        return runs_out

    def ask(self, end: int) -> int:
        """Return the offset up to which a piece asks for offsets. The piece ends at `end`."""
        # A fast topic must not wait for offsets. Those that a restore has skipped do not count:
        # otherwise each takeover would skip twice as many as the one before.
        recent = max(0, self._log.end - max(self._shipped.end, self._begun_end))
        ahead = self._wanted + max(options.SHIP_RESERVE, 2 * recent)
        self.asked_end = max(self.asked_end, max(end, self._taken_end) + ahead)
        return self.asked_end

    def confirm(self, end: int) -> None:
        """Note that the log of ticks has a piece that asked for offsets up to `end`."""
        self.end = max(self.end, end)
        if self._taken_end + self._wanted <= self.end:
            self._wanted = 0
            self.waiting_ns = 0
            self.retry()

    def wait(self, messages: int, commit: Callable[[], object]) -> None:
        """Call `commit` when so many offsets are reserved, or when it must be refused."""
        self._wanted = max(self._wanted, messages)
        self._commits.append(commit)
        self.waiting_ns = self.waiting_ns or time.monotonic_ns()

    def retry(self) -> None:
        """Let the commits that wait for offsets try again, for example because they are refused."""
        commits, self._commits = self._commits, []
        for commit in commits:
            commit()
        if not self._commits:
            self.waiting_ns = 0
