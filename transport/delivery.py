"""A delivery in a consumer's hands: a block under a lease, and which of its messages were answered. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from .block import Block
from .protocol import Deliver, Range, Run

if TYPE_CHECKING:
    from .session_consumer import ConsumerSession

EVERY: Final = -1  # as an index: all messages of the delivery


class Delivery:
    """A block under a lease, and which of its messages were answered. Indexes are positions in the block."""

    __slots__ = ("answered", "block", "closed", "epoch", "finished", "queued", "received_ns", "runs", "session", "timeout_ms", "token")

    def __init__(self, session: ConsumerSession, word: Deliver, block: Block, epoch: int, now_ns: int) -> None:
        self.session = session
        self.token = word.token
        self.runs: tuple[Run, ...] = word.runs
        self.timeout_ms = word.timeout_ms
        self.block = block
        self.epoch = epoch
        self.received_ns = now_ns
        self.finished: list[int] = []  # finished by the person, not yet told to the channel
        self.answered: set[int] = set()  # told to the channel, as long as some are not
        self.closed = False  # all are told
        self.queued = False  # in session.dirty

    @property
    def live(self) -> bool:
        """Whether the lease can still be answered."""
        return self.epoch == self.session.epoch

    def expired(self, now_ns: int) -> bool:
        """Whether the lease has surely ended: it began before the delivery arrived."""
        return now_ns >= self.received_ns + self.timeout_ms * 1_000_000

    def finish(self, index: int) -> bool:
        """Note one plain finish (`EVERY`: all that is not answered yet), from any thread; True if the session did not have to look
        at this delivery before.

        Append first, then look at `queued`: `collect` clears the flag before it reads the list, so whichever runs first, the
        index is seen.
        """
        self.finished.append(index)
        if self.queued:
            return False
        self.queued = True
        self.session.dirty.append(self)
        return True

    def finish_many(self, indexes: Sequence[int]) -> None:
        """`finish` of several at once, in one thread."""
        self.finished += indexes
        if not self.queued:
            self.queued = True
            self.session.dirty.append(self)

    def unanswered(self) -> Sequence[int]:
        """What neither was answered nor is noted as finished."""
        if self.closed or EVERY in self.finished:
            return ()
        if not self.finished and not self.answered:
            return range(self.block.count)
        gone = self.answered.union(self.finished)
        return [i for i in range(self.block.count) if i not in gone]

    def fresh(self, indexes: Iterable[int]) -> Sequence[int]:
        """Those not answered before, each once, ascending. A person may answer a message twice, by two views of it."""
        if self.closed:
            return ()
        wanted = set(indexes)
        if EVERY in wanted:
            if not self.answered:
                return range(self.block.count)
            wanted = set(range(self.block.count))
        return sorted(wanted - self.answered) if self.answered else sorted(wanted)

    def attempts(self, index: int) -> int:
        for _, count, attempts in self.runs:
            if index < count:
                return attempts
            index -= count
        raise IndexError(index)

    def offset(self, index: int) -> int:
        for first, count, _ in self.runs:
            if index < count:
                return first + index
            index -= count
        raise IndexError(index)

    def ranges(self, indexes: Sequence[int]) -> tuple[Range, ...]:
        """Offsets of these messages (fresh ones) as ranges; () where they are all of the delivery."""
        if len(indexes) == self.block.count:
            return ()
        if len(self.runs) == 1 and indexes[-1] - indexes[0] + 1 == len(indexes):
            return ((self.runs[0][0] + indexes[0], len(indexes)),)
        offsets = [first + i for first, count, _ in self.runs for i in range(count)]
        found: list[Range] = []
        start = end = offsets[indexes[0]]
        for index in indexes:
            offset = offsets[index]
            if offset != end:
                found.append((start, end - start))
                start = offset
            end = offset + 1
        found.append((start, end - start))
        return tuple(found)
