"""Ring: the newest blocks of a log in memory, for readers near its end. Pure.

A read from the ring needs no system call. The ring has a limit in bytes. It also has a limit in
time, because an idle topic should need no memory. (The ring of EQueue, a queue for .NET, drops
blocks that were not used for 5 s. In ZSQ, such blocks are still in the page cache.) The blocks of
the ring follow each other without a gap, up to the newest one. An append that does not follow the
last one empties the ring first. An entry of the ring is an append and not a block. So to keep a
thousand small blocks of one append costs as much as to keep one block. Headers get their wire form
(offset and time) only when they are read.

The topic has checked the blocks. They stay in the frames in which they arrived. They are checked
again when they are read, because a fault of the RAM may have changed them. If a check fails, the
ring drops all its blocks, and the reader reads them from the file. The ring does not know which
blocks are synced. So the caller passes the `end` up to which it may read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from ...transport.block.block import Block, check_columns
from ...transport.errors import ZsqError
from .log_format import ChunkHeader, wire_header

RING_BYTES: Final = 8 * 1024 * 1024
BLOCKS_MAX: Final = 1 << 30  # so large that it is no limit
# Approximate memory of a block besides its bytes. In a measurement, the objects and frames of a
# block of 104 bytes took 935 bytes more.
BLOCK_COST: Final = 1024
RING_KEPT_NS: Final = 5 * 1_000_000_000
_NO_CHUNK: Final = ChunkHeader(0, 0, 0, b"")
_COMPACT_AT: Final = 1024  # the lists are shortened after this number of dropped entries


class _Append:
    __slots__ = ("blocks", "bytes", "kept_ns", "next_offset", "time_ns")

    def __init__(
        self, blocks: Sequence[Block], next_offset: int, time_ns: int, size: int, kept_ns: int
    ) -> None:
        self.blocks = blocks
        self.next_offset = next_offset
        self.time_ns = time_ns
        self.bytes = size
        self.kept_ns = kept_ns


class Ring:
    """The newest blocks. With `max_bytes` 0 it keeps nothing."""

    def __init__(self, max_bytes: int = RING_BYTES, kept_ns: int = RING_KEPT_NS) -> None:
        self._bytes_max = max_bytes
        self._kept_ns = kept_ns
        self._firsts: list[int] = []
        self._appends: list[_Append] = []
        self._head = 0
        self.bytes = 0
        self.corrupt_count = 0
        """The number of blocks that failed their check."""

    @property
    def start(self) -> int:
        """The first offset that is kept, or `end` if there is none."""
        return self._firsts[self._head] if self._head < len(self._firsts) else self.end

    @property
    def end(self) -> int:
        return self._appends[-1].next_offset if self._appends else 0

    def push(
        self,
        first_offset: int,
        next_offset: int,
        blocks: Sequence[Block],
        time_ns: int,
        total: int,
        now_ns: int,
    ) -> None:
        """Add an append: `total` bytes of blocks from `first_offset` on, stored at `time_ns`."""
        if self._appends and self._appends[-1].next_offset != first_offset:
            self.clear()
        if not blocks:
            self.clear()
            return
        self._firsts.append(first_offset)
        self._appends.append(_Append(blocks, next_offset, time_ns, total, now_ns))
        self.bytes += total
        while self.bytes > self._bytes_max:
            self._drop()

    def _drop(self) -> None:
        append = self._appends[self._head]
        self.bytes -= append.bytes
        append.blocks = ()  # this frees the blocks at once
        self._head += 1
        if self._head >= _COMPACT_AT or self._head == len(self._appends):
            del self._firsts[: self._head]
            del self._appends[: self._head]
            self._head = 0

    def expire(self, now_ns: int) -> None:
        """Drop the appends that are older than `kept_ns`."""
        while (
            self._head < len(self._appends)
            and now_ns - self._appends[self._head].kept_ns >= self._kept_ns
        ):
            self._drop()

    def clear(self) -> None:
        self._firsts.clear()
        self._appends.clear()
        self._head = self.bytes = 0

    def read(
        self, offset: int, max_bytes: int, end: int, blocks_max: int = BLOCKS_MAX
    ) -> list[Block] | None:
        """Return whole blocks below `end` in wire form, from the block that contains `offset` on.

        Returns about `max_bytes` bytes. Returns None if the ring does not have that block.
        """
        if not self.start <= offset < self.end:
            return None
        blocks: list[Block] = []
        size = 0
        for number in range(bisect_right(self._firsts, offset, self._head) - 1, len(self._appends)):
            kept = self._appends[number]
            first = self._firsts[number]
            for block in kept.blocks:
                header = block.header
                following = first + header.count
                if following > offset:
                    if following > end or (
                        blocks and (size + header.length > max_bytes or len(blocks) >= blocks_max)
                    ):
                        return blocks
                    try:
                        check_columns(header, block.columns)
                    except ZsqError:
                        self.corrupt_count += 1
                        self.clear()
                        return blocks or None
                    placed = header._replace(first_offset=first, time_ns=kept.time_ns)
                    blocks.append(
                        Block(wire_header(placed, _NO_CHUNK), block.payload, block.columns)
                    )
                    size += header.length
                first = following
        return blocks
