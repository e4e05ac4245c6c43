"""A stage, its files, the ticket of a seal, and the recovery of stages. `staging.py` uses them.

At a start, recovery makes the staged files agree with their rows. It runs after the log's recovery,
which may need staged files to finish a commit.

A row was committed after a sync of all files that it names. So it is damage if a file is missing or
too short, or if both copies of its header are damaged. The stage is then dropped with an alarm. Its
writer or its commit gets the error that the stage does not exist. The topic starts nevertheless. A
file that no row names was not sealed and is removed. Bytes after the end in the row are cut off.

A read error of the disk does not count as damage, because it may be temporary. A stage with a final
seal is kept with its files, and its commit is refused while they cannot be read. A stage without a
final seal is dropped, because its writer would get the same error again and again.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from ...transport.block.block import Block
from ...transport.checksum import crc32c
from ..errors import Damaged, ForeignDirectory, NewerVersion, StoreFailed
from ..files import Files
from ..log.log_format import CHUNK_HEADER_BYTES, FOOTER_BYTES, decode_chunk_header, part_name
from ..log.transactions import StagedFile, StageRow, Transaction

if TYPE_CHECKING:
    from ..log.recovery import RecoveryReport


# One descriptor for each active writer (at most 256), and some more. This is a third of the usual
# limit of a process.
OPEN_FILES_MAX: Final = 320


def checksum_after(checksum: int, columns_crc: int) -> int:
    """Return the checksum after one more block, as the writers compute it.

    It covers the checksums of the blocks, so it depends on their content and order.
    """
    return int(crc32c(columns_crc.to_bytes(4, "little"), checksum))


class StageFile:
    """A file of a stage.

    `written` and `synced` are positions, with the footer. If the file is not completely synced, its
    descriptor is open.
    """

    __slots__ = (
        "blocks",
        "data_end",
        "fd",
        "messages",
        "number",
        "path",
        "pins",
        "seed",
        "synced",
        "written",
    )

    def __init__(self, path: str, number: int, seed: int) -> None:
        self.path = path
        self.number = number
        self.seed = seed
        self.blocks = 0
        self.messages = 0
        self.data_end = CHUNK_HEADER_BYTES
        self.written = 0
        self.synced = 0
        self.fd = -1
        self.pins = 0
        """The number of tickets that will sync the file. Until then its descriptor stays open."""

    def row(self) -> StagedFile:
        return StagedFile(self.number, self.seed, self.blocks, self.messages, self.data_end)


class _Snapshot(NamedTuple):
    blocks: int
    messages: int
    size_bytes: int
    checksum: int
    files: int
    last: tuple[int, int, int]


class Stage:
    """A stage.

    `sealed` is the number of durable blocks, and `names` the number of files whose names are
    durable. `ended` is True after the final seal has begun.
    """

    __slots__ = (
        "blocks", "checksum", "ended", "error", "files", "lock", "messages", "name", "names", "partition", "sealed", "size_bytes",
        "transaction", "used_ns",
    )  # fmt: skip

    def __init__(self, name: bytes, transaction: Transaction, partition: int) -> None:
        self.name = name
        self.transaction = transaction
        self.partition = partition
        self.blocks = self.messages = self.size_bytes = self.checksum = 0
        self.files: list[StageFile] = []
        self.sealed = self.names = 0
        self.ended = False
        self.used_ns = 0
        self.lock = threading.Lock()
        self.error: OSError | None = None

    @property
    def final(self) -> bool:
        return self.ended and self.sealed == self.blocks

    def take(self, blocks: Iterable[Block], file: StageFile, end: int) -> None:
        """Count these blocks, which were written to `file`. The file now ends at `end`."""
        for block in blocks:
            header = block.header
            self.blocks += 1
            self.messages += header.count
            self.size_bytes += header.length
            self.checksum = checksum_after(self.checksum, header.columns_crc)
            file.blocks += 1
            file.messages += header.count
        file.data_end = file.written = end

    def row(self) -> StageRow:
        app, version, kind, user = self.transaction
        files = tuple(file.row() for file in self.files)
        return StageRow(
            app, version, kind, self.partition, self.blocks, self.messages, self.size_bytes, self.checksum, self.ended, files, self.used_ns,
            user,
        )  # fmt: skip

    def snapshot(self) -> _Snapshot:
        last = (
            (self.files[-1].blocks, self.files[-1].messages, self.files[-1].data_end)
            if self.files
            else (0, 0, 0)
        )
        return _Snapshot(
            self.blocks, self.messages, self.size_bytes, self.checksum, len(self.files), last
        )

    def restore(self, before: _Snapshot) -> list[StageFile]:
        """Restore the earlier state, and return the files that were made after it.

        These files no longer belong to the stage.
        """
        self.blocks, self.messages, self.size_bytes, self.checksum = before[:4]
        later_files = self.files[before.files :]
        del self.files[before.files :]
        if self.files:
            file = self.files[-1]
            file.blocks, file.messages, file.data_end = before.last
            file.written = file.data_end
            file.synced = min(file.synced, file.data_end)
        return later_files


class StageTicket:
    """One seal.

    `run` syncs, in any thread, the blocks that were staged before the ticket was made.
    `Staging.finish_seal` then takes the result.
    """

    def __init__(self, files: Files, stage: Stage, folder: str) -> None:
        self._files = files
        self._folder = folder
        self.stage = stage
        self.row = stage.row()
        self.targets = [
            (file, file.fd, file.written) for file in stage.files if file.synced < file.written
        ]
        self.names = len(stage.files)
        self._names_synced = stage.names >= self.names
        self.done = False

    def run(self) -> None:
        """Sync the files.

        Raises `StoreFailed` if a sync fails. Each later ticket of the stage then raises it too,
        because Linux reports a lost page only once.
        """
        with self.stage.lock:
            if self.stage.error is None and not self.done:
                try:
                    for _, fd, _ in self.targets:
                        self._files.sync(fd)
                    if not self._names_synced:
                        self._files.sync_folder(self._folder)
                except OSError as error:
                    self.stage.error = error
            self.done = True
        if self.stage.error is not None:
            raise StoreFailed(
                f"staged files could not be synced: {self.stage.error}"
            ) from self.stage.error


class OpenFiles:
    """The open stage files. If there are too many, the least recently used is synced and closed."""

    def __init__(self, files: Files) -> None:
        self._files = files
        # The files by their number. The most recently used one is the last.
        self._open: dict[int, StageFile] = {}

    def use(self, file: StageFile) -> int:
        """Return the file's descriptor, and open it if needed. Raises `OSError`."""
        if self._open.pop(file.number, None) is None:
            self._make_room()
            file.fd = self._files.open_append(file.path)
        self._open[file.number] = file
        return file.fd

    def make(self, file: StageFile) -> None:
        """Create a file."""
        self._make_room()
        file.fd = self._files.open_new(file.path)
        self._open[file.number] = file

    def _make_room(self) -> None:
        if len(self._open) < OPEN_FILES_MAX:
            return
        oldest = next((file for file in self._open.values() if not file.pins), None)
        if oldest is None:
            return  # tickets will sync and close all of them
        if oldest.synced < oldest.written:
            try:
                self._files.sync(oldest.fd)
            except OSError as error:  # after any error, the content of the file is unknown
                raise StoreFailed(f"{oldest.path} could not be synced: {error}") from error
            oldest.synced = oldest.written
        self.close(oldest)

    def close(self, file: StageFile) -> None:
        """Close a file, unless a ticket needs it.

        If a ticket needs it, the code that removes the last pin calls this again. Bytes that are
        not synced may be lost.
        """
        if not file.pins and self._open.pop(file.number, None) is not None:
            self._files.close(file.fd)
            file.fd = -1

    def close_all(self) -> None:
        for file in list(self._open.values()):
            file.pins = 0
            self.close(file)


def recover_stages(
    files: Files, folder: str, uuid: bytes, rows: Mapping[bytes, StageRow], report: RecoveryReport
) -> tuple[list[Stage], list[bytes], int]:
    """Return the existing stages, the damaged ones, and a number above the numbers of all files.

    Raises `OSError`.
    """
    names = files.list(folder) if files.exists(folder) else []
    stages: list[Stage] = []
    damaged: list[bytes] = []
    for name, row in rows.items():
        try:
            stages.append(_stage(files, folder, uuid, name, row, report))
        except NewerVersion:
            raise
        except (Damaged, ForeignDirectory, OSError) as error:
            if isinstance(error, OSError) and error.errno not in {errno.ENOENT, errno.EIO}:
                raise
            damaged.append(name)
            report.alarms.append(
                f"stage {name.hex()} of {row.app!r} {row.version} is dropped, with "
                f"{row.messages} messages: {error}"
            )
    _remove_others(files, folder, names, stages, report)
    number = 1 + max((file.number for stage in stages for file in stage.files), default=-1)
    return stages, damaged, number


def _stage(
    files: Files, folder: str, uuid: bytes, name: bytes, row: StageRow, report: RecoveryReport
) -> Stage:
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
            report.alarms.append(
                f"{file.path} cannot be read now: {error}; its stage is kept, but its commit is "
                "refused until the file can be read"
            )
        stage.files.append(file)
    stage.blocks, stage.messages, stage.size_bytes, stage.checksum = (
        row.blocks,
        row.messages,
        row.bytes,
        row.checksum,
    )
    stage.sealed, stage.names, stage.ended, stage.used_ns = (
        row.blocks,
        len(stage.files),
        row.final,
        row.used_ns,
    )
    return stage


def _check(files: Files, file: StageFile, uuid: bytes) -> None:
    """Check that this is the right file, and cut off bytes after its end. Raises `Damaged`."""
    fd = files.open_append(file.path)
    try:
        header = decode_chunk_header(files.pread(fd, CHUNK_HEADER_BYTES, 0))
        size = files.size(fd)
        if header.uuid != uuid or header.seed != file.seed:
            raise Damaged(f"{file.path} was changed or replaced after it was sealed")
        if size < file.written:
            raise Damaged(f"{file.path} has only {size} of {file.written} bytes")
        if size > file.written:
            files.truncate(fd, file.written)
    finally:
        files.close(fd)


def _remove_others(
    files: Files, folder: str, names: Iterable[str], stages: Iterable[Stage], report: RecoveryReport
) -> None:
    known = {file.path for stage in stages for file in stage.files}
    removed = 0
    for name in names:
        if f"{folder}/{name}" not in known:
            files.remove(f"{folder}/{name}")
            removed += 1
    if removed:
        report.notes.append(
            f"{folder}: {removed} files that were not sealed or are not needed any more were "
            "removed"
        )
