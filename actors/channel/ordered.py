"""Ordered supply: delivers the messages of one key in order, one at a time. No I/O.

A message has a slot, selected by the hash of its key. Only one message of a slot is delivered at a
time. Consumers process messages in several threads, so no other rule would keep the order.
Therefore the cursor looks ahead and sorts the messages that it passes:

    window  ->  parked behind its slot's head, or free  ->  in flight  ->  finished
                                                              |    ^
                                                              v    |
                                                       again, deferred: still the head of its slot

When a message is finished, the next message of its slot is free. Parked messages are holes too
(`supply.py`), in rows of adjacent messages with attempts 0. They were never sent, so their first
delivery is the first attempt and needs no commit before it. No message overtakes another one of its
slot: the head is always the slot's lowest message that is not finished. So after a crash it is
enough to sort all rows by slot and offset before any message is sent. This includes deferred rows.

Two limits bound how far the cursor looks ahead: ORDERED_PARKED_MAX messages, and what the shelf
(`BlockShelf`) holds. A parked message whose block is no longer on the shelf must be read again. So
the cursor looks further ahead than the shelf only while too few messages can be sent. A key whose
messages arrive faster than they are finished fills this space. Then the channel is only as fast as
that key's messages are finished. An ordered channel cannot avoid this.

Rejected: giving a slot to one consumer as a whole, several messages at a time. The consumer's
threads would process them at the same time.

Slots. The messages of a slot are:

    head      in flight, to be delivered again, or deferred. Until it is finished, no other
              message of the slot is sent.
    parked    wait behind the head, in the order of their offsets

A slot without a head is *free*: its first parked message may be sent. The free slots are in a heap
by the offset of that message. So the oldest message is sent first, and adjacent messages are sent
together. Messages without a key are in no slot. They are kept as runs in `loose`.

There are 65,536 slots instead of one per key, so memory is bounded for any number of keys.
Sometimes two keys share a slot and wait for each other, which breaks no order.

*Rows of an earlier process.* Their slots are unknown until their blocks are read. The channel sends
nothing until all of them are sorted, because any of them may come first in its slot. Blocks may
arrive in any order, so the sorted rows wait until the last block has arrived.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

from ...transport.block.block import Block
from ...transport.checksum import crc32c
from ...transport.reports import BlockerRow
from ...transport.settings import ChannelSettings
from ...transport.wire.protocol import Run
from ..primitives.ranges import Range, cut_out, take, total
from ..runtime.pulses import SupplyPulse
from ..settings import options
from .deferred import Deferred, Row
from .delivery_builder import DeliveryBuilder
from .dying import REJECTED
from .failures import Cause
from .filters import WANTED, ChannelFilter, count_skipped, wanted_runs
from .lease import Hole, Subscriber
from .supply import Picked, Supply

SLOTS: Final = 65_536
LOOSE: Final = -1  # the slot of a message without a key


def slots_of(block: Block) -> list[int] | None:
    """Return the slot of each message, or None if no message has a key."""
    column = block.key
    if column is None:
        return None
    return [LOOSE if key is None else crc32c(key) % SLOTS for key in column.values()]


class Slots:
    """The waiting messages of an ordered channel, and the heads of the slots.

    `parked` maps offsets to attempts (0: never sent). Its order is ascending if the messages were
    parked in order. `loose` runs are ascending too.
    """

    def __init__(self) -> None:
        self.parked: dict[int, int] = {}
        self.loose: deque[Run] = deque()
        self.loose_messages = 0
        # Slot -> parked offsets. An array takes 8 bytes for each offset. A deque would take 700
        # bytes for the first one.
        self._queues: dict[int, array[int]] = {}
        self._heads: dict[int, int] = {}  # slot -> offset
        self._slot_of: dict[int, int] = {}  # offset of a head -> slot
        self._free: list[tuple[int, int]] = []  # a heap: offset, slot

    @property
    def waiting(self) -> int:
        """The number of messages that are parked or loose."""
        return len(self.parked) + self.loose_messages

    @property
    def available(self) -> int:
        """The number of waiting messages that may be sent now."""
        return len(self._free) + self.loose_messages

    def heads_below(self, offset: int) -> list[int]:
        return [head for head in self._slot_of if head < offset]

    # In

    def park(self, offset: int, slot: int, attempts: int = 0) -> None:
        self.parked[offset] = attempts
        queue = self._queues.get(slot)
        if queue is None:
            self._queues[slot] = array("q", (offset,))
            if slot not in self._heads:
                heapq.heappush(self._free, (offset, slot))
            return
        assert queue[-1] < offset, "messages are parked in their order"
        queue.append(offset)

    def loosen(self, start: int, count: int) -> None:
        """Add messages without a key."""
        self.loose_messages += count
        if self.loose and self.loose[-1][0] + self.loose[-1][1] == start:
            start, before, _ = self.loose.pop()
            count += before
        self.loose.append((start, count, 0))

    def hold(self, offset: int, slot: int) -> bool:
        """Make a message that was sent and is not finished the head of its slot.

        Return False if the slot is already in use.
        """
        if slot in self._heads or slot in self._queues:
            return False
        self._heads[slot] = offset
        self._slot_of[offset] = slot
        return True

    # Out

    def next_free(self) -> int:
        """Return the lowest offset of a message with a key that may be sent, or -1 if there is
        none.
        """
        return self._free[0][0] if self._free else -1

    def take(self) -> tuple[int, int]:
        """Take the message at `next_free`, and return its offset and attempts.

        It is now the head of its slot.
        """
        offset, slot = heapq.heappop(self._free)
        queue = self._queues[slot]
        if len(queue) == 1:
            del self._queues[slot]
        else:
            del queue[0]
        self._heads[slot] = offset
        self._slot_of[offset] = slot
        return offset, self.parked.pop(offset)

    def take_loose(self, count: int) -> int:
        """Take `count` messages of the first loose run, and return the first offset."""
        start, size, attempts = self.loose.popleft()
        assert count <= size
        if count < size:
            self.loose.appendleft((start + count, size - count, attempts))
        self.loose_messages -= count
        return start

    def set_aside(self) -> tuple[int, int]:
        """Remove and return the lowest free entry, which cannot be sent now.

        `put_back` adds it again.
        """
        return heapq.heappop(self._free)

    def put_back(self, aside: Iterable[tuple[int, int]]) -> None:
        for entry in aside:
            heapq.heappush(self._free, entry)

    # Finished

    def release(self, heads: Iterable[int]) -> None:
        """Release these heads, which are finished or given up.

        The next message of each of their slots may be sent.
        """
        for offset in heads:
            slot = self._slot_of.pop(offset)
            del self._heads[slot]
            queue = self._queues.get(slot)
            if queue is not None:
                heapq.heappush(self._free, (queue[0], slot))

    def heads_in(self, runs: Iterable[Run]) -> list[int]:
        """Return the offsets in these runs that are heads.

        The cost does not grow with the length of a run of messages without a key.
        """
        heads: list[int] = []
        slot_of = self._slot_of
        for start, count, _ in runs:
            if count <= len(slot_of):
                heads += [offset for offset in range(start, start + count) if offset in slot_of]
            else:
                heads += [offset for offset in slot_of if start <= offset < start + count]
        return heads

    def remove(self, start: int, stop: int) -> int:
        """Remove the parked and loose messages of this range, and return how many there were."""
        before = self.waiting
        self.parked = {
            offset: attempts
            for offset, attempts in self.parked.items()
            if not start <= offset < stop
        }
        if len(self.parked) + self.loose_messages < before:
            self._unqueue(range(start, stop))
        self._cut_loose([(start, stop - start)])
        return before - self.waiting

    def cut_out(self, ranges: Sequence[Range]) -> None:
        """Remove the parked and loose messages of these ranges, which have few offsets."""
        offsets = (one for first, count in ranges for one in range(first, first + count))
        gone = {offset for offset in offsets if self.parked.pop(offset, None) is not None}
        if gone:
            self._unqueue(gone)
        self._cut_loose(ranges)

    def _unqueue(self, gone: Container[int]) -> None:
        cut = {
            slot: array("q", (offset for offset in queue if offset not in gone))
            for slot, queue in self._queues.items()
        }
        self._queues = {slot: queue for slot, queue in cut.items() if queue}
        self._free = [
            (queue[0], slot) for slot, queue in self._queues.items() if slot not in self._heads
        ]
        heapq.heapify(self._free)

    def _cut_loose(self, ranges: Sequence[Range]) -> None:
        self.loose = deque(cut_out(self.loose, ranges))
        self.loose_messages = total(self.loose)

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]

    # Rows

    def waiting_behind(self, offset: int) -> int:
        """Return how many messages wait for this one, or 0 if it is no head."""
        slot = self._slot_of.get(offset)
        return 0 if slot is None else len(self._queues.get(slot, ()))

    def blocking(self) -> Iterator[tuple[int, int]]:
        """Yield the heads that others wait for, with the number of those others."""
        return (
            (self._heads[slot], len(queue))
            for slot, queue in self._queues.items()
            if slot in self._heads
        )

    def runs(self) -> Iterator[Run]:
        """Yield the parked and loose messages as rows, with adjacent messages in one row."""
        yield from joined(self.parked.items())
        yield from self.loose


def joined(items: Iterable[tuple[int, int]]) -> Iterator[Run]:
    """Yield ascending pairs (offset, attempts) as runs."""
    first = following = -1
    same = 0
    for offset, attempts in items:
        if offset != following or attempts != same:
            if first >= 0:
                yield first, following - first, same
            first, same = offset, attempts
        following = offset + 1
    if first >= 0:
        yield first, following - first, same


class Sorted(NamedTuple):
    """A message with its slot, or a run of messages if the slot is LOOSE.

    If `due_ns` is not 0, the message is deferred and its row is in the state store.
    """

    start: int
    messages: int
    slot: int
    attempts: int
    due_ns: int


class Unsorted:
    """Rows of an earlier process that are not sorted into slots yet."""

    def __init__(self) -> None:
        self._rows: list[Hole] = []  # these rows are in the state store
        self._left: list[Hole] = []  # rows that are not sorted yet, ascending
        self._found: list[Sorted] = []
        self._ascending = True

    def __bool__(self) -> bool:
        """Return True if there are rows that `done` has not taken."""
        return bool(self._rows)

    def add(self, row: Hole) -> None:
        self._rows.append(row)
        self._left.append(row)
        self._ascending = False

    def _order(self) -> None:
        if not self._ascending:
            self._left.sort()
            self._ascending = True

    def wanted(self, limit: int, near: int) -> list[int]:
        """Return offsets whose blocks are needed, at most `limit`.

        They are at least `near` apart, because one read brings all blocks that are closer.
        """
        self._order()
        offsets: list[int] = []
        for start, count, _, _ in self._left:
            at = max(start, offsets[-1] + near) if offsets else start
            while at < start + count:
                if len(offsets) >= limit:
                    return offsets
                offsets.append(at)
                at += near
        return offsets

    def sort(self, block: Block) -> None:
        """Sort the messages of this block."""
        self._order()
        first, stop = block.first_offset, block.next_offset
        low = bisect_left(self._left, (first,))
        if low and self._left[low - 1][0] + self._left[low - 1][1] > first:
            low -= 1
        high = bisect_left(self._left, (stop,))
        if low == high:
            return
        slots = slots_of(block)
        left: list[Hole] = []
        for start, count, attempts, due_ns in self._left[low:high]:
            begin, end = max(start, first), min(start + count, stop)
            if start < begin:
                left.append((start, begin - start, attempts, due_ns))
            self._found += (
                Sorted(at, messages, slot, attempts, due_ns)
                for at, messages, slot in by_slot(slots, first, begin - first, end - first)
            )
            if end < start + count:
                left.append((end, start + count - end, attempts, due_ns))
        self._left[low:high] = left

    def is_done(self) -> bool:
        return not self._left

    def done(self) -> list[Sorted]:
        """Return all sorted rows in the order of their offsets."""
        assert self.is_done()
        sorted_rows = sorted(self._found)
        self.__init__()  # type: ignore[misc]
        return sorted_rows

    def remove(self, start: int, stop: int) -> int:
        """Remove the rows of this range, and return how many messages there were.

        Deferred messages are removed but not counted here. They are counted when they become due.
        """
        before = self.messages()
        self.cut_out([(start, stop - start)])
        return before - self.messages()

    def cut_out(self, ranges: Sequence[Range]) -> None:
        """Remove the rows of these ranges, also deferred ones."""
        self._rows, self._left = _without(self._rows, ranges), _without(self._left, ranges)
        self._found = [one for found in self._found for one in _cut(found, ranges)]

    def runs(self) -> Iterator[Run]:
        """Return the rows, without deferred ones."""
        return (row[:3] for row in self._rows if not row[3])

    def messages(self) -> int:
        """Return the number of messages in `runs`, without those on their way to the dead
        letters.
        """
        return total(run for run in self.runs() if run[2] < REJECTED)


def by_slot(
    slots: list[int] | None, first_offset: int, start: int, stop: int
) -> Iterator[tuple[int, int, int]]:
    """Yield (offset, messages, slot) for these indexes of a block.

    Each message with a key comes alone. Messages without a key come as runs.
    """
    if slots is None:
        if start < stop:
            yield first_offset + start, stop - start, LOOSE
        return
    at = start
    while at < stop:
        slot = slots[at]
        end = at + 1
        if slot == LOOSE:
            while end < stop and slots[end] == LOOSE:
                end += 1
        yield first_offset + at, end - at, slot
        at = end


def _without(rows: list[Hole], ranges: Sequence[Range]) -> list[Hole]:
    return [(*run, row[3]) for row in rows for run in cut_out((row[:3],), ranges)]


def _cut(row: Sorted, ranges: Sequence[Range]) -> list[Sorted]:
    left = cut_out(((row.start, row.messages, 0),), ranges)
    return [row._replace(start=first, messages=count) for first, count, _ in left]


class OrderedSupply(Supply):
    """A `Supply` whose messages to send are in `_slots`, not in the window."""

    fetch_bytes = options.ORDERED_READ_BYTES
    goes_back = False
    parks = True

    def __init__(
        self, next_offset: int, holes: Iterable[Hole], deferred: Deferred, counters: dict[str, int], settings: ChannelSettings,
        choice: ChannelFilter | None = None,
    ) -> None:  # fmt: skip
        self._slots = Slots()
        self._unsorted = Unsorted()
        self._out: set[int] = set()  # heads in flight
        self._near = 1_000  # approximate number of messages that one read brings
        # The last sorted block with its slots. It is kept because it may be sorted in pieces.
        self._known: tuple[Block, list[int] | None] | None = None
        deferred.limit(options.ORDERED_DEFERRED_ROWS_MAX)
        super().__init__(next_offset, holes, deferred, counters, settings, choice)

    # Rows of an earlier process

    def _recover(self, run: Run, due_ns: int) -> None:
        self._unsorted.add((*run, due_ns))

    def _is_sorted(self) -> bool:
        """Return True if all rows of an earlier process are sorted.

        If not, request the missing blocks.
        """
        if not self._unsorted:
            return True
        if not self._unsorted.is_done():
            self.wanted.update(self._unsorted.wanted(options.FETCHES_MAX, self._near))
            return False
        for row in self._unsorted.done():
            self._place(row)
        return True

    def _place(self, row: Sorted) -> None:
        """Put a sorted row in its place.

        The rows come in the order of their offsets, so the head of a slot comes first.
        """
        run = (row.start, row.messages, row.attempts)
        if row.slot == LOOSE:
            if not row.due_ns and row.attempts:
                super()._recover(run, 0)
            elif not row.due_ns:
                self._slots.loosen(row.start, row.messages)
        elif row.due_ns:
            self._slots.hold(row.start, row.slot)  # the state store returns the row when it is due
        elif row.attempts and self._slots.hold(row.start, row.slot):
            super()._recover(run, 0)
        else:
            self._slots.park(row.start, row.slot, row.attempts)

    # Blocks

    def shelve(self, block: Block) -> None:
        """Sort a block that was read, and keep it if the cursor has passed it.

        A read may bring more blocks than requested. Those ahead of the cursor come through the
        feed.
        """
        self._near = max(1, self.fetch_bytes * block.count // block.length)
        if self._unsorted:
            self._unsorted.sort(block)
        if block.first_offset < self.next_offset:
            super().shelve(block)

    def lost(self, start: int, stop: int) -> None:
        given_up = [
            *self.again.ready,
            *self.apart.ready,
            *(death.run for death in self.dying.waiting),
        ]
        super().lost(start, stop)
        self._over(
            run for death_run in given_up for run in take([death_run], [(start, stop - start)])[0]
        )
        self.counters["lost_count"] += self._slots.remove(start, stop) + self._unsorted.remove(
            start, stop
        )

    def drop_blocks(self) -> None:
        super().drop_blocks()
        self._known = None

    # In

    def _look_ahead(self, rows_out: int, wall_ns: int) -> None:
        """Sort the next messages until enough messages can be sent."""
        while self.looks > 0 and self._looks_on(rows_out):
            block = self._window[0]
            # Skip a gap, if there is one.
            self.next_offset = max(self.next_offset, block.first_offset)
            if not self._is_sound(block):
                return
            start = self.next_offset - block.first_offset
            stop = min(block.count, start + options.ORDERED_PARKED_MAX - self._slots.waiting)
            mask = self._mask(block, wall_ns)
            if mask is not None:
                count_skipped(self.counters, mask, start, stop)
            for low, high in ((start, stop),) if mask is None else wanted_runs(mask, start, stop):
                self._sort(block, low, high)
            self.looks -= options.ORDERED_LOOK * (stop - start) + options.LOOK_BLOCK
            self._advance(block, stop)
            self.dirty = True

    def _looks_on(self, rows_out: int) -> bool:
        slots = self._slots
        if (
            slots.available >= options.ORDERED_AHEAD
            or slots.waiting >= options.ORDERED_PARKED_MAX
            or not super()._has_new(rows_out)
        ):
            return False
        block = self._window[0]
        on_shelf = slots.waiting * block.length // block.count < options.CACHE_BYTES_MAX // 2
        return on_shelf or slots.available + len(self._out) < options.ORDERED_BUSY

    def _sort(self, block: Block, start: int, stop: int) -> None:
        if self._known is None or self._known[0] is not block:
            self._known = block, slots_of(block)
        slots = self._slots
        for offset, messages, slot in by_slot(self._known[1], block.first_offset, start, stop):
            if slot == LOOSE:
                slots.loosen(offset, messages)
            else:
                slots.park(offset, slot)

    # Out

    def share(self, takers: int, in_flight: int, rows_out: int, wall_ns: int) -> int:
        """Return the number of messages that are or could be in flight, divided by the number of
        consumers.

        If one consumer took more, the others would find no message that may be sent.
        """
        if not takers or not self._is_sorted():
            return 0
        self._look_ahead(rows_out, wall_ns)
        return max(1, -(-(in_flight + self._slots.available) // takers))

    def pick(self, consumer: Subscriber, room: int, rows_out: int, wall_ns: int) -> Picked | None:
        if not self._is_sorted():
            return None
        self._look_ahead(rows_out, wall_ns)
        was_free = self._slots.available > 0
        picked = super().pick(consumer, room, rows_out, wall_ns)
        # Redeliveries that became too old have freed their slots.
        if picked is None and not was_free and self._slots.available:
            picked = super().pick(consumer, room, rows_out, wall_ns)
        if picked is not None and consumer.again_last:
            self._out.update(self._slots.heads_in(picked.runs))
        return picked

    def pick_apart(self, consumer: Subscriber, room: int, wall_ns: int) -> Picked | None:
        if not self._is_sorted():
            return None
        picked = super().pick_apart(consumer, room, wall_ns)
        if picked is not None:
            self._out.update(self._slots.heads_in(picked.runs))
        return picked

    def may_ask(self, rows_out: int) -> bool:
        """Return True if the state store should be asked which messages are due.

        It is not asked before all rows are sorted. Otherwise a message that becomes due could be
        finished before the rows are sorted. It would then still become a head, and nothing would
        release it.
        """
        return not self._unsorted and super().may_ask(rows_out)

    def _has_new(self, rows_out: int) -> bool:
        return self._slots.available > 0

    def _new(self, consumer: Subscriber, room: int, wall_ns: int) -> Picked | None:
        """Gather free messages, the oldest first.

        A run of at least ORDERED_ALONE messages without a key is sent as a separate delivery.
        """
        builder = DeliveryBuilder(room, options.ORDERED_ALONE)
        aside: list[tuple[int, int]] = []  # free messages whose blocks are not in memory
        slots = self._slots
        loose_here = True
        while builder.has_room() and len(aside) < options.ORDERED_MISSED_MAX and self.looks > 0:
            loose = slots.loose[0][0] if slots.loose and loose_here else -1
            offset = slots.next_free()
            keyed = offset >= 0 and not 0 <= loose < offset
            offset, count = (
                (offset, 1) if keyed else (loose, slots.loose[0][1] if loose >= 0 else 0)
            )
            if offset < 0:
                break
            block = builder.block_of(offset) or self._find(offset)
            if block is None:
                self._want(offset)
                if keyed:
                    aside.append(slots.set_aside())
                loose_here = loose_here and keyed
                continue
            at = offset - block.first_offset
            count = min(count, block.count - at)
            reason, count = self.first_of(block, at, count, wall_ns)
            if reason != WANTED:
                self._give_up_waiting(offset, count, keyed, reason)
                continue
            count = builder.count_that_fits(block, at, count, sampled=consumer.sample_rate > 0)
            if not count:
                break
            self._give(builder, consumer, block, at, count, keyed)
        slots.put_back(aside)
        return builder.picked()

    def _give(
        self,
        builder: DeliveryBuilder,
        consumer: Subscriber,
        block: Block,
        at: int,
        count: int,
        keyed: bool,
    ) -> None:
        """Give the consumer these messages, or those of them that are in its sample."""
        offset = block.first_offset + at
        if consumer.sample_rate:
            taken = self.choice.in_sample(consumer.sample_rate)
            builder.offered += 1
            if not taken:
                self._pass(offset, 1, keyed)
                self.counters["sampled_count"] += 1
                consumer.sampled_count += 1
                return
        if keyed:
            _, attempts = self._slots.take()
            if attempts:  # an earlier process sent it: commit its next attempt number first
                super()._recover((offset, 1, attempts), 0)
                self.dirty = True
                return
            self._out.add(offset)
        else:
            self._slots.take_loose(count)
        builder.add(block, at, at + count)

    def _give_up_waiting(self, offset: int, count: int, keyed: bool, reason: int) -> None:
        """Give up messages that have ended. A slot waits until its dead letter is stored."""
        attempts = 0
        if keyed:
            _, attempts = self._slots.take()
        else:
            self._slots.take_loose(count)
        self.looks -= count
        self.dirty = True
        self.give_up((offset, count, attempts), reason)

    def _pass(self, offset: int, count: int, keyed: bool) -> None:
        """Finish these messages for this channel without a delivery."""
        if keyed:
            self._slots.take()
            self._slots.release((offset,))
        else:
            self._slots.take_loose(count)
        self.looks -= count
        self.dirty = True

    def _want(self, offset: int) -> None:
        if len(self.wanted) < options.FETCHES_MAX and all(
            abs(offset - other) >= self._near for other in self.wanted
        ):
            self.wanted.add(offset)

    # Back

    def take_back(self, runs: Iterable[Run]) -> None:
        runs = list(runs)
        self._out.difference_update(self._slots.heads_in(runs))
        super().take_back(runs)

    def done(self, runs: Sequence[Run]) -> None:
        super().done(runs)
        self._over(runs)

    def back(self, runs: Sequence[Run], cause: Cause) -> None:
        self._out.difference_update(self._slots.heads_in(runs))
        super().back(runs, cause)

    def suspect(self, runs: Sequence[Run], cause: Cause) -> None:
        self._out.difference_update(self._slots.heads_in(runs))
        super().suspect(runs, cause)

    def later(self, runs: Sequence[Run], due_ns: int, cause: Cause) -> None:
        heads = self._slots.heads_in(runs)
        self._out.difference_update(heads)
        super().later(runs, due_ns, cause)
        self._release_gone([head for head in heads if head < self._start])

    def reject(self, runs: Sequence[Run], cause: Cause) -> None:
        """Reject these messages. Their slots wait until they are stored as dead letters.

        The next message of a slot must not be processed before the dead letter is durable.
        """
        self._out.difference_update(self._slots.heads_in(runs))
        super().reject(runs, cause)

    def skip_messages(self, ranges: Sequence[Range], deferred: Sequence[Row]) -> bool:
        moved = super().skip_messages(ranges, deferred)
        self._slots.cut_out(ranges)
        self._unsorted.cut_out(ranges)
        return moved

    def _over(self, runs: Iterable[Run]) -> None:
        """Release the slots of these messages, which are never sent again."""
        heads = self._slots.heads_in(runs)
        self._out.difference_update(heads)
        self._slots.release(heads)

    # Commits and moves

    def _waiting_rows(self) -> Iterable[Run]:
        return chain(super()._waiting_rows(), self._slots.runs(), self._unsorted.runs())

    def seek(self, offset: int) -> None:
        self._slots.clear()
        self._unsorted = Unsorted()
        self._out.clear()
        super().seek(offset)

    def drop_below(self, start: int) -> bool:
        moved = super().drop_below(start)
        self.counters["dropped_count"] += self._slots.remove(0, start) + self._unsorted.remove(
            0, start
        )
        self._release_gone(self._slots.heads_below(start))
        return moved

    def _release_gone(self, heads: Sequence[int]) -> None:
        """Release the slots of heads whose messages were removed from the topic.

        The slots do not wait until these messages are due. Only heads that are in flight or on
        their way to the dead letters keep their slots until they end.
        """
        if heads:
            dying = self._slots.heads_in(
                death.run for death in chain(self.dying.out, self.dying.waiting)
            )
            kept = self._out.union(dying)
            self._slots.release([head for head in heads if head not in kept])

    # Reports

    def shown(self) -> dict[str, Iterator[Run]]:
        return {**super().shown(), "parked": chain(self._slots.runs(), self._unsorted.runs())}

    def blocking(self, limit: int) -> dict[int, int]:
        failed = self._failed_heads()
        ranked = heapq.nlargest(
            limit, self._slots.blocking(), key=lambda head: (head[0] in failed, head[1], -head[0])
        )
        return dict(ranked)

    def blockers(self) -> tuple[BlockerRow, ...]:
        rows = sorted(
            self._failed_heads().values(), key=lambda row: (-row["waiting"], row["offset"])
        )
        return tuple(rows[: options.BLOCKERS_SHOWN])

    def _failed_heads(self) -> dict[int, BlockerRow]:
        failed: dict[int, BlockerRow] = {}
        for run, error in self.failures.newest():
            for offset in self._slots.heads_in((run,)):
                if offset not in failed and (waiting := self._slots.waiting_behind(offset)):
                    failed[offset] = {
                        "offset": offset,
                        "waiting": waiting,
                        "attempts": run[2],
                        "error": error,
                    }
        return failed

    def statistics(self, head: int) -> SupplyPulse:
        """Return the report.

        Parked messages count like requeued ones: they are behind the cursor.
        """
        pulse = super().statistics(head)
        parked = self._slots.waiting + self._unsorted.messages()
        pulse["depth"] += parked
        pulse["requeued_waiting"] += parked
        pulse["parked_count"] = parked
        return pulse
