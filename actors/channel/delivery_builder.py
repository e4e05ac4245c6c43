"""Delivery builder: collects messages that lie far apart into one delivery. No I/O."""

from __future__ import annotations

from ...transport.block.block import Block
from ...transport.wire.protocol import Run
from ..settings import options
from .redelivery import Part
from .supply import Picked


class DeliveryBuilder:
    """Builder of one delivery from parked messages.

    Many of them are added alone, so the data about the last block is kept for the next message. A
    run of at least `alone` messages is sent as a separate delivery, because then nothing is copied.
    """

    def __init__(self, room: int, alone: int) -> None:
        self._alone_min = alone
        self.offered = 0
        self._room = min(room, options.GATHER_COUNT_MAX)
        self._room_alone = room
        self._runs: list[Run] = []
        self._parts: list[Part] = []
        self._count = 0
        self._size = 0
        self._alone = False
        self._following = -1
        self._block: Block | None = None  # the last block
        self._first = self._stop = 0
        self._ends: list[memoryview] = []  # offsets of the columns of that block

    def has_room(self) -> bool:
        if self._count >= self._room or self._size >= options.GATHER_BYTES_MAX or self._alone:
            return False
        return self.offered < self._room

    def block_of(self, offset: int) -> Block | None:
        """Return the last block if it holds this offset."""
        return self._block if self._first <= offset < self._stop else None

    def count_that_fits(self, block: Block, start: int, count: int, *, sampled: bool) -> int:
        """Return how many of these messages may be added. 0 means that the delivery is full."""
        if sampled:
            count = 1
        elif count >= self._alone_min:
            if self._parts:
                return 0
            # The only part of a delivery may be as large as its block.
            self._alone = True
            return min(count, self._room_alone)
        if block is not self._block:
            self._block, self._first, self._stop = block, block.first_offset, block.next_offset
            self._ends = [
                column.offsets
                for column in (block.body, block.key, block.tag, block.headers)
                if column is not None
            ]
        count = min(count, self._room - self._count)
        size = self._size
        for ends in self._ends:
            size += ends[start + count] - ends[start]
        if self._parts and size > options.GATHER_BYTES_MAX:
            return 0
        self._size = size
        return count

    @property
    def room(self) -> int:
        """The number of messages that still fit, if nothing is sent as a whole run."""
        return self._room - self._count

    def add(self, block: Block, start: int, stop: int, number: int = 1) -> None:
        """Add messages. `number` is the number of their delivery."""
        self._count += stop - start
        offset, count = block.first_offset + start, stop - start
        if offset == self._following and self._runs[-1][2] == number:
            first, before, _ = self._runs.pop()
            self._runs.append((first, before + count, number))
        else:
            self._runs.append((offset, count, number))
        self._following = offset + count
        if self._parts and self._parts[-1][2] == start and self._parts[-1][0] is block:
            start = self._parts.pop()[1]
        self._parts.append((block, start, stop))

    def picked(self) -> Picked | None:
        if not self._runs and not self.offered:
            return None
        return Picked(self._runs, self._parts, self.offered)
