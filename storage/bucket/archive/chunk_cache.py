"""Chunk cache: segments of archived chunks on the disk, which a log reads like its own files.

    DIR/archive/OFFSET.SEGMENT    a verified segment of the chunk that begins at OFFSET
    DIR/archive/OFFSET.index      its index

A read of a segment that is not there raises `NotHere`, and notes the segment as wanted. The owner
takes what is wanted (`take_wanted`), has it fetched to the path that the cache names, and reports
`arrived` or `failed`. A sequential read also wants the next AHEAD segments, so that a reader of an
archived backlog waits only once. The cache keeps at most `max_bytes` bytes, and removes what was
used least recently. It is empty at each start: what is in it was verified by a process that may
have ended while it wrote.

No I/O except through `files`. One thread uses a cache.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from ...errors import NotHere, OutOfReach
from ...files import Files
from ...log.chunk import ArchivedChunk, Chunk
from ...log.log_format import FOOTER_BYTES
from ...log.log_reader import OpenArchive
from .archive_format import CHUNKS, INDEX, SEGMENT_BYTES, segments_of

CACHE_NAME: Final = "archive"
AHEAD: Final = 3
# A read of at least this size is one of blocks, and not a search for one.
SEQUENTIAL_BYTES: Final = 64 * 1024
CACHE_BYTES_MIN: Final = 16 * SEGMENT_BYTES
OPEN_MAX: Final = 8
# A segment that could not be fetched is not tried again before this time. Reads get the reason.
RETRY_NS: Final = 1_000_000_000


class Segment(NamedTuple):
    """A segment of an archived chunk, or its index for the number INDEX."""

    base_offset: int
    number: int


class ArchivedFiles(Files):
    """The files of one archived chunk. A chunk uses its first offset as descriptor.

    Subclasses define `pread` for the chunk, and `read_file` for its index.
    """

    def __init__(self, row: ArchivedChunk) -> None:
        self._row = row

    def size(self, fd: int) -> int:
        return self._row.size

    def close(self, fd: int) -> None:
        """Do nothing: there is no descriptor."""

    def exists(self, path: str) -> bool:
        return False

    def open_new(self, path: str) -> int:
        raise OSError(errno.EROFS, "an archived chunk is never written", path)

    def advise_sequential(self, fd: int) -> None:
        """Do nothing: what reads from the bucket reads ahead itself."""

    def advise_done(self, fd: int, position: int, size: int) -> None:
        """Do nothing: what is kept is bounded."""


def open_archived(files: Files, uuid: bytes, row: ArchivedChunk, index_every_bytes: int) -> Chunk:
    """Return an archived chunk whose bytes come from `files`. Nothing is read."""
    header = row.header(uuid)
    chunk = Chunk(files, f"{CHUNKS}/{uuid.hex()}", row.base_offset, header, index_every_bytes)
    chunk.sealed = True
    chunk.end_position = row.size - FOOTER_BYTES
    chunk.end_offset = row.next_offset
    chunk.last_time_ns = row.last_time_ns
    return chunk


def open_cache(max_bytes: int) -> OpenArchive:
    """Return what opens the cache of a topic's store (`StoreOptions.open_remote`)."""
    return lambda files, folder, uuid, rows: ChunkCache(files, folder, uuid, max_bytes, rows)


class ChunkCache:
    """The cache of one topic, and its `ChunkArchive`.

    `rows` are the archived chunks, by their first offset. Its owner changes it.
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        uuid: bytes,
        max_bytes: int,
        rows: Mapping[int, ArchivedChunk],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._files = files
        self._folder = f"{directory}/{CACHE_NAME}"
        self._uuid = uuid
        self._bytes_max = max(max_bytes, CACHE_BYTES_MIN)
        self._rows = rows
        self._clock = clock
        self._kept: OrderedDict[Segment, int] = OrderedDict()
        self._open: OrderedDict[Segment, int] = OrderedDict()
        self._wanted: dict[Segment, None] = {}
        self._fetching: set[Segment] = set()
        self._failures: dict[Segment, tuple[int, str]] = {}
        self.bytes = 0
        if files.exists(self._folder):
            self._empty()

    def _empty(self) -> None:
        """Remove what the topic's last process left.

        A fetch that this process asked for may add or rename a file meanwhile. Then some files stay
        until they are fetched again, or until the next start.
        """
        try:
            self._files.remove_tree(self._folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                raise

    # The archive of a log

    def open(self, row: ArchivedChunk, index_every_bytes: int) -> Chunk:
        return open_archived(_CachedFiles(self, row), self._uuid, row, index_every_bytes)

    # Reads

    def read(self, row: ArchivedChunk, size: int, position: int) -> bytes:
        """Return bytes of a chunk. Raises `NotHere`, or `OutOfReach` if they cannot be fetched."""
        end = min(position + size, row.size)
        if position >= end:
            return b""
        first, last = position // SEGMENT_BYTES, (end - 1) // SEGMENT_BYTES
        needed = [Segment(row.base_offset, number) for number in range(first, last + 1)]
        if size >= SEQUENTIAL_BYTES:
            self._want(needed)
            self._want_ahead(row, last)
        self._need(needed)
        pieces = []
        for segment in needed:
            at = max(position - segment.number * SEGMENT_BYTES, 0)
            until = min(end - segment.number * SEGMENT_BYTES, SEGMENT_BYTES)
            pieces.append(self._piece(segment, until - at, at))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def index(self, row: ArchivedChunk, max_bytes: int) -> bytes:
        segment = Segment(row.base_offset, INDEX)
        self._need([segment])
        return self._piece(segment, max_bytes, 0)

    def _piece(self, segment: Segment, size: int, position: int) -> bytes:
        """Read from a segment's file. If the disk fails, the segment is fetched again later.

        Without this, the chunk would count these bytes as damaged, although the bucket has them.
        """
        try:
            return self._files.pread(self._descriptor(segment), size, position)
        except OSError as error:
            self._drop(segment)
            self.failed(segment, f"the cache cannot be read: {error}")
            raise OutOfReach(
                f"messages from offset {segment.base_offset} on are in the bucket, and their cache "
                f"cannot be read: {error}"
            ) from error

    def _need(self, needed: Sequence[Segment]) -> None:
        missing = [segment for segment in needed if segment not in self._kept]
        for segment in needed:
            if segment in self._kept:
                self._kept.move_to_end(segment)
        for segment in missing:
            failed_ns, why = self._failures.get(segment, (0, ""))
            if why and self._clock() - failed_ns < RETRY_NS:
                raise OutOfReach(
                    f"messages from offset {segment.base_offset} on are in the bucket and cannot "
                    f"be fetched: {why}"
                )
        self._want(missing)
        if missing:
            raise NotHere(f"messages from offset {needed[0].base_offset} on are being fetched")

    def _want_ahead(self, row: ArchivedChunk, last: int) -> None:
        ahead: list[Segment] = []
        number, following = last, row
        while len(ahead) < AHEAD:
            number += 1
            if number >= segments_of(following.size):
                next_row = self._rows.get(following.next_offset)
                if next_row is None:
                    break
                following, number = next_row, 0
            ahead.append(Segment(following.base_offset, number))
        self._want([segment for segment in ahead if segment not in self._failures])

    def _want(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            if segment not in self._kept and segment not in self._fetching:
                self._wanted[segment] = None

    def _descriptor(self, segment: Segment) -> int:
        fd = self._open.get(segment)
        if fd is None:
            try:
                fd = self._files.open_read(self.path(segment))
            except FileNotFoundError:  # a person removed it
                self._drop(segment)
                self._need([segment])
                raise
            self._open[segment] = fd
            if len(self._open) > OPEN_MAX:
                self._files.close(self._open.popitem(last=False)[1])
        self._open.move_to_end(segment)
        return fd

    # Fetches

    def path(self, segment: Segment) -> str:
        """Return the path to which a segment is fetched."""
        suffix = "index" if segment.number == INDEX else str(segment.number)
        return f"{self._folder}/{segment.base_offset:020d}.{suffix}"

    @property
    def is_wanting(self) -> bool:
        return bool(self._wanted)

    def take_wanted(self) -> list[Segment]:
        """Return the segments to fetch. `arrived` or `failed` must follow for each of them."""
        for segment in [segment for segment in self._wanted if segment in self._kept]:
            del self._wanted[segment]
        if not self._wanted:
            return []
        places = max(self._bytes_max // SEGMENT_BYTES // 2 - len(self._fetching), 0)
        segments = [segment for segment in self._wanted if segment not in self._kept][:places]
        for segment in segments:
            del self._wanted[segment]
        self._fetching.update(segments)
        self._make_room()
        return segments

    def _make_room(self) -> None:
        """Remove what was used least recently. What is being fetched counts as whole segments."""
        room = self._bytes_max - len(self._fetching) * SEGMENT_BYTES
        while self.bytes > room and len(self._kept) > 1:
            self._drop(next(iter(self._kept)))

    def arrived(self, segment: Segment, size: int) -> None:
        self._fetching.discard(segment)
        self._failures.pop(segment, None)
        if segment.base_offset not in self._rows:  # it expired meanwhile
            with contextlib.suppress(OSError):
                self._files.remove(self.path(segment))
            return
        self._drop(segment, remove=False)
        self._kept[segment] = size
        self.bytes += size
        self._make_room()

    def failed(self, segment: Segment, why: str) -> None:
        self._fetching.discard(segment)
        self._failures[segment] = (self._clock(), why)
        if len(self._failures) > 1_000:
            del self._failures[next(iter(self._failures))]

    def interrupted(self) -> None:
        """Note that the process that fetches has ended. What it was fetching is wanted again."""
        for segment in sorted(self._fetching):
            self._wanted[segment] = None
        self._fetching.clear()

    def forget_below(self, start: int) -> None:
        """Drop the segments of chunks that begin below `start`. They expired."""
        for segment in [one for one in self._kept if one.base_offset < start]:
            self._drop(segment)

    def _drop(self, segment: Segment, *, remove: bool = True) -> None:
        fd = self._open.pop(segment, None)
        if fd is not None:
            self._files.close(fd)
        self.bytes -= self._kept.pop(segment, 0)
        if remove:
            with contextlib.suppress(OSError):
                self._files.remove(self.path(segment))

    def close(self) -> None:
        for fd in self._open.values():
            self._files.close(fd)
        self._open.clear()


class _CachedFiles(ArchivedFiles):
    """The files of one archived chunk, as far as the cache has them."""

    def __init__(self, cache: ChunkCache, row: ArchivedChunk) -> None:
        super().__init__(row)
        self._cache = cache

    def pread(self, fd: int, size: int, position: int) -> bytes:
        return self._cache.read(self._row, size, position)

    def read_file(self, path: str, max_bytes: int) -> bytes:
        return self._cache.index(self._row, max_bytes)
