"""Dying messages of a channel. No I/O.

These messages are not delivered any more, and are not stored as dead letters yet. A run has these
states:

    living     its attempts are below the channel's `max_attempts`, and no consumer rejected it
    waiting    no more deliveries. Its block may still have to be read.
    out        in the batch on its way to the dead-letter topic. There is one batch at a time.
    stored     a durable dead letter: finished for this channel

Until it is stored, the run is a hole, as other unfinished messages are (`supply.py`). So a crash
may cause a second dead letter, but never a loss. After a restart, the attempts in its row show that
it was dying: they have reached the maximum, or include REJECTED. A message that has expired is
looked at again, and has still expired. The kind of reason survives a
crash, but its text does not, because rows do not hold texts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from ...transport.block.block import Block
from ...transport.wire.dead_letter import ATTEMPTS, EXPIRY, FOUND, REJECT
from ...transport.wire.protocol import Run
from ..primitives.ranges import Range, above, cut_out, take
from ..settings import options
from .block_shelf import bytes_between
from .failures import Cause
from .redelivery import Part

REJECTED: Final = 1 << 32  # added to the attempts of a row whose messages were rejected


TOO_OLD: Final = Cause("it expired before it was finished")


class Death(NamedTuple):
    """A run and why it dies: `reason` for machines, `cause` for people."""

    run: Run
    reason: str
    cause: Cause


class Dead(NamedTuple):
    """A run of the outgoing batch, and the part of a block that holds it."""

    death: Death
    part: Part


class Dying:
    """Messages that are not delivered any more, until they are stored as dead letters.

    `batch` is a number that changes whenever the batch on its way changes or ends.
    """

    def __init__(self) -> None:
        self.waiting: deque[Death] = deque()
        self.out: tuple[Death, ...] = ()
        self.batch = 0
        self._texts = 0  # size of all causes, in characters

    def __bool__(self) -> bool:
        return bool(self.waiting or self.out)

    @property
    def rows(self) -> int:
        return len(self.waiting) + len(self.out)

    def messages(self) -> int:
        return sum(death.run[1] for death in (*self.out, *self.waiting))

    def unstored(self) -> Iterable[Run]:
        """Yield the rows for the commit that begins."""
        for (start, count, attempts), reason, _ in (*self.out, *self.waiting):
            yield start, count, attempts + REJECTED if reason == REJECT else attempts

    # In

    def living(self, runs: Iterable[Run], max_attempts: int, cause: Cause) -> list[Run]:
        """Return the runs that may be delivered again. The others wait to become dead letters."""
        if not max_attempts:
            return list(runs)
        living = []
        for run in runs:
            if run[2] < max_attempts:
                living.append(run)
            else:
                self._take(run, ATTEMPTS, cause)
        return living

    def reject(self, runs: Iterable[Run], cause: Cause) -> None:
        for run in runs:
            self._take(run, REJECT, cause)

    def expire(self, runs: Iterable[Run]) -> None:
        for run in runs:
            self._take(run, EXPIRY, TOO_OLD)

    def recover(self, run: Run, max_attempts: int) -> list[Run]:
        """Return the run of a stored hole if it may be delivered again.

        If not, return an empty list. The run then waits to become a dead letter.
        """
        start, count, attempts = run
        if attempts < REJECTED:
            return self.living((run,), max_attempts, Cause(FOUND))
        self._take((start, count, attempts - REJECTED), REJECT, Cause(FOUND))
        return []

    def _take(self, run: Run, reason: str, cause: Cause) -> None:
        """Let a run wait to become a dead letter.

        The length of all texts is limited, because a dead-letter topic may be full for a long time.
        Beyond the limit, a run loses its traceback, and then its error.
        """
        if self._texts + cause.size > options.DYING_TEXT_MAX:
            cause = cause._replace(traceback="")
        if self._texts + cause.size > options.DYING_TEXT_MAX:
            cause = cause._replace(error="")
        self._texts += cause.size
        self.waiting.append(Death(run, reason, cause))

    # Out

    def pick(self, find: Callable[[int], Block | None], wanted: set[int]) -> list[Dead]:
        """Return the next batch. Call this only if no batch is on its way.

        The batch is empty if nothing waits or no block is in memory. The offsets of missing blocks
        are added to `wanted`.
        """
        assert not self.out
        found: list[Dead] = []
        absent: list[Death] = []
        room, size = options.GATHER_COUNT_MAX, 0
        while (
            self.waiting
            and room > 0
            and size < options.GATHER_BYTES_MAX
            and len(absent) < options.FETCHES_MAX
        ):
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
                self._texts += death.cause.size
                self.waiting.appendleft(
                    death._replace(run=(first + taken, count - taken, attempts))
                )
        self.waiting.extendleft(reversed(absent))
        self.out = tuple(dead.death for dead in found)
        self.batch += bool(found)
        return found

    def stored(self) -> list[Run]:
        """Return the runs of the batch, which is durable now. They are finished."""
        runs = [death.run for death in self.out]
        self._end_batch()
        return runs

    def take_back(self) -> None:
        """Put the batch back into `waiting`, because it was not sent."""
        self.waiting.extendleft(reversed(self.out))
        self.out = ()
        self.batch += 1

    def _end_batch(self) -> None:
        self._texts -= sum(death.cause.size for death in self.out)
        self.out = ()
        self.batch += 1

    # Moves

    def clear(self) -> None:
        self.waiting.clear()
        self._end_batch()
        self._texts = 0

    def lost(self, start: int, stop: int) -> int:
        """Remove the waiting messages of this range, and return how many there were."""
        return self._keep(lambda run: _without(run, start, stop))

    def drop_below(self, start: int) -> int:
        """Remove the waiting messages below `start`. The batch on its way is not changed."""
        return self._keep(lambda run: above([run], start)[0])

    def cut_out(self, ranges: Sequence[Range]) -> None:
        """Remove the waiting messages of these ranges. The batch on its way is not changed."""
        self._keep(lambda run: cut_out((run,), ranges))

    def _keep(self, left_of: Callable[[Run], Sequence[Run]]) -> int:
        before = sum(death.run[1] for death in self.waiting)
        self.waiting = deque(
            death._replace(run=run) for death in self.waiting for run in left_of(death.run)
        )
        self._texts = sum(death.cause.size for death in (*self.out, *self.waiting))
        return before - sum(death.run[1] for death in self.waiting)


def _without(run: Run, start: int, stop: int) -> list[Run]:
    return take([run], [(start, stop - start)])[1]
