"""One chunk: finding a block in it, reading some. Walking is `chunk.py`'s, writing is the log's.

Marks are blocks without messages; they are walked like all others, and never found, read or put in an index.

What is known of each chunk, and what is done with it: size, times, bytes written, reads from the ring and from the file. Pure.

EQueue's chunk statistics: totals since this process began, and the rate over the last full second. Only chunks with which anything
was done have counters. Facts of sealed chunks are learnt when they are opened for a reader, or by a survey in some other thread, and never
asked for again, as such a chunk does not change: so telling about ten thousand chunks opens none. A read is counted where it begins.

A chunk's file: its bytes, and a walk through its blocks, forwards or backwards.

A walk tells a chunk's content as stretches: blocks that are good, and what is not. A block whose header is good
but whose columns are not has a known end and known offsets. Where the header itself is bad, the next one is
looked for by its magic in steps of 8 bytes and believed by its checksum, which is seeded with the chunk's random
number: bytes in a message's body cannot pass for a block, because who wrote them cannot know the seed.

Backwards: each block ends with its length. Where that is damaged there is no way on; who walks back finds a border by the index then.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, NotRequired, TypedDict, cast

from crc32c import crc32c

from ...transport.block.block import DISK_MAGIC, HEADER_BYTES, MARK, TRAILER_BYTES, Block, Header, check_columns
from ...transport.block.block import VERSION as BLOCK_VERSION
from ...transport.errors import ZsqError
from ..errors import Damaged, ForeignDirectory, Unreadable
from ..files import Files
from .index import Index, IndexEntry
from .log_format import (
    ADOPTED,
    ALIGNMENT,
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
    """The last one, and empty."""
    ONGOING = "ongoing"
    """The last one: appended to."""
    SEALED = "sealed"
    """With a footer; never written again."""
    ADOPTED = "adopted"
    """Sealed, and written as a staged file before it became a chunk."""


class Facts(NamedTuple):
    """Of a sealed chunk. `bytes`: of the file; `next_offset`: behind its last message, or -1 where its footer is damaged."""

    bytes: int
    state: ChunkState
    first_time_ns: int
    last_time_ns: int
    next_offset: int


class Activity:
    """Counts of one chunk. `rates` are those of the last full second."""

    __slots__ = ("_before", "file_bytes", "file_reads", "rates", "ring_bytes", "ring_reads", "written_bytes")

    def __init__(self) -> None:
        self.written_bytes = self.ring_reads = self.ring_bytes = self.file_reads = self.file_bytes = 0
        self._before = self.rates = (0, 0, 0, 0, 0)

    def counts(self) -> tuple[int, int, int, int, int]:
        return self.written_bytes, self.ring_reads, self.ring_bytes, self.file_reads, self.file_bytes

    def roll(self, elapsed_ns: int) -> bool:
        """A second is over; False if nothing was done in it."""
        now = self.counts()
        self.rates = tuple((new - old) * _NS_PER_S // elapsed_ns for new, old in zip(now, self._before, strict=True))  # type: ignore[assignment]
        moved = now != self._before
        self._before = now
        return moved

    def add(self, other: Activity) -> None:
        """`other`'s chunk is gone; its counts are not."""
        self.written_bytes += other.written_bytes
        self.ring_reads += other.ring_reads
        self.ring_bytes += other.ring_bytes
        self.file_reads += other.file_reads
        self.file_bytes += other.file_bytes


COUNTS: Final = ("written_bytes", "ring_reads", "ring_read_bytes", "file_reads", "file_read_bytes")


class _Counts(TypedDict):
    """Totals, and with _s what they were in the last full second."""

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
    """Of one chunk. None: its footer was not read yet. `bad`: damaged blocks."""

    first_offset: int
    messages: int
    bytes: int | None
    state: str
    first_time_ns: int | None
    last_time_ns: int | None
    bad: int


class ChunkSum(_Counts):
    """Of several chunks together."""

    chunks: int
    messages: int
    bytes: int
    bad: int


class ChunkReport(TypedDict):
    """`older`: chunks that are not among `chunks`, together; `total`: all, with those that are gone."""

    chunks: list[ChunkRow]
    total: ChunkSum
    older: NotRequired[ChunkSum]


class ChunkBook:
    """`facts` by the chunk's first offset."""

    def __init__(self) -> None:
        self.facts: dict[int, Facts] = {}
        self._activities: dict[int, Activity] = {}
        self._moved: set[int] = set()
        self._gone = Activity()
        self._rolled_ns = 0

    def of(self, base: int) -> Activity:
        """Where to count what is done with this chunk."""
        found = self._activities.get(base)
        if found is None:
            found = self._activities[base] = Activity()
        self._moved.add(base)
        return found

    def tick(self, now_ns: int) -> None:
        """About once a second."""
        elapsed_ns = now_ns - self._rolled_ns
        if elapsed_ns < _NS_PER_S // 2:
            return
        self._rolled_ns = now_ns
        self._moved = {base for base in self._moved if base in self._activities and self._activities[base].roll(elapsed_ns)}

    def forget_below(self, start: int) -> None:
        """These chunks were removed."""
        for base in [base for base in self._activities if base < start]:
            self._gone.add(self._activities.pop(base))
        for base in [base for base in self.facts if base < start]:
            del self.facts[base]

    def rows(self, bases: Sequence[int], active: Facts, bad: dict[int, int], rows_max: int = ROWS_MAX) -> ChunkReport:
        """The newest chunks one by one, the older ones in a sum, and all in a sum.

        `active`: of the last one; `bad`: damaged blocks by chunk.
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
        found: ChunkReport = {"chunks": rows, "total": self._sum(bases, ends[-1] - bases[0], active, bad, [self._gone])}
        if older:
            found["older"] = self._sum(older, bases[-rows_max] - bases[0], None, bad, [])
        return found

    def _sum(self, bases: Sequence[int], messages: int, active: Facts | None, bad: dict[int, int], more: Iterable[Activity]) -> ChunkSum:
        known = [self.facts[base] for base in bases if base in self.facts]
        size = sum(facts.bytes for facts in known)
        if active is not None and bases[-1] not in self.facts:
            size += active.bytes
        activities = [*more, *(self._activities[base] for base in bases if base in self._activities)]
        damaged = sum(bad.get(base, 0) for base in bases)
        return {"chunks": len(bases), "messages": messages, "bytes": size, **_counted(activities), "bad": damaged}


def _counted(activities: Sequence[Activity]) -> _Counts:
    totals = [sum(column) for column in zip(*(activity.counts() for activity in activities), strict=True)] or [0] * len(COUNTS)
    rates = [sum(column) for column in zip(*(activity.rates for activity in activities), strict=True)] or [0] * len(COUNTS)
    found = dict(zip(COUNTS, totals, strict=True)) | {f"{name}_s": rate for name, rate in zip(COUNTS, rates, strict=True)}
    return cast("_Counts", found)


WALK_BYTES: Final = 1024 * 1024  # read at once when blocks are checked whole
HEADERS_BYTES: Final = 16 * 1024  # read at once when only headers are wanted
SEARCH_BYTES: Final = 1024 * 1024  # read at once when the next header is looked for
PAGE_BYTES: Final = 4096  # what a disk that fails to read loses at a time
# What a header begins with: magic, version, columns, flags, a length that is a multiple of 8 below 16 MiB, a count below 65,536. So a body
# full of magic costs a search, not a decoding each (7.9 s for 5 MB). Two never overlap: no byte of a magic is what the others want there.
_LENGTHS: Final = bytes(range(0, 256, ALIGNMENT))
_CANDIDATE: Final = re.compile(re.escape(DISK_MAGIC) + bytes([BLOCK_VERSION]) + rb".{3}[" + _LENGTHS + rb"]..\0..\0\0", re.DOTALL)


class Stretch(NamedTuple):
    """Bytes `position` to `end` of a chunk. `header` (disk form) is None where it could not be read."""

    position: int
    end: int
    header: Header | None
    good: bool


class ChunkFile:
    """An open chunk file. `end_position` is where its blocks end."""

    __slots__ = ("base_offset", "end_position", "fd", "files", "folder", "header", "unreadable")

    def __init__(self, files: Files, folder: str, fd: int, header: ChunkHeader) -> None:
        self.files = files
        self.folder = folder
        self.fd = fd
        self.header = header
        self.base_offset = header.base_offset
        self.end_position = CHUNK_HEADER_BYTES
        self.unreadable = -1
        """The last position met that the disk cannot read. It counts as damaged, and may be readable tomorrow: nobody cuts it off."""

    @property
    def path(self) -> str:
        return f"{self.folder}/{chunk_name(self.base_offset)}"

    def close(self) -> None:
        self.files.close(self.fd)

    def walk(self, position: int, *, columns: bool) -> Iterator[Stretch]:
        """From the block at `position` to the end of the chunk; `columns`: check these too, not only the headers."""
        window = memoryview(b"")
        window_at = position
        while position < self.end_position:
            start = position - window_at
            if start + HEADER_BYTES > len(window):
                window = memoryview(self._pread(WALK_BYTES if columns else HEADERS_BYTES, position))
                window_at, start = position, 0
            header = decode_disk_header(window[start : start + HEADER_BYTES], self.header.seed, position)
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
        """The next place, from `position` on, where a header of this chunk stands; `end_position` if there is none."""
        while position < self.end_position:
            data = self._pread(SEARCH_BYTES, position)
            for candidate in _CANDIDATE.finditer(data):
                at = candidate.start()
                header = data[at : at + HEADER_BYTES]
                if (position + at) % ALIGNMENT or crc32c(header[:-4], self.header.seed) != int.from_bytes(header[-4:], "little"):
                    continue
                if decode_disk_header(header, self.header.seed, position + at) is not None:
                    return position + at
            if position + len(data) >= self.end_position or not data:
                break
            position += max(len(data) - HEADER_BYTES, ALIGNMENT) & -ALIGNMENT  # a header may lie across the border
        return self.end_position

    def _pread(self, size: int, position: int) -> bytes:
        size = max(0, min(size, self.end_position - position))  # a file may end within its own header
        try:
            return self.files.pread(self.fd, size, position)
        except OSError as error:
            if error.errno != errno.EIO:
                raise Unreadable(f"{self.path} cannot be read at {position}: {error}") from error
        return b"".join(self._pread_page(min(PAGE_BYTES, size - at), position + at) for at in range(0, size, PAGE_BYTES))

    def _pread_page(self, size: int, position: int) -> bytes:
        """Zeros where the disk has lost the page: the checksums make damage of it, and only of the blocks that lie there."""
        try:
            return self.files.pread(self.fd, size, position)
        except OSError as error:
            if error.errno != errno.EIO:
                raise Unreadable(f"{self.path} cannot be read at {position}: {error}") from error
            self.unreadable = max(self.unreadable, position + size - 1)
            return bytes(size)

    def block_before(self, position: int) -> tuple[int, Header] | None:
        """(position, header) of the block that ends at `position`: its trailer says where it begins. None: damaged, or nothing there."""
        at = max(CHUNK_HEADER_BYTES, position - HEADERS_BYTES)
        data = self._pread(position - at, at)
        length = int.from_bytes(data[-TRAILER_BYTES : -TRAILER_BYTES + 4], "little")
        start = position - length
        if start < CHUNK_HEADER_BYTES:
            return None  # any other length that is wrong leads to no header that agrees with it
        found = data[start - at : start - at + HEADER_BYTES] if start >= at else self._pread(HEADER_BYTES, start)
        header = decode_disk_header(found, self.header.seed, start)
        return (start, header) if header is not None and header.length == length else None


def columns_agree(header: Header, columns: memoryview) -> bool:
    try:
        check_columns(header, columns)
    except ZsqError:
        return False
    return True


READ_BYTES_MIN: Final = 4096
INDEX_BYTES_MAX: Final = 64 * 1024 * 1024
OPEN_ATTEMPTS: Final = 2  # before a reader is told that it cannot be


class BlockLocation(NamedTuple):
    """Where a block begins, and its first offset; and where the one before it ends: what lies between is lost. Offsets are absolute."""

    position: int
    first_offset: int
    lost_position: int
    lost_offset: int


class Good(NamedTuple):
    """The next good block: where it begins, its first offset, and how many bad stretches lie before it."""

    position: int
    first_offset: int
    skipped: int


class Chunk(ChunkFile):
    """An open chunk. `end_offset` (absolute) is the offset that follows its blocks."""

    __slots__ = ("end_offset", "index", "index_every_bytes", "last_time_ns", "sealed", "sequential", "spare_header")

    def __init__(self, files: Files, folder: str, fd: int, header: ChunkHeader, index_every_bytes: int) -> None:
        super().__init__(files, folder, fd, header)
        self.index_every_bytes = index_every_bytes
        self.index: Index | None = None
        self.end_offset = header.base_offset
        self.sealed = False
        self.sequential = False
        """The operating system was told that it is read from front to back."""
        self.spare_header = False
        """Both copies of its header are damaged, and its footer's was taken."""
        self.last_time_ns = header.base_time_ns
        """Of its last block, as its footer says; before that not known here."""

    @property
    def index_path(self) -> str:
        return f"{self.folder}/{index_name(self.base_offset)}"

    def locate(self, offset: int) -> BlockLocation:
        """The block that holds `offset`, or the first after it, at worst the chunk's end."""
        relative = offset - self.base_offset
        before = 0
        # A reader that comes from the chunk before needs no index: so going through a backlog loads none.
        before_end = start = CHUNK_HEADER_BYTES if relative <= 0 else self._entry_position(relative, by_time=False)
        for stretch in self.walk(start, columns=False):
            if stretch.header is None:
                continue
            if stretch.header.next_offset > relative:
                return BlockLocation(
                    stretch.position, stretch.header.first_offset + self.base_offset, before_end, before + self.base_offset
                )
            before, before_end = stretch.header.next_offset, stretch.end
        return BlockLocation(self.end_position, self.end_offset, before_end, before + self.base_offset)

    def extent(self, offset: int) -> tuple[int, int, int]:
        """(position, end, next offset) of the block that holds `offset`, or of the first after it, at worst of the chunk's end."""
        position = self.locate(offset).position
        if position < self.end_position:
            header = decode_disk_header(self._pread(HEADER_BYTES, position), self.header.seed, position)
            if header is not None:
                return position, position + header.length, header.next_offset + self.base_offset
        return self.end_position, self.end_position, self.end_offset

    def boundary(self, position: int) -> tuple[int, int]:
        """(position, offset) of the last border between blocks at or before `position`."""
        index = self.index if self.index is not None else self.load_index()
        entry = index.by_position(position)
        start = entry.position if entry is not None and self._agrees(entry) else CHUNK_HEADER_BYTES
        found = CHUNK_HEADER_BYTES, self.base_offset
        for stretch in self.walk(start, columns=False):
            if stretch.header is not None and stretch.position <= position:
                found = stretch.position, stretch.header.first_offset + self.base_offset
            if stretch.end > position:
                return found
        return self.end_position, self.end_offset

    def offset_at(self, time_ns: int) -> int | None:
        """The first offset stored at `time_ns` or later, None if all are older."""
        relative = time_ns - self.header.base_time_ns
        for stretch in self.walk(self._entry_position(relative, by_time=True), columns=False):
            if stretch.header is not None and stretch.header.time_ns >= relative:
                return stretch.header.first_offset + self.base_offset
        return None

    def _entry_position(self, key: int, *, by_time: bool) -> int:
        """Where to begin a walk that is to find `key`. An entry is believed only if the header it points at agrees."""
        for attempt in range(2):
            index = self.index if self.index is not None and not attempt else self.load_index(rebuild=bool(attempt))
            entry = index.by_time(key) if by_time else index.by_offset(key)
            if entry is None:
                break
            if self._agrees(entry):
                return entry.position
        return CHUNK_HEADER_BYTES

    def load_index(self, *, rebuild: bool = False) -> Index:
        """The index from its file, or built anew from the headers (and written, if the chunk is sealed)."""
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
        """A block at or before `offset` (absolute) from which a walk may begin, by the saved index; None: begin at the first.

        The index in memory is then what lies before it.
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
        """Whether the block header that an index entry points at is there and is the one it means."""
        header = decode_disk_header(self._pread(HEADER_BYTES, entry.position), self.header.seed, entry.position)
        return header is not None and header.first_offset == entry.offset and header.time_ns == entry.time_ns

    def save_index(self) -> None:
        """Write the index, if there is one, beside the chunk. It is a cache: neither synced nor missed if this fails."""
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

    def read(self, position: int, bytes_max: int, end: int, blocks_max: int) -> tuple[list[Block], int]:
        """Good blocks from `position` on that lie below `end` (absolute), and the position after them.

        About `bytes_max` bytes, at least one block if the first is good and below the end; none if it is bad.
        """
        blocks: list[Block] = []
        begin = window_at = position
        window = memoryview(b"")
        while position < self.end_position and position - begin < max(bytes_max, 1) and len(blocks) < blocks_max:
            start = position - window_at
            if start + HEADER_BYTES > len(window):
                if blocks:
                    break
                window = memoryview(self._pread(max(bytes_max, READ_BYTES_MIN), position))
                window_at, start = position, 0
            header = decode_disk_header(window[start : start + HEADER_BYTES], self.header.seed, position)
            if header is None or header.next_offset + self.base_offset > end or position + header.length > self.end_position:
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
        """The next wholly good block with messages, from `position` on; the chunk's end if there is none."""
        skipped = 0
        for stretch in self.walk(position, columns=True):
            if stretch.good and stretch.header is not None and stretch.header.count:
                return Good(stretch.position, stretch.header.first_offset + self.base_offset, skipped)
            skipped += not stretch.good
        return Good(self.end_position, self.end_offset, skipped)

    def facts(self) -> Facts:
        """As it is now."""
        state = ChunkState.ADOPTED if self.adopted else ChunkState.SEALED
        if not self.sealed:
            state = ChunkState.ONGOING if self.end_position > CHUNK_HEADER_BYTES else ChunkState.NEW
        size = self.end_position + (FOOTER_BYTES if self.sealed else 0)
        first_time_ns = self.header.base_time_ns
        if not first_time_ns and self.end_position > CHUNK_HEADER_BYTES:  # a topic's first chunk is made before there is a message
            with contextlib.suppress(Unreadable):  # a statistic, and a roll waits for it
                header = decode_disk_header(self._pread(HEADER_BYTES, CHUNK_HEADER_BYTES), self.header.seed, CHUNK_HEADER_BYTES)
                first_time_ns = 0 if header is None else header.time_ns
        return Facts(size, state, first_time_ns, self.last_time_ns, self.end_offset)

    @property
    def adopted(self) -> bool:
        return bool(self.header.flags & ADOPTED)

    def mark_at(self, position: int) -> Mark | None:
        """The mark whose block begins at `position`; None where there is none, or it is damaged."""
        header = decode_disk_header(self._pread(HEADER_BYTES, position), self.header.seed, position)
        if header is None or not header.flags & MARK:
            return None
        columns = memoryview(self._pread(header.length - HEADER_BYTES, position + HEADER_BYTES))
        return decode_mark(columns) if columns_agree(header, columns) else None

    def last_position(self) -> int:
        """Where the last block of a sealed chunk begins: its trailer says how long it is. If that is damaged: where the first begins."""
        found = self.block_before(self.end_position)
        return CHUNK_HEADER_BYTES if found is None else found[0]


def create_chunk(files: Files, folder: str, header: ChunkHeader, encoded: bytes, index_every_bytes: int) -> Chunk:
    """A new, empty chunk, its header synced; its name is not: sync the folder. What failed is removed again."""
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


def open_chunk(files: Files, folder: str, base_offset: int, uuid: bytes, index_every_bytes: int, *, write: bool = False) -> Chunk:
    """An existing chunk. `ForeignDirectory` if it is another topic's, `Damaged` if its header cannot be read.

    `end_position` is the footer's place in a sealed chunk, else the end of the file; `end_offset` is the footer's, else
    unknown and the base.
    """
    path = f"{folder}/{chunk_name(base_offset)}"
    fd = files.open_append(path) if write else files.open_read(path)
    try:
        header, is_spare = _read_header(files, fd, base_offset)
        if header.uuid != uuid or header.base_offset != base_offset:
            raise ForeignDirectory(f"{path} belongs to another topic (uuid {header.uuid.hex()}, first offset {header.base_offset})")
        chunk = Chunk(files, folder, fd, header, index_every_bytes)
        chunk.spare_header = is_spare
        size = files.size(fd)
        footer = read_footer(files, fd, header.seed, size)
        chunk.sealed = footer is not None
        chunk.end_position = size if footer is None else footer.data_end
        chunk.end_offset = base_offset + (0 if footer is None else footer.next_offset)
        chunk.last_time_ns += 0 if footer is None else footer.last_time_ns
    except BaseException:
        files.close(fd)
        raise
    return chunk


def _read_header(files: Files, fd: int, base_offset: int) -> tuple[ChunkHeader, bool]:
    """From the file's front, or (True) from its footer: one bad sector, where both copies lie, shall not cost a sealed chunk."""
    try:
        return decode_chunk_header(files.pread(fd, CHUNK_HEADER_BYTES, 0)), False
    except (Damaged, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.EIO:
            raise
        position = files.size(fd) - FOOTER_BYTES
        header = header_of_footer(files.pread(fd, FOOTER_BYTES, position), base_offset, position) if position > 0 else None
        if header is None:
            raise
        return header, True


def open_surely(files: Files, folder: str, base_offset: int, uuid: bytes, index_every_bytes: int) -> Chunk:
    """As `open_chunk`, for a reader: `Damaged` only where the file is not in its folder any more, or its header is no header.

    All else that the operating system says is `Unreadable`: a disk or a mount that fails for a moment must not cost a chunk of messages.
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
    """Whether the folder itself, with other files of the topic in it, says so: an unmounted one says nothing."""
    try:
        names = files.list(folder)
    except OSError:
        return False
    return chunk_name(base_offset) not in names and any(parse_chunk_name(name) is not None for name in names)


def read_footer(files: Files, fd: int, seed: int, size: int) -> ChunkFooter | None:
    position = size - FOOTER_BYTES  # what has a header is no shorter than a footer
    try:
        data = files.pread(fd, FOOTER_BYTES, position)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return None  # a page that cannot be read is no footer: the blocks before it are as good as ever
    return decode_footer(data, seed, position)
