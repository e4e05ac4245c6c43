"""Recovery at start: find out which bytes are really on disk, and make the log from them.

Recovery can be repeated. After a crash during recovery, it runs again.

The fault model. ZSQ promises to survive the following faults. No acknowledged message is lost, and
readers see no incomplete block:

* the process ends at any instruction, even inside recovery;
* a power cut: any part of the bytes that were not synced may be on disk, in any order. Names that
  were made or removed in a folder that was not synced may exist or not. A file that was renamed has
  its old name or its new one, or after a move to another folder both;
* a failed write, short write, or failed fdatasync: the process ends. After that, the page cache may
  contain good bytes that are not on disk;
* any one flipped bit in the log's files: at most one block is lost, and no wrong block is returned.

ZSQ does not promise to survive the following:

* a disk that reports a sync but did not carry it out
* damage in both copies of a chunk's header
* a bit that flips in the last block written before a crash, because it looks like a torn write
* edited files

Steps:

1. Sync the folder.
2. Remove a chunk whose creation was not finished.
3. Walk through the last chunk and check every block. All other chunks are complete, because a roll
   syncs them. The walk begins at the checkpoint, or at the chunk's start if the saved index cannot
   be used.
4. Decide for each bad stretch whether it is damage or a torn write.
5. Cut off a torn end, and sync.
6. Write the bytes again that may be only in the page cache, and sync.
7. The caller updates the producers' rows from the headers, and commits the checkpoint.

A bad stretch is damage if it is known that it was synced. The state store may know it, or a block
after the stretch: each block contains the number of bytes before it that were not known to be
synced when it was written. Damage stays in the chunk: its bytes are kept, its offsets become a
hole, and the blocks after it are used. Any other bad stretch is a torn write, which means a write
that never finished. It is cut off *together with all bytes after it*. No message there was
acknowledged, and the producers will send them again. If a block after a torn one were kept, the
producer's next sequence would be above the torn block. If the producer then sent the torn block
again, the topic would answer that this block is stored.

Bytes are copied to a `.bad` file before they are cut off, because recovery cannot exclude one case:
the last block may have been acknowledged and damaged later.

Offsets are never assigned twice. If the disk has lost synced bytes, the log ends below the synced
end in the state store. The log then continues at the synced end, and the lost offsets are a hole.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ...transport.block.block import IN_GROUP
from ..errors import Damaged, StoreFailed, Unreadable
from ..files import Files
from .adoption import finish_after_crash
from .chunk import PAGE_BYTES, ArchivedChunk, Chunk, open_chunk
from .damage import (
    BAD_FILES_MAX,
    BAD_KEPT_BYTES_MAX,
    CUT_OFF,
    DAMAGED,
    Bad,
    bad_heads,
    gaps_text,
    keep_bytes,
)
from .log import Log, LogOptions
from .log_format import BAD_SUFFIX, CHUNK_HEADER_BYTES, chunk_name, parse_chunk_name, unsynced_bytes
from .log_reader import ChunkArchive, Hole
from .survey import AT_START_MAX, recall

COPY_BYTES: Final = 4 * 1024 * 1024


@dataclass(slots=True)
class RecoveryReport:
    """The findings and actions of recovery.

    `notes` are sentences for the log of the process. `alarms` are sentences for the operator.
    """

    chunks: int = 0
    end: int = 0
    scanned_bytes: int = 0
    cut_bytes: int = 0
    rewritten_bytes: int = 0
    replayed_blocks: int = 0
    holes: tuple[Hole, ...] = ()
    gaps: tuple[Hole, ...] = ()
    """The holes that a restore from a bucket has left. No message there is known to be lost."""
    notes: list[str] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)
    ids_from: int = -1
    """The first message after the checkpoint whose block has ids, or -1."""
    keys_from: int = -1
    """The first message after the checkpoint whose block has unique keys, or -1."""
    now_ns: int = 0
    duration_ms: int = 0

    def sentence(self) -> str:
        """Return one line for the log of the process and for people."""
        clauses = [f"{self.chunks} chunks, {self.scanned_bytes} bytes checked"]
        if self.cut_bytes:
            clauses.append(f"{self.cut_bytes} bytes of unfinished writes cut off")
        if self.rewritten_bytes:
            clauses.append(f"{self.rewritten_bytes} bytes written back")
        if self.replayed_blocks:
            clauses.append(f"{self.replayed_blocks} blocks replayed")
        lost = [hole for hole in self.holes if hole not in self.gaps]
        if lost:
            clauses.append(
                f"{sum(hole.count for hole in lost)} messages lost in {len(lost)} stretches"
            )
        clauses += [
            f"{len(texts)} {name}"
            for texts, name in ((self.notes, "notes"), (self.alarms, "alarms"))
            if texts
        ]
        return f"recovered in {self.duration_ms} ms up to offset {self.end}: {', '.join(clauses)}"


@dataclass(slots=True)
class _End:
    """The end of a good prefix: position in the file, next offset, and time of the last block.

    Offset and time are absolute.
    """

    position: int
    offset: int
    time_ns: int


@dataclass(slots=True)
class _BadStretch:
    """Consecutive bad blocks.

    `end` is the position of the next good block, or the end of the file. `next_offset` is its
    offset, or -1.
    """

    start: _End
    end: int
    next_offset: int = -1
    blocks: int = 1


@dataclass(slots=True)
class _ChunkScan:
    """The findings of the walk through the last chunk.

    All bytes below position `attested` are known to be synced.
    """

    end: _End
    bad: list[_BadStretch] = field(default_factory=list)
    groups: list[tuple[_End, int]] = field(default_factory=list)
    """The start of each group in this chunk, and the position after its mark (-1: no mark)."""
    holes: list[Hole] = field(default_factory=list)
    attested: int = 0
    write_back_from: int = -1
    kept: Mapping[tuple[int, int], Bad] = field(default_factory=dict)
    """Damage that an earlier start copied to `.bad` files, by (base, position)."""
    kept_files: int = 0
    base_offset: int = 0

    def is_kept(self, position: int, size: int, count: int = 0) -> bool:
        """Return True if a `.bad` file has this damage, with at least this size and count."""
        known = self.kept.get((self.base_offset, position))
        return known is not None and known.bytes >= size and known.count >= count

    def tell(self, position: int, size: int, report: RecoveryReport, count: int = 0) -> list[str]:
        """Return the list for a sentence about this loss.

        The list is `notes` if a `.bad` file already has the damage, otherwise `alarms`.
        """
        return report.notes if self.is_kept(position, size, count) else report.alarms


def recover_log(
    files: Files,
    folder: str,
    uuid: bytes,
    base_offset: int,
    options: LogOptions,
    synced_end: int,
    start: int = 0,
    archived: Mapping[int, ArchivedChunk] | None = None,
    archive: ChunkArchive | None = None,
) -> tuple[Log, RecoveryReport]:
    """Return the recovered log, completely synced.

    According to the state store, all messages below `synced_end` are on disk, and all chunks below
    `start` are removed. `archived` are the chunks that the bucket has, and `archive` opens those of
    them whose files are gone. Raises `StoreFailed` for I/O errors, `ForeignDirectory` for chunks of
    another topic.
    """
    report = RecoveryReport(now_ns=time.time_ns())
    with contextlib.ExitStack() as undo:
        try:
            files.sync_folder(folder)
            bases = _bases(files, folder)
            chunk = _open_last(files, folder, uuid, bases, options, report)
            if chunk is None:
                text = f"restore the chunks from offset {base_offset} on, or move the folder away"
                raise Damaged(f"{folder} holds no readable chunk of the topic's log; {text}")
            undo.callback(chunk.close)
            footer = chunk.sealed
            if chunk.adopted:
                finish_after_crash(chunk, report.notes, report.alarms, start)
                bases = _bases(files, folder)
                if not chunk.sealed:
                    report.alarms.append(f"{chunk.path}: its footer is damaged")
                    # As a sealed chunk, it gets no more blocks. Replay expects only one group in
                    # an adopted chunk.
                    chunk.sealed = True
            scan = _scan(chunk, synced_end, report, columns=not footer)
            _decide(chunk, scan, synced_end, report)
            _write_back(chunk, scan, synced_end, report)
            _note_lost_end(chunk, scan, synced_end, report)
            chunk.last_time_ns = scan.end.time_ns
            remote = _remote(bases, archived or {}, start)
            log = Log(
                files, folder, uuid, options, sorted([*bases, *remote]), chunk, scan.end.time_ns,
                scan.holes, remote, archive,
            )  # fmt: skip
            undo.pop_all()
            undo.callback(log.reader.close)
            report.notes += recall(files, folder, log.reader)
            _tell_gaps(folder, log, report)
            job = log.survey.take(AT_START_MAX)
            report.alarms += log.survey.learn(job()) if job is not None else ()
        except (OSError, Unreadable) as error:
            raise StoreFailed(f"{folder} cannot be recovered: {error}") from error
        undo.pop_all()
    report.chunks = len(log.chunks)
    report.end = log.end
    report.holes = log.holes
    return log, report


def _note_lost_end(chunk: Chunk, scan: _ChunkScan, synced_end: int, report: RecoveryReport) -> None:
    """Note a hole if the log ends below `synced_end`."""
    end = scan.end
    if end.offset >= synced_end:
        return
    lost = Bad(
        chunk.base_offset,
        end.position,
        0,
        end.offset,
        synced_end - end.offset,
        "the file ends before it",
        blocks=1,
    )
    scan.holes.append(lost.hole)
    text = (
        f"the log ends at offset {end.offset} but was synced up to {synced_end}: {lost.count} "
        "messages are lost"
    )
    scan.tell(lost.position, 0, report, lost.count).append(f"{chunk.folder}: {text}")
    # If the condition is False, the damage has its `.bad` file already.
    if not scan.is_kept(lost.position, 0) and all(
        bad.start.position != lost.position for bad in scan.bad
    ):
        _set_aside(chunk, lost, report)
    # In a sealed chunk, the bytes after the end stay for inspection. The next append begins a
    # chunk.
    chunk.sealed = True
    chunk.end_offset = synced_end


def _tell_gaps(folder: str, log: Log, report: RecoveryReport) -> None:
    """Note the gaps. They are no alarms: whoever restored the topic was told of them."""
    report.gaps = tuple(log.reader.damage.gaps)
    if report.gaps:
        report.notes.append(f"{folder}: {gaps_text(report.gaps)}")


def _remote(
    bases: Sequence[int], archived: Mapping[int, ArchivedChunk], start: int
) -> dict[int, ArchivedChunk]:
    """Return the archived chunks that have no file, from `start` on.

    Chunks behind the last file are left out: the end of the log is lost, and its offsets are a
    hole.
    """
    files = set(bases)
    return {
        base: row
        for base, row in archived.items()
        if base not in files and base < bases[-1] and row.next_offset > start
    }


def _bases(files: Files, folder: str) -> list[int]:
    return [base for name in files.list(folder) if (base := parse_chunk_name(name)) is not None]


def _open_last(
    files: Files,
    folder: str,
    uuid: bytes,
    bases: list[int],
    options: LogOptions,
    report: RecoveryReport,
) -> Chunk | None:
    """Remove the last chunks that are incomplete or unreadable, and open the chunk before them.

    The removed chunks are removed from `bases` too.
    """
    while bases:
        base = bases[-1]
        path = f"{folder}/{chunk_name(base)}"
        try:
            return open_chunk(files, folder, base, uuid, options.index_every_bytes, write=True)
        except Damaged:
            size = files.size_of(path)
        bases.pop()
        if size <= CHUNK_HEADER_BYTES and bases:
            # A roll syncs header and folder before it appends a block, so this chunk never had a
            # block.
            files.remove(path)
            report.notes.append(f"{path}: its creation was not finished; it is removed")
        else:
            files.rename(path, path + BAD_SUFFIX)
            report.alarms.append(
                f"{path}: both copies of its header are damaged; it is set aside with its "
                f"messages as {path + BAD_SUFFIX}"
            )
        files.sync_folder(folder)
    return None


def _scan(chunk: Chunk, synced_end: int, report: RecoveryReport, *, columns: bool) -> _ChunkScan:
    """Check each block of the last chunk, build its index, and note bad stretches and synced bytes.

    The walk starts at the checkpoint if the saved index contains it. The blocks before it were
    synced, and are checked when they are read.
    """
    base, base_time_ns = chunk.base_offset, chunk.header.base_time_ns
    entry = chunk.resume(synced_end)
    end = _End(CHUNK_HEADER_BYTES, base, base_time_ns)
    if entry is not None:
        end = _End(entry.position, base + entry.offset, base_time_ns + entry.time_ns)
    index = chunk.index
    assert index is not None
    heads = bad_heads(chunk.files, chunk.folder)
    kept = {
        (head.bad.base_offset, head.bad.position): head.bad
        for head in heads
        if head.bad.kind == DAMAGED
    }
    scan = _ChunkScan(end, kept=kept, kept_files=len(heads), base_offset=base)
    in_bad = in_group = False
    for stretch in chunk.walk(end.position, columns=columns):
        header = stretch.header
        report.scanned_bytes += stretch.end - stretch.position
        if not stretch.good or header is None:
            if not in_bad:
                scan.bad.append(
                    _BadStretch(
                        _End(stretch.position, end.offset, end.time_ns), stretch.end, blocks=0
                    )
                )
            in_bad = True
            scan.bad[-1].end = stretch.end
            scan.bad[-1].blocks += 1
            continue
        if in_bad:
            scan.bad[-1].next_offset = base + header.first_offset
            in_bad = False
        before = unsynced_bytes(header)
        if before is not None:
            scan.attested = max(scan.attested, stretch.position - before)
        if header.flags & IN_GROUP and not in_group:
            scan.groups.append((_End(stretch.position, end.offset, end.time_ns), -1))
        elif not header.flags & IN_GROUP and in_group:
            # Normally this block is the group's mark. If the mark is damaged, this block shows that
            # the mark was written.
            scan.groups[-1] = (scan.groups[-1][0], stretch.end)
        in_group = bool(header.flags & IN_GROUP)
        if header.count and stretch.position >= index.next_position:
            index.note(header.first_offset, stretch.position, header.time_ns)
        if scan.write_back_from < 0 and base + header.next_offset > synced_end:
            scan.write_back_from = stretch.position
        if base + header.first_offset > end.offset:
            scan.holes.append(Hole(end.offset, base + header.first_offset - end.offset))
        end = _End(stretch.end, base + header.next_offset, base_time_ns + header.time_ns)
    scan.end = end
    return scan


def _decide(chunk: Chunk, scan: _ChunkScan, synced_end: int, report: RecoveryReport) -> None:
    """Decide which bad stretches are damage and where the first torn write is.

    Damage stays in the chunk, as holes. All bytes from the torn write on are cut off.
    """

    def known(start: _End) -> bool:
        return start.position < scan.attested or start.offset < synced_end or chunk.sealed

    cut: _End | None = None
    for bad in scan.bad:
        start = bad.start
        if known(start):
            text = f"damage at position {start.position}, offset {start.offset}; it is skipped"
            scan.tell(start.position, bad.end - start.position, report).append(
                f"{chunk.path}: {text}"
            )
            continue
        cut = start
        break
    for start, end_position in scan.groups:
        if cut is not None and start.position >= cut.position:
            break
        if end_position >= 0 and (cut is None or end_position <= cut.position):
            continue
        if known(start):
            report.alarms.append(
                f"{chunk.path}: the mark of the group from offset {start.offset} on is damaged; "
                "its messages are kept"
            )
        else:
            cut = start
    if cut is not None:
        size = chunk.files.size(chunk.fd)
        if chunk.unreadable >= cut.position:
            text = f"{chunk.path} cannot be read at position {chunk.unreadable}"
            raise StoreFailed(
                f"{text}. It is not known whether acknowledged messages are there, so the topic "
                "does not start; repair the disk"
            )
        has_intact_blocks = any(
            bad.start.position >= cut.position and bad.next_offset >= 0 for bad in scan.bad
        )
        why = "an unfinished write" + (
            ", with intact blocks behind it"
            if has_intact_blocks
            else ", or a block that was damaged later"
        )
        kept = Bad(
            chunk.base_offset, cut.position, size - cut.position, cut.offset, 0, why, CUT_OFF
        )
        if has_intact_blocks or scan.kept_files < BAD_FILES_MAX:
            _set_aside(chunk, kept, report, size if has_intact_blocks else BAD_KEPT_BYTES_MAX)
        report.notes.append(
            f"{chunk.path}: {size - cut.position} bytes of an unfinished write cut off at "
            f"{cut.position}"
        )
        report.cut_bytes = size - cut.position
        chunk.files.truncate(chunk.fd, cut.position)
        chunk.files.sync(chunk.fd)
        scan.end = cut
        scan.holes = [hole for hole in scan.holes if hole.first_offset < cut.offset]
        assert chunk.index is not None
        chunk.index.cut(cut.position)
    # The last blocks are damaged. The footer knows how many messages they had.
    if chunk.sealed and scan.end.offset < chunk.end_offset:
        scan.holes.append(Hole(scan.end.offset, chunk.end_offset - scan.end.offset))
        scan.end.offset = chunk.end_offset
    if not chunk.sealed:
        chunk.end_position = scan.end.position
    chunk.end_offset = scan.end.offset
    for bad in scan.bad:
        if known(bad.start) and (cut is None or bad.start.position < cut.position):
            following = (
                bad.next_offset if bad.next_offset >= 0 else max(scan.end.offset, synced_end)
            )
            count = max(following - bad.start.offset, 0)  # the result is 0 if only a mark is bad
            why = "its checksum does not match"
            size = bad.end - bad.start.position
            if not scan.is_kept(bad.start.position, size, count):
                _set_aside(
                    chunk,
                    Bad(
                        chunk.base_offset,
                        bad.start.position,
                        size,
                        bad.start.offset,
                        count,
                        why,
                        blocks=bad.blocks,
                    ),
                    report,
                )


def _set_aside(
    chunk: Chunk, bad: Bad, report: RecoveryReport, kept_max: int = BAD_KEPT_BYTES_MAX
) -> None:
    """Copy bytes that are damaged, or will be cut off, into a `.bad` file.

    A failure is only noted, because the topic must start even on a full disk.
    """
    path = f"{chunk.folder}/{bad.name}"
    try:
        kept = keep_bytes(chunk.files, chunk.folder, bad, report.now_ns, kept_max)
        report.notes.append(f"{path}: keeps {kept} bytes that are {bad.kind}: {bad.why}")
    except OSError as error:
        report.notes.append(f"{path}: could not be written ({error})")


def _write_back(chunk: Chunk, scan: _ChunkScan, synced_end: int, report: RecoveryReport) -> None:
    """Write the bytes again that are not known to be synced, at the same position. Then sync.

    This is necessary because after a failed sync, bytes may be in the page cache but not on disk.
    """
    files = chunk.files
    size = files.size(chunk.fd)
    start = scan.write_back_from
    if synced_end <= chunk.base_offset:
        # An adopted file was synced before it got its name, so all its bytes are on disk.
        start = 0 if not chunk.adopted else chunk.end_position
    elif start < 0:
        start = chunk.end_position  # only a footer may be after this position
    start = min(start, size)
    for position in range(start, size, COPY_BYTES):
        _write_again(chunk, position, min(COPY_BYTES, size - position))
    if start < size:
        files.sync(chunk.fd)
    report.rewritten_bytes = size - start


def _write_again(chunk: Chunk, position: int, size: int) -> None:
    """Write a piece again, except pages that the disk cannot read.

    Such pages are known damage, because otherwise recovery would have failed before.
    """
    files = chunk.files
    for at in (
        (position,) if chunk.unreadable < position else range(position, position + size, PAGE_BYTES)
    ):
        length = size if chunk.unreadable < position else min(PAGE_BYTES, position + size - at)
        try:
            data = files.pread(chunk.fd, length, at)
        except OSError as error:
            if error.errno != errno.EIO or chunk.unreadable < at:
                raise
            continue
        files.writev(chunk.fd, [data], at)
