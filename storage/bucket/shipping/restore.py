"""Restore of topics from a log of ticks: directories that the ordinary recovery opens.

    1  the ranges of the log's chunks are written to their places, and the changes of each topic to
       one file
    2  each topic's stores are built from its changes, and its last chunks are put right
    3  the ordinary recovery opens the topic. If the lost broker has reserved offsets beyond the
       end, the last chunk is sealed, and the topic continues behind the reservation

What is put right in step 2 are states that no crash leaves on a disk, because a process stopped in
the middle of shipping, and perhaps another one continued elsewhere:

| found | next |
|---|---|
| bytes of a chunk that is archived by now | its file is removed, unless it is complete |
| a chunk of a group whose last chunk was not shipped | its file is removed |
| a chunk without a footer, with another chunk after it | it is cut after its last block and sealed |
| an archived chunk behind the checkpoint | it is fetched, because recovery must read it |
| offsets that are in no chunk | they are noted as a gap |
| stages | their rows are removed, because staged files are not shipped |

All files are synced when `restore_topics` returns. The caller restores into a folder with a
temporary name, and renames it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple

from ....transport.block.block import IN_GROUP
from ....transport.checksum import crc32c
from ...delayed.delayed_recovery import check_delayed
from ...directory.store import Store, TopicIdentity, open_store
from ...errors import Damaged, StorageError
from ...files import TEMPORARY_SUFFIX, Files
from ...log.chunk import ArchivedChunk, Chunk, open_chunk
from ...log.damage import Bad, Hole, gap_before, keep_bytes
from ...log.index import INDEX_EVERY_BYTES
from ...log.log_format import (
    ADOPTED,
    CHUNK_HEADER_BYTES,
    CHUNK_SUFFIX,
    DELAYED_NAME,
    INDEX_SUFFIX,
    STATE_NAME,
    ChunkFooter,
    chunk_name,
    encode_footer,
    index_name,
    parse_chunk_name,
)
from ...row_changes import DELAYED, STATE, Frame, decode_frames, read_frames
from ...state.state import StateBatch, StateStore, Table
from ...state.store_builder import StoreBuilder
from ..archive import archive_format
from ..archive.archive_format import CHUNKS, INDEX, chunk_object, segments_of
from ..archive.chunk_cache import open_cache
from ..archive.chunk_objects import ChunkObjects
from ..archive.manifests import newest_manifest
from ..bucket import Bucket, BucketAway, BucketRefuses, ObjectMissing
from .offset_gap import OPTIONS, create_empty_chunk, leap
from .tick_format import Piece
from .tick_reader import ShippedTopic, TickReader

TOPICS_AT_ONCE: Final = 4
BASE_READ_BYTES: Final = 4 * 1024 * 1024
DOWNLOADS: Final = 4
IDS_BYTES_MAX: Final = 1024 * 1024 * 1024
CHANGES_NAME: Final = "changes" + TEMPORARY_SUFFIX

Advance = Callable[[int], object]


class Target(NamedTuple):
    """The target of a topic's restore: its identity and its directory, which must not exist."""

    identity: TopicIdentity
    directory: str


@dataclass(slots=True)
class RestoredTopic:
    """Result of the restore of a topic.

    `log_messages` are in log files of the directory, and `archived_messages` only in the bucket.
    `gaps` are offsets that were reserved or given out and are not in the bucket. `problems` are
    sentences about damage.
    """

    name: str
    uuid: str
    start: int = 0
    end: int = 0
    log_messages: int = 0
    archived_messages: int = 0
    channels: int = 0
    delayed_messages: int = 0
    stages_dropped: int = 0
    gaps: tuple[Hole, ...] = ()
    problems: list[str] = field(default_factory=list)


def restore_topics(
    files: Files,
    bucket: Bucket,
    reader: TickReader,
    targets: Mapping[str, Target],
    *,
    eager: bool = False,
    check: bool = False,
    advance: Advance = lambda count: None,
) -> list[RestoredTopic]:
    """Restore these topics, by uuid. Each must have a piece with all rows in the log.

    With `eager`, chunks that are only in the bucket are fetched. With `check`, all rows are
    compared with their checksums, and it is checked that the bucket has the other chunks. A topic
    with problems is incomplete. Raises `StorageError` or `OSError`.
    """
    making = [
        TopicRestore(files, bucket, reader.topics[uuid], target, eager, check, advance)
        for uuid, target in targets.items()
    ]
    by_uuid = {one.shipped.uuid: one for one in making}
    for one in making:
        one.restored.problems += reader.wrong.get(one.shipped.uuid, ())
        one.begin()
    for loaded in reader.pieces(list(by_uuid)):
        by_uuid[loaded.piece.uuid].take(loaded.number, loaded.piece, loaded.body)
    with ThreadPoolExecutor(TOPICS_AT_ONCE, thread_name_prefix="zsq-restore") as threads:
        return list(threads.map(TopicRestore.finish, making))


class TopicRestore:
    """The restore of one topic."""

    def __init__(
        self, files: Files, bucket: Bucket, shipped: ShippedTopic, target: Target,
        eager: bool, check: bool, advance: Advance,
    ) -> None:  # fmt: skip
        self.shipped = shipped
        self.restored = RestoredTopic(target.identity.name, shipped.uuid)
        self._files = files
        self._bucket = bucket
        self._identity = target.identity
        self._folder = target.directory
        self._eager = eager
        self._check = check
        self._advance = advance
        self._builders: list[StoreBuilder] = []
        self._followed_from = 0  # `kept_from` when `follow` last removed log files
        self._changes_path = f"{target.directory}/{CHANGES_NAME}"
        self._changes_bytes = 0

    # What the ticks have

    def begin(self) -> None:
        self._files.make_folder(self._folder)
        self._files.close(self._files.open_new(self._changes_path))

    def take(self, number: int, piece: Piece, body: memoryview) -> None:
        """Write what a piece has."""
        position = 0
        for base_offset, start, stop in piece.ranges:
            if self.shipped.needs_range(base_offset, number):
                self._write(base_offset, start, body[position : position + stop - start])
            position += stop - start
        if position < len(body) and self.shipped.needs_changes(piece, number):
            self._append(self._changes_path, body[position:], self._changes_bytes)
            self._changes_bytes += len(body) - position

    def settle(self) -> None:
        """Build the stores from what was taken so far, and keep them open for `follow`."""
        self._builders = [
            StoreBuilder(self._files, f"{self._folder}/{name}", kind)
            for name, kind in ((STATE_NAME, STATE), (DELAYED_NAME, DELAYED))
        ]
        self._feed(self._base_frames())
        self._feed(self._change_frames())
        self._files.remove(self._changes_path)

    def _feed(self, frames: Iterable[Frame]) -> None:
        for frame in frames:
            for builder in self._builders:
                builder.take(frame)
        for builder in self._builders:
            builder.flush()

    def follow(self, number: int, piece: Piece, body: memoryview) -> None:
        """Write what a piece has, which `shipped` has taken just now. `settle` was called before.

        Raises `BucketRefuses` if an object with all rows is gone, because newer rows exist.
        """
        position = 0
        for base_offset, start, stop in piece.ranges:
            if self.shipped.needs_range(base_offset, number):
                self._write(base_offset, start, body[position : position + stop - start])
            position += stop - start
        if piece.begins:
            self._feed(self._base_frames())
        self._feed(decode_frames(body[position:]))
        if piece.kept_from > self._followed_from:
            self._followed_from = piece.kept_from
            for base in self._bases():
                if base < self.shipped.kept_from:
                    self._files.remove(f"{self._folder}/{chunk_name(base)}")

    def close(self) -> None:
        """Close the stores of a topic that is not needed any more."""
        for builder in self._builders:
            builder.close()
        self._builders = []

    def name(self, identity: TopicIdentity) -> None:
        """Say which topic this is, if it was not known at the beginning."""
        self._identity, self.restored.name = identity, identity.name

    def _write(self, base_offset: int, start: int, data: memoryview) -> None:
        path = f"{self._folder}/{chunk_name(base_offset)}"
        if start == 0:
            if self._files.exists(path):  # another process has begun a chunk of this name later
                self._files.remove(path)
            self._files.close(self._files.open_new(path))
        if not self._files.exists(path):
            return  # its first bytes are missing, which is known
        self._append(path, data, start)

    def _append(self, path: str, data: memoryview, position: int) -> None:
        fd = self._files.open_append(path)
        try:
            self._files.writev(fd, [data], position)
        finally:
            self._files.close(fd)

    # The directory

    def finish(self) -> RestoredTopic:
        """Make the directory from what was written. Problems of this topic are only noted.

        Raises `BucketAway`, which is no damage.
        """
        if self.restored.problems:
            return self.restored
        try:
            self._build_stores()
            self._finish()
        except BucketAway:
            raise
        except StorageError as error:
            self.restored.problems.append(str(error))
        return self.restored

    def _finish(self) -> None:
        with self._state() as state:
            table = state.load()
            rows = self._all_archived(table)
            if table.stages or len(rows) > len(table.archived):
                more = [row for base, row in rows.items() if base not in table.archived]
                state.commit(StateBatch(stage_gones=list(table.stages), archived=more))
                self.restored.stages_dropped = len(table.stages)
            if self._check:
                self.restored.problems += state.walk()
        self._put_log_right(rows, table)
        # Recovery replays what is behind the checkpoint, from files only.
        first = min(table.applied_offset, first_with_ids(rows, table))
        self._fetch(rows, table.start if self._eager else max(table.start, first))
        if self._check:
            self._check_archived(rows, table.start)
        self._note_gaps(rows, table)
        self._begin_behind_gap(rows, table)
        for name in self._files.list(self._folder):
            if name.endswith((CHUNK_SUFFIX, INDEX_SUFFIX)):
                self._sync(f"{self._folder}/{name}")
        self._files.sync_folder(self._folder)
        self._open()
        if self._check and self._files.exists(f"{self._folder}/{DELAYED_NAME}"):
            self.restored.problems += check_delayed(f"{self._folder}/{DELAYED_NAME}")

    @contextlib.contextmanager
    def _state(self) -> Iterator[StateStore]:
        state = StateStore(f"{self._folder}/{STATE_NAME}")
        try:
            if state.uuid() != self._identity.uuid_bytes:
                raise Damaged(f"the rows of topic {self._identity.name} belong to another topic")
            yield state
        finally:
            state.close()

    def _sync(self, path: str) -> None:
        fd = self._files.open_append(path)
        try:
            self._files.sync(fd)
        finally:
            self._files.close(fd)

    # The stores

    def _build_stores(self) -> None:
        try:
            if not self._builders:
                self.settle()
            for builder in self._builders:
                builder.finish()
        finally:
            self.close()

    def _base_frames(self) -> Iterator[Frame]:
        """Yield the frames of the object with all rows, and check the checksum in its name."""
        name = self.shipped.base
        if not name:
            return
        position = crc = 0
        rest = b""

        def read(size: int) -> bytes:
            nonlocal position, crc, rest
            if not rest:
                try:
                    rest = self._bucket.read(name, position, BASE_READ_BYTES)
                except ObjectMissing as error:
                    raise BucketRefuses(f"{error}: it has the rows of the topic") from error
                crc = crc32c(rest, crc)
                position += len(rest)
                self._advance(len(rest))
            data, rest = rest[:size], rest[size:]
            return data

        yield from read_frames(read)
        if not name.endswith(f".{crc:08x}"):
            raise BucketRefuses(f"{self._bucket.url}/{name}: its checksum is wrong")

    def _change_frames(self) -> Iterator[Frame]:
        fd = self._files.open_read(self._changes_path)
        position = 0

        def read(size: int) -> bytes:
            nonlocal position
            data = self._files.pread(fd, size, position)
            position += len(data)
            return data

        try:
            yield from read_frames(read)
        finally:
            self._files.close(fd)

    # The log

    def _bases(self) -> list[int]:
        names = self._files.list(self._folder)
        return [base for name in names if (base := parse_chunk_name(name)) is not None]

    def _all_archived(self, table: Table) -> dict[int, ArchivedChunk]:
        """Return the archived chunks, with those whose rows were not shipped yet.

        A process leaves out the bytes of a chunk as soon as the archive has it. The chunk's row may
        follow in a later piece. The manifest was written before that.
        """
        rows = dict(table.archived)
        if self._gaps(rows, table) or self._ends_early(rows):
            manifest = newest_manifest(self._bucket, self.shipped.uuid)
            for row in manifest.chunks if manifest is not None else ():
                if table.start < row.next_offset <= self.shipped.end:
                    rows.setdefault(row.base_offset, row)
        return dict(sorted(rows.items()))

    def _ends_early(self, rows: Mapping[int, ArchivedChunk]) -> bool:
        """Return True if the last chunk lacks its footer, although the log goes on behind it.

        It was archived before its footer was shipped, and the ongoing chunk was empty.
        """
        bases = self._bases()
        if not bases or bases[-1] in rows:
            return False
        try:
            chunk = self._open_chunk(bases[-1])
        except Damaged:  # not even the header is there
            return True
        try:
            return not chunk.sealed and _complete(chunk, IN_GROUP)[1] < self.shipped.end
        finally:
            chunk.close()

    def _gaps(self, rows: Mapping[int, ArchivedChunk], table: Table) -> list[Bad]:
        """Return the offsets below the last chunk that are in no chunk."""
        spans = {base: row.next_offset for base, row in rows.items()}
        for base in self._bases():
            with contextlib.suppress(Damaged):  # not even the header is there
                chunk = self._open_chunk(base)
                chunk.close()
                spans[base] = max(spans.get(base, base), chunk.end_offset)
        end = max(table.start, self._identity.base_offset)
        spans.setdefault(self.shipped.kept_from, self.shipped.kept_from)
        gaps = []
        for base, stop in sorted(spans.items()):
            if base > end:
                gaps.append(gap_before(base, end))
            end = max(end, stop)
        return gaps

    def _put_log_right(self, rows: Mapping[int, ArchivedChunk], table: Table) -> None:
        """Remove or seal chunk files that no crash would leave. Create the last one if needed."""
        files, folder = self._files, self._folder
        for base in self._bases():
            size = files.size_of(f"{folder}/{chunk_name(base)}")
            if (base in rows and size != rows[base].size) or size < CHUNK_HEADER_BYTES:
                files.remove(f"{folder}/{chunk_name(base)}")
        self._remove_unfinished_groups()
        bases = self._bases()
        for base, following in pairwise(bases):
            self._seal(base, following)
        if bases:
            last = self._open_chunk(bases[-1])
            last.close()
            if not last.sealed or last.end_offset >= self.shipped.end:
                return
        # The ongoing chunk was empty. After an earlier restore, it may begin behind a gap.
        ends = [row.next_offset for row in rows.values()]
        begin = max([table.start, self._identity.base_offset, self.shipped.end, *ends])
        create_empty_chunk(self._files, self._folder, self._identity.uuid_bytes, begin)

    def _open_chunk(self, base: int, *, write: bool = False) -> Chunk:
        return open_chunk(
            self._files, self._folder, base, self._identity.uuid_bytes, INDEX_EVERY_BYTES,
            write=write,
        )  # fmt: skip

    def _remove_unfinished_groups(self) -> None:
        """Remove adopted chunks whose group has no mark, because its last chunk is not there."""
        bases = self._bases()
        doubtful = [
            base for base in bases if base in self.shipped.doubtful or base >= self.shipped.end
        ]
        for base in doubtful:
            chunk = self._open_chunk(base)
            chunk.close()
            if chunk.header.flags & ADOPTED and not self._is_marked(base, bases):
                self._files.remove(f"{self._folder}/{chunk_name(base)}")

    def _is_marked(self, base: int, bases: list[int]) -> bool:
        """Return True if a chunk from this one on has the mark of the chunk's group."""
        for other in bases[bases.index(base) :]:
            chunk = self._open_chunk(other)
            try:
                if not chunk.header.flags & ADOPTED:
                    return False
                mark = chunk.mark_at(chunk.last_position()) if chunk.sealed else None
                if mark is not None:
                    return base in {one.base_offset for one in mark.adopted}
            except ValueError:
                continue
            finally:
                chunk.close()
        return False

    def _seal(self, base: int, following: int) -> None:
        """Cut a chunk without a footer after its last complete block or group, and seal it."""
        after = self._open_chunk(following)
        after.close()
        # A group may end in adopted chunks.
        unfinished = 0 if after.header.flags & ADOPTED else IN_GROUP
        chunk = self._open_chunk(base, write=True)
        try:
            if chunk.sealed:
                return
            position, offset, time_ns = _complete(chunk, unfinished)
            if not offset:  # it never had a message
                self._files.remove(chunk.path)
                return
            self._files.truncate(chunk.fd, position)
            footer = ChunkFooter(offset, time_ns, position)
            encoded = encode_footer(footer, chunk.header.seed, chunk.header)
            self._files.writev(chunk.fd, [encoded], position)
        finally:
            chunk.close()

    def _begin_behind_gap(self, rows: Mapping[int, ArchivedChunk], table: Table) -> None:
        """Let a topic without messages begin behind the offsets that an earlier restore skipped.

        The broker may have been lost before it shipped the row that says so.
        """
        begin = max(table.start, self._identity.base_offset)
        bases = self._bases()
        if rows or bases != [self.shipped.end] or begin >= self.shipped.end:
            return
        with self._state() as state:
            state.commit(StateBatch(start=self.shipped.end))

    def _note_gaps(self, rows: Mapping[int, ArchivedChunk], table: Table) -> None:
        """Note the offsets between chunks that neither the log of ticks nor the archive has."""
        gaps = self._gaps(rows, table)
        for bad in gaps:
            keep_bytes(self._files, self._folder, bad, time.time_ns())
        self.restored.gaps = tuple(bad.hole for bad in gaps)

    # The archive

    def _missing_files(
        self, rows: Mapping[int, ArchivedChunk], start: int
    ) -> Iterator[ArchivedChunk]:
        bases = set(self._bases())
        return (row for base, row in rows.items() if base not in bases and row.next_offset > start)

    def _fetch(self, rows: Mapping[int, ArchivedChunk], start: int) -> None:
        """Fetch the chunks that are only in the bucket, from `start` on, with their indexes."""
        objects = ChunkObjects(self._files, self._bucket)
        for row in self._missing_files(rows, start):
            path = f"{self._folder}/{chunk_name(row.base_offset)}"
            self._files.close(self._files.open_new(path))
            fetch = partial(self._fetch_segment, objects, row)
            with ThreadPoolExecutor(DOWNLOADS, thread_name_prefix="zsq-restore") as threads:
                for size in threads.map(fetch, (*range(segments_of(row.size)), INDEX)):
                    self._advance(size)

    def _fetch_segment(self, objects: ChunkObjects, row: ArchivedChunk, number: int) -> int:
        data = objects.read_segment(self.shipped.uuid, row, number)
        if number == INDEX:
            self._files.write_file(f"{self._folder}/{index_name(row.base_offset)}", data)
        else:
            path = f"{self._folder}/{chunk_name(row.base_offset)}"
            self._append(path, memoryview(data), number * archive_format.SEGMENT_BYTES)
        return len(data)

    def _check_archived(self, rows: Mapping[int, ArchivedChunk], start: int) -> None:
        """Check that the bucket has the other chunks. The bytes in them are checked by zsq fsck."""
        objects = ChunkObjects(self._files, self._bucket)
        uuid = self.shipped.uuid
        names = {*self._bucket.names(f"{CHUNKS}/{uuid}/")}
        for row in self._missing_files(rows, start):
            name = chunk_object(uuid, row.base_offset, row.crc)
            if name not in names:
                self.restored.problems.append(
                    f"{self._bucket.url}/{name} is missing: it has the messages from offset "
                    f"{row.base_offset} to {row.next_offset - 1}"
                )
                continue
            try:
                objects.sums(uuid, row)
            except BucketAway:
                raise
            except StorageError as error:
                self.restored.problems.append(str(error))

    # The ordinary recovery

    def _open(self) -> None:
        options = replace(OPTIONS, open_remote=open_cache(1))
        store = open_store(self._files, self._folder, options, self._identity)
        try:
            self.restored.problems += store.report.alarms
            table = store.state.load()
            end = store.log.end
            if end < self.shipped.end:
                self.restored.problems.append(
                    f"the log ends at offset {end}, but the ticks say that they have all messages "
                    f"below {self.shipped.end}"
                )
            self._count(store, table)
            bad = None
            if end < self.shipped.reserved:
                store.log.roll(time.time_ns())
                bad = gap_before(self.shipped.reserved, end)
                self.restored.gaps = (*self.restored.gaps, bad.hole)
                self.restored.start = _behind(self.restored.start, [bad.hole])
                self.restored.end = self.shipped.reserved
            self._begin_at_the_end(store)
        finally:
            store.close()
        if bad is not None:
            # Continue behind the offsets that the lost broker may have given out.
            leap(self._files, self._folder, self._identity.uuid_bytes, bad)

    def _begin_at_the_end(self, store: Store) -> None:
        """Commit the new end. In a topic without messages, the gap is before the first one."""
        end = self.restored.end
        start = end if self.restored.start == end else None
        store.state.commit(StateBatch(applied_offset=end, synced_end=end, start=start))

    def _count(self, store: Store, table: Table) -> None:
        restored = self.restored
        restored.start, restored.end = max(store.log.start, table.start), store.log.end
        remote = store.log.reader.remote
        restored.archived_messages = sum(
            row.next_offset - max(row.base_offset, restored.start)
            for row in remote.values()
            if row.next_offset > restored.start
        )
        gaps = sum(
            gap.next_offset - max(gap.first_offset, restored.start)
            for gap in self.restored.gaps
            if gap.next_offset > restored.start
        )
        restored.log_messages = (
            restored.end
            - restored.start
            - restored.archived_messages
            - gaps
            - store.log.reader.damage.messages
        )
        restored.channels = len(table.channels)
        if store.delayed is not None:
            restored.delayed_messages = store.delayed.summary.messages


def _complete(chunk: Chunk, unfinished: int) -> tuple[int, int, int]:
    """Return where the last complete block or group ends: its position, offset and time.

    A block with the flags `unfinished` is not the last one of a group. The offset is 0 if there is
    no complete one.
    """
    last = CHUNK_HEADER_BYTES, 0, 0
    for stretch in chunk.walk(CHUNK_HEADER_BYTES, columns=True):
        header = stretch.header
        if stretch.good and header is not None and not header.flags & unfinished:
            last = stretch.end, header.next_offset, header.time_ns
    return last


def _behind(offset: int, gaps: Sequence[Hole]) -> int:
    """Return the offset, or the end of the gap that contains it."""
    for gap in gaps:
        if gap.first_offset <= offset < gap.next_offset:
            return gap.next_offset
    return offset


def first_with_ids(rows: Mapping[int, ArchivedChunk], table: Table) -> int:
    """Return the offset from which recovery reads ids of messages from the log.

    Files of ids are not shipped. At most IDS_BYTES_MAX of the archived chunks are fetched for them,
    because a takeover must not wait for the chunks of a week. Older ids are then not known.
    """
    first, end = table.ids
    start, size = table.applied_offset, 0
    for row in sorted(rows.values(), reverse=True):
        if not first < row.next_offset or row.base_offset >= end:
            continue
        size += row.size
        if size > IDS_BYTES_MAX:
            break
        start = min(start, row.base_offset)
    return start
