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
from .log_format import chunk_name, wire_header

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

    def add(self, active: Chunk) -> None:
        """A new chunk is written from now on. No sync runs on the old one any more: a roll waits for it."""
        old = self._active
        self._active = active
        self.bases.append(active.base_offset)
        self._keep(old)

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
                if blocks:
                    self._hint(blocks[-1].next_offset, chunk.base_offset, position)
                    return blocks
                following = chunk.next_good(position, first)
                if following == first:
                    return []  # good, but not wholly below the end
                if following is not None:
                    raise self._lost(chunk.path, first, following)
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

    def headers(self, offset: int) -> Iterator[Header]:
        """Wire-form headers of all blocks from the one that holds `offset` on. For recovery: columns are not checked."""
        offset = max(offset, self.bases[0])
        for base in self.bases[bisect_right(self.bases, offset) - 1 :]:
            try:
                chunk = self._readable(base, offset)
            except Damaged:
                continue  # it is among the holes now
            for stretch in chunk.walk(chunk.locate(offset)[0], columns=False):
                if stretch.good and stretch.header is not None:
                    yield wire_header(stretch.header, chunk.header)

    def offset_at(self, time_ns: int) -> int | None:
        """The first offset stored at `time_ns` or later."""
        low, high = 0, len(self.bases) - 1
        while low < high:  # the last chunk that begins before that time
            middle = (low + high + 1) // 2
            if self._chunk(self.bases[middle]).header.base_time_ns < time_ns:
                low = middle
            else:
                high = middle - 1
        for base in self.bases[low:]:
            found = self._chunk(base).offset_at(time_ns)
            if found is not None:
                return found
        return None

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
