"""Parked supply: reads ahead of the deliveries, and sorts the messages that it passes. No I/O.

    window  ->  parked in the pile where it belongs  ->  in flight  ->  finished

A subclass says what the piles are, and which one is next: `priorities.py` has one for each level of
urgency, `fair.py` one for each key. (`ordered.py` has an order of its own.)

Parked messages are holes in rows with attempts 0. Their first delivery needs no commit before it.
Adjacent messages of one pile are one row. So a backlog of one pile takes one row, however long it
is, and a few others in it take two rows each. The cursor stops at PARKED_ROWS_MAX rows. A message
behind that place waits until the number of rows is lower.

Blocks. To find messages of other piles in a backlog, the cursor passes blocks long before their
messages are delivered. These blocks are not kept, and are read again for the deliveries. A block is
kept if its messages are delivered soon. So in a channel without a backlog nothing is read twice.

*A new consumer.* While no consumer wants messages, the channel reads nothing, and a message that
goes first may arrive. When a consumer wants messages again, parked ones are delivered only after
the first unread blocks have come. Otherwise a consumer's whole ready count would go before that
message. This takes PARKED_HOLD_NS at most.

*Rows of an earlier process.* Their piles are not stored. Their blocks are read again, the oldest
first, and their messages are sorted as those of the window are. A message is delivered only when
all earlier rows are sorted. Otherwise it could overtake an earlier one of its pile.

Rejected: one cursor for each pile. Each would read the whole log, and the position of a channel in
the state store, its reports, and the retention would be a list.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Protocol

from ...transport.block.block import Block
from ...transport.settings import ChannelSettings
from ...transport.wire.protocol import Run
from ..primitives.ranges import Range, cut_out, joined, take, total
from ..runtime.pulses import SupplyPulse
from ..settings import options
from .deferred import Deferred, Row
from .delivery_builder import DeliveryBuilder
from .filters import ChannelFilter, count_skipped, wanted_runs
from .lease import Hole, Subscriber
from .supply import Supply


class Pile:
    """Parked messages that are delivered one after the other, as ascending runs."""

    def __init__(self) -> None:
        # The blocks of the next messages are requested again when the first one is beyond this.
        self.ahead = 0
        self.runs: deque[Run] = deque()
        self.messages = 0

    def park(self, start: int, count: int) -> None:
        """Add messages. Adjacent runs become one if they are added in ascending order."""
        self.messages += count
        if self.runs and self.runs[-1][0] > start:
            insort(self.runs, (start, count, 0))
        elif self.runs and self.runs[-1][0] + self.runs[-1][1] == start:
            start, before, _ = self.runs.pop()
            self.runs.append((start, before + count, 0))
        else:
            self.runs.append((start, count, 0))

    def take(self, count: int) -> None:
        """Remove the first messages, all from the first run."""
        start, size, _ = self.runs.popleft()
        if count < size:
            self.runs.appendleft((start + count, size - count, 0))
        self.messages -= count

    def remove(self, start: int, stop: int) -> int:
        """Remove the messages of this range, and return how many there were."""
        taken, left, _ = take(list(self.runs), [(start, stop - start)])
        if taken:
            self.runs = deque(left)
            self.messages -= total(taken)
        return total(taken)


class Piles(Protocol):
    """The piles of a channel."""

    @property
    def messages(self) -> int: ...

    @property
    def rows(self) -> int: ...

    def remove(self, start: int, stop: int) -> int:
        """Remove the messages of this range, and return how many there were."""
        ...

    def cut_out(self, ranges: Sequence[Range]) -> None:
        """Remove the messages of these ranges."""
        ...

    def clear(self) -> None: ...

    def runs(self) -> Iterator[Run]:
        """Return the parked messages, about in the order in which they are delivered."""
        ...

    def next_piles(self) -> Iterable[Pile]:
        """Return the piles with messages in the order of their turns."""
        ...

    def forget_requests(self) -> None:
        """Note that no blocks are in memory, and none is requested."""
        ...


class ParkedSupply(Supply):
    """A `Supply` whose messages to send are in `piles`, not in the window."""

    fetch_bytes = options.PARKED_READ_BYTES
    goes_back = False
    parks = True

    def __init__(
        self, next_offset: int, holes: Iterable[Hole], deferred: Deferred, counters: dict[str, int], settings: ChannelSettings,
        choice: ChannelFilter | None, piles: Piles,
    ) -> None:  # fmt: skip
        self._piles = piles
        # Parked rows of an earlier process whose piles are not known yet, ascending.
        self._unsorted: list[Run] = []
        self._near = 1_000  # approximate number of messages that one read brings
        self._stopped = False  # this turn's share of looks was too small to read further
        self._is_fed = False  # unread blocks have come since consumers want messages
        self._held_since_ns = 0
        self._holds = False
        super().__init__(next_offset, holes, deferred, counters, settings, choice)
        self._unsorted.sort()

    @abstractmethod
    def _park(self, block: Block, start: int, stop: int, rows_max: int = 0) -> int:
        """Park the messages between these indexes, at most until there are `rows_max` rows.

        Return the index of the first one that is not parked.
        """

    @abstractmethod
    def _is_needed_soon(self, block: Block) -> bool:
        """Return True if messages of this block, which were just parked, are sent soon."""

    # Rows of an earlier process

    def _recover(self, run: Run, due_ns: int) -> None:
        if run[2] or due_ns:
            super()._recover(run, due_ns)
        else:
            self._unsorted.append(run)

    def _want_unsorted(self) -> None:
        """Request the next blocks of rows whose piles are not known."""
        after = 0
        for start, count, _ in self._unsorted:
            at = max(start, after)
            while at < start + count:
                if len(self.wanted) >= options.FETCHES_MAX:
                    return
                self._want(at)
                after = at = at + self._near

    def _sort_unsorted(self, block: Block) -> None:
        at = bisect_left(self._unsorted, (block.first_offset,))
        if at and sum(self._unsorted[at - 1][:2]) > block.first_offset:
            at -= 1
        end = bisect_left(self._unsorted, (block.next_offset,))
        span = (block.first_offset, block.count)
        taken, left, _ = take(self._unsorted[at:end], [span])
        self._unsorted[at:end] = left
        for start, count, _ in taken:
            self._park(block, start - block.first_offset, start + count - block.first_offset)

    # Blocks

    def shelve(self, block: Block) -> None:
        """Sort a block that was read, and keep it if the cursor has passed it.

        A read may bring more blocks than requested. Those ahead of the cursor come through the
        feed.
        """
        self._near = max(1, self.fetch_bytes * block.count // block.length)
        if block.first_offset < self.next_offset:
            super().shelve(block)
            if self._unsorted and self._is_sound(block):
                self._sort_unsorted(block)

    def lost(self, start: int, stop: int) -> None:
        super().lost(start, stop)
        self.counters["lost_count"] += self._remove(start, stop)

    def _remove(self, start: int, stop: int) -> int:
        taken, self._unsorted, _ = take(self._unsorted, [(start, stop - start)])
        return self._piles.remove(start, stop) + total(taken)

    def drop_blocks(self) -> None:
        super().drop_blocks()
        self._is_fed, self._held_since_ns = False, 0
        self._piles.forget_requests()

    def offer(self, block: Block, *, from_storage: bool = False) -> bool:
        self._is_fed = True
        return super().offer(block, from_storage=from_storage)

    def step_over(self, next_offset: int) -> None:
        self._is_fed = True
        super().step_over(next_offset)

    def _passed(self, block: Block) -> None:
        if self._is_needed_soon(block):
            super()._passed(block)

    # In

    def begin_turn(self) -> None:
        super().begin_turn()
        self._stopped = False

    def has_more(self) -> bool:
        return self._stopped or super().has_more()

    def look_ahead(self, rows_out: int, wall_ns: int) -> None:
        """Sort the next messages, as many as this turn allows."""
        self._holds = self._waits_for_newest(wall_ns)
        if self._holds:  # what is parked comes into memory meanwhile
            for pile in self._piles.next_piles():
                self._read_ahead(pile)
        if self._unsorted:
            self._want_unsorted()
        least = options.LOOKS_MAX - options.PARKED_LOOKS
        while self._looks_on(rows_out):
            if self.looks <= least:
                self._stopped = True
                return
            block = self._window[0]
            # Skip a gap, if there is one.
            self.next_offset = max(self.next_offset, block.first_offset)
            if not self._is_sound(block):
                return
            start = self.next_offset - block.first_offset
            stop = self._sort(block, start, self._mask(block, wall_ns))
            self._advance(block, stop)
            self.dirty = True

    def _waits_for_newest(self, wall_ns: int) -> bool:
        if self._is_fed or self.next_offset >= self.head:
            return False
        if self._rows() >= options.PARKED_ROWS_MAX:
            return False  # no further messages are read
        self._held_since_ns = self._held_since_ns or wall_ns
        return 0 <= wall_ns - self._held_since_ns < options.PARKED_HOLD_NS

    def _looks_on(self, rows_out: int) -> bool:
        return self._rows() < options.PARKED_ROWS_MAX and super()._has_new(rows_out)

    def _rows(self) -> int:
        return self._piles.rows + len(self._unsorted)

    def _sort(self, block: Block, start: int, mask: bytes | None) -> int:
        """Park the wanted messages of the block from index `start` on.

        Return the index up to which they are parked, which is lower than the end of the block if
        there are too many rows now.
        """
        self.looks -= options.LOOK_BLOCK
        spans = ((start, block.count),) if mask is None else wanted_runs(mask, start, block.count)
        stop = block.count
        for low, high in spans:
            stop = self._park(block, low, high, rows_max=options.PARKED_ROWS_MAX)
            if stop < high:
                break
        else:
            stop = block.count
        if mask is not None:
            count_skipped(self.counters, mask, start, stop)
        return stop

    # Out

    def _is_left_out(self, builder: DeliveryBuilder, consumer: Subscriber) -> bool:
        """Return True if the next message is not in this consumer's sample."""
        if not consumer.sample_rate:
            return False
        builder.offered += 1
        if self.choice.in_sample(consumer.sample_rate):
            return False
        self.counters["sampled_count"] += 1
        consumer.sampled_count += 1
        return True

    def _pass(self, pile: Pile, count: int) -> None:
        """Finish these messages for this channel without a delivery."""
        pile.take(count)
        self.looks -= count
        self.dirty = True

    def _read_ahead(self, pile: Pile) -> None:
        """Request the blocks of the next messages that are not in memory."""
        if not pile.runs or pile.runs[0][0] < pile.ahead:
            return
        room = options.FETCHES_MAX
        after = 0
        for start, count, _ in pile.runs:
            offset = max(start, after)
            while offset < start + count:
                if not room:
                    return
                room -= 1
                if room >= options.FETCHES_MAX // 2:
                    pile.ahead = offset
                block = self._find(offset)
                if block is None:
                    self._want(offset)
                after = offset = offset + self._near if block is None else block.next_offset

    def _want(self, offset: int) -> None:
        if len(self.wanted) < options.FETCHES_MAX and all(
            abs(offset - other) >= self._near for other in self.wanted
        ):
            self.wanted.add(offset)

    def skip_messages(self, ranges: Sequence[Range], deferred: Sequence[Row]) -> bool:
        moved = super().skip_messages(ranges, deferred)
        self._piles.cut_out(ranges)
        self._unsorted = cut_out(self._unsorted, ranges)
        return moved

    # Commits and moves

    def _parked_runs(self) -> Iterable[Run]:
        return chain(self._piles.runs(), self._unsorted)

    def _waiting_rows(self) -> Iterable[Run]:
        """Return the rows to store. Adjacent parked messages are one row, whatever their piles are:
        a start sorts them again. If messages of many piles alternate, these are a few rows instead
        of thousands.
        """
        parked = chain(self._piles.runs(), self._unsorted)
        spans = joined((start, start + count) for start, count, _ in parked)
        return chain(super()._waiting_rows(), ((start, stop - start, 0) for start, stop in spans))

    def seek(self, offset: int) -> None:
        self._piles.clear()
        self._unsorted = []
        super().seek(offset)

    def drop_below(self, start: int) -> bool:
        moved = super().drop_below(start)
        self.counters["dropped_count"] += self._remove(0, start)
        return moved

    # Reports

    def shown(self) -> dict[str, Iterator[Run]]:
        return {**super().shown(), "parked": chain(self._parked_runs())}

    def statistics(self, head: int) -> SupplyPulse:
        """Return the report.

        Parked messages count like requeued ones: they are behind the cursor.
        """
        pulse = super().statistics(head)
        parked = self._piles.messages + total(self._unsorted)
        pulse["depth"] += parked
        pulse["requeued_waiting"] += parked
        pulse["parked_count"] = parked
        return pulse
