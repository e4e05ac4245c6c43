"""Redelivery: messages to deliver again, deferred messages, and dying messages. No I/O.

Redelivery. A message that came back passes through these lists, in this order:

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

Deferred messages. These messages were requeued with a delay. Once that is committed, they are only
on disk: for ten million of them, this process keeps only a few numbers. A row has these states:

    put          handed in: goes with the next commit, unless it is due before that
    take         the commit is on its way
    committed    in the state store, ordered by due time: here it is only counted
    came         the state store returned it as due: it belongs to the channel again. The next
                 commit removes the deferred row from the state store, or replaces it by a row
                 that is not deferred.

The state store is not asked again before that commit is done, because it would return the same
rows. It is also not asked while the channel holds many rows (`DUE_HELD_MAX`). So a channel without
consumers leaves due rows in the state store.

Dying messages. These messages are not delivered any more, and are not stored as dead letters yet. A
run has these states:

    living     its attempts are below the channel's `max_attempts`, and no consumer rejected it
    waiting    no more deliveries. Its block may still have to be read.
    out        in the batch on its way to the dead-letter topic. There is one batch at a time.
    stored     a durable dead letter: finished for this channel

Until it is stored, the run is a hole, as other unfinished messages are (`supply.py`). So a crash
may cause a second dead letter, but never a loss. After a restart, the attempts in its row show that
it was dying: they have reached the maximum, or include REJECTED. The kind of reason survives a
crash, but its text does not, because rows do not hold texts.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Final, NamedTuple

from ...transport.block.block import Block
from ...transport.wire.dead_letter import ATTEMPTS, FOUND, REJECT
from ...transport.wire.protocol import Run
from ..primitives.ranges import Range, above, cut_out, take, total, touching
from ..settings import options


class BlockShelf:
    """The blocks kept for redeliveries, by first offset.

    The shelf holds at most `bytes_max`, or one block if that is larger. It drops the oldest first.
    """

    __slots__ = ("_blocks", "_firsts", "bytes_held", "bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_held = 0
        self._blocks: OrderedDict[int, Block] = OrderedDict()
        self._firsts: list[int] = []

    def __len__(self) -> int:
        return len(self._blocks)

    def put(self, block: Block) -> None:
        if block.first_offset in self._blocks:
            self._blocks.move_to_end(block.first_offset)
            return
        self._blocks[block.first_offset] = block
        insort(self._firsts, block.first_offset)
        self.bytes_held += block.length
        while self.bytes_held > self.bytes_max and len(self._blocks) > 1:
            first, old = self._blocks.popitem(last=False)
            del self._firsts[bisect_right(self._firsts, first) - 1]
            self.bytes_held -= old.length

    def find(self, offset: int) -> Block | None:
        """Return the block that holds `offset`, or None."""
        place = bisect_right(self._firsts, offset) - 1
        if place < 0:
            return None
        block = self._blocks[self._firsts[place]]
        return block if offset < block.next_offset else None

    def drop(self, block: Block) -> None:
        if self._blocks.pop(block.first_offset, None) is not None:
            del self._firsts[bisect_right(self._firsts, block.first_offset) - 1]
            self.bytes_held -= block.length

    def clear(self) -> None:
        self._blocks.clear()
        self._firsts.clear()
        self.bytes_held = 0


def bytes_between(block: Block, start: int, stop: int) -> int:
    """Return the size of these messages in the block's columns.

    Sizes in a block may be very uneven.
    """
    columns = (block.body, block.key, block.tag, block.headers)
    return sum(
        column.offsets[stop] - column.offsets[start] for column in columns if column is not None
    )


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
        found = [take([run], [(start, stop - start)]) for run in self.ready]
        self.ready = deque(run for _, left, _ in found for run in left)
        return sum(total(gone) for gone, _, _ in found)

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
    expire: Callable[[Block, Run], bool] | None = None,
) -> tuple[list[Part], list[Run]]:
    """Take up to `quota` messages out of `again`.

    Offsets whose block `find` does not return are added to `wanted`. `expire` is called with each
    run of a block before that run is sent. If `expire` returns True, the run is given up.
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
        here = min(block.count - start, count)
        if expire is not None and expire(block, (first, here, attempts)):
            if here < count:
                again.appendleft((first + here, count - here, attempts))
            continue
        stop = start + min(here, quota)
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

    def cut_out(self, found: Sequence[Row], ranges: Sequence[Range]) -> None:
        """Remove the messages of these ranges.

        `found` are the rows in the state store that have some of them. The next commit removes
        these rows, or replaces them by what is left of them. Rows on their way to the state store
        are not changed.
        """
        self._came = self._came or bool(found)
        rows, self._new = [*self._new, *found], []
        self._back([row[:3] for row in rows])
        for row in rows:
            self.put(cut_out((row[:3],), ranges), row[3])

    def next_due(self, wall_ns: int, held: int) -> int:
        """Return when `due` may next return messages, or 0 for never, as far as is known."""
        times = [row[3] for row in self._new]
        if self.next_due_ns and not self.wanted and held < options.DUE_HELD_MAX:
            times.append(self.next_due_ns)
        return min((max(due_ns, wall_ns) for due_ns in times), default=0)


REJECTED: Final = 1 << 32  # added to the attempts of a row whose messages were rejected


class Death(NamedTuple):
    """A run and why it dies: `reason` for machines, `error` for people."""

    run: Run
    reason: str
    error: str


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
        self._texts = 0  # length of all error texts, in characters

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

    def living(self, runs: Iterable[Run], max_attempts: int, error: str) -> list[Run]:
        """Return the runs that may be delivered again. The others wait to become dead letters."""
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
        """Return the run of a stored hole if it may be delivered again.

        If not, return an empty list. The run then waits to become a dead letter.
        """
        start, count, attempts = run
        if attempts < REJECTED:
            return self.living((run,), max_attempts, FOUND)
        self._take((start, count, attempts - REJECTED), REJECT, FOUND)
        return []

    def _take(self, run: Run, reason: str, error: str) -> None:
        """Let a run wait to become a dead letter.

        The length of all error texts is limited, because a dead-letter topic may be full for a long
        time. Beyond the limit, a run keeps its reason without a text.
        """
        if self._texts + len(error) > options.DYING_TEXT_MAX:
            error = ""
        self._texts += len(error)
        self.waiting.append(Death(run, reason, error))

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
                self._texts += len(death.error)
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
        self._texts -= sum(len(death.error) for death in self.out)
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

    def _keep(self, what: Callable[[Run], Sequence[Run]]) -> int:
        before = sum(death.run[1] for death in self.waiting)
        self.waiting = deque(
            death._replace(run=run) for death in self.waiting for run in what(death.run)
        )
        self._texts = sum(len(death.error) for death in (*self.out, *self.waiting))
        return before - sum(death.run[1] for death in self.waiting)


def _without(run: Run, start: int, stop: int) -> list[Run]:
    return take([run], [(start, stop - start)])[1]
