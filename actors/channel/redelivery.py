"""Redelivery: messages that are to be delivered again. No I/O.

A message that came back passes through these lists, in this order:

    returned     came back since the last commit began
    committing   the number of its attempts is in the commit on its way
    ready        that number is committed: the message may be sent

A row has the number of attempts that the message has *used*: how often a handler began it. The next
delivery shows that number plus one. A message is sent again only when its number is on disk, so the
number that a consumer sees never falls after a crash of the broker. It may repeat, because an
attempt that began within the last 0.2 s may not be on disk.

Messages that came back between two commits are sent in the order of their offsets, after the
messages that came back earlier. All of them together are not sorted by offset. Otherwise a message
that fails at once, again and again, would keep messages with higher offsets waiting forever.

Suspects. If a consumer is lost, one of the messages that it held may have ended its process. In a
channel that limits attempts, these messages come back as *suspects* (`Suspects`). They are
delivered apart from others, so that a message that ends its consumers uses up only its own
attempts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain

from ...transport.block.block import Block
from ...transport.wire.protocol import Run
from ..primitives.ranges import take, total
from ..settings import options
from .block_shelf import bytes_between

Part = tuple[Block, int, int]


class Redelivery:
    """Messages to deliver again. Each run has the number of attempts that it has used."""

    def __init__(self) -> None:
        self.ready: deque[Run] = deque()
        self.committing: list[Run] = []
        self.returned: list[Run] = []

    @property
    def rows(self) -> int:
        return len(self.ready) + len(self.committing) + len(self.returned)

    def messages(self) -> int:
        return total(self.ready) + total(self.committing) + total(self.returned)

    def unsent(self) -> Iterable[Run]:
        """Yield all runs, those that are sent next first."""
        return chain(self.ready, self.committing, sorted(self.returned))

    def begin_commit(self) -> None:
        """Note that a commit with all rows begins. One commit is made at a time."""
        self.committing += sorted(self.returned)
        self.returned = []

    def committed(self) -> None:
        self.ready.extend(self.committing)
        self.committing = []

    def keep(self, kept: Callable[[Iterable[Run]], list[Run]]) -> None:
        """Keep only the messages that `kept` returns."""
        self.ready = deque(kept(self.ready))
        self.committing = kept(self.committing)
        self.returned = kept(self.returned)

    def lost(self, start: int, stop: int) -> int:
        """Remove the ready messages of this range, and return how many there were."""
        cuts = [take([run], [(start, stop - start)]) for run in self.ready]
        self.ready = deque(run for _, left, _ in cuts for run in left)
        return sum(total(gone) for gone, _, _ in cuts)

    def absorb(self, other: Redelivery) -> None:
        """Take over all messages of `other`."""
        self.ready.extend(other.ready)
        self.committing += other.committing
        self.returned += other.returned
        other.clear()

    def clear(self) -> None:
        self.ready.clear()
        self.committing.clear()
        self.returned.clear()


class Suspects(Redelivery):
    """Messages of lost consumers, which are delivered apart from others.

    A message that was begun is delivered alone, and so is one whose group has lost its consumer.
    Another message may be delivered in a group: of one message at first, and of twice as many after
    each group whose consumer stayed. So thousands of messages that a lost consumer had only fetched
    need few rounds.
    """

    def __init__(self) -> None:
        super().__init__()
        self._group = 1
        self._alone_below = 0  # messages below this offset come alone

    def committed(self) -> None:
        # A group whose consumer was lost has the lowest offsets, and comes again before the others.
        self.ready = deque(sorted([*self.ready, *self.committing]))
        self.committing = []

    def quota(self) -> int:
        """Return how many messages the next group may have. Call this only if some are ready."""
        start, count, used = self.ready[0]
        return 1 if used or start < self._alone_below else min(self._group, count)

    def stayed(self) -> None:
        """Note that a group was answered."""
        self._group = min(2 * self._group, options.GATHER_COUNT_MAX)

    def left(self, runs: Iterable[Run]) -> None:
        """Note that the consumer of this group was lost."""
        self._group = 1
        self._alone_below = max(self._alone_below, *(run[0] + run[1] for run in runs))


def collect(
    again: deque[Run],
    quota: int,
    find: Callable[[int], Block | None],
    wanted: set[int],
    lead: Callable[[Block, Run], tuple[int, int]] | None = None,
) -> tuple[list[Part], list[Run]]:
    """Take up to `quota` messages out of `again`.

    Offsets whose block `find` does not return are added to `wanted`. `lead` is called with each run
    of a block before that run is sent. It returns how many messages at the start of the run are
    given up, and, if that is 0, how many may be sent.
    """
    parts: list[Part] = []
    runs: list[Run] = []
    waiting: list[Run] = []
    size = 0
    while (
        again
        and quota > 0
        and size < options.GATHER_BYTES_MAX
        and len(waiting) < options.FETCHES_MAX
    ):
        first, count, attempts = again.popleft()
        block = find(first)
        if block is None:
            wanted.add(first)
            waiting.append((first, count, attempts))
            continue
        start = first - block.first_offset
        fitting = min(block.count - start, count)
        if lead is not None:
            given_up, fitting = lead(block, (first, fitting, attempts))
            if given_up:
                if given_up < count:
                    again.appendleft((first + given_up, count - given_up, attempts))
                continue
        stop = start + min(fitting, quota)
        size += bytes_between(block, start, stop)
        # One part may be as large as its block, but several parts must fit into one block.
        if parts and size > options.GATHER_BYTES_MAX:
            again.appendleft((first, count, attempts))
            break
        parts.append((block, start, stop))
        runs.append((first, stop - start, attempts))
        quota -= stop - start
        if stop - start < count:
            again.appendleft((first + stop - start, count - (stop - start), attempts))
    again.extendleft(reversed(waiting))
    return parts, runs
