"""The newest blocks of a log, kept for readers that are a little behind, without a system call. Pure.

Bounded twice: in bytes, and in time, because a topic that nobody writes to should hold no memory (EQueue drops what nobody
touched for 5 s; here the page cache has it then). What is kept is a run without gaps up to the newest block; anything else that
comes starts it anew. An entry is an append, not a block, so that keeping a thousand small blocks costs what keeping one does; the
headers get their wire form (offset and time) only when somebody reads them.

Blocks come from the topic, which checked them, and stay as they came, in the frames they came in. They are checked again when they are
read: memory may have changed them since. Then the ring gives up all it keeps, and the reader takes them from the file. Whether a reader may
see them yet is for it to say, by `end`: the ring knows nothing of syncs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from ...transport.block.block import Block, check_columns
from ...transport.errors import ZsqError
from .log_format import ChunkHeader, wire_header

RING_BYTES: Final = 8 * 1024 * 1024
BLOCKS_MAX: Final = 1 << 30  # as good as no bound
BLOCK_COST: Final = 1024  # what a block takes in memory besides its bytes, about: a block of 104 bytes takes 935 (objects, frames)
RING_KEPT_NS: Final = 5 * 1_000_000_000
_NO_CHUNK: Final = ChunkHeader(0, 0, 0, b"")
_COMPACT_AT: Final = 1024  # entries dropped at the front before the lists are moved


class _Append:
    __slots__ = ("blocks", "bytes", "kept_ns", "next_offset", "time_ns")

    def __init__(self, blocks: Sequence[Block], next_offset: int, time_ns: int, size: int, kept_ns: int) -> None:
        self.blocks = blocks
        self.next_offset = next_offset
        self.time_ns = time_ns
        self.bytes = size
        self.kept_ns = kept_ns


class Ring:
    """`bytes_max` 0: keeps nothing."""

    def __init__(self, bytes_max: int = RING_BYTES, kept_ns: int = RING_KEPT_NS) -> None:
        self._bytes_max = bytes_max
        self._kept_ns = kept_ns
        self._firsts: list[int] = []
        self._appends: list[_Append] = []
        self._head = 0
        self.bytes = 0
        self.corrupt_count = 0
        """How many times a block was found that is not as it came."""

    @property
    def start(self) -> int:
        """The first offset that is kept; equals `end` where nothing is."""
        return self._firsts[self._head] if self._head < len(self._firsts) else self.end

    @property
    def end(self) -> int:
        return self._appends[-1].next_offset if self._appends else 0

    def push(self, first_offset: int, next_offset: int, blocks: Sequence[Block], time_ns: int, total: int, now_ns: int) -> None:
        """An append was written: `total` bytes of blocks from `first_offset` on, stored at `time_ns`."""
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
        append.blocks = ()  # frees them at once
        self._head += 1
        if self._head >= _COMPACT_AT or self._head == len(self._appends):
            del self._firsts[: self._head]
            del self._appends[: self._head]
            self._head = 0

    def expire(self, now_ns: int) -> None:
        """What came more than `kept_ns` ago goes."""
        while self._head < len(self._appends) and now_ns - self._appends[self._head].kept_ns >= self._kept_ns:
            self._drop()

    def clear(self) -> None:
        self._firsts.clear()
        self._appends.clear()
        self._head = self.bytes = 0

    def read(self, offset: int, bytes_max: int, end: int, blocks_max: int = BLOCKS_MAX) -> list[Block] | None:
        """Whole blocks below `end` in wire form, from the one that holds `offset` on, about `bytes_max` bytes of them. None: not kept
        (any more)."""
        if not self.start <= offset < self.end:
            return None
        found: list[Block] = []
        size = 0
        for number in range(bisect_right(self._firsts, offset, self._head) - 1, len(self._appends)):
            kept = self._appends[number]
            first = self._firsts[number]
            for block in kept.blocks:
                header = block.header
                following = first + header.count
                if following > offset:
                    if following > end or (found and (size + header.length > bytes_max or len(found) >= blocks_max)):
                        return found
                    try:
                        check_columns(header, block.columns)
                    except ZsqError:
                        self.corrupt_count += 1
                        self.clear()
                        return found or None
                    placed = header._replace(first_offset=first, time_ns=kept.time_ns)
                    found.append(Block(wire_header(placed, _NO_CHUNK), block.payload, block.columns))
                    size += header.length
                first = following
        return found
