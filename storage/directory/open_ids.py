"""Opening of the index of ids: reads its files, and the log where the files are behind it.

| what is on the disk | what is read |
|---|---|
| the files, and a log that ends where they end | the files |
| messages with ids after the files' end: the last second before a crash | the log from there |
| no files, but a checkpoint that counts ids: the topic was restored | the log from the first id on |
| a damaged or missing file | the same, and a note |
| delayed messages with ids | their rows (`storage/delayed`), which were committed with them |

What the log does not have any more is not known. It is at most one window of ids.
"""

from __future__ import annotations

from ...transport.block.block import Block
from ...transport.block.block_format import HAS_IDS
from ...transport.errors import ZsqError
from ...transport.wire.dedupe import digests_of
from ..dedupe.id_format import FOLDER_NAME, NO_OFFSET
from ..dedupe.id_index import IdIndex
from ..delayed.delayed import DelayedStore
from ..errors import Damaged, Unreadable
from ..files import Files
from ..log.log import Log
from ..log.recovery import RecoveryReport
from ..state.state import Table


def open_ids(
    files: Files,
    directory: str,
    uuid: bytes,
    log: Log,
    table: Table,
    delayed: DelayedStore | None,
    report: RecoveryReport,
) -> IdIndex | None:
    """Return the index of a topic, or None if the topic has no ids.

    `report.ids_from` is the first block with ids after the checkpoint, or -1.
    """
    first, end = table.ids
    waiting = [] if delayed is None else delayed.ids()
    has_files = files.exists(f"{directory}/{FOLDER_NAME}")
    if not (has_files or end or waiting or report.ids_from >= 0):
        return None
    index = IdIndex(files, directory, uuid)
    try:
        problems = index.load(log.end) if has_files else []
    except OSError as error:
        problems = [f"{directory}/{FOLDER_NAME}: {error}"]
    report.notes += problems
    start = report.ids_from if report.ids_from >= 0 else log.end
    if problems or index.written_end < end:
        start = min(start, first if problems else max(first, index.written_end))
    if start < log.end:
        count = _read_log(index, log, start)
        if problems or not has_files:
            report.notes.append(f"{directory}: {count} ids of messages were read from the log")
    for time_ns, digests in waiting:
        known = index.known(digests, 0)
        new = [digest for at, digest in enumerate(digests) if at not in known]
        if new:
            index.add(new, [NO_OFFSET] * len(new), time_ns, 0)
    return index


def _read_log(index: IdIndex, log: Log, start: int) -> int:
    """Add the ids of the messages from `start` on that the index does not have."""
    count = 0
    for header, _ in log.headers(start):
        if not header.flags & HAS_IDS or not header.count:
            continue
        for block in _blocks_at(log, header.first_offset):
            offsets: dict[bytes, int] = {}
            for at, digest in enumerate(_digests(block)):
                if digest is not None:
                    offsets.setdefault(digest, block.first_offset + at)
            known = index.known([*offsets], 0)
            new = [digest for at, digest in enumerate(offsets) if at not in known]
            if new:
                places = [offsets[digest] for digest in new]
                index.add(new, places, header.time_ns, block.next_offset)
                count += len(new)
    return count


def _digests(block: Block) -> tuple[bytes | None, ...]:
    try:
        return digests_of(block) or ()
    except ZsqError:
        return ()


def _blocks_at(log: Log, offset: int) -> list[Block]:
    try:
        return log.read(offset, 1, log.end, 1)
    except (Damaged, Unreadable):
        return []
