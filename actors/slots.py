"""Which message of a key goes next: a slot for each hash of a key, with one message out at a time. Pure.

Of one slot

    head      is with a consumer, or comes again, or is deferred; until it is finished nothing else of the slot goes out
    parked    wait behind it, in the order of their offsets

A slot without a head is *free*: its first parked message may go out. The free ones stand in a heap by that message's offset, so what is
oldest goes first, and what lies together goes together. Messages without a key are in no slot: they are `loose`, as runs.

65,536 slots and not the keys themselves: memory has a bound, however many keys there are. Two keys of one slot wait for each other now and
then, which breaks no order.
"""

from __future__ import annotations

import heapq
from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from crc32c import crc32c

from ..transport.block import Block
from ..transport.protocol import Run

SLOTS: Final = 65_536
LOOSE: Final = -1  # the slot of a message without a key


def slots_of(block: Block) -> list[int] | None:
    """A slot a message; None: none has a key."""
    column = block.key
    if column is None:
        return None
    return [LOOSE if key is None else crc32c(key) % SLOTS for key in column.values()]


class Slots:
    """`parked`: offset -> attempts (0: never sent), ascending where they were parked in order; `loose` runs are ascending, too."""

    def __init__(self) -> None:
        self.parked: dict[int, int] = {}
        self.loose: deque[Run] = deque()
        self.loose_messages = 0
        self._queues: dict[int, array[int]] = {}  # slot -> its parked ones; an array takes 8 bytes for each, a deque 700 for the first
        self._heads: dict[int, int] = {}  # slot -> offset
        self._slot_of: dict[int, int] = {}  # of heads
        self._free: list[tuple[int, int]] = []  # a heap: offset, slot

    @property
    def waiting(self) -> int:
        """Messages that are parked or loose."""
        return len(self.parked) + self.loose_messages

    @property
    def available(self) -> int:
        """Those of them that may go out now."""
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
        """Messages without a key."""
        self.loose_messages += count
        if self.loose and self.loose[-1][0] + self.loose[-1][1] == start:
            start, before, _ = self.loose.pop()
            count += before
        self.loose.append((start, count, 0))

    def hold(self, offset: int, slot: int) -> bool:
        """It was sent, and is not finished: the head of its slot. False: the slot has another one."""
        if slot in self._heads or slot in self._queues:
            return False
        self._heads[slot] = offset
        self._slot_of[offset] = slot
        return True

    # Out

    def next_free(self) -> int:
        """The lowest offset of a message with a key that may go out; -1: none may."""
        return self._free[0][0] if self._free else -1

    def take(self) -> tuple[int, int]:
        """Take that one: (offset, attempts). It is its slot's head from now on."""
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
        """Take so many of the first loose run; where it began."""
        start, whole, attempts = self.loose.popleft()
        assert count <= whole
        if count < whole:
            self.loose.appendleft((start + count, whole - count, attempts))
        self.loose_messages -= count
        return start

    def set_aside(self) -> tuple[int, int]:
        """The lowest free one cannot go out now: for `put_back`."""
        return heapq.heappop(self._free)

    def put_back(self, aside: Iterable[tuple[int, int]]) -> None:
        for entry in aside:
            heapq.heappush(self._free, entry)

    # Over

    def release(self, heads: Iterable[int]) -> None:
        """These heads are over, whatever became of them: the next of their slots may go out."""
        for offset in heads:
            slot = self._slot_of.pop(offset)
            del self._heads[slot]
            queue = self._queues.get(slot)
            if queue is not None:
                heapq.heappush(self._free, (queue[0], slot))

    def heads_in(self, runs: Iterable[Run]) -> list[int]:
        """Offsets of these runs that are heads. A long run of messages without a key does not cost its length."""
        found: list[int] = []
        slot_of = self._slot_of
        for start, count, _ in runs:
            if count <= len(slot_of):
                found += [offset for offset in range(start, start + count) if offset in slot_of]
            else:
                found += [offset for offset in slot_of if start <= offset < start + count]
        return found

    def remove(self, start: int, stop: int) -> int:
        """Give up what is parked or loose there; how many messages that were."""
        before = self.waiting
        self.parked = {offset: attempts for offset, attempts in self.parked.items() if not start <= offset < stop}
        if len(self.parked) + self.loose_messages < before:
            cut = {slot: array("q", (o for o in queue if not start <= o < stop)) for slot, queue in self._queues.items()}
            self._queues = {slot: queue for slot, queue in cut.items() if queue}
            self._free = [(queue[0], slot) for slot, queue in self._queues.items() if slot not in self._heads]
            heapq.heapify(self._free)
        loose, self.loose, self.loose_messages = self.loose, deque(), 0
        for first, count, _ in loose:
            for low, high in ((first, min(first + count, start)), (max(first, stop), first + count)):
                if low < high:
                    self.loosen(low, high - low)
        return before - self.waiting

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]

    # Rows

    def runs(self) -> Iterator[Run]:
        """What is parked and loose, as rows: neighbours in one."""
        yield from joined(self.parked.items())
        yield from self.loose


def joined(items: Iterable[tuple[int, int]]) -> Iterator[Run]:
    """(offset, attempts), ascending, as runs."""
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
