"""Archive reader: reads the messages of archived chunks from the bucket itself, without a broker.

Spark's tasks use it. A few threads fetch the segments of a range ahead of the reader. Each segment
is verified by its checksum before a block of it is used. Blocks are views of the segments' bytes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Final, NamedTuple, Self

from ....transport.block.block import Block
from ...files import Files
from ...log.chunk import ArchivedChunk, Chunk
from ...log.index import INDEX_EVERY_BYTES, Index
from ...log.log_format import CHUNK_HEADER_BYTES
from ..bucket import Bucket
from .archive_format import INDEX, MANIFESTS, SEGMENT_BYTES, Manifest, segments_of
from .chunk_cache import ArchivedFiles, open_archived
from .chunk_objects import ChunkObjects
from .manifests import newest_manifest

AHEAD: Final = 4
KEPT: Final = 3
READ_BYTES: Final = 1024 * 1024
BLOCKS_MAX: Final = 1024
_LOOKERS: Final = 8


class _Piece(NamedTuple):
    """A segment of one of the chunks."""

    row: ArchivedChunk
    number: int


class ArchiveReader:
    """Iterate over the blocks of archived chunks that overlap [start, stop), in order of offsets.

    `chunks` are ascending. The first block may begin below `start`, and the last one may end above
    `stop`. Blocks that were damaged before their chunk was archived are left out, so the offsets of
    the blocks have a gap there. At most AHEAD + KEPT segments are in memory, and those of blocks
    that the caller keeps.

    Raises `BucketError`, or `SegmentDamaged` if the bucket returns wrong bytes.
    """

    def __init__(
        self, bucket: Bucket, uuid: str, chunks: Sequence[ArchivedChunk], start: int, stop: int
    ) -> None:
        self._objects = ChunkObjects(Files(), bucket)
        self._uuid = uuid
        self._chunks = [row for row in chunks if row.base_offset < stop and row.next_offset > start]
        self._start = start
        self._stop = stop
        self._threads = ThreadPoolExecutor(AHEAD, thread_name_prefix="zsq-bucket")
        self._fetching: dict[_Piece, Future[bytes]] = {}
        # The last segments, because a search looks at the first and the last one of a range.
        self._kept: deque[tuple[_Piece, memoryview]] = deque(maxlen=KEPT)
        self._indexes: dict[ArchivedChunk, bytes] = {}
        self._plan: deque[_Piece] = deque()  # the pieces to fetch next, in order

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop fetching. Requests that are under way end by themselves."""
        self._plan.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def __iter__(self) -> Iterator[Block]:
        if not self._chunks:
            return
        first, last = self._chunks[0], self._chunks[-1]
        begin = CHUNK_HEADER_BYTES
        if self._start > first.base_offset:
            begin = self._open(first).locate(self._start).position
        end = last.size
        if self._stop < last.next_offset:
            end = self._open(last).extent(self._stop - 1)[1]
        self._plan = deque(self._pieces(begin, end))
        for row in self._chunks:
            chunk = self._open(row)
            yield from self._blocks(
                chunk,
                begin if row is first else CHUNK_HEADER_BYTES,
                min(end, chunk.end_position) if row is last else chunk.end_position,
            )

    def _blocks(self, chunk: Chunk, position: int, end: int) -> Iterator[Block]:
        while position < end:
            # It must not read behind `end`, because that would fetch a segment that is not needed.
            size = min(READ_BYTES, end - position)
            blocks, position = chunk.read(position, size, chunk.end_offset, BLOCKS_MAX)
            for block in blocks:
                if block.first_offset >= self._stop:
                    return  # the block with the last offset is damaged
                yield block
            if not blocks and position < end:
                position = chunk.next_good(position).position

    def _pieces(self, begin: int, end: int) -> Iterator[_Piece]:
        """Yield the segments from a position in the first chunk to one in the last chunk."""
        for row in self._chunks:
            low = begin // SEGMENT_BYTES if row is self._chunks[0] else 0
            high = segments_of(end) if row is self._chunks[-1] else segments_of(row.size)
            for number in range(low, high):
                yield _Piece(row, number)

    # Chunks

    def _open(self, row: ArchivedChunk) -> Chunk:
        uuid = bytes.fromhex(self._uuid)
        return open_archived(_FetchedFiles(self, row), uuid, row, INDEX_EVERY_BYTES)

    def offset_at(self, time_ns: int) -> int | None:
        """Return the first offset stored at `time_ns` or later, or None if all are older."""
        # Times ascend in a log, unless the machine's clock was set back.
        at = bisect_left(self._chunks, time_ns, key=lambda row: row.last_time_ns)
        for row in self._chunks[at:]:
            offset = self._open(row).offset_at(time_ns)
            if offset is not None:
                return offset
        return None

    # Segments

    def piece(self, row: ArchivedChunk, number: int) -> memoryview:
        """Return the verified bytes of a segment. Fetch the next ones ahead."""
        piece = _Piece(row, number)
        future = self._fetching.pop(piece, None)
        while self._plan and self._plan[0] <= piece:
            self._plan.popleft()
        for kept, data in self._kept:
            if kept == piece:
                return data
        if future is None:
            future = self._fetch(piece)
        for following in islice(self._plan, AHEAD):
            if following not in self._fetching and following not in dict(self._kept):
                self._fetching[following] = self._fetch(following)
        data = memoryview(future.result())
        self._kept.append((piece, data))
        return data

    def index(self, row: ArchivedChunk) -> bytes:
        """Return the verified index file of a chunk. It is needed at the ends of a range only."""
        if row not in self._indexes:
            self._indexes[row] = self._objects.read_segment(self._uuid, row, INDEX)
        return self._indexes[row]

    def _fetch(self, piece: _Piece) -> Future[bytes]:
        return self._threads.submit(self._objects.read_segment, self._uuid, piece.row, piece.number)


class _FetchedFiles(ArchivedFiles):
    """The files of one chunk of an `ArchiveReader`."""

    def __init__(self, reader: ArchiveReader, row: ArchivedChunk) -> None:
        super().__init__(row)
        self._reader = reader

    def pread(self, fd: int, size: int, position: int) -> bytes:
        end = min(position + size, self._row.size)
        pieces = []
        while position < end:
            number, at = divmod(position, SEGMENT_BYTES)
            data = self._reader.piece(self._row, number)[at : at + end - position]
            pieces.append(data)
            position += len(data)
        # Views of the segments are returned as they are. `Files` promises bytes, and the callers
        # only slice, decode and compare them.
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)  # type: ignore[return-value]

    def read_file(self, path: str, max_bytes: int) -> bytes:
        return self._reader.index(self._row)


def index_of(bucket: Bucket, uuid: str, row: ArchivedChunk) -> Index | None:
    """Return the index of a chunk, without fetching its messages, or None if it is not usable.

    Raises `BucketError`, or `SegmentDamaged` if the bucket returns wrong bytes.
    """
    data = ChunkObjects(Files(), bucket).read_segment(uuid, row, INDEX)
    return Index.decode(data, row.seed, INDEX_EVERY_BYTES)


def topics_of(bucket: Bucket) -> dict[str, Manifest]:
    """Return the newest manifest of each topic by its name.

    This reads one object for each topic, because the names of objects contain only uuids. A deleted
    topic may have left its objects, so the newest of several topics of one name counts.
    """
    names = bucket.names(f"{MANIFESTS}/")
    uuids = sorted({name.split("/")[1] for name in names})
    with ThreadPoolExecutor(_LOOKERS, thread_name_prefix="zsq-bucket") as threads:
        manifests = threads.map(lambda uuid: newest_manifest(bucket, uuid), uuids)
        newest = sorted(filter(None, manifests), key=lambda one: one.time_ns)
    return {one.topic: one for one in newest}
