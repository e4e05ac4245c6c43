"""The log of a topic: append, sync, roll, read.

One thread uses the log. Only a ticket's `run` may be called in another thread.

Append: all blocks of a call get consecutive offsets and the same time. They are written by one
`writev` (at most IOV_MAX pieces: for each block, a disk header and the unchanged columns). If that
fails because the disk is full, the file is cut back to the last good end and synced. After any
other failure, the log accepts no more writes. The blocks of a call are never in two chunks, because
the log rolls before the write if necessary. So one truncate removes all bytes of a failed append.

Sync: `begin_sync` notes which bytes the next fdatasync covers. `SyncTicket.run` syncs, in any
thread. `finish_sync` takes the result. Appends continue during the sync. If the log rolls before a
ticket is finished, the roll first runs the ticket itself, or waits for the thread that runs it. The
reason is that Linux reports a failed write-back only once for each open file. If the roll and the
ticket both called fdatasync, one of the calls could succeed although pages were lost.

Roll: sync the old chunk, write its footer, sync, write the index. Then create the new chunk, sync
it, sync the folder, and append. So every chunk except the last is complete on disk, and recovery
reads only the last chunk.

Group: blocks that become part of the log together or not at all. They are durable when the call
returns. `group.py` plans them, and `transactions.py` has the mark that ends them. Small parts are
appended with their mark in one write. Large parts become chunks (`adoption.py`). In this case,
everything is prepared and synced first, and the commit renames the file that contains the mark. If
a step before the rename fails, no part of the group is stored. If a later step fails, the log
accepts no more writes, and recovery finishes the group. The log's end moves only once, in the last
step, so readers never see a part of a group.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from ...transport.block.block import HEADER_BYTES, IN_GROUP, Block, Header
from ..errors import DiskFull, StoreFailed, is_full
from ..files import IOV_MAX, Files
from ..space import Space
from .adoption import Adoption
from .chunk import ArchivedChunk, Chunk, create_chunk
from .group import (
    ADOPT_BYTES,
    GROUP_APPEND_BYTES_MAX,
    CommittedGroup,
    Merged,
    StagedPart,
    make_mark,
    placed,
    plan_group,
    plan_merge,
    read_blocks,
)
from .log_format import (
    CHUNK_HEADER_BYTES,
    FOOTER_BYTES,
    ChunkFooter,
    ChunkHeader,
    encode_chunk_header,
    encode_disk_header,
    encode_footer,
)
from .log_reader import ChunkArchive, Hole, LogReader
from .merging import Merge
from .ring import BLOCKS_MAX, RING_BYTES
from .survey import Survey
from .transactions import Mark, Transaction, encode_mark, encode_mark_header


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Options of a log.

    `chunk_bytes`: the log rolls before a chunk would exceed this size. `reserve_bytes`: appends
    that would leave less free space are refused.

    Parts of a group become chunks if they have at least `adopt_bytes`. If the other parts together
    have more than `group_append_bytes`, the largest of them become chunks too. The newest
    `ring_bytes` of blocks are kept in memory for readers.
    """

    chunk_bytes: int
    index_every_bytes: int
    reserve_bytes: int
    adopt_bytes: int = ADOPT_BYTES
    group_append_bytes: int = GROUP_APPEND_BYTES_MAX
    ring_bytes: int = RING_BYTES


def place(
    chunk: Chunk, blocks: Sequence[Block], time_ns: int, synced_position: int, flags: int = 0
) -> tuple[list[Any], int, int]:
    """Return the pieces to write at the chunk's end, and the offset and position after them.

    The pieces of each block are a header and the unchanged columns. The offset is relative to the
    chunk. The bytes before `synced_position` in the chunk are on disk. If the caller then does not
    write the pieces, it must cut the index.
    """
    position = chunk.end_position
    offset = chunk.end_offset - chunk.base_offset
    chunk_time_ns = time_ns - chunk.header.base_time_ns
    seed = chunk.header.seed
    index = chunk.index
    assert index is not None
    pieces: list[Any] = []
    for block in blocks:
        header = block.header
        assert header.length == HEADER_BYTES + len(block.columns)
        if flags:
            header = header._replace(flags=header.flags | flags)
        pieces.append(
            encode_disk_header(
                header, offset, chunk_time_ns, position - synced_position, seed, position
            )
        )
        pieces.append(block.columns)
        if position >= index.next_position:
            index.note(offset, position, chunk_time_ns)
        offset += header.count
        position += header.length
    return pieces, offset, position


class SyncTicket:
    """One fdatasync of the log, which runs once, in any thread.

    It covers all bytes that were written before the ticket was made. They are durable after `run`
    and `finish_sync`.
    """

    __slots__ = (
        "_files",
        "_lock",
        "base_offset",
        "done",
        "end",
        "error",
        "fd",
        "position",
        "written",
    )

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
        """Sync once.

        If several threads call this, all get the result of one sync. Raises `StoreFailed` if the
        sync failed.
        """
        with self._lock:
            if not self.done:
                try:
                    self._files.sync(self.fd)
                except OSError as error:
                    self.error = error
                self.done = True
        if self.error is not None:
            raise StoreFailed(
                f"fdatasync failed ({self.error}); messages that were not acknowledged may be lost"
            ) from self.error


# The index of a chunk is saved this number of times. Recovery begins to read at a saved, synced
# entry.
INDEX_SAVES: Final = 16


class Log:
    """The log of a topic. `recovery.py` makes it, after it has found the chunks and the end."""

    def __init__(
        self, files: Files, folder: str, uuid: bytes, options: LogOptions,
        bases: list[int], active: Chunk, last_time_ns: int, holes: Sequence[Hole] = (),
        remote: Mapping[int, ArchivedChunk] | None = None, archive: ChunkArchive | None = None,
    ) -> None:  # fmt: skip
        self._files = files
        self._folder = folder
        self._uuid = uuid
        self._options = options
        # Retention sets a smaller size if the topic has a small limit on unfinished bytes.
        self.chunk_bytes = options.chunk_bytes
        self._active = active
        self.reader = self._reader = LogReader(
            files, folder, uuid, options.index_every_bytes, bases, active, holes, options.ring_bytes,
            remote, archive,
        )  # fmt: skip
        self.survey = Survey(files, folder, uuid, options.index_every_bytes, self.reader)
        self._last_time_ns = last_time_ns
        self._ticket: SyncTicket | None = None
        self._failed = ""
        self._index_save_at = active.end_position + options.chunk_bytes // INDEX_SAVES
        self._synced_position = active.end_position
        self._synced_end = active.end_offset
        self._written = 0
        self._synced = 0
        self._space = Space(files, folder, options.reserve_bytes)

    @property
    def start(self) -> int:
        """The oldest kept offset."""
        return self._reader.bases[0]

    @property
    def end(self) -> int:
        """The next offset to assign. All messages below it are written."""
        return self._active.end_offset

    @property
    def synced_end(self) -> int:
        """All messages below this offset are on disk."""
        return self._synced_end

    @property
    def synced_place(self) -> tuple[int, int, int]:
        """The place up to which all bytes are on disk: the first offset of the newest chunk, a
        position in its file, and the offset there.
        """
        return self._active.base_offset, self._synced_position, self._synced_end

    @property
    def unsynced_bytes(self) -> int:
        return self._written - self._synced

    @property
    def holes(self) -> tuple[Hole, ...]:
        """The lost offsets that are known so far, ascending."""
        return tuple(self._reader.holes)

    @property
    def chunks(self) -> tuple[int, ...]:
        """The first offset of each chunk file."""
        return tuple(self._reader.bases)

    @property
    def last_time_ns(self) -> int:
        return self._last_time_ns

    @property
    def end_position(self) -> int:
        """The size of the last chunk in bytes, without a footer."""
        return self._active.end_position

    @property
    def written_bytes(self) -> int:
        """The bytes written since the log was opened."""
        return self._written

    # Writing

    def append(self, blocks: Sequence[Block], now_ns: int) -> tuple[int, int]:
        """Write whole blocks at the end and return (first offset, time). They are not yet durable.

        The caller must have checked the blocks. Raises `DiskFull` if nothing was stored. Raises
        `StoreFailed` if the result is unknown, and then in every later call.
        """
        self._check()
        total = 0
        for block in blocks:
            total += block.header.length
        self._space.take(total, now_ns)
        time_ns = now_ns if now_ns > self._last_time_ns else self._last_time_ns
        chunk = self._room_for(total, time_ns)
        first_offset = chunk.end_offset
        pieces, offset, position = place(chunk, blocks, time_ns, self._synced_position)
        self._write(chunk, pieces)
        self._move_to(position, offset, time_ns)
        self._written += total
        self._reader.wrote(first_offset, blocks, time_ns, total)
        if position >= self._index_save_at:
            chunk.save_index()
            self._index_save_at = position + self.chunk_bytes // INDEX_SAVES
        return first_offset, time_ns

    def _room_for(self, total: int, time_ns: int) -> Chunk:
        """Return the active chunk, or a new one if `total` bytes would not fit."""
        chunk = self._active
        position = chunk.end_position
        if chunk.sealed or (
            position > CHUNK_HEADER_BYTES and position + total + FOOTER_BYTES > self.chunk_bytes
        ):
            return self._roll(chunk.end_offset, time_ns)
        return chunk

    def begin_merge(self, parts: Sequence[StagedPart]) -> Merge | None:
        """Return the merge that `append_group` needs for these parts, or None.

        This method may run in any thread, before `append_group` is called.
        """
        options = self._options
        chosen = plan_merge(parts, options.adopt_bytes, options.group_append_bytes)
        if not chosen:
            return None
        return Merge(
            self._files,
            self._uuid,
            options.chunk_bytes,
            Space(self._files, self._folder, options.reserve_bytes),
            chosen,
        )

    def append_group(
        self,
        transaction: Transaction,
        parts: Sequence[StagedPart],
        now_ns: int,
        merged: Merged | None = None,
    ) -> CommittedGroup:
        """Append all parts together.

        They are durable when this returns. If they have no messages, nothing is written. `merged`
        is the result of the merge from `begin_merge`.

        Raises `DiskFull`, or `Damaged` if a staged file was changed after it was sealed. In both
        cases nothing was stored, and the parts are unchanged. Raises `StoreFailed` if the result is
        unknown, and then in every later call. Recovery then finishes the group or finds no part of
        it.
        """
        self._check()
        time_ns = max(now_ns, self._last_time_ns)
        plan = plan_group(
            placed(parts, merged), self._options.adopt_bytes, self._options.group_append_bytes
        )
        if not plan.messages:
            return CommittedGroup(self.end, 0, time_ns)
        try:
            blocks = read_blocks(self._files, plan.appended)
        except OSError as error:
            raise self._fail(f"staged files cannot be read: {error}") from error
        mark = make_mark(transaction, parts, plan, self.end)
        columns = encode_mark(mark)
        total = sum(block.header.length for block in blocks) + HEADER_BYTES + len(columns)
        self._space.take(total, now_ns)
        chunk = self._room_for(total, time_ns) if blocks else self._active
        if plan.adopted:
            self._adopt(chunk, blocks, mark, time_ns)
        else:
            pieces, offset, position = place(
                chunk, blocks, time_ns, self._synced_position, IN_GROUP
            )
            distance, at_ns = position - self._synced_position, time_ns - chunk.header.base_time_ns
            pieces += (
                encode_mark_header(columns, offset, at_ns, distance, chunk.header.seed, position),
                columns,
            )
            self._write(chunk, pieces)
            self._sync_file()
            self._move_to(position + HEADER_BYTES + len(columns), offset, time_ns)
            self._reader.grew(total, time_ns)
        self._written += total
        self._synced = self._written
        self._synced_position, self._synced_end = self._active.end_position, self._active.end_offset
        return CommittedGroup(mark.first_offset, mark.messages, time_ns)

    def _adopt(self, chunk: Chunk, blocks: Sequence[Block], mark: Mark, time_ns: int) -> None:
        """Append blocks to the active chunk and adopt staged files as the chunks after it.

        The last of these is then the active chunk.
        """
        data_end = chunk.end_position + sum(block.header.length for block in blocks)
        if not chunk.sealed and data_end > CHUNK_HEADER_BYTES:
            mark = mark._replace(
                unsealed=(chunk.base_offset, data_end, time_ns if blocks else self._last_time_ns)
            )
        adoption = Adoption(
            self._files, self._folder, self._uuid, self._options.index_every_bytes, mark, time_ns
        )
        offset = chunk.end_offset - chunk.base_offset
        try:
            adoption.prepare()
            if blocks:
                pieces, offset, _ = place(chunk, blocks, time_ns, self._synced_position, IN_GROUP)
                self._write(chunk, pieces)
            self._sync_file()
            adoption.commit()
        except OSError as error:
            adoption.close()
            self._cut_back(chunk, error)
        except StoreFailed as error:
            adoption.close()
            raise self._fail(str(error)) from error
        except BaseException:
            adoption.close()
            raise
        try:
            active = adoption.finish()
        except OSError as error:
            raise self._fail(
                f"the group from offset {mark.first_offset} on could not be moved into place: "
                f"{error}"
            ) from error
        self._reader.grew(data_end - chunk.end_position, time_ns if blocks else self._last_time_ns)
        self._move_to(data_end, offset, time_ns if blocks else self._last_time_ns)
        if mark.unsealed:
            with contextlib.suppress(DiskFull):  # readers do not need the footer
                self._seal(chunk)
        self._active = active
        self._last_time_ns = time_ns
        self._reader.add(active, mark.adopted)

    def _move_to(self, position: int, offset: int, time_ns: int) -> None:
        """Set the active chunk's new end. `offset` is relative to the chunk."""
        self._active.end_position = position
        self._active.end_offset = self._active.base_offset + offset
        self._last_time_ns = time_ns

    def _write(self, chunk: Chunk, pieces: list[Any]) -> None:
        """Write all pieces at the chunk's end, or none of them."""
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
            self._cut_back(chunk, error)

    def _cut_back(self, chunk: Chunk, error: OSError) -> NoReturn:
        """Restore the chunk's end on disk after a write that failed on a full disk.

        After any other error, or if this fails, the log has failed.
        """
        if not is_full(error):
            raise self._fail(f"a write to {chunk.path} failed: {error}") from error
        try:
            if not chunk.sealed:
                if chunk.index is not None:
                    chunk.index.cut(chunk.end_position)
                self._files.truncate(chunk.fd, chunk.end_position)
                self._files.sync(chunk.fd)
        except OSError as second:
            raise self._fail(
                f"the failed write to {chunk.path} could not be undone: {second}"
            ) from second
        raise self._space.refused(f"no space to write to {chunk.path}", error) from error

    def roll(self, now_ns: int) -> None:
        """Seal the ongoing chunk before it is full, if it has a message.

        Raises `DiskFull` and `StoreFailed` like `append`.
        """
        self._check()
        if self.end > self._active.base_offset:
            self._roll(self.end, max(now_ns, self._last_time_ns))

    def forget(self, start: int) -> None:
        """Forget the chunks that are completely below `start`, and are about to be removed.

        A read below `start` then returns the blocks after the removed chunks.
        """
        self._reader.forget(start)

    def _roll(self, base_offset: int, time_ns: int) -> Chunk:
        """Seal the active chunk and begin the next one at `base_offset`.

        If the disk becomes full between two steps, a later call continues.
        """
        old = self._active
        if not old.sealed:
            self._seal(old)
        self._run_ticket()  # a ticket may have been made after the chunk was sealed
        header = ChunkHeader(base_offset, time_ns, self._files.random_seed(), self._uuid)
        try:
            new = create_chunk(
                self._files,
                self._folder,
                header,
                encode_chunk_header(header),
                self._options.index_every_bytes,
            )
        except OSError as error:
            if is_full(error):
                raise self._space.refused(
                    f"no space for a new chunk in {self._folder}", error
                ) from error
            raise self._fail(
                f"a new chunk in {self._folder} could not be created: {error}"
            ) from error
        try:
            self._files.sync_folder(self._folder)
        except OSError as error:
            new.close()
            raise self._fail(f"{self._folder} could not be synced: {error}") from error
        self._reader.add(new)
        self._active = new
        self._synced_position = new.end_position
        self._synced_end = base_offset
        self._index_save_at = self.chunk_bytes // INDEX_SAVES
        return new

    def _seal(self, chunk: Chunk) -> None:
        self._sync_active()
        footer = ChunkFooter(
            chunk.end_offset - chunk.base_offset,
            self._last_time_ns - chunk.header.base_time_ns,
            chunk.end_position,
        )
        self._write(chunk, [encode_footer(footer, chunk.header.seed, chunk.header)])
        try:
            self._files.sync(chunk.fd)
        except OSError as error:
            raise self._fail(f"fdatasync of {chunk.path} failed: {error}") from error
        chunk.sealed = True
        chunk.save_index()

    # Syncing

    def begin_sync(self) -> SyncTicket:
        """Return a ticket for all bytes that are written at this time.

        Only one ticket may exist. It must be finished before the next call.
        """
        self._check()
        assert self._ticket is None
        self._ticket = SyncTicket(self._files, self._active, self._written)
        return self._ticket

    def finish_sync(self, ticket: SyncTicket) -> int:
        """Take the result of `ticket.run` and return the new synced end.

        Raises `StoreFailed` if the sync failed, or if the log has failed since then.
        """
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
        """Sync all written bytes, in this thread, and return the synced end."""
        self._check()
        self._sync_active()
        return self._synced_end

    def _sync_active(self) -> None:
        self._sync_file()
        self._synced_position = self._active.end_position
        self._synced_end = self._active.end_offset
        self._synced = self._written

    def _sync_file(self) -> None:
        """Sync all bytes of the active chunk, even those that are not part of the log yet."""
        self._run_ticket()
        try:
            self._files.sync(self._active.fd)
        except OSError as error:
            raise self._fail(f"fdatasync of {self._active.path} failed: {error}") from error

    def _run_ticket(self) -> None:
        if self._ticket is not None:
            try:
                self._ticket.run()
            except StoreFailed as error:
                raise self._fail(str(error)) from error

    # Reading

    def read(
        self, offset: int, max_bytes: int, end: int, blocks_max: int = BLOCKS_MAX
    ) -> list[Block]:
        """Read whole blocks below `end`, synced or not, from the block that contains `offset` on.

        See `LogReader.read`.
        """
        return self._reader.read(offset, max_bytes, min(end, self._active.end_offset), blocks_max)

    @property
    def gaps(self) -> Sequence[Hole]:
        """The offsets that the log skips because it was restored from a bucket, ascending."""
        return self._reader.damage.gaps

    @property
    def absent(self) -> Sequence[tuple[int, int]]:
        """The offsets without a message, as (from, to): lost ones, and the gaps. Ascending."""
        return [(hole.first_offset, hole.next_offset) for hole in self._reader.damage.holes]

    def skip(self, offset: int) -> int:
        """Return `offset`, or the end of the hole that contains it."""
        return self._reader.skip(offset)

    def offset_at(self, time_ns: int) -> int:
        """Return the first offset stored at `time_ns` or later, or the end."""
        offset = self._reader.offset_at(time_ns)
        return self._active.end_offset if offset is None else offset

    def measure(self, start: int, end: int, max_bytes: int) -> tuple[int, int]:
        """Return the bytes between two offsets, and the offset at which `max_bytes` of them end.

        See `LogReader.measure`.
        """
        return self._reader.measure(start, min(end, self._active.end_offset), max_bytes)

    def headers(self, offset: int) -> Iterator[tuple[Header, Mark | None]]:
        """Yield wire-form headers and the contents of marks.

        This begins at the block that contains `offset`. See `LogReader.headers`.
        """
        return self._reader.headers(offset)

    # Ends

    def _check(self) -> None:
        if self._failed or (self._ticket is not None and self._ticket.error is not None):
            raise StoreFailed(
                self._failed or "an earlier fdatasync failed; the log accepts no more writes"
            )

    def _fail(self, text: str) -> StoreFailed:
        self._failed = text
        return StoreFailed(text)

    def close(self) -> None:
        """Sync the written bytes, unless a sync failed before, and close the files."""
        try:
            if not self._failed and (self._ticket is None or self._ticket.error is None):
                self.sync()
                self._active.save_index()
        finally:
            self._reader.close()
            self._failed = self._failed or "the log is closed"
