"""Runs of messages with equal attempts, few enough to be rows of a channel. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

# Half of the rows that a channel may have before it accepts no new messages.
RUNS_MAX: Final = 5_000


class AttemptRun(NamedTuple):
    """A run of messages. `attempts` is the highest number of attempts of any of them."""

    start: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    attempts: int

    @property
    def next_offset(self) -> int:
        return self.start + self.count


class AttemptRuns:
    """Gathers runs in ascending order.

    Beyond twice the limit, neighbours are joined and get the higher attempts of the two. Counting
    one attempt too many does no harm. With too few, a message could exceed its limit of attempts.
    """

    def __init__(self, runs_max: int = RUNS_MAX) -> None:
        assert runs_max >= 1
        self._runs_max = runs_max
        self._runs: list[AttemptRun] = []

    def add(self, offset: int, attempts: int) -> None:
        """Add the next message."""
        last = self._runs[-1] if self._runs else None
        if last is not None and last.next_offset == offset and last.attempts == attempts:
            self._runs[-1] = last._replace(count=last.count + 1)
            return
        self._runs.append(AttemptRun(offset, 1, attempts))
        if len(self._runs) > 2 * self._runs_max:
            self._halve()

    def _halve(self) -> None:
        pairs = [self._runs[number : number + 2] for number in range(0, len(self._runs), 2)]
        self._runs = [
            AttemptRun(pair[0].start, pair[-1].next_offset - pair[0].start, max(run.attempts for run in pair))
            for pair in pairs
        ]  # fmt: skip

    def finish(self) -> list[AttemptRun]:
        """Return at most `runs_max` runs, ascending and without gaps."""
        while len(self._runs) > self._runs_max:
            self._halve()
        return self._runs
