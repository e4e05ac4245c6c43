"""A topic's log: append, sync, roll, read. One thread uses it; only a ticket's `run` may happen in another.

Append: all blocks of a call get following offsets and one time and go out in one `writev` (of at most IOV_MAX
pieces: a disk header and the columns, as they came). What fails is cut back to the last good end and synced, or
nothing more is ever accepted. A call never spans two chunks: the chunk is rolled before it, so "nothing of a
failed append is stored" stays one truncate.

Sync: `begin_sync` fixes what the coming fdatasync will cover; `SyncTicket.run` does it, in whatever thread; with
`finish_sync` it counts. Appends go on meanwhile. A roll inside an outstanding sync first runs that ticket itself
(or waits for the thread that does): Linux reports a failed write-back once per open file, so had both called
fdatasync, one of them could have been told of success for pages that the other was told are lost.

Roll: sync the old chunk, write its footer, sync, write the index; create the new one, sync it, sync the folder;
then append. So a chunk that is not the last is on disk whole, and recovery looks only at the last.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..transport.block import HEADER_BYTES, Block, Header
from .chunk import Chunk, create_chunk
from .errors import DiskFull, ShortWrite, StoreFailed
from .files import IOV_MAX, Files
from .log_format import (
    CHUNK_HEADER_BYTES,
    FOOTER_BYTES,
    ChunkFooter,
    ChunkHeader,
    encode_chunk_header,
    encode_disk_header,
    encode_footer,
)
from .log_reader import Hole, LogReader

SPACE_CHECK_BYTES: Final = 1024 * 1024  # free space is asked again after this many bytes,
SPACE_CHECK_NS: Final = 100_000_000  # or this long
INDEX_SAVES: Final = 16  # in the life of a chunk; recovery begins to read where the last one known to be synced points
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@dataclass(frozen=True, slots=True)
class LogOptions:
    """`chunk_bytes`: roll before a chunk would pass it; `reserve_bytes`: refuse appends that would leave less free."""

    chunk_bytes: int
    index_every_bytes: int
    reserve_bytes: int


class SyncTicket:
    """One fdatasync: what was written when it was made is durable once `run` returned and `finish_sync` took it."""

    __slots__ = ("_files", "_lock", "base_offset", "done", "end", "error", "fd", "position", "written")

    def __init__(self, files: Files, chunk: Chunk, written: int) -> None:
        self._files = files
        self._lock = threading.Lock()
        self.fd = chunk.fd
        self.base_offset = chunk.base_offset
        self.end = chunk.end_offset
        self.position = chunk.end_position
        self.written = written
        self.done = False
        self.error: OSError | None = None

    def run(self) -> None:
        """Sync, once: whoever comes second waits and learns the same. `StoreFailed` if it failed."""
        with self._lock:
            if not self.done:
                try:
                    self._files.sync(self.fd)
                except OSError as error:
                    self.error = error
                self.done = True
        if self.error is not None:
            raise StoreFailed(f"fdatasync failed ({self.error}); what was not acknowledged may be lost") from self.error


class Log:
    """Made by `recovery.py`, which knows the chunks and the end."""

    def __init__(
        self, files: Files, folder: str, uuid: bytes, options: LogOptions,
        bases: list[int], active: Chunk, last_time_ns: int, holes: Sequence[Hole] = (),
    ) -> None:  # fmt: skip
        self._files = files
        self._folder = folder
        self._uuid = uuid
        self._options = options
        self._active = active
        self._reader = LogReader(files, folder, uuid, options.index_every_bytes, bases, active, holes)
        self._last_time_ns = last_time_ns
        self._ticket: SyncTicket | None = None
        self._failed = ""
        self._index_save_at = active.end_position + options.chunk_bytes // INDEX_SAVES
        self._synced_position = active.end_position
        self._synced_end = active.end_offset
        self._written = 0
        self._synced = 0
        self._space_asked_ns = 0
        self._space_bytes = 0

    @property
    def start(self) -> int:
        """The oldest offset kept."""
        return self._reader.bases[0]

    @property
    def end(self) -> int:
        """The next offset to be given: what is below it is written."""
        return self._active.end_offset

    @property
    def synced_end(self) -> int:
        """What is below it is on disk."""
        return self._synced_end

    @property
    def unsynced_bytes(self) -> int:
        return self._written - self._synced

    @property
    def holes(self) -> tuple[Hole, ...]:
        """Lost offsets that are known so far, ascending."""
        return tuple(self._reader.holes)

    @property
    def chunks(self) -> tuple[int, ...]:
        """The first offset of each chunk file."""
        return tuple(self._reader.bases)

    @property
    def last_time_ns(self) -> int:
        return self._last_time_ns

    # Writing

    def append(self, blocks: Sequence[Block], now_ns: int) -> tuple[int, int]:
        """Write whole blocks at the end: (first offset, time). Not yet durable; in the caller's hands is that they are well-formed.

        `DiskFull`: nothing was stored. `StoreFailed`: unknown, and from now on for ever.
        """
        self._check()
        total = 0
        for block in blocks:
            total += block.header.length
        self._check_space(total, now_ns)
        time_ns = now_ns if now_ns > self._last_time_ns else self._last_time_ns
        chunk = self._active
        position = chunk.end_position
        if chunk.sealed or (position > CHUNK_HEADER_BYTES and position + total + FOOTER_BYTES > self._options.chunk_bytes):
            chunk = self._roll(chunk.end_offset, time_ns)
            position = chunk.end_position
        first_offset = chunk.end_offset
        offset = first_offset - chunk.base_offset
        chunk_time_ns = time_ns - chunk.header.base_time_ns
        seed = chunk.header.seed
        index = chunk.index
        assert index is not None
        pieces: list[Any] = []
        for block in blocks:
            header = block.header
            assert header.length == HEADER_BYTES + len(block.columns)
            pieces.append(encode_disk_header(header, offset, chunk_time_ns, position - self._synced_position, seed))
            pieces.append(block.columns)
            if position >= index.next_position:
                index.note(offset, position, chunk_time_ns)
            offset += header.count
            position += header.length
        self._write(chunk, pieces)
        chunk.end_position = position
        chunk.end_offset = chunk.base_offset + offset
        self._last_time_ns = time_ns
        self._written += total
        if position >= self._index_save_at:
            chunk.save_index()
            self._index_save_at = position + self._options.chunk_bytes // INDEX_SAVES
        return first_offset, time_ns

    def _write(self, chunk: Chunk, pieces: list[Any]) -> None:
        """All pieces behind the chunk's end, or none of them."""
        try:
            if len(pieces) <= IOV_MAX:
                self._files.writev(chunk.fd, pieces, chunk.end_position)
                return
            position = chunk.end_position
            for i in range(0, len(pieces), IOV_MAX):
                part = pieces[i : i + IOV_MAX]
                self._files.writev(chunk.fd, part, position)
                position += sum(map(len, part))
        except OSError as error:
            if chunk.index is not None:
                chunk.index.cut(chunk.end_position)
            self._cut_back(chunk, error)

    def _cut_back(self, chunk: Chunk, error: OSError) -> None:
        """After a failed or short write: the file ends where it did before, on disk too, or the log is finished."""
        if not isinstance(error, ShortWrite) and error.errno not in _FULL:
            raise self._fail(f"a write to {chunk.path} failed: {error}") from error
        try:
            self._files.truncate(chunk.fd, chunk.end_position)
            self._files.sync(chunk.fd)
        except OSError as second:
            raise self._fail(f"a failed write to {chunk.path} could not be cut back: {second}") from second
        self._space_bytes = 0
        raise DiskFull(f"no space to write to {chunk.path}: {error}") from error

    def _roll(self, base_offset: int, time_ns: int) -> Chunk:
        """Seal the active chunk and begin the next at `base_offset`. Where space ends in between, a later call goes on."""
        old = self._active
        if not old.sealed:
            self._seal(old)
        header = ChunkHeader(base_offset, time_ns, self._files.random_seed(), self._uuid)
        try:
            new = create_chunk(self._files, self._folder, header, encode_chunk_header(header), self._options.index_every_bytes)
        except OSError as error:
            if isinstance(error, ShortWrite) or error.errno in _FULL:
                self._space_bytes = 0
                raise DiskFull(f"no space for a new chunk in {self._folder}: {error}") from error
            raise self._fail(f"a new chunk in {self._folder} could not be made: {error}") from error
        try:
            self._files.sync_folder(self._folder)
        except OSError as error:
            new.close()
            raise self._fail(f"{self._folder} could not be synced: {error}") from error
        self._reader.add(new)
        self._active = new
        self._synced_position = new.end_position
        self._synced_end = base_offset
        self._index_save_at = self._options.chunk_bytes // INDEX_SAVES
        return new

    def _seal(self, chunk: Chunk) -> None:
        if self._ticket is not None:
            try:
                self._ticket.run()
            except StoreFailed as error:
                raise self._fail(str(error)) from error
        self._sync_active()
        footer = ChunkFooter(chunk.end_offset - chunk.base_offset, self._last_time_ns - chunk.header.base_time_ns, chunk.end_position)
        self._write(chunk, [encode_footer(footer, chunk.header.seed)])
        try:
            self._files.sync(chunk.fd)
        except OSError as error:
            raise self._fail(f"fdatasync of {chunk.path} failed: {error}") from error
        chunk.sealed = True
        chunk.save_index()

    # Syncing

    def begin_sync(self) -> SyncTicket:
        """A ticket for all that is written by now. One at a time: finish it before the next."""
        self._check()
        assert self._ticket is None
        self._ticket = SyncTicket(self._files, self._active, self._written)
        return self._ticket

    def finish_sync(self, ticket: SyncTicket) -> int:
        """After `ticket.run`: the new synced end. `StoreFailed` if the sync failed or a failure came in between."""
        assert ticket is self._ticket
        assert ticket.done
        self._check()
        self._ticket = None
        if ticket.base_offset == self._active.base_offset:
            self._synced_position = max(self._synced_position, ticket.position)
        self._synced = max(self._synced, ticket.written)
        self._synced_end = max(self._synced_end, ticket.end)
        return self._synced_end

    def sync(self) -> int:
        """All that is written, now, in this thread."""
        self._check()
        if self._ticket is not None:
            self._ticket.run()
        self._sync_active()
        return self._synced_end

    def _sync_active(self) -> None:
        try:
            self._files.sync(self._active.fd)
        except OSError as error:
            raise self._fail(f"fdatasync of {self._active.path} failed: {error}") from error
        self._synced_position = self._active.end_position
        self._synced_end = self._active.end_offset
        self._synced = self._written

    # Reading

    def read(self, offset: int, bytes_max: int, end: int) -> list[Block]:
        """Whole blocks below `end`, from the one that holds `offset` on: see `LogReader.read`. Written is enough, synced or not."""
        return self._reader.read(offset, bytes_max, min(end, self._active.end_offset))

    def skip(self, offset: int) -> int:
        """`offset`, or what follows the hole that it lies in."""
        return self._reader.skip(offset)

    def offset_at(self, time_ns: int) -> int:
        """The first offset stored at `time_ns` or later; the end if there is none."""
        found = self._reader.offset_at(time_ns)
        return self._active.end_offset if found is None else found

    def headers(self, offset: int) -> Iterator[Header]:
        """Wire-form headers of all blocks from the one that holds `offset` on. For recovery: columns are not checked."""
        return self._reader.headers(offset)

    # Ends

    def _check(self) -> None:
        if self._failed or (self._ticket is not None and self._ticket.error is not None):
            raise StoreFailed(self._failed or "an fdatasync failed; nothing more is accepted")

    def _fail(self, text: str) -> StoreFailed:
        self._failed = text
        return StoreFailed(text)

    def _check_space(self, total: int, now_ns: int) -> None:
        """Asks the system rarely while there is much, at each append while there is not."""
        if total <= self._space_bytes and 0 <= now_ns - self._space_asked_ns < SPACE_CHECK_NS:
            self._space_bytes -= total
            return
        free = self._files.free_bytes(self._folder) - self._options.reserve_bytes
        if free < total:
            self._space_bytes = 0
            raise DiskFull(
                f"{self._folder}: {free + self._options.reserve_bytes} bytes are free, {self._options.reserve_bytes} are kept in reserve"
            )
        self._space_asked_ns = now_ns
        self._space_bytes = min(SPACE_CHECK_BYTES, free - total)

    def close(self) -> None:
        """Sync what is written, unless a sync failed before, and close the files."""
        try:
            if not self._failed and (self._ticket is None or self._ticket.error is None):
                self.sync()
                self._active.save_index()
        finally:
            self._reader.close()
            self._failed = self._failed or "the log is closed"
