"""Runs of messages with equal attempts, few enough to be rows of a channel. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

RUNS_MAX: Final = 5_000  # half of the rows a channel may have before it takes no new messages


class AttemptRun(NamedTuple):
    """`attempts`: the highest number under which any of them was sent."""

    start: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    attempts: int

    @property
    def next_offset(self) -> int:
        return self.start + self.count


class Runs:
    """Gathers runs in ascending order; beyond twice the limit neighbours are joined, with the higher attempts of the two.

    A message that counts as sent once more than it was costs nothing; one that counts as sent less often could outlive its limit.
    """

    def __init__(self, runs_max: int = RUNS_MAX) -> None:
        assert runs_max >= 1
        self._runs_max = runs_max
        self._runs: list[AttemptRun] = []

    def add(self, offset: int, attempts: int) -> None:
        """The next message."""
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
        """At most `runs_max`, ascending, dense."""
        while len(self._runs) > self._runs_max:
            self._halve()
        return self._runs
