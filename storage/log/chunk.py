"""One chunk of the log: its statistics, the walk through its blocks, searches and reads.

`log.py` writes chunks. A mark is a block without messages that ends a group (see
`transactions.py`). A walk yields marks like all other blocks. Searches and reads leave them out,
and indexes have no entries for them.

`ChunkBook` has statistics like those of EQueue (a queue for .NET), without I/O: size, times, bytes
written, reads from the ring (`ring.py`) and from the file. Each count is reported as a total since
this process began, and as a rate over the last full second. Only chunks that were used have
counters. The facts of a sealed chunk become known when a reader opens it, or when a survey in
another thread reads them. They are never read again, because such a chunk does not change. So a
report about ten thousand chunks opens none of them. A read is counted in the chunk in which it
begins.

`ChunkFile` walks through the blocks, forwards or backwards. A walk yields stretches. A stretch is a
block, good or bad, or the bytes between two blocks that are not a block. If only the columns of a
block are bad, its header says where it ends and which offsets it has. If the header is bad, the
walk searches for the next magic in steps of 8 bytes, and checks the checksum of that header. The
checksum is seeded with the chunk's random number. So the bytes of a message's body cannot look like
a block, because their author cannot know the seed.

A walk backwards uses the length at the end of each block. If that is damaged, the walk cannot
continue, and the caller finds the border of a block in the index.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple, NotRequired, Self, TypedDict, cast

from ...transport.block.block import (
    DISK_MAGIC,
    HEADER_BYTES,
    MARK,
    TRAILER_BYTES,
    Block,
    Header,
    check_columns,
)
from ...transport.block.block import VERSION as BLOCK_VERSION
from ...transport.checksum import crc32c
from ...transport.errors import ZsqError
from ..errors import Damaged, ForeignDirectory, NewerVersion, Unreadable
from ..files import Files
from ..foreign import whole_number
from .index import Index, IndexEntry
from .log_format import (
    ADOPTED,
    ALIGNMENT,
    CHUNK_FILE_BYTES_MAX,
    CHUNK_HEADER_BYTES,
    FOOTER_BYTES,
    ChunkFooter,
    ChunkHeader,
    chunk_name,
    decode_chunk_header,
    decode_disk_header,
    decode_footer,
    header_of_footer,
    index_name,
    parse_chunk_name,
    wire_header,
)
from .transactions import Mark, decode_mark

ROWS_MAX: Final = 1000
_NS_PER_S: Final = 1_000_000_000


class ChunkState(StrEnum):
    NEW = "new"
    """The last chunk, while it has no blocks."""
    ONGOING = "ongoing"
    """The last chunk, to which blocks are appended."""
    SEALED = "sealed"
    """A chunk with a footer. It is never written again."""
    ADOPTED = "adopted"
    """A sealed chunk that was written as a staged file before it became a chunk."""
    ARCHIVED = "archived"
    """A sealed chunk that is in the bucket, and not on the disk any more."""


class Facts(NamedTuple):
    """Facts about a chunk. `bytes` is the size of its file.

    `next_offset` is the offset after its last message. It is -1 if the footer is damaged.
    """

    bytes: int
    state: ChunkState
    first_time_ns: int
    last_time_ns: int
    next_offset: int


class ArchivedChunk(NamedTuple):
    """A sealed chunk that the bucket has. It contains all that its header and footer say.

    Offsets and times are absolute. `size` is that of the file, with its footer. `crc` is the
    checksum of the checksums of its segments, and is part of the object's name. `place` identifies
    the archive, because a broker may be started with another bucket.
    """

    base_offset: int
    next_offset: int
    size: int
    first_time_ns: int
    last_time_ns: int
    base_time_ns: int
    seed: int
    flags: int
    crc: int
    place: int = 0

    @classmethod
    def of(cls, row: Iterable[Any]) -> Self:
        """Return the chunk of a row that another program may have written.

        Raises `ValueError` or `TypeError`.
        """
        chunk = cls(*map(int, row))
        whole_number(chunk.next_offset)
        whole_number(chunk.base_offset, chunk.next_offset)
        whole_number(chunk.size, CHUNK_FILE_BYTES_MAX)
        whole_number(chunk.crc, 2**32 - 1)
        return chunk

    def header(self, uuid: bytes) -> ChunkHeader:
        return ChunkHeader(self.base_offset, self.base_time_ns, self.seed, uuid, self.flags)

    def facts(self) -> Facts:
        """Return the facts of the chunk after it has left the disk."""
        state = ChunkState.ARCHIVED
        return Facts(self.size, state, self.first_time_ns, self.last_time_ns, self.next_offset)


class Activity:
    """The counts of one chunk. `rates` are the rates of the last full second."""

    __slots__ = (
        "_before",
        "file_bytes",
        "file_reads",
        "rates",
        "ring_bytes",
        "ring_reads",
        "written_bytes",
    )

    def __init__(self) -> None:
        self.written_bytes = self.ring_reads = self.ring_bytes = self.file_reads = (
            self.file_bytes
        ) = 0
        self._before = self.rates = (0, 0, 0, 0, 0)

    def counts(self) -> tuple[int, int, int, int, int]:
        return (
            self.written_bytes,
            self.ring_reads,
            self.ring_bytes,
            self.file_reads,
            self.file_bytes,
        )

    def roll(self, elapsed_ns: int) -> bool:
        """Compute the rates at the end of a second. Returns False if nothing happened in it."""
        now = self.counts()
        self.rates = tuple(
            (new - old) * _NS_PER_S // elapsed_ns
            for new, old in zip(now, self._before, strict=True)
        )  # type: ignore[assignment]
        moved = now != self._before
        self._before = now
        return moved

    def add(self, other: Activity) -> None:
        """Add the counts of `other`, whose chunk was removed."""
        self.written_bytes += other.written_bytes
        self.ring_reads += other.ring_reads
        self.ring_bytes += other.ring_bytes
        self.file_reads += other.file_reads
        self.file_bytes += other.file_bytes


COUNTS: Final = ("written_bytes", "ring_reads", "ring_read_bytes", "file_reads", "file_read_bytes")


class _Counts(TypedDict):
    """Totals, and rates of the last full second (`_s`)."""

    written_bytes: int
    ring_reads: int
    ring_read_bytes: int
    file_reads: int
    file_read_bytes: int
    written_bytes_s: int
    ring_reads_s: int
    ring_read_bytes_s: int
    file_reads_s: int
    file_read_bytes_s: int


class ChunkRow(_Counts):
    """One chunk. A value is None if the footer was not read yet. `bad` counts damaged blocks."""

    first_offset: int
    messages: int
    bytes: int | None
    state: str
    first_time_ns: int | None
    last_time_ns: int | None
    bad: int


class ChunkSum(_Counts):
    """The sum of several chunks."""

    chunks: int
    messages: int
    bytes: int
    bad: int


class ChunkReport(TypedDict):
    """The report about a log's chunks.

    `older` is the sum of the chunks that are not in `chunks`. `total` is the sum of all chunks. Its
    activities include those of removed chunks.
    """

    chunks: list[ChunkRow]
    total: ChunkSum
    older: NotRequired[ChunkSum]


class ChunkBook:
    """The facts and activities of a log's chunks. `facts` has them by the chunk's first offset."""

    def __init__(self) -> None:
        self.facts: dict[int, Facts] = {}
        self._activities: dict[int, Activity] = {}
        self._moved: set[int] = set()
        self._gone = Activity()
        self._rolled_ns = 0

    def of(self, base: int) -> Activity:
        """Return the activity that counts writes to and reads from this chunk."""
        activity = self._activities.get(base)
        if activity is None:
            activity = self._activities[base] = Activity()
        self._moved.add(base)
        return activity

    def tick(self, now_ns: int) -> None:
        """Compute the rates, about once a second."""
        elapsed_ns = now_ns - self._rolled_ns
        if elapsed_ns < _NS_PER_S // 2:
            return
        self._rolled_ns = now_ns
        self._moved = {
            base
            for base in self._moved
            if base in self._activities and self._activities[base].roll(elapsed_ns)
        }

    def forget_below(self, start: int) -> None:
        """Drop the chunks below `start`, which were removed. Their counts stay in the total."""
        for base in [base for base in self._activities if base < start]:
            self._gone.add(self._activities.pop(base))
        for base in [base for base in self.facts if base < start]:
            del self.facts[base]

    def rows(
        self, bases: Sequence[int], active: Facts, bad: dict[int, int], rows_max: int = ROWS_MAX
    ) -> ChunkReport:
        """Return the newest chunks one by one, the older ones as a sum, and the sum of all.

        `active` are the facts of the last chunk. `bad` has the number of damaged blocks by chunk.
        """
        ends = [*bases[1:], active.next_offset]
        rows: list[ChunkRow] = []
        for base, end in zip(bases[-rows_max:], ends[-rows_max:], strict=True):
            facts = active if base == bases[-1] else self.facts.get(base)
            size, state, first_ns, last_ns, _ = facts or (None, ChunkState.SEALED, None, None, 0)
            rows.append({
                "first_offset": base, "messages": end - base, "bytes": size, "state": str(state),
                "first_time_ns": first_ns or None, "last_time_ns": last_ns or None,
                **_counted([self._activities[base]] if base in self._activities else []), "bad": bad.get(base, 0),
            })  # fmt: skip
        older = bases[:-rows_max]
        report: ChunkReport = {
            "chunks": rows,
            "total": self._sum(bases, ends[-1] - bases[0], active, bad, [self._gone]),
        }
        if older:
            report["older"] = self._sum(older, bases[-rows_max] - bases[0], None, bad, [])
        return report

    def _sum(
        self,
        bases: Sequence[int],
        messages: int,
        active: Facts | None,
        bad: dict[int, int],
        more: Iterable[Activity],
    ) -> ChunkSum:
        known = [self.facts[base] for base in bases if base in self.facts]
        size = sum(facts.bytes for facts in known)
        if active is not None and bases[-1] not in self.facts:
            size += active.bytes
        activities = [
            *more,
            *(self._activities[base] for base in bases if base in self._activities),
        ]
        damaged = sum(bad.get(base, 0) for base in bases)
        return {
            "chunks": len(bases),
            "messages": messages,
            "bytes": size,
            **_counted(activities),
            "bad": damaged,
        }


def _counted(activities: Sequence[Activity]) -> _Counts:
    totals = [
        sum(column) for column in zip(*(activity.counts() for activity in activities), strict=True)
    ] or [0] * len(COUNTS)
    rates = [
        sum(column) for column in zip(*(activity.rates for activity in activities), strict=True)
    ] or [0] * len(COUNTS)
    counts = dict(zip(COUNTS, totals, strict=True)) | {
        f"{name}_s": rate for name, rate in zip(COUNTS, rates, strict=True)
    }
    return cast("_Counts", counts)


WALK_BYTES: Final = 1024 * 1024  # the size of one read if whole blocks are checked
HEADERS_BYTES: Final = 16 * 1024  # the size of one read if only headers are needed
SEARCH_BYTES: Final = 1024 * 1024  # the size of one read in the search for the next header
PAGE_BYTES: Final = 4096  # a failing disk loses bytes in units of this size
# A header begins with these fields: magic, version, columns, flags, a length that is a multiple of
# 8 below 16 MiB, a count below 65,536. The pattern tests all of these fields. So a body that
# consists of magics takes only one search. To decode a header at each magic would take 7.9 s for 5
# MB. Two candidates never overlap, because no byte of a magic is possible in the other fields.
_LENGTHS: Final = bytes(range(0, 256, ALIGNMENT))
_CANDIDATE: Final = re.compile(
    re.escape(DISK_MAGIC) + bytes([BLOCK_VERSION]) + rb".{3}[" + _LENGTHS + rb"]..\0..\0\0",
    re.DOTALL,
)


class Stretch(NamedTuple):
    """Bytes `position` to `end` of a chunk. `header` (disk form) is None if it is bad."""

    position: int
    end: int
    header: Header | None
    good: bool


class ChunkFile:
    """An open chunk file. `end_position` is the end of its blocks."""

    __slots__ = ("base_offset", "end_position", "fd", "files", "folder", "header", "unreadable")

    def __init__(self, files: Files, folder: str, fd: int, header: ChunkHeader) -> None:
        self.files = files
        self.folder = folder
        self.fd = fd
        self.header = header
        self.base_offset = header.base_offset
        self.end_position = CHUNK_HEADER_BYTES
        self.unreadable = -1
        """The last position that the disk could not read, or -1.

        These bytes count as damaged, but may be readable later. So they are never cut off.
        """

    @property
    def path(self) -> str:
        return f"{self.folder}/{chunk_name(self.base_offset)}"

    def close(self) -> None:
        self.files.close(self.fd)

    def walk(self, position: int, *, columns: bool) -> Iterator[Stretch]:
        """Yield stretches from the block at `position` to the end of the chunk.

        With `columns`, the checksums of the blocks' columns are checked too.
        """
        window = memoryview(b"")
        window_at = position
        while position < self.end_position:
            start = position - window_at
            if start + HEADER_BYTES > len(window):
                window = memoryview(self._pread(WALK_BYTES if columns else HEADERS_BYTES, position))
                window_at, start = position, 0
            header = decode_disk_header(
                window[start : start + HEADER_BYTES], self.header.seed, position
            )
            if header is None:
                end = self._find_header(position + ALIGNMENT)
                yield Stretch(position, end, None, False)
                position = end
                continue
            end = position + header.length
            good = end <= self.end_position
            if good and columns:
                if start + header.length > len(window):
                    window = memoryview(self._pread(header.length, position))
                    window_at, start = position, 0
                good = columns_agree(header, window[start + HEADER_BYTES : start + header.length])
            yield Stretch(position, min(end, self.end_position), header, good)
            position = end

    def _find_header(self, position: int) -> int:
        """Return the next position of a header of this chunk, or `end_position`."""
        while position < self.end_position:
            data = self._pread(SEARCH_BYTES, position)
            for candidate in _CANDIDATE.finditer(data):
                at = candidate.start()
                header = data[at : at + HEADER_BYTES]
                if (position + at) % ALIGNMENT or crc32c(
                    header[:-4], self.header.seed
                ) != int.from_bytes(header[-4:], "little"):
                    continue
                if decode_disk_header(header, self.header.seed, position + at) is not None:
                    return position + at
            if position + len(data) >= self.end_position or not data:
                break
            # A header may lie across the border between two reads.
            position += max(len(data) - HEADER_BYTES, ALIGNMENT) & -ALIGNMENT
        return self.end_position

    def _pread(self, size: int, position: int) -> bytes:
        # A file may end before the end of its header. The difference is then negative.
        size = max(0, min(size, self.end_position - position))
        try:
            return self.files.pread(self.fd, size, position)
        except OSError as error:
            if error.errno != errno.EIO:
                raise Unreadable(f"{self.path} cannot be read at {position}: {error}") from error
        return b"".join(
            self._pread_page(min(PAGE_BYTES, size - at), position + at)
            for at in range(0, size, PAGE_BYTES)
        )

    def _pread_page(self, size: int, position: int) -> bytes:
        """Read a page, or return zeros if the disk cannot read it.

        Zeros do not match the checksums, so only the blocks in this page count as damaged.
        """
        try:
            return self.files.pread(self.fd, size, position)
        except OSError as error:
            if error.errno != errno.EIO:
                raise Unreadable(f"{self.path} cannot be read at {position}: {error}") from error
            self.unreadable = max(self.unreadable, position + size - 1)
            return bytes(size)

    def block_before(self, position: int) -> tuple[int, Header] | None:
        """Return (position, header) of the block that ends at `position`.

        The length in its trailer gives its position. Returns None if the block is damaged or does
        not exist.
        """
        at = max(CHUNK_HEADER_BYTES, position - HEADERS_BYTES)
        data = self._pread(position - at, at)
        length = int.from_bytes(data[-TRAILER_BYTES : -TRAILER_BYTES + 4], "little")
        start = position - length
        if start < CHUNK_HEADER_BYTES:
            return None  # other wrong lengths are found below, because no header agrees with them
        block = (
            data[start - at : start - at + HEADER_BYTES]
            if start >= at
            else self._pread(HEADER_BYTES, start)
        )
        header = decode_disk_header(block, self.header.seed, start)
        return (start, header) if header is not None and header.length == length else None


def columns_agree(header: Header, columns: memoryview) -> bool:
    try:
        check_columns(header, columns)
    except ZsqError:
        return False
    return True


READ_BYTES_MIN: Final = 4096
INDEX_BYTES_MAX: Final = 64 * 1024 * 1024
OPEN_ATTEMPTS: Final = 2  # the number of tries before a reader gets an error


class BlockLocation(NamedTuple):
    """The position of a block, its first offset, and the end of the block before it.

    Bytes between the two blocks are lost. Offsets are absolute.
    """

    position: int
    first_offset: int
    lost_position: int
    lost_offset: int


class Good(NamedTuple):
    """The next good block: position, first offset, and number of bad stretches before it."""

    position: int
    first_offset: int
    skipped: int


class Chunk(ChunkFile):
    """An open chunk. `end_offset` (absolute) is the offset after its last block."""

    __slots__ = (
        "end_offset",
        "index",
        "index_every_bytes",
        "last_time_ns",
        "sealed",
        "sequential",
        "spare_header",
    )

    def __init__(
        self, files: Files, folder: str, fd: int, header: ChunkHeader, index_every_bytes: int
    ) -> None:
        super().__init__(files, folder, fd, header)
        self.index_every_bytes = index_every_bytes
        self.index: Index | None = None
        self.end_offset = header.base_offset
        self.sealed = False
        self.sequential = False
        """True after the operating system was advised that the file is read from front to back."""
        self.spare_header = False
        """True if both copies of the header are damaged, so that the copy in the footer is used."""
        self.last_time_ns = header.base_time_ns
        """The time of the last block. It is at first the base time if the chunk has no footer."""

    @property
    def index_path(self) -> str:
        return f"{self.folder}/{index_name(self.base_offset)}"

    def locate(self, offset: int) -> BlockLocation:
        """Find the block that contains `offset`, or the next block after it, or the chunk's end."""
        relative = offset - self.base_offset
        before = 0
        # A reader that comes from the previous chunk needs no index. So a reader that reads a
        # backlog in order loads no indexes.
        before_end = start = (
            CHUNK_HEADER_BYTES if relative <= 0 else self._entry_position(relative, by_time=False)
        )
        for stretch in self.walk(start, columns=False):
            if stretch.header is None:
                continue
            if stretch.header.next_offset > relative:
                return BlockLocation(
                    stretch.position,
                    stretch.header.first_offset + self.base_offset,
                    before_end,
                    before + self.base_offset,
                )
            before, before_end = stretch.header.next_offset, stretch.end
        return BlockLocation(
            self.end_position, self.end_offset, before_end, before + self.base_offset
        )

    def extent(self, offset: int) -> tuple[int, int, int]:
        """Return (position, end, next offset) of the block that contains `offset`.

        If no block does, this uses the next block after it. At the chunk's end, both positions are
        the end.
        """
        position = self.locate(offset).position
        if position < self.end_position:
            header = decode_disk_header(
                self._pread(HEADER_BYTES, position), self.header.seed, position
            )
            if header is not None:
                return position, position + header.length, header.next_offset + self.base_offset
        return self.end_position, self.end_position, self.end_offset

    def boundary(self, position: int) -> tuple[int, int]:
        """Return (position, offset) of the last border between blocks at or before `position`."""
        index = self.index if self.index is not None else self.load_index()
        entry = index.by_position(position)
        start = entry.position if entry is not None and self._agrees(entry) else CHUNK_HEADER_BYTES
        boundary = CHUNK_HEADER_BYTES, self.base_offset
        for stretch in self.walk(start, columns=False):
            if stretch.header is not None and stretch.position <= position:
                boundary = stretch.position, stretch.header.first_offset + self.base_offset
            if stretch.end > position:
                return boundary
        return self.end_position, self.end_offset

    def offset_at(self, time_ns: int) -> int | None:
        """Return the first offset stored at `time_ns` or later, or None if all are older."""
        relative = time_ns - self.header.base_time_ns
        for stretch in self.walk(self._entry_position(relative, by_time=True), columns=False):
            if stretch.header is not None and stretch.header.time_ns >= relative:
                return stretch.header.first_offset + self.base_offset
        return None

    def _entry_position(self, key: int, *, by_time: bool) -> int:
        """Return the position at which a walk that searches `key` begins.

        An index entry is used only if the header at its position agrees.
        """
        for attempt in range(2):
            index = (
                self.index
                if self.index is not None and not attempt
                else self.load_index(rebuild=bool(attempt))
            )
            entry = index.by_time(key) if by_time else index.by_offset(key)
            if entry is None:
                break
            if self._agrees(entry):
                return entry.position
        return CHUNK_HEADER_BYTES

    def load_index(self, *, rebuild: bool = False) -> Index:
        """Load the index from its file, or rebuild it from the headers.

        A rebuilt index is saved if the chunk is sealed.
        """
        if not rebuild:
            self.index = self._saved_index()
            if self.index is not None:
                return self.index
        index = Index(self.index_every_bytes)
        for stretch in self.walk(CHUNK_HEADER_BYTES, columns=False):
            header = stretch.header
            if header is not None and header.count and stretch.position >= index.next_position:
                index.note(header.first_offset, stretch.position, header.time_ns)
        self.index = index
        if self.sealed:
            self.save_index()
        return index

    def _saved_index(self) -> Index | None:
        try:
            data = self.files.read_file(self.index_path, INDEX_BYTES_MAX)
        except OSError:
            return None
        return Index.decode(data, self.header.seed, self.index_every_bytes)

    def resume(self, offset: int) -> IndexEntry | None:
        """Return a block at or before `offset` (absolute) where a walk may begin.

        This uses the saved index. Returns None if the walk must begin at the first block. After the
        call, the index in memory has the entries before the result.
        """
        self.index = Index(self.index_every_bytes)
        saved = self._saved_index()
        entry = None if saved is None else saved.by_offset(offset - self.base_offset)
        if saved is None or entry is None or not self._agrees(entry):
            return None
        saved.cut(entry.position)
        self.index = saved
        return entry

    def _agrees(self, entry: IndexEntry) -> bool:
        """Return True if the block header at the entry's position agrees with the entry."""
        header = decode_disk_header(
            self._pread(HEADER_BYTES, entry.position), self.header.seed, entry.position
        )
        return (
            header is not None
            and header.first_offset == entry.offset
            and header.time_ns == entry.time_ns
        )

    def save_index(self) -> None:
        """Write the index, if it is loaded, beside the chunk.

        The file is only a cache, so it is not synced, and a failure is ignored.
        """
        if self.index is None:
            return
        try:
            if self.files.exists(self.index_path):
                self.files.remove(self.index_path)
            fd = self.files.open_new(self.index_path)
            try:
                self.files.writev(fd, [self.index.encode(self.header.seed)], 0)
            finally:
                self.files.close(fd)
        except OSError:
            return

    def read(
        self, position: int, max_bytes: int, end: int, blocks_max: int
    ) -> tuple[list[Block], int]:
        """Return good blocks from `position` on, and the position after them.

        The blocks are below `end` (absolute) and have about `max_bytes` bytes. Returns at least one
        block if the first one is good and below `end`, and no block if the first one is bad.
        """
        blocks: list[Block] = []
        begin = window_at = position
        window = memoryview(b"")
        while (
            position < self.end_position
            and position - begin < max(max_bytes, 1)
            and len(blocks) < blocks_max
        ):
            start = position - window_at
            if start + HEADER_BYTES > len(window):
                if blocks:
                    break
                window = memoryview(self._pread(max(max_bytes, READ_BYTES_MIN), position))
                window_at, start = position, 0
            header = decode_disk_header(
                window[start : start + HEADER_BYTES], self.header.seed, position
            )
            if (
                header is None
                or header.next_offset + self.base_offset > end
                or position + header.length > self.end_position
            ):
                break
            if header.flags & MARK:
                position += header.length
                begin += header.length
                continue
            if start + header.length > len(window):
                if blocks:
                    break
                window = memoryview(self._pread(header.length, position))
                window_at, start = position, 0
            columns = window[start + HEADER_BYTES : start + header.length]
            if not columns_agree(header, columns):
                break
            blocks.append(Block(wire_header(header, self.header), columns, columns))
            position += header.length
        return blocks, position

    def next_good(self, position: int) -> Good:
        """Return the next good block with messages, from `position` on, or the chunk's end."""
        skipped = 0
        for stretch in self.walk(position, columns=True):
            if stretch.good and stretch.header is not None and stretch.header.count:
                return Good(
                    stretch.position, stretch.header.first_offset + self.base_offset, skipped
                )
            skipped += not stretch.good
        return Good(self.end_position, self.end_offset, skipped)

    def facts(self) -> Facts:
        """Return the present facts of the chunk."""
        state = ChunkState.ADOPTED if self.adopted else ChunkState.SEALED
        if not self.sealed:
            state = ChunkState.ONGOING if self.end_position > CHUNK_HEADER_BYTES else ChunkState.NEW
        size = self.end_position + (FOOTER_BYTES if self.sealed else 0)
        first_time_ns = self.header.base_time_ns
        # The first chunk of a topic is created before the first message, and has base time 0.
        if not first_time_ns and self.end_position > CHUNK_HEADER_BYTES:
            # This is only a statistic, so an error must not stop a roll.
            with contextlib.suppress(Unreadable):
                header = decode_disk_header(
                    self._pread(HEADER_BYTES, CHUNK_HEADER_BYTES),
                    self.header.seed,
                    CHUNK_HEADER_BYTES,
                )
                first_time_ns = 0 if header is None else header.time_ns
        return Facts(size, state, first_time_ns, self.last_time_ns, self.end_offset)

    @property
    def adopted(self) -> bool:
        return bool(self.header.flags & ADOPTED)

    def mark_at(self, position: int) -> Mark | None:
        """Return the mark in the block at `position`, or None if it is missing or damaged."""
        header = decode_disk_header(self._pread(HEADER_BYTES, position), self.header.seed, position)
        if header is None or not header.flags & MARK:
            return None
        columns = memoryview(self._pread(header.length - HEADER_BYTES, position + HEADER_BYTES))
        return decode_mark(columns) if columns_agree(header, columns) else None

    def last_position(self) -> int:
        """Return the position of the last block of a sealed chunk, according to its trailer.

        If the trailer is damaged, return the position of the first block.
        """
        block = self.block_before(self.end_position)
        return CHUNK_HEADER_BYTES if block is None else block[0]


def archived_of(chunk: Chunk, crc: int, place: int) -> ArchivedChunk:
    """Return the facts of a sealed chunk that was uploaded."""
    assert chunk.sealed
    facts, header = chunk.facts(), chunk.header
    return ArchivedChunk(
        chunk.base_offset,
        chunk.end_offset,
        chunk.end_position + FOOTER_BYTES,
        facts.first_time_ns,
        chunk.last_time_ns,
        header.base_time_ns,
        header.seed,
        header.flags,
        crc,
        place,
    )


def create_chunk(
    files: Files, folder: str, header: ChunkHeader, encoded: bytes, index_every_bytes: int
) -> Chunk:
    """Create an empty chunk and sync its header. The caller must sync the folder for its name.

    The file is removed again if this fails.
    """
    path = f"{folder}/{chunk_name(header.base_offset)}"
    fd = files.open_new(path)
    try:
        files.writev(fd, [encoded], 0)
        files.sync(fd)
    except BaseException:
        files.close(fd)
        files.remove(path)
        raise
    chunk = Chunk(files, folder, fd, header, index_every_bytes)
    chunk.index = Index(index_every_bytes)
    return chunk


def open_chunk(
    files: Files,
    folder: str,
    base_offset: int,
    uuid: bytes,
    index_every_bytes: int,
    *,
    write: bool = False,
) -> Chunk:
    """Open an existing chunk.

    Raises `ForeignDirectory` if it belongs to another topic, `Damaged` if its header cannot be
    read.

    In a sealed chunk, `end_position` is the position of the footer, and `end_offset` comes from the
    footer. In other chunks, `end_position` is the end of the file, and `end_offset` is the base
    offset, because the real one is not known.
    """
    path = f"{folder}/{chunk_name(base_offset)}"
    fd = files.open_append(path) if write else files.open_read(path)
    try:
        header, is_spare = _read_header(files, fd, base_offset)
        if header.uuid != uuid or header.base_offset != base_offset:
            raise ForeignDirectory(
                f"{path} belongs to another topic (uuid {header.uuid.hex()}, first offset "
                f"{header.base_offset})"
            )
        chunk = Chunk(files, folder, fd, header, index_every_bytes)
        chunk.spare_header = is_spare
        size = files.size(fd)
        footer = read_footer(files, fd, header.seed, size)
        chunk.sealed = footer is not None
        chunk.end_position = size if footer is None else footer.data_end
        chunk.end_offset = base_offset + (0 if footer is None else footer.next_offset)
        chunk.last_time_ns += 0 if footer is None else footer.last_time_ns
    except NewerVersion as error:
        files.close(fd)
        raise error.at(path) from error
    except BaseException:
        files.close(fd)
        raise
    return chunk


def _read_header(files: Files, fd: int, base_offset: int) -> tuple[ChunkHeader, bool]:
    """Read the header from the front of the file, or from its footer.

    The second value is True if the header comes from the footer. Both copies at the front may be in
    one bad sector, and that must not make a sealed chunk unusable.
    """
    try:
        return decode_chunk_header(files.pread(fd, CHUNK_HEADER_BYTES, 0)), False
    except (Damaged, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.EIO:
            raise
        position = files.size(fd) - FOOTER_BYTES
        header = (
            header_of_footer(files.pread(fd, FOOTER_BYTES, position), base_offset, position)
            if position > 0
            else None
        )
        if header is None:
            raise
        return header, True


def open_surely(
    files: Files, folder: str, base_offset: int, uuid: bytes, index_every_bytes: int
) -> Chunk:
    """Open a chunk for a reader.

    Raises `Damaged` only if the file is missing from its folder or its header is invalid. All other
    errors of the operating system raise `Unreadable`, because a short failure of a disk or a mount
    must not make the messages of a chunk count as lost.
    """
    for attempt in range(OPEN_ATTEMPTS):
        try:
            return open_chunk(files, folder, base_offset, uuid, index_every_bytes)
        except OSError as error:
            text = f"the chunk of offset {base_offset} in {folder} cannot be opened: {error}"
            if error.errno == errno.ENOENT and _is_missing(files, folder, base_offset):
                raise Damaged(text) from error
            if attempt + 1 == OPEN_ATTEMPTS:
                raise Unreadable(text) from error
    raise AssertionError


def _is_missing(files: Files, folder: str, base_offset: int) -> bool:
    """Return True if the folder is readable and has other chunks of the topic, but not this one.

    An empty folder proves nothing, because it may be a mount point that is not mounted.
    """
    try:
        names = files.list(folder)
    except OSError:
        return False
    return chunk_name(base_offset) not in names and any(
        parse_chunk_name(name) is not None for name in names
    )


def read_footer(files: Files, fd: int, seed: int, size: int) -> ChunkFooter | None:
    position = size - FOOTER_BYTES  # a file with a header is at least as long as a footer
    try:
        data = files.pread(fd, FOOTER_BYTES, position)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return None  # the page with the footer is unreadable; the blocks before it may be good
    return decode_footer(data, seed, position)
