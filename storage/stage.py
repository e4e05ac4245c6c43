"""One stage, its files, and the ticket of a seal. What they are; `staging.py` moves them."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final, NamedTuple

from crc32c import crc32c

from ..transport.block import Block
from .errors import StoreFailed
from .files import Files
from .log_format import CHUNK_HEADER_BYTES
from .transactions import StagedFile, StageRow, Transaction

OPEN_FILES_MAX: Final = 320  # descriptors: one a writer at work (256 at most) and some; a third of what a process usually may have


def checksum_after(checksum: int, columns_crc: int) -> int:
    """As the writers compute it: over the blocks' own checksums, so what counts is content and order."""
    return int(crc32c(columns_crc.to_bytes(4, "little"), checksum))


class StageFile:
    """A file of a stage. `written`, `synced`: up to where (footer included); what is not synced has an open descriptor."""

    __slots__ = ("blocks", "data_end", "fd", "messages", "number", "path", "pins", "seed", "synced", "written")

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
        """Tickets that will sync it: its descriptor stays."""

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
    """`sealed`: blocks that are durable. `names`: files whose names are. `ended`: its final seal has begun."""

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
        """These blocks were written to `file`, which ends at `end` now."""
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
        app, version, kind = self.transaction
        files = tuple(file.row() for file in self.files)
        return StageRow(
            app, version, kind, self.partition, self.blocks, self.messages, self.size_bytes, self.checksum, self.ended, files, self.used_ns
        )

    def snapshot(self) -> _Snapshot:
        last = (self.files[-1].blocks, self.files[-1].messages, self.files[-1].data_end) if self.files else (0, 0, 0)
        return _Snapshot(self.blocks, self.messages, self.size_bytes, self.checksum, len(self.files), last)

    def restore(self, before: _Snapshot) -> list[StageFile]:
        """As it was; the files made since, which are the stage's no more."""
        self.blocks, self.messages, self.size_bytes, self.checksum = before[:4]
        made = self.files[before.files :]
        del self.files[before.files :]
        if self.files:
            file = self.files[-1]
            file.blocks, file.messages, file.data_end = before.last
            file.written = file.data_end
            file.synced = min(file.synced, file.data_end)
        return made


class StageTicket:
    """One seal: `run` syncs what was staged when it was made, in any thread; `Staging.finish_seal` makes it count."""

    def __init__(self, files: Files, stage: Stage, folder: str) -> None:
        self._files = files
        self._folder = folder
        self.stage = stage
        self.row = stage.row()
        self.targets = [(file, file.fd, file.written) for file in stage.files if file.synced < file.written]
        self.names = len(stage.files)
        self._names_synced = stage.names >= self.names
        self.done = False

    def run(self) -> None:
        """`StoreFailed` if a sync fails, and for each later ticket of the stage: Linux tells of a lost page once only."""
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
            raise StoreFailed(f"staged files could not be synced: {self.stage.error}") from self.stage.error


class OpenFiles:
    """Descriptors of stage files, a bounded number; the one not used for longest is synced and closed."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._open: dict[int, StageFile] = {}  # by number, used last at the end

    def use(self, file: StageFile) -> int:
        """The file's descriptor, opened if it is not open. `OSError`."""
        if self._open.pop(file.number, None) is None:
            self._make_room()
            file.fd = self._files.open_append(file.path)
        self._open[file.number] = file
        return file.fd

    def make(self, file: StageFile) -> None:
        """A new file."""
        self._make_room()
        file.fd = self._files.open_new(file.path)
        self._open[file.number] = file

    def _make_room(self) -> None:
        if len(self._open) < OPEN_FILES_MAX:
            return
        oldest = next((file for file in self._open.values() if not file.pins), None)
        if oldest is None:
            return  # each of them is about to be synced and closed
        if oldest.synced < oldest.written:
            try:
                self._files.sync(oldest.fd)
            except OSError as error:  # of whatever kind: what was staged is not known any more
                raise StoreFailed(f"{oldest.path} could not be synced: {error}") from error
            oldest.synced = oldest.written
        self.close(oldest)

    def close(self, file: StageFile) -> None:
        """Unless a ticket needs it: who takes the last pin calls again. What is not synced is given up."""
        if not file.pins and self._open.pop(file.number, None) is not None:
            self._files.close(file.fd)
            file.fd = -1

    def close_all(self) -> None:
        for file in list(self._open.values()):
            file.pins = 0
            self.close(file)
