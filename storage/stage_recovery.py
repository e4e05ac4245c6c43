"""At start: what is staged, made to agree with its rows. After the log's recovery, which may still need files of a commit from here.

A row was committed after a sync of all that it names. So a file that is missing, too short, or whose header is damaged twice is
damage: the stage is dropped with an alarm, its writer or its commit is told that it is not there, and the topic starts. A file
behind a row's last one, or of no row, was not sealed: it is removed, and what lies behind a row's end is cut off.

A disk that fails to read is no damage yet. A stage that is sealed for good stays with its files: its commit is refused while they cannot be
read. One that is still written to is dropped, as its writer would meet the same disk again and again.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from .errors import Damaged, ForeignDirectory
from .files import Files
from .log_format import CHUNK_HEADER_BYTES, FOOTER_BYTES, decode_chunk_header, part_name
from .stage import Stage, StageFile
from .transactions import StageRow

if TYPE_CHECKING:
    from .recovery import RecoveryReport


def recover_stages(
    files: Files, folder: str, uuid: bytes, rows: Mapping[bytes, StageRow], report: RecoveryReport
) -> tuple[list[Stage], list[bytes], int]:
    """The stages that are there; those that are damaged; a number above all files'. `OSError`."""
    names = files.list(folder) if files.exists(folder) else []
    stages: list[Stage] = []
    damaged: list[bytes] = []
    for name, row in rows.items():
        try:
            stages.append(_stage(files, folder, uuid, name, row, report))
        except (Damaged, ForeignDirectory, OSError) as error:
            if isinstance(error, OSError) and error.errno not in {errno.ENOENT, errno.EIO}:
                raise
            damaged.append(name)
            report.alarms.append(f"stage {name.hex()} of {row.app!r} {row.version} is dropped, with {row.messages} messages: {error}")
    _remove_others(files, folder, names, stages, report)
    number = 1 + max((file.number for stage in stages for file in stage.files), default=-1)
    return stages, damaged, number


def _stage(files: Files, folder: str, uuid: bytes, name: bytes, row: StageRow, report: RecoveryReport) -> Stage:
    stage = Stage(name, row.transaction, row.partition)
    for staged in row.files:
        file = StageFile(f"{folder}/{part_name(name, staged.number)}", staged.number, staged.seed)
        file.blocks, file.messages, file.data_end = staged.blocks, staged.messages, staged.data_end
        file.written = file.synced = staged.data_end + (FOOTER_BYTES if row.final else 0)
        try:
            _check(files, file, uuid)
        except OSError as error:
            if error.errno != errno.EIO or not row.final:
                raise
            report.alarms.append(f"{file.path} cannot be read now: {error}; its stage stays, and its commit is refused while that is so")
        stage.files.append(file)
    stage.blocks, stage.messages, stage.size_bytes, stage.checksum = row.blocks, row.messages, row.bytes, row.checksum
    stage.sealed, stage.names, stage.ended, stage.used_ns = row.blocks, len(stage.files), row.final, row.used_ns
    return stage


def _check(files: Files, file: StageFile, uuid: bytes) -> None:
    """That it is the file, and not longer than it should be."""
    fd = files.open_append(file.path)
    try:
        header = decode_chunk_header(files.pread(fd, CHUNK_HEADER_BYTES, 0))
        size = files.size(fd)
        if header.uuid != uuid or header.seed != file.seed:
            raise Damaged(f"{file.path} is another file")
        if size < file.written:
            raise Damaged(f"{file.path} has {size} of {file.written} bytes")
        if size > file.written:
            files.truncate(fd, file.written)
    finally:
        files.close(fd)


def _remove_others(files: Files, folder: str, names: Iterable[str], stages: Iterable[Stage], report: RecoveryReport) -> None:
    known = {file.path for stage in stages for file in stage.files}
    removed = 0
    for name in names:
        if f"{folder}/{name}" not in known:
            files.remove(f"{folder}/{name}")
            removed += 1
    if removed:
        report.notes.append(f"{folder}: {removed} files that were not sealed, or not needed any more, are removed")
