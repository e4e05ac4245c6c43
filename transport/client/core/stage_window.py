"""Stage window: the blocks of a stage that are not durable yet, and how far each of them has come.

A stage's blocks are numbered from 0. Four marks describe their progress. They are always in this
order:

    durable    all blocks below it are durable (from a seal's reply); the window has dropped them
    received   all blocks below it have arrived (from Staged)
    sent       all blocks below it were pushed on the present link
    total      the end of the blocks that the user has added

The window extends from `durable` to `total`. It has no clock, no credit and no state of a link.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...block.block import Block, Header, encode_header
from ...block.block_format import STAGED
from ...wire.protocol import checksum_after


class StageMark(NamedTuple):
    """A position in a stage: the number of blocks below it, and their bytes."""

    blocks: int = 0
    size_bytes: int = 0


class WindowEntry(NamedTuple):
    """A block of the window as it is sent, with the totals of the stage up to it."""

    header: bytes
    payload: Any
    length: int
    end: StageMark
    checksum: int


class StageWindow:
    """The blocks of one stage that its writer still holds. Their bytes are bounded."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.durable = self.received = self.sent = self.total = StageMark()
        self.messages = self.checksum = 0  # of all blocks
        self._entries: dict[int, WindowEntry] = {}

    def has_room(self, length: int) -> bool:
        """Return True if a block of this length may be added. An empty window takes any block."""
        return self.held_bytes + length <= self.max_bytes or not self._entries

    @property
    def held_bytes(self) -> int:
        return self.total.size_bytes - self.durable.size_bytes

    @property
    def out_bytes(self) -> int:
        """The bytes that were pushed and have not arrived."""
        return self.sent.size_bytes - self.received.size_bytes

    @property
    def unsealed_bytes(self) -> int:
        return self.sent.size_bytes - self.durable.size_bytes

    @property
    def sent_checksum(self) -> int:
        """The checksum of all blocks that were pushed."""
        last = self._entries.get(self.sent.blocks - 1)
        return self.checksum if last is None else last.checksum

    def add(self, block: Block, flags: int = STAGED) -> None:
        """Add the next block of the stage. It gets its number here, and keeps some `flags`."""
        header, number = block.header, self.total.blocks
        packed = Header(
            header.columns, header.flags & flags, header.length, header.count, 0, 0, 0, number,
            header.columns_crc,
        )  # fmt: skip
        self.checksum = checksum_after(self.checksum, header.columns_crc)
        self.messages += header.count
        self.total = StageMark(number + 1, self.total.size_bytes + header.length)
        self._entries[number] = WindowEntry(
            encode_header(packed), block.payload, header.length, self.total, self.checksum
        )

    def next(self) -> WindowEntry | None:
        """Return the first block that is not sent, or None."""
        return self._entries.get(self.sent.blocks)

    def advance(self, entry: WindowEntry) -> None:
        """Note that this block, the first one that was not sent, is pushed."""
        self.sent = entry.end

    def go_back(self, number: int) -> None:
        """Push again from this block on."""
        self.sent = self._mark(number)

    def continue_at(self, number: int) -> None:
        """Push from this block on, because storage has exactly the blocks below it.

        They may be fewer than before: blocks that are not durable are lost when the topic's process
        ends.
        """
        self.received = self.sent = self._mark(number)

    def note(self, number: int) -> bool:
        """Note that all blocks below this number have arrived. Return True if some of them are new.

        A number that is outdated, or above all blocks, changes nothing.
        """
        if not self.received.blocks < number <= self.total.blocks:
            return False
        self.received = self._mark(number)
        # An old copy may arrive before the new one is pushed.
        self.sent = max(self.sent, self.received)
        return True

    def drop(self, number: int) -> bool:
        """Drop the blocks below this number, which are durable. Return True if there were some."""
        if number <= self.durable.blocks:
            return False
        durable = self._mark(number)
        for dropped in range(self.durable.blocks, number):
            del self._entries[dropped]
        self.durable = durable
        return True

    def clear(self) -> None:
        """Drop all blocks. Their totals stay."""
        self._entries.clear()

    def _mark(self, number: int) -> StageMark:
        """Return the mark above the blocks below `number`, which are not below `durable`."""
        return self._entries[number - 1].end if number > self.durable.blocks else self.durable
