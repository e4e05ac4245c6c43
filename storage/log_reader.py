"""Reading a log: which chunk, which block, what is lost. Knows the files of the log and which few of them are open.

Holes: offsets whose block was lost. A read never returns a gap inside; asked for an offset in a hole it returns
what follows the hole. `skip` tells where that is.

A reader that goes on where it stopped needs no look-up: the end of each read is remembered as a hint, for the last
few readers. Others find their chunk by its name and their block by the chunk's index.
"""

from __future__ import annotations

import errno
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ..transport.block import Block, Header
from .chunk import Chunk, open_chunk
from .errors import Damaged, ForeignDirectory, StoreFailed
from .files import Files
from .log_format import CHUNK_HEADER_BYTES, chunk_name, wire_header
from .mark import Mark

OPEN_CHUNKS_MAX: Final = 4  # sealed ones with descriptor and index; the index of the smallest blocks takes 1.5 MiB
HINTS_MAX: Final = 64


class Hole(NamedTuple):
    """Offsets that have no message any more."""

    first_offset: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name; nobody counts in a hole

    @property
    def next_offset(self) -> int:
        return self.first_offset + self.count


class LogReader:
    """`bases`: the first offset of each chunk, ascending; the last is the active one, which the log writes."""

    def __init__(
        self, files: Files, folder: str, uuid: bytes, index_every_bytes: int, bases: list[int], active: Chunk, holes: Sequence[Hole]
    ) -> None:
        assert bases
        assert bases[-1] == active.base_offset
        self._files = files
        self._folder = folder
        self._uuid = uuid
        self._index_every_bytes = index_every_bytes
        self.bases = bases
        self.holes = sorted(holes)
        self._active = active
        self._sealed: OrderedDict[int, Chunk] = OrderedDict()
        self._hints: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self._sizes: dict[int, int] = {}

    def add(self, active: Chunk, before: Sequence[int] = ()) -> None:
        """A new chunk is the last from now on; `before`: others that came with it. No sync runs on the old one: a roll waits for it."""
        old = self._active
        self._active = active
        bases = (*before, active.base_offset)
        if old.base_offset == bases[0]:  # it was empty, and its name is another file's now
            self.bases.pop()
            old.close()
        else:
            self._keep(old)
        self.bases += bases

    def close(self) -> None:
        for chunk in (*self._sealed.values(), self._active):
            chunk.close()
        self._sealed.clear()

    def read(self, offset: int, bytes_max: int, end: int) -> list[Block]:
        """Whole blocks below `end`, from the one that holds `offset` on (from what follows, where that is lost or not kept any more).

        About `bytes_max` bytes, at least one block if there is one. Headers are in wire form; both checksums were
        checked. `Damaged` names offsets that turned out to be lost; the next read steps over them.
        """
        offset = self.skip(max(offset, self.bases[0]))
        while offset < end:
            base, position = self._hints.get(offset, (-1, 0))
            chunk = self._readable(base if position else self.bases[bisect_right(self.bases, offset) - 1], offset)
            first = before = offset
            if not position:
                position, first, before = chunk.locate(offset)
            if position < chunk.end_position:
                if first > offset:
                    raise self._lost(chunk.path, before, first)
                blocks, position = chunk.read(position, bytes_max, end)
                good = None if blocks else chunk.next_good(position)
                if good is not None and good[1] <= first:  # nothing lost: it is not wholly below the end, or only a mark is bad
                    blocks, position = chunk.read(good[0], bytes_max, end)
                    if not blocks:
                        return []
                if blocks:
                    self._hint(blocks[-1].next_offset, chunk.base_offset, position)
                    return blocks
                if good is not None:
                    raise self._lost(chunk.path, first, good[1])
                before = first
            next_base = self._next_base(chunk.base_offset)
            following = chunk.end_offset if next_base is None else next_base
            if following > before:
                raise self._lost(chunk.path, before, following)
            if next_base is None:
                return []
            self._hints.pop(offset, None)  # it led to the end of a chunk that was the last one then
            offset = next_base
        return []

    def _readable(self, base: int, offset: int) -> Chunk:
        try:
            return self._chunk(base)
        except (Damaged, ForeignDirectory):
            following = self._next_base(base)
            assert following is not None  # the active chunk is open
            raise self._lost(f"{self._folder}/{chunk_name(base)}", max(base, offset), following) from None

    def _lost(self, path: str, offset: int, following: int) -> Damaged:
        """Remember a hole, so that the next read steps over it."""
        hole = Hole(offset, following - offset)
        if hole not in self.holes:
            insort(self.holes, hole)
        return Damaged(f"{hole.count} messages from offset {offset} on are lost: {path} is damaged there", offset, hole.count)

    def skip(self, offset: int) -> int:
        """`offset`, or what follows the hole that it lies in."""
        for hole in self.holes[max(bisect_right(self.holes, (offset + 1, 0)) - 1, 0) :]:
            if hole.first_offset > offset:
                break
            if offset < hole.next_offset:
                offset = hole.next_offset
        return offset

    def headers(self, offset: int) -> Iterator[tuple[Header, Mark | None]]:
        """Wire-form headers of all blocks from the one that holds `offset` on, for recovery: columns are not checked.

        Marks come with what they say, damaged ones (count 0 too) with None. Of adopted chunks only a mark at their end comes: their blocks
        have no producer, and there may be many.
        """
        offset = max(offset, self.bases[0])
        for base in self.bases[bisect_right(self.bases, offset) - 1 :]:
            try:
                chunk = self._readable(base, offset)
            except Damaged:
                continue  # it is among the holes now
            position = chunk.last_position() if chunk.adopted else chunk.locate(offset)[0]
            for stretch in chunk.walk(position, columns=False):
                if stretch.good and stretch.header is not None:
                    mark = None if stretch.header.count else chunk.mark_at(stretch.position)
                    yield wire_header(stretch.header, chunk.header), mark

    def measure(self, start: int, end: int, bytes_max: int) -> tuple[int, int]:
        """How many bytes the blocks between two offsets have, and up to which border of a block they are no more than `bytes_max`.

        The second is at most `end`, and above `start`: the first block counts whatever its size. What is lost has no bytes.
        """
        start = max(start, self.bases[0])
        if start >= end:
            return 0, start
        total = 0
        found = -1
        for base in self.bases[bisect_right(self.bases, start) - 1 :]:
            if base >= end:
                break
            try:
                before, size = self._span(base, start, end)
                if found < 0 and total + size > bytes_max:
                    found = self._chunk(base).boundary(before + bytes_max - total)[1]
                    if found <= start:
                        found = self._chunk(base).extent(start)[2]
            except Damaged:
                continue
            total += size
        return total, end if found < 0 else min(found, end)

    def _span(self, base: int, start: int, end: int) -> tuple[int, int]:
        """(position, bytes) of what lies between two offsets in one chunk. A chunk that lies between them whole is opened once only."""
        next_base = self._next_base(base)
        whole = start <= base and next_base is not None and end >= next_base
        if whole and base in self._sizes:
            return CHUNK_HEADER_BYTES, self._sizes[base]
        chunk = self._readable(base, base)
        first = CHUNK_HEADER_BYTES if start <= base else chunk.extent(start)[0]
        last = chunk.end_position
        if end < (chunk.end_offset if next_base is None else next_base):
            last = chunk.extent(end - 1)[1]
        if whole:
            self._sizes[base] = last - first
        return first, last - first

    def offset_at(self, time_ns: int) -> int | None:
        """The first offset stored at `time_ns` or later."""
        low, high = 0, len(self.bases) - 1
        while low < high:  # the last chunk that begins before that time
            middle = (low + high + 1) // 2
            if self._begins_before(self.bases[middle], time_ns):
                low = middle
            else:
                high = middle - 1
        for base in self.bases[low:]:
            try:
                found = self._readable(base, base).offset_at(time_ns)
            except Damaged:
                continue
            if found is not None:
                return found
        return None

    def _begins_before(self, base: int, time_ns: int) -> bool:
        """False where it cannot be read: then the search begins earlier, and only takes longer."""
        try:
            return self._readable(base, base).header.base_time_ns < time_ns
        except Damaged:
            return False

    def _hint(self, offset: int, base: int, position: int) -> None:
        self._hints[offset] = (base, position)
        if len(self._hints) > HINTS_MAX:
            self._hints.popitem(last=False)

    def _next_base(self, base: int) -> int | None:
        following = bisect_right(self.bases, base)
        return self.bases[following] if following < len(self.bases) else None

    def _chunk(self, base: int) -> Chunk:
        if base == self._active.base_offset:
            return self._active
        chunk = self._sealed.get(base)
        if chunk is None:
            try:
                chunk = open_chunk(self._files, self._folder, base, self._uuid, self._index_every_bytes)
            except OSError as error:
                text = f"the chunk of offset {base} in {self._folder} cannot be opened: {error}"
                # Gone or unreadable is damage; too many open files is not: messages must not be stepped over for that.
                raise (Damaged if error.errno in {errno.ENOENT, errno.EIO} else StoreFailed)(text) from error
            if not chunk.sealed:  # its footer is damaged: what the next one's name says
                following = self._next_base(base)
                assert following is not None
                chunk.end_offset = following
            self._keep(chunk)
        self._sealed.move_to_end(base)
        return chunk

    def _keep(self, chunk: Chunk) -> None:
        """Among the few sealed chunks that stay open."""
        self._sealed[chunk.base_offset] = chunk
        if len(self._sealed) > OPEN_CHUNKS_MAX:
            self._sealed.popitem(last=False)[1].close()
