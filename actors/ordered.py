"""Where the messages of an ordered channel come from: of one key one after the other, of many keys at once. Pure.

A message has a slot by the hash of its key (`slots.py`). Of a slot one message is out at a time, for nothing else keeps an order where
consumers have threads. So the cursor looks ahead and sorts what it passes:

    window  ->  parked behind its slot's head, or free  ->  in flight  ->  finished: the next of its slot is free
                                                              |    ^
                                                              v    |
                                                       again, deferred: still the head of its slot

What is parked is a hole like any other, in rows of neighbours with attempts 0: it was never sent, so its first delivery is the first
attempt and needs no commit before. Nothing of a slot ever overtakes: the head is always the slot's lowest message that is not finished.
So after a crash it is enough to sort all rows by slot and offset (`unsorted.py`), deferred ones too, before anything goes out.

How far it looks ahead is bounded: by ORDERED_PARKED_MAX messages, and by what the shelf of blocks holds, for what was parked longer
ago has to be read again; beyond that only while there is too little to do. A key whose messages come faster than they are
finished fills that up, and then the channel goes at the pace of that key: this is the price of its order.

Rejected: handing a slot to one consumer as a whole, several messages at a time. Its handler's threads would run them at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from ..transport.block import Block
from ..transport.protocol import Run
from . import options
from .again import Part
from .channel_settings import ChannelSettings
from .choice import Choice, count_skipped, wanted_runs
from .deferred import Deferred
from .lease import Consumer, Hole
from .ranges import take
from .slots import LOOSE, Slots, slots_of
from .supply import Picked, Supply
from .unsorted import Sorted, Unsorted, by_slot


class OrderedSupply(Supply):
    """As `Supply`; what is there to be sent is in `_slots`, not in the window."""

    fetch_bytes = options.ORDERED_READ_BYTES

    def __init__(
        self, next_offset: int, holes: Iterable[Hole], deferred: Deferred, counters: dict[str, int], settings: ChannelSettings,
        choice: Choice | None = None,
    ) -> None:  # fmt: skip
        self._slots = Slots()
        self._unsorted = Unsorted()
        self._out: set[int] = set()  # heads that consumers hold
        self._near = 1_000  # messages that one read brings, about
        self._known: tuple[Block, list[int] | None] | None = None  # the block that was sorted last, for it may be sorted in pieces
        deferred.limit(options.ORDERED_DEFERRED_ROWS_MAX)
        super().__init__(next_offset, holes, deferred, counters, settings, choice)

    # A predecessor's rows

    def _recover(self, run: Run, due_ns: int) -> None:
        self._unsorted.add((*run, due_ns))

    def _is_sorted(self) -> bool:
        """All rows of a predecessor are. Else the blocks that are missing for it are wanted."""
        if not self._unsorted:
            return True
        if not self._unsorted.is_done():
            self.wanted.update(self._unsorted.wanted(options.FETCHES_MAX, self._near))
            return False
        for one in self._unsorted.done():
            self._place(one)
        return True

    def _place(self, one: Sorted) -> None:
        """They come in the order of their offsets, so a slot's head comes first."""
        run = (one.start, one.messages, one.attempts)
        if one.slot == LOOSE:
            if not one.due_ns and one.attempts:
                super()._recover(run, 0)
            elif not one.due_ns:
                self._slots.loosen(one.start, one.messages)
        elif one.due_ns:
            self._slots.hold(one.start, one.slot)  # the store will name it when it is due
        elif one.attempts and self._slots.hold(one.start, one.slot):
            super()._recover(run, 0)
        else:
            self._slots.park(one.start, one.slot, one.attempts)

    # Blocks

    def shelve(self, block: Block) -> None:
        """A read may bring blocks that nobody asked for: of those the ones that the cursor has not reached come by the feed."""
        self._near = max(1, self.fetch_bytes * block.count // block.length)
        if self._unsorted:
            self._unsorted.sort(block)
        if block.first_offset < self.next_offset:
            super().shelve(block)

    def lost(self, start: int, stop: int) -> None:
        given_up = [*self.again.ready, *(death.run for death in self.dying.waiting)]
        super().lost(start, stop)
        self._over(run for found in given_up for run in take([found], [(start, stop - start)])[0])
        self.counters["lost_count"] += self._slots.remove(start, stop) + self._unsorted.remove(start, stop)

    def drop_blocks(self) -> None:
        super().drop_blocks()
        self._known = None

    # In

    def _look_ahead(self, rows_out: int, wall_ns: int) -> None:
        """Sort what comes next, until there is enough to do."""
        while self.looks > 0 and self._looks_on(rows_out):
            block = self._window[0]
            self.next_offset = max(self.next_offset, block.first_offset)  # over a gap, where there is one
            start = self.next_offset - block.first_offset
            stop = min(block.count, start + options.ORDERED_PARKED_MAX - self._slots.waiting)
            mask = self.choice.mask(block, wall_ns)
            if mask is not None:
                count_skipped(self.counters, mask, start, stop)
            for low, high in ((start, stop),) if mask is None else wanted_runs(mask, start, stop):
                self._sort(block, low, high)
            self.looks -= options.ORDERED_LOOK * (stop - start) + options.LOOK_BLOCK
            self._advance(block, stop)
            self.dirty = True

    def _looks_on(self, rows_out: int) -> bool:
        slots = self._slots
        if slots.available >= options.ORDERED_AHEAD or slots.waiting >= options.ORDERED_PARKED_MAX or not super()._has_new(rows_out):
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
        """All that is out or could be, by the number of consumers: who would take more leaves the others without keys."""
        if not takers or not self._is_sorted():
            return 0
        self._look_ahead(rows_out, wall_ns)
        return max(1, -(-(in_flight + self._slots.available) // takers))

    def pick(self, consumer: Consumer, room: int, rows_out: int, wall_ns: int) -> Picked | None:
        if not self._is_sorted():
            return None
        self._look_ahead(rows_out, wall_ns)
        was_free = self._slots.available > 0
        picked = super().pick(consumer, room, rows_out, wall_ns)
        if picked is None and not was_free and self._slots.available:  # what was to come again grew too old, and freed its slots
            picked = super().pick(consumer, room, rows_out, wall_ns)
        if picked is not None and consumer.again_last:
            self._out.update(self._slots.heads_in(picked.runs))
        return picked

    def may_ask(self, rows_out: int) -> bool:
        """Not before all is sorted: what came due might be over by then, and yet be placed as a head that nothing ever releases."""
        return not self._unsorted and super().may_ask(rows_out)

    def _has_new(self, rows_out: int) -> bool:
        return self._slots.available > 0

    def _new(self, consumer: Consumer, room: int, wall_ns: int) -> Picked | None:
        """What is free, the oldest first, gathered; a long run of messages without a key by itself."""
        filling = _Filling(room)
        aside: list[tuple[int, int]] = []  # free ones whose blocks are not here
        slots = self._slots
        loose_here = True
        while filling.has_room() and len(aside) < options.ORDERED_MISSED_MAX and self.looks > 0:
            loose = slots.loose[0][0] if slots.loose and loose_here else -1
            offset = slots.next_free()
            keyed = offset >= 0 and not 0 <= loose < offset
            offset, count = (offset, 1) if keyed else (loose, slots.loose[0][1] if loose >= 0 else 0)
            if offset < 0:
                break
            block = filling.block_of(offset) or self._find(offset)
            if block is None:
                self._want(offset)
                if keyed:
                    aside.append(slots.set_aside())
                loose_here = loose_here and keyed
                continue
            at = offset - block.first_offset
            count = min(count, block.count - at)
            if self.choice.is_too_old(block, wall_ns):
                self._pass(offset, count, keyed)
                self.counters["expired_count"] += count
                continue
            count = filling.fitting(block, at, count, sampled=consumer.sample_rate > 0)
            if not count:
                break
            self._give(filling, consumer, block, at, count, keyed)
        slots.put_back(aside)
        return filling.picked()

    def _give(self, filling: _Filling, consumer: Consumer, block: Block, at: int, count: int, keyed: bool) -> None:
        """These to the consumer, or those of them that are in its sample."""
        offset = block.first_offset + at
        if consumer.sample_rate:
            taken = self.choice.in_sample(consumer.sample_rate)
            filling.offered += 1
            if not taken:
                self._pass(offset, 1, keyed)
                self.counters["sampled_count"] += 1
                consumer.sampled_count += 1
                return
        if keyed:
            _, attempts = self._slots.take()
            if attempts:  # it was sent before, by a predecessor: its next number is committed first
                super()._recover((offset, 1, attempts), 0)
                self.dirty = True
                return
            self._out.add(offset)
        else:
            self._slots.take_loose(count)
        filling.add(block, at, at + count)

    def _pass(self, offset: int, count: int, keyed: bool) -> None:
        """These are finished for this channel without a delivery."""
        if keyed:
            self._slots.take()
            self._slots.release((offset,))
        else:
            self._slots.take_loose(count)
        self.looks -= count
        self.dirty = True

    def _want(self, offset: int) -> None:
        if len(self.wanted) < options.FETCHES_MAX and all(abs(offset - other) >= self._near for other in self.wanted):
            self.wanted.add(offset)

    # Back

    def done(self, runs: Sequence[Run]) -> None:
        super().done(runs)
        self._over(runs)

    def back(self, runs: Sequence[Run], cause: str) -> None:
        self._out.difference_update(self._slots.heads_in(runs))
        super().back(runs, cause)

    def later(self, runs: Sequence[Run], due_ns: int, cause: str) -> None:
        heads = self._slots.heads_in(runs)
        self._out.difference_update(heads)
        super().later(runs, due_ns, cause)
        self._release_gone([head for head in heads if head < self._start])

    def reject(self, runs: Sequence[Run], cause: str) -> None:
        """Its slot waits until it is a dead letter: what comes after it shall not be done before that is said."""
        self._out.difference_update(self._slots.heads_in(runs))
        super().reject(runs, cause)

    def _over(self, runs: Iterable[Run]) -> None:
        """Nothing of these will be sent any more."""
        heads = self._slots.heads_in(runs)
        self._out.difference_update(heads)
        self._slots.release(heads)

    # Commits and moves

    def _held(self) -> Iterable[Run]:
        return chain(super()._held(), self._slots.runs(), self._unsorted.runs())

    def seek(self, offset: int) -> None:
        self._slots.clear()
        self._unsorted = Unsorted()
        self._out.clear()
        super().seek(offset)

    def drop_below(self, start: int) -> bool:
        moved = super().drop_below(start)
        self.counters["dropped_count"] += self._slots.remove(0, start) + self._unsorted.remove(0, start)
        self._release_gone(self._slots.heads_below(start))
        return moved

    def _release_gone(self, heads: Sequence[int]) -> None:
        """Their messages are gone: their slots do not wait for them to be due. Only what is with a consumer or on its way to the dead
        letters still ends by itself."""
        if heads:
            dying = self._slots.heads_in(death.run for death in chain(self.dying.out, self.dying.waiting))
            kept = self._out.union(dying)
            self._slots.release([head for head in heads if head not in kept])

    # What it looks like from outside

    def shown(self) -> dict[str, Iterator[Run]]:
        return {**super().shown(), "parked": chain(self._slots.runs(), self._unsorted.runs())}

    def statistics(self, head: int) -> dict[str, Any]:
        """What is parked waits as what is requeued does: it is behind the cursor."""
        found = super().statistics(head)
        parked = self._slots.waiting + self._unsorted.messages()
        found["depth"] += parked
        found["requeued_waiting"] += parked
        return {**found, "parked_count": parked}


class _Filling:
    """A delivery in the making. Each message of a key comes here by itself, so what is known of the last block is kept."""

    def __init__(self, room: int) -> None:
        self.offered = 0
        self._room = min(room, options.GATHER_COUNT_MAX)
        self._room_alone = room
        self._runs: list[Run] = []
        self._parts: list[Part] = []
        self._count = 0
        self._size = 0
        self._alone = False
        self._following = -1
        self._block: Block | None = None  # the last one
        self._first = self._stop = 0
        self._ends: list[memoryview] = []  # offsets of its columns

    def has_room(self) -> bool:
        if self._count >= self._room or self._size >= options.GATHER_BYTES_MAX or self._alone:
            return False
        return self.offered < self._room

    def block_of(self, offset: int) -> Block | None:
        """The last block, if that is the one."""
        return self._block if self._first <= offset < self._stop else None

    def fitting(self, block: Block, start: int, count: int, *, sampled: bool) -> int:
        """How many of these may be added; 0: none any more."""
        if sampled:
            count = 1
        elif count >= options.ORDERED_ALONE:
            if self._parts:
                return 0
            self._alone = True  # by a cut, which may be as large as its block
            return min(count, self._room_alone)
        if block is not self._block:
            self._block, self._first, self._stop = block, block.first_offset, block.next_offset
            self._ends = [column.offsets for column in (block.body, block.key, block.tag, block.headers) if column is not None]
        count = min(count, self._room - self._count)
        size = self._size
        for ends in self._ends:
            size += ends[start + count] - ends[start]
        if self._parts and size > options.GATHER_BYTES_MAX:
            return 0
        self._size = size
        return count

    def add(self, block: Block, start: int, stop: int) -> None:
        self._count += stop - start
        offset, count = block.first_offset + start, stop - start
        if offset == self._following:
            first, before, _ = self._runs.pop()
            self._runs.append((first, before + count, 1))
        else:
            self._runs.append((offset, count, 1))
        self._following = offset + count
        if self._parts and self._parts[-1][2] == start and self._parts[-1][0] is block:
            start = self._parts.pop()[1]
        self._parts.append((block, start, stop))

    def picked(self) -> Picked | None:
        if not self._runs and not self.offered:
            return None
        return Picked(self._runs, self._parts, self.offered)
