"""Log reader: finds the chunk and the block of an offset, and knows the lost offsets.

It knows the files of the log and keeps a few of them open.

Holes are offsets whose block was lost. A read never returns blocks with a gap between them. A read
of an offset in a hole returns the blocks after the hole. `skip` returns the end of the hole.
`damage.py` stores the known damage.

A reader that continues where it stopped needs no search. For this purpose, the log remembers the
end of each read as a hint, for the last HINTS_MAX reads. Other readers find their chunk by its name
and their block in the chunk's index. The newest blocks come from the ring.

`GiveBack` tells the system to drop pages behind a reader of an old part of the log. So a backlog
does not push the newest pages out of the page cache. It gives back only pages more than FAR_BYTES
before the log's end and more than KEPT_BYTES behind the reader. The pages close behind the reader
stay, because other readers may need them: four channels that catch up together read the same
blocks. Each step gives back several MiB, because each step takes a system call.

Chunks whose files were removed after they were archived are in `remote`. The archive opens them.
Their bytes may have to be fetched first: reads then raise `NotHere`.

Rejected: advice on the whole chunk when a reader leaves it, because until then 256 MiB stay in the
cache for each reader. Rejected too: O_DIRECT, because readers would share no pages, and ZSQ would
need its own cache.
"""

from __future__ import annotations

import contextlib
import time
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from ...transport.block.block import Block, Header
from ..errors import Damaged, ForeignDirectory, NotHere, OutOfReach, Unreadable
from ..files import Files
from .chunk import (
    ArchivedChunk,
    BlockLocation,
    Chunk,
    ChunkBook,
    ChunkReport,
    ChunkState,
    Facts,
    Good,
    open_surely,
)
from .damage import Bad, DamageBook
from .damage import Hole as Hole
from .log_format import CHUNK_HEADER_BYTES, FOOTER_BYTES, replay_header, wire_header
from .ring import BLOCK_COST, BLOCKS_MAX, RING_BYTES, Ring
from .transactions import Adopted, Mark

FAR_BYTES: Final = 64 * 1024 * 1024
KEPT_BYTES: Final = 8 * 1024 * 1024
STEP_BYTES: Final = 4 * 1024 * 1024
PAGE_BYTES: Final = 4096
# A reader that is more than this number of chunks before the end counts as far behind, whatever the
# sizes of the chunks.
CHUNKS_COUNTED_MAX: Final = 1024


class GiveBack:
    """Advice about the page cache for one log. `LogReader` changes `bases` and `facts`."""

    def __init__(
        self, bases: Sequence[int], facts: Mapping[int, Facts], far_bytes: int = FAR_BYTES
    ) -> None:
        self._bases = bases
        self._facts = facts
        self._far_bytes = far_bytes
        self.kept_bytes = min(KEPT_BYTES, far_bytes)
        self.step_bytes = min(STEP_BYTES, far_bytes)

    def read(self, chunk: Chunk, since: int, position: int, active: Chunk) -> int:
        """Give back pages behind a reader at `position`.

        Returns the position up to which they are given back now. The pages before `since` were
        given back earlier.
        """
        if position - since < self.kept_bytes + self.step_bytes:
            return since
        upto = (position - self.kept_bytes) & -PAGE_BYTES
        return upto if self._advise(chunk, since, upto, active) else since

    def left(self, chunk: Chunk, since: int, active: Chunk) -> None:
        """Give back the rest of a chunk when a reader continues with the next chunk."""
        self._advise(chunk, since, chunk.end_position, active)

    def begins(self, chunk: Chunk, position: int, active: Chunk) -> None:
        """Advise the system to read ahead when a sequential reader begins this chunk.

        This does nothing for the active chunk.
        """
        if chunk is not active and not chunk.sequential and self._is_far(chunk, position, active):
            chunk.sequential = True
            with contextlib.suppress(OSError):
                chunk.files.advise_sequential(chunk.fd)

    def _advise(self, chunk: Chunk, since: int, upto: int, active: Chunk) -> bool:
        if upto <= since or not self._is_far(chunk, upto, active):
            return False
        with contextlib.suppress(OSError):  # this is only advice, so a failure is harmless
            chunk.files.advise_done(chunk.fd, since, upto - since)
        return True

    def _is_far(self, chunk: Chunk, position: int, active: Chunk) -> bool:
        distance = chunk.end_position - position
        for number in range(
            len(self._bases) - 1, max(-1, len(self._bases) - 1 - CHUNKS_COUNTED_MAX), -1
        ):
            base = self._bases[number]
            if base <= chunk.base_offset or distance >= self._far_bytes:
                return distance >= self._far_bytes
            facts = self._facts.get(base)
            distance += (
                active.end_position
                if base == active.base_offset
                else 0
                if facts is None
                else facts.bytes
            )
        return True


# The number of open sealed chunks. Each has a descriptor and an index. The index takes at most 1.5
# MiB, for a chunk with the smallest possible blocks.
OPEN_CHUNKS_MAX: Final = 4
HINTS_MAX: Final = 64


class _Hint(NamedTuple):
    """The position at which a reader continues, and the end of the pages given back behind it."""

    base: int
    position: int
    given_back: int


class ChunkArchive(Protocol):
    """Opens chunks that are only in another place, such as a bucket."""

    def open(self, row: ArchivedChunk, index_every_bytes: int) -> Chunk:
        """Return the chunk. Its reads raise `NotHere` for bytes that must be fetched first."""
        ...

    def close(self) -> None: ...


# Files, the topic's folder, its uuid, and the rows of the chunks that the other place has.
OpenArchive = Callable[[Files, str, bytes, Mapping[int, ArchivedChunk]], ChunkArchive]


class LogReader:
    """A reader of the log.

    `bases` are the first offsets of the chunks, ascending. The last one is that of the active
    chunk, to which the log writes. `remote` are those of them that are only in the bucket, and
    `archive` opens these. It is None if the broker has no bucket.
    """

    def __init__(
        self, files: Files, folder: str, uuid: bytes, index_every_bytes: int, bases: list[int], active: Chunk, holes: Sequence[Hole],
        ring_bytes: int = RING_BYTES, remote: Mapping[int, ArchivedChunk] | None = None, archive: ChunkArchive | None = None,
    ) -> None:  # fmt: skip
        assert bases
        assert bases[-1] == active.base_offset
        self._files = files
        self._folder = folder
        self._uuid = uuid
        self._index_every_bytes = index_every_bytes
        self.bases = bases
        self.damage = DamageBook(files, folder, holes)
        self.ring = Ring(ring_bytes)
        self.book = ChunkBook()
        self.remote = dict(remote or {})
        self.book.facts.update((base, row.facts()) for base, row in self.remote.items())
        self._archive = archive
        self.give_back = GiveBack(bases, self.book.facts)
        self._active = active
        self._sealed: OrderedDict[int, Chunk] = OrderedDict()
        self._hints: OrderedDict[int, _Hint] = OrderedDict()

    @property
    def holes(self) -> list[Hole]:
        return self.damage.holes

    def wrote(self, first_offset: int, blocks: Sequence[Block], time_ns: int, total: int) -> None:
        """Note a successful append to the active chunk."""
        self.grew(total, time_ns)
        self.ring.push(
            first_offset,
            self._active.end_offset,
            blocks,
            time_ns,
            total + len(blocks) * BLOCK_COST,
            time.monotonic_ns(),
        )

    def grew(self, total: int, time_ns: int) -> None:
        """Note an append that the ring does not keep, such as that of a group."""
        self._active.last_time_ns = time_ns
        self.book.of(self._active.base_offset).written_bytes += total

    def add(self, active: Chunk, adopted: Sequence[Adopted] = ()) -> None:
        """Make `active` the last chunk. It is the last of `adopted` if there are any.

        No sync runs on the old chunk at this time, because a roll waits for it.
        """
        old = self._active
        self._active = active
        bases = tuple(chunk.base_offset for chunk in adopted) or (active.base_offset,)
        # The old chunk was empty, and another file has its name now.
        if old.base_offset == bases[0]:
            self.bases.pop()
            old.close()
        else:
            if old.sealed:
                self.book.facts[old.base_offset] = old.facts()
            self._keep(old)
        self.bases += bases
        time_ns = active.header.base_time_ns
        for chunk in adopted:
            end = active.end_position if chunk is adopted[-1] else chunk.data_end
            state, next_offset = ChunkState.ADOPTED, chunk.base_offset + chunk.messages
            self.book.facts[chunk.base_offset] = Facts(
                end + FOOTER_BYTES, state, time_ns, time_ns, next_offset
            )
            self.book.of(chunk.base_offset).written_bytes += end - CHUNK_HEADER_BYTES

    def forget(self, start: int) -> None:
        """Forget the chunks that are completely below `start`, and are about to be removed.

        Reads below `start` then return the blocks after the removed chunks.
        """
        gone = max(bisect_right(self.bases, start) - 1, 0)
        for base in self.bases[:gone]:
            chunk = self._sealed.pop(base, None)
            if chunk is not None:
                chunk.close()
        del self.bases[:gone]  # changes the list itself, because `give_back` uses the same list
        kept = self.bases[0]
        for base in [base for base in self.remote if base < kept]:
            del self.remote[base]
        for offset in [offset for offset, hint in self._hints.items() if hint.base < kept]:
            del self._hints[offset]
        self.damage.forget_below(kept)
        self.book.forget_below(kept)

    def leave(self, rows: Iterable[ArchivedChunk]) -> None:
        """Read these archived chunks from the bucket from now on. Their files may be removed."""
        for row in rows:
            assert row.base_offset != self._active.base_offset
            chunk = self._sealed.pop(row.base_offset, None)
            if chunk is not None:
                chunk.close()
            self.remote[row.base_offset] = row
            self.book.facts[row.base_offset] = row.facts()

    def close(self) -> None:
        for chunk in (*self._sealed.values(), self._active):
            chunk.close()
        self._sealed.clear()

    def read(
        self, offset: int, max_bytes: int, end: int, blocks_max: int = BLOCKS_MAX
    ) -> list[Block]:
        """Read whole blocks below `end`, from the block that contains `offset` on.

        If that block is lost or no longer kept, this begins with the next block. Returns about
        `max_bytes` bytes and at most `blocks_max` blocks, but at least one if any exists. Headers
        are in wire form. Both checksums were checked, either now or when the block arrived.

        Raises `Damaged` with the offsets of blocks that this read found to be lost. The next read
        continues after them. Raises `Unreadable` if blocks cannot be read now. The next read tries
        again.
        """
        offset = self.skip(max(offset, self.bases[0]))
        if offset < end:
            kept = self.ring.read(offset, max_bytes, end, blocks_max)
            if kept is not None:
                if kept:
                    activity = self.book.of(self.bases[bisect_right(self.bases, offset) - 1])
                    activity.ring_reads += 1
                    activity.ring_bytes += sum(block.header.length for block in kept)
                return kept
        while offset < end:
            hint = self._hints.get(offset)
            chunk = self._readable(
                self.bases[bisect_right(self.bases, offset) - 1] if hint is None else hint.base,
                offset,
            )
            place = (
                chunk.locate(offset)
                if hint is None
                else BlockLocation(hint.position, offset, hint.position, offset)
            )
            lost_position, lost_offset = place.lost_position, place.lost_offset
            if place.position < chunk.end_position:
                if place.first_offset > offset:
                    raise self._lost(
                        chunk,
                        lost_position,
                        lost_offset,
                        Good(place.position, place.first_offset, 1),
                    )
                blocks, position = chunk.read(place.position, max_bytes, end, blocks_max)
                good = None if blocks else chunk.next_good(position)
                if (
                    good is not None
                    and good.position < chunk.end_position
                    and good.first_offset <= place.first_offset
                ):
                    # No message is lost: the block is not completely below `end`, or only a mark
                    # is damaged.
                    blocks, position = chunk.read(good.position, max_bytes, end, blocks_max)
                    if not blocks:
                        return []
                if blocks:
                    self._was_read(chunk, hint, place.position, position, blocks)
                    return blocks
                if good is not None and good.position < chunk.end_position:
                    raise self._lost(chunk, position, place.first_offset, good)
                lost_position, lost_offset = position, place.first_offset
            next_base = self.next_base(chunk.base_offset)
            following = chunk.end_offset if next_base is None else next_base
            if following > lost_offset:
                raise self._lost(
                    chunk, lost_position, lost_offset, Good(chunk.end_position, following, 1)
                )
            if next_base is None:
                return []
            if hint is not None:
                self.give_back.left(chunk, hint.given_back, self._active)
            # This hint is the end of a chunk that was the last one at that time.
            self._hints.pop(offset, None)
            offset = max(next_base, lost_offset)  # never go back, even if a name is wrong
        return []

    def _was_read(
        self, chunk: Chunk, hint: _Hint | None, start: int, position: int, blocks: list[Block]
    ) -> None:
        activity = self.book.of(chunk.base_offset)
        activity.file_reads += 1
        activity.file_bytes += position - start
        given_back = start
        if hint is not None or start == CHUNK_HEADER_BYTES:
            self.give_back.begins(chunk, position, self._active)
            if hint is not None:
                given_back = self.give_back.read(chunk, hint.given_back, position, self._active)
        self._hints[blocks[-1].next_offset] = _Hint(chunk.base_offset, position, given_back)
        if len(self._hints) > HINTS_MAX:
            self._hints.popitem(last=False)

    def _readable(self, base: int, offset: int) -> Chunk:
        try:
            return self.open(base)
        except (Damaged, ForeignDirectory) as error:
            if self.drop_stray(base):
                return self._readable(self.bases[bisect_right(self.bases, base) - 1], offset)
            following = self.next_base(base)
            assert following is not None  # the active chunk is open
            first = max(base, offset)
            self.damage.note(Bad(base, 0, 0, first, following - first, str(error)))
            raise Damaged(
                f"{following - first} messages from offset {first} on are lost: {error}",
                first,
                following - first,
            ) from None

    def _from(self, offset: int) -> list[int]:
        """Return the chunks from the one that contains `offset` on.

        If a file that cannot be used seems to contain it, this first drops it (`drop_stray`).
        """
        with contextlib.suppress(Damaged, Unreadable):
            self._readable(self.bases[bisect_right(self.bases, offset) - 1], offset)
        return self.bases[bisect_right(self.bases, offset) - 1 :]

    def drop_stray(self, base: int) -> bool:
        """Ignore a file that has a chunk's name but cannot be used. Returns True if it is ignored.

        It is ignored only if the chunk before it contains all messages up to the next chunk.
        """
        at = bisect_left(self.bases, base)
        if not 0 < at < len(self.bases) - 1 or self.bases[at] != base:
            return False
        try:
            before = self.open(self.bases[at - 1])
        except (Damaged, ForeignDirectory, Unreadable):
            return False
        if not before.sealed or before.end_offset < self.bases[at + 1]:
            return False
        del self.bases[at]
        return True

    def _lost(self, chunk: Chunk, position: int, offset: int, good: Good) -> Damaged:
        """Note a hole that ends at `good`, and return the error.

        The next read continues after the hole.
        """
        count = good.first_offset - offset
        size = good.position - position
        why = "its checksum does not match" if size else "the file ends before it"
        self.damage.note(
            Bad(chunk.base_offset, position, size, offset, count, why, blocks=max(good.skipped, 1))
        )
        return Damaged(
            (
                f"{count} messages from offset {offset} on are lost: {chunk.path} is damaged there "
                f"({why})"
            ),
            offset,
            count,
        )

    def chunk_rows(self) -> ChunkReport:
        """Return the statistics of the chunks. See `ChunkBook.rows`."""
        return self.book.rows(self.bases, self._active.facts(), self.damage.by_chunk())

    def skip(self, offset: int) -> int:
        """Return `offset`, or the end of the hole that contains it."""
        return self.damage.skip(offset)

    def headers(self, offset: int) -> Iterator[tuple[Header, Mark | None]]:
        """Yield wire-form headers of all blocks from the block that contains `offset` on, for
        recovery.

        Columns are not checked. The second value is the content of a mark. For a damaged mark it is
        None, but its header also has the count 0. From an adopted chunk, this yields only the mark
        at its end, because its blocks have no producer, and there may be many.

        Chunks that are only in the bucket are left out, because nobody fetches during a recovery.
        They are below the offset from which recovery replays.
        """
        local = next(base for base in self.bases if base not in self.remote)
        offset = max(offset, local)
        for base in self._from(offset):
            if base in self.remote:
                continue
            try:
                chunk = self._readable(base, offset)
            except Damaged:
                continue  # `_readable` has noted the lost chunk as a hole
            if chunk.base_offset != base:
                continue  # the file was dropped; `chunk` is the chunk before it
            position = chunk.last_position() if chunk.adopted else chunk.locate(offset).position
            for stretch in chunk.walk(position, columns=False):
                if stretch.good and stretch.header is not None:
                    mark = None if stretch.header.count else chunk.mark_at(stretch.position)
                    yield replay_header(stretch.header, chunk.header), mark

    def header_at(self, offset: int) -> Header | None:
        """Return the wire-form header of the block that contains `offset`.

        If no block does, this uses the next block after it in the chunk. Returns None if it cannot
        be read.
        """
        offset = self.skip(max(offset, self.bases[0]))
        kept = self.ring.read(offset, 1, self.ring.end, 1)
        if kept:
            return kept[0].header
        try:
            chunk = self._readable(self.bases[bisect_right(self.bases, offset) - 1], offset)
            for stretch in chunk.walk(chunk.locate(offset).position, columns=False):
                if stretch.good and stretch.header is not None and stretch.header.count:
                    return wire_header(stretch.header, chunk.header)
        except (Damaged, Unreadable):
            pass
        return None

    def measure(self, start: int, end: int, max_bytes: int) -> tuple[int, int]:
        """Return the bytes of the blocks between two offsets, and a border between two blocks.

        The border is the last one up to which these blocks have at most `max_bytes` bytes. It is at
        most `end`. It is always above `start`, even if the first block is larger than `max_bytes`.
        Lost blocks count as 0 bytes. Raises `NotHere` and `OutOfReach`.
        """
        start = max(start, self.bases[0])
        if start >= end:
            return 0, start
        total = 0
        border = -1
        for base in self._from(start):
            if base >= end:
                break
            try:
                before, size = self._span(base, start, end)
                if border < 0 and total + size > max_bytes:
                    border = self.open(base).boundary(before + max_bytes - total)[1]
                    if border <= start:
                        border = self.open(base).extent(start)[2]
            except (NotHere, OutOfReach):
                raise  # these bytes exist, so they must not count as 0
            except (Damaged, Unreadable):
                continue
            total += size
        return total, end if border < 0 else min(border, end)

    def _span(self, base: int, start: int, end: int) -> tuple[int, int]:
        """Return (position, bytes) of the blocks between two offsets in one chunk.

        If the whole chunk is between the offsets and its facts are known, it is not opened.
        """
        next_base = self.next_base(base)
        facts = self.book.facts.get(base)
        if (
            facts is not None
            and facts.next_offset >= 0
            and start <= base
            and next_base is not None
            and end >= next_base
        ):
            return CHUNK_HEADER_BYTES, facts.bytes - CHUNK_HEADER_BYTES - FOOTER_BYTES
        chunk = self._readable(base, base)
        if chunk.base_offset != base:
            return CHUNK_HEADER_BYTES, 0  # the file was dropped
        first = CHUNK_HEADER_BYTES if start <= base else chunk.extent(start)[0]
        last = chunk.end_position
        if end < (chunk.end_offset if next_base is None else next_base):
            last = chunk.extent(end - 1)[1]
        return first, last - first

    def newest(self, count: int, end: int) -> int:
        """Return the offset at which the newest `count` messages below `end` begin.

        If there are fewer messages, it is the oldest kept offset. Lost messages do not count. The
        offset is computed and not searched, because offsets have no gaps except known holes. In a
        measurement, a walk backwards took 16 microseconds for each block.
        """
        offset = end
        for hole in reversed(self.damage.holes[: bisect_left(self.damage.holes, (end, 0))]):
            if offset - count >= hole.next_offset:
                break
            count -= max(offset - hole.next_offset, 0)
            offset = min(offset, hole.first_offset)
        return max(offset - count, self.bases[0])

    def offset_at(self, time_ns: int) -> int | None:
        """Return the first offset stored at `time_ns` or later, or None."""
        bases = tuple(self.bases)
        low, high = 0, len(bases) - 1
        while low < high:  # find the last chunk that begins before that time
            middle = (low + high + 1) // 2
            if self._begins_before(bases[middle], time_ns):
                low = middle
            else:
                high = middle - 1
        for base in bases[low:]:
            try:
                offset = self._readable(base, base).offset_at(time_ns)
            except Damaged:
                continue
            if offset is not None:
                return offset
        return None

    def _begins_before(self, base: int, time_ns: int) -> bool:
        """Return True if the chunk begins before `time_ns`.

        Returns False if it cannot be read. The search then begins earlier, and only takes longer.
        """
        try:
            return self._readable(base, base).header.base_time_ns < time_ns
        except (Damaged, Unreadable):
            return False

    def next_base(self, base: int) -> int | None:
        following = bisect_right(self.bases, base)
        return self.bases[following] if following < len(self.bases) else None

    def open(self, base: int) -> Chunk:
        """Open a chunk. It is closed when OPEN_CHUNKS_MAX other sealed chunks were used after it.

        Raises `Damaged`, `ForeignDirectory` or `Unreadable` if that fails.
        """
        if base == self._active.base_offset:
            return self._active
        chunk = self._sealed.get(base)
        if chunk is None and base in self.remote:
            chunk = self._open_remote(self.remote[base])
            self._keep(chunk)
        if chunk is None:
            chunk = open_surely(
                self._files, self._folder, base, self._uuid, self._index_every_bytes
            )
            if chunk.sealed:
                self.book.facts[base] = chunk.facts()
            else:  # the footer is damaged, but the next chunk's name gives the end
                following = self.next_base(base)
                assert following is not None
                chunk.end_offset = following
            self._keep(chunk)
        self._sealed.move_to_end(base)
        return chunk

    def _open_remote(self, row: ArchivedChunk) -> Chunk:
        if self._archive is None:
            raise OutOfReach(
                f"the messages from offset {row.base_offset} to {row.next_offset} are only in the "
                "bucket, and this broker runs without one: start it with --bucket"
            )
        return self._archive.open(row, self._index_every_bytes)

    def _keep(self, chunk: Chunk) -> None:
        """Add a chunk to the few sealed chunks that stay open."""
        self._sealed[chunk.base_offset] = chunk
        if len(self._sealed) > OPEN_CHUNKS_MAX:
            self._sealed.popitem(last=False)[1].close()
