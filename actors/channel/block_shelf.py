"""Block shelf: the blocks that a channel keeps for its redeliveries. No I/O."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict

from ...transport.block.block import Block


class BlockShelf:
    """The blocks kept for redeliveries, by first offset.

    The shelf holds at most `max_bytes`, or one block if that is larger. It drops the oldest first.
    """

    __slots__ = ("_blocks", "_firsts", "bytes_held", "max_bytes")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
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
        while self.bytes_held > self.max_bytes and len(self._blocks) > 1:
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
