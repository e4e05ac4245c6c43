"""Messages that are not delivered any more and not yet dead letters. Pure.

A run's way:

    living     its attempts are below the channel's `max_attempts`, and nobody has rejected it
    waiting    no more deliveries; its block may still have to be read
    out        in the batch that is on its way to the dead-letter topic; one at a time
    stored     a dead letter, durable: finished for this channel

Until it is stored it is a hole like any other, so a crash costs a second dead letter, never a loss. The row's attempts tell the next life
that it was dying: they have reached the maximum, or carry REJECTED. What is said of the reason is not kept over a crash, for texts do
not belong into rows; the reason is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from ..transport.block import Block
from ..transport.dead_letter import ATTEMPTS, FOUND, REJECT
from ..transport.protocol import Run
from . import options
from .again import Part
from .ranges import above, take
from .shelf import bytes_between

REJECTED: Final = 1 << 32  # added to the attempts of a row: no more deliveries, however many there were


class Death(NamedTuple):
    """A run and why it dies: `reason` for machines, `error` for people."""

    run: Run
    reason: str
    error: str


class Dead(NamedTuple):
    """A run of the batch that goes out, with the part of a block in which it lies."""

    death: Death
    part: Part


class Dying:
    """`batch`: a number that changes whenever the batch on its way is another one, or none."""

    def __init__(self) -> None:
        self.waiting: deque[Death] = deque()
        self.out: tuple[Death, ...] = ()
        self.batch = 0
        self._texts = 0  # characters

    def __bool__(self) -> bool:
        return bool(self.waiting or self.out)

    @property
    def rows(self) -> int:
        return len(self.waiting) + len(self.out)

    def messages(self) -> int:
        return sum(death.run[1] for death in (*self.out, *self.waiting))

    def unstored(self) -> Iterable[Run]:
        """As rows of the commit that begins."""
        for (start, count, attempts), reason, _ in (*self.out, *self.waiting):
            yield start, count, attempts + REJECTED if reason == REJECT else attempts

    # In

    def living(self, runs: Iterable[Run], max_attempts: int, error: str) -> list[Run]:
        """What of these may be delivered again; the others are taken."""
        if not max_attempts:
            return list(runs)
        found = []
        for run in runs:
            if run[2] < max_attempts:
                found.append(run)
            else:
                self._take(run, ATTEMPTS, error)
        return found

    def reject(self, runs: Iterable[Run], error: str) -> None:
        for run in runs:
            self._take(run, REJECT, error)

    def recover(self, run: Run, max_attempts: int) -> list[Run]:
        """A hole that was committed before this life began: the run, if it lives."""
        start, count, attempts = run
        if attempts < REJECTED:
            return self.living((run,), max_attempts, FOUND)
        self._take((start, count, attempts - REJECTED), REJECT, FOUND)
        return []

    def _take(self, run: Run, reason: str, error: str) -> None:
        """Beyond a bound of all texts together, for a dead-letter topic may be full for long, reasons come without one."""
        if self._texts + len(error) > options.DYING_TEXT_MAX:
            error = ""
        self._texts += len(error)
        self.waiting.append(Death(run, reason, error))

    # Out

    def pick(self, find: Callable[[int], Block | None], wanted: set[int]) -> list[Dead]:
        """The next batch; [] while no block of it is at hand (`wanted`) or nothing waits. None is out."""
        assert not self.out
        found: list[Dead] = []
        absent: list[Death] = []
        room, size = options.GATHER_COUNT_MAX, 0
        while self.waiting and room > 0 and size < options.GATHER_BYTES_MAX and len(absent) < options.FETCHES_MAX:
            death = self.waiting.popleft()
            first, count, attempts = death.run
            block = find(first)
            if block is None:
                wanted.add(first)
                absent.append(death)
                continue
            start = first - block.first_offset
            stop = min(block.count, start + count, start + room)
            while stop - start > 1 and bytes_between(block, start, stop) > options.GATHER_BYTES_MAX:
                stop = start + (stop - start) // 2
            taken = stop - start
            size += bytes_between(block, start, stop)
            room -= taken
            found.append(Dead(death._replace(run=(first, taken, attempts)), (block, start, stop)))
            if taken < count:
                self._texts += len(death.error)
                self.waiting.appendleft(death._replace(run=(first + taken, count - taken, attempts)))
        self.waiting.extendleft(reversed(absent))
        self.out = tuple(dead.death for dead in found)
        self.batch += bool(found)
        return found

    def stored(self) -> list[Run]:
        """The batch is durable where it went: these are finished."""
        runs = [death.run for death in self.out]
        self._end_batch()
        return runs

    def _end_batch(self) -> None:
        self._texts -= sum(len(death.error) for death in self.out)
        self.out = ()
        self.batch += 1

    # Moves

    def clear(self) -> None:
        self.waiting.clear()
        self._end_batch()
        self._texts = 0

    def lost(self, start: int, stop: int) -> int:
        """Give up what waits for its block and lies there; how many messages that were."""
        return self._keep(lambda run: _without(run, start, stop))

    def drop_below(self, start: int) -> int:
        """... below an offset. What is out is on its way."""
        return self._keep(lambda run: above([run], start)[0])

    def _keep(self, what: Callable[[Run], Sequence[Run]]) -> int:
        before = sum(death.run[1] for death in self.waiting)
        self.waiting = deque(death._replace(run=run) for death in self.waiting for run in what(death.run))
        self._texts = sum(len(death.error) for death in (*self.out, *self.waiting))
        return before - sum(death.run[1] for death in self.waiting)


def _without(run: Run, start: int, stop: int) -> list[Run]:
    return take([run], [(start, stop - start)])[1]
