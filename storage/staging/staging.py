"""Staging: blocks that stage writers (Spark tasks) send, kept beside the log until a commit.

    DIR/staging/<32 hex digits of the stage>-<number>.part

Each file is a chunk without a position in the log: base offset 0, base time 0, a random seed, and
blocks in disk form. So a new header and a rename make it a chunk of the log (`adoption.py`),
whatever its size. A seal syncs the staged blocks, and writes a row about them to the state store. A
restart removes all files that no committed row names, and cuts each other file to the length in its
row. Consumers never read these files.

The blocks of a stage after its last seal may be lost at any time. Its writer keeps them until they
are sealed. All methods run in one thread, except a ticket's `run`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn

from ...transport.block.block import Block
from ...transport.errors import (
    E_BAD_ARGUMENT,
    E_FORBIDDEN,
    E_LIMIT,
    E_NOT_FOUND,
    NotFound,
    Refused,
    UsageError,
)
from ..errors import StoreFailed, is_full
from ..files import IOV_MAX, Files
from ..log.group import StagedPart
from ..log.log_format import (
    CHUNK_HEADER_BYTES,
    FOOTER_BYTES,
    ChunkFooter,
    ChunkHeader,
    encode_chunk_header,
    encode_disk_header,
    encode_footer,
    part_name,
)
from ..log.transactions import StageRow, Transaction, is_foreign
from ..space import Space
from ..state.state import StateBatch
from .stage import OpenFiles, Stage, StageFile, StageTicket

# Twice the parts of the largest commit: the parts of one batch, and the parts that the batch before
# it has left.
STAGES_MAX: Final = 20_000
# This is 10 TB if each file has the size of a full chunk. A start reads the name and header of
# each.
FILES_MAX: Final = 40_000


class StageFacts(NamedTuple):
    """The present facts of a stage.

    `size_bytes` is the size of its blocks. `sealed_blocks` is the number of durable blocks.
    """

    blocks: int
    messages: int
    size_bytes: int
    checksum: int
    sealed_blocks: int
    final: bool
    used_ns: int
    transaction: Transaction
    partition: int


class Staging:
    """The staged blocks of a topic, made by `open_store`.

    Recovery found `stages`, which agree with the rows. `number` is above the numbers of all their
    files.
    """

    def __init__(
        self,
        files: Files,
        folder: str,
        uuid: bytes,
        chunk_bytes: int,
        reserve_bytes: int,
        stages: Iterable[Stage] = (),
        number: int = 0,
    ) -> None:
        self._files = files
        self._folder = folder
        self._uuid = uuid
        self._chunk_bytes = chunk_bytes
        self._space = Space(files, folder.rpartition("/")[0], reserve_bytes)
        self._stages = {stage.name: stage for stage in stages}
        self._number = number
        """The number of the next file.

        A process uses no number twice. So a delayed removal never removes a later file of the same
        stage.
        """
        self._count = sum(len(stage.files) for stage in self._stages.values())
        self._open = OpenFiles(files)
        self._dropped: list[tuple[StateBatch, list[StageFile]]] = []
        self._tickets: list[StageTicket] = []
        self._made = files.exists(folder)
        self._failed = ""

    # Reading

    def stages(self) -> Mapping[bytes, StageFacts]:
        return {name: self.facts(name) for name in self._stages}

    def facts(self, stage: bytes) -> StageFacts:
        """Return the facts of a stage. Raises `NotFound` if it is not known."""
        s = self._get(stage)
        return StageFacts(
            s.blocks,
            s.messages,
            s.size_bytes,
            s.checksum,
            s.sealed,
            s.final,
            s.used_ns,
            s.transaction,
            s.partition,
        )

    def part(self, stage: bytes) -> StagedPart:
        """Return the part for `Log.append_group`.

        Raises `NotFound`, or `UsageError` if the stage has no final seal.
        """
        sealed_stage = self._get(stage)
        if not sealed_stage.final:
            raise UsageError(
                E_BAD_ARGUMENT, f"stage {stage.hex()} is not sealed; seal it before the commit"
            )
        return StagedPart(stage, self._folder, tuple(file.row() for file in sealed_stage.files))

    def _get(self, stage: bytes) -> Stage:
        known = self._stages.get(stage)
        if known is None:
            raise NotFound(E_NOT_FOUND, f"stage {stage.hex()} does not exist (any more)")
        return known

    # Writing

    def open(
        self, stage: bytes, transaction: Transaction, partition: int, now_ns: int
    ) -> tuple[int, int]:
        """Open a new stage or continue one.

        Returns (number of the next block, number of durable blocks). Raises `UsageError` if the
        stage belongs to another transaction. Raises `Refused` if it belongs to another user, or if
        there are too many stages.
        """
        known = self._stages.get(stage)
        if known is None:
            if len(self._stages) >= STAGES_MAX:
                raise Refused(
                    E_LIMIT,
                    (
                        f"{STAGES_MAX} stages already wait for a commit; abort stages, or wait "
                        "until some expire"
                    ),
                )
            known = self._stages[stage] = Stage(stage, transaction, partition)
        if is_foreign(known.transaction.user, transaction.user):
            raise Refused(
                E_FORBIDDEN, f"stage {stage.hex()} belongs to user {known.transaction.user!r}"
            )
        if known.transaction[:3] != transaction[:3]:
            raise UsageError(
                E_BAD_ARGUMENT,
                (
                    f"stage {stage.hex()} belongs to transaction {known.transaction}, not to "
                    f"{transaction}"
                ),
            )
        known.used_ns = max(known.used_ns, now_ns)
        return known.blocks, known.sealed

    def append(self, stage: bytes, blocks: Sequence[Block], now_ns: int | None = None) -> int:
        """Write consecutive blocks and return the number of the next block.

        They are not durable before a seal. The first block must have the next number. Raises
        `DiskFull`, or `Refused` if there are too many files. In both cases nothing was stored.
        Raises `StoreFailed` if the process must end and recover.
        """
        self._check()
        staged = self._get(stage)
        if staged.ended:
            raise UsageError(
                E_BAD_ARGUMENT,
                f"stage {stage.hex()} is sealed and accepts no more blocks; begin a new stage",
            )
        for number, block in enumerate(blocks, staged.blocks):
            if block.header.sequence != number:
                raise UsageError(
                    E_BAD_ARGUMENT,
                    (
                        f"stage {stage.hex()} received block {block.header.sequence} instead of "
                        f"{number}"
                    ),
                )
        now_ns = time.time_ns() if now_ns is None else now_ns
        self._space.take(sum(block.header.length for block in blocks), now_ns)
        before = staged.snapshot()
        try:
            rest: Sequence[Block] = blocks
            while rest:
                rest = self._write(staged, self._file_for(staged, rest[0].header.length), rest)
        except (OSError, Refused, StoreFailed) as error:
            self._cut_back(staged, before, error)
        staged.used_ns = max(staged.used_ns, now_ns)
        return staged.blocks

    def _file_for(self, stage: Stage, length: int) -> StageFile:
        """Return the file for a block of this length: the stage's last file, or a new one."""
        if stage.files:
            file = stage.files[-1]
            if self._fits(file, file.data_end + length):
                self._open.use(file)
                return file
        if self._count >= FILES_MAX:
            raise Refused(
                E_LIMIT,
                (
                    f"{FILES_MAX} files are already staged; commit or abort stages, or wait until "
                    "some expire"
                ),
            )
        if not self._made:
            if not self._files.exists(self._folder):
                self._files.make_folder(self._folder)
            self._files.sync_folder(self._folder.rpartition("/")[0])
            self._made = True
        header = ChunkHeader(0, 0, self._files.random_seed(), self._uuid)
        file = StageFile(
            f"{self._folder}/{part_name(stage.name, self._number)}", self._number, header.seed
        )
        self._open.make(file)
        self._number += 1
        self._count += 1
        stage.files.append(file)
        self._files.writev(file.fd, [encode_chunk_header(header)], 0)
        file.written = CHUNK_HEADER_BYTES
        return file

    def _fits(self, file: StageFile, end: int) -> bool:
        return file.data_end == CHUNK_HEADER_BYTES or end + FOOTER_BYTES <= self._chunk_bytes

    def _write(self, stage: Stage, file: StageFile, blocks: Sequence[Block]) -> Sequence[Block]:
        """Write as many blocks as fit into this file in one call, and return the rest."""
        pieces: list[Any] = []
        position, messages = file.data_end, file.messages
        for block in blocks[: IOV_MAX // 2]:
            header = block.header
            if pieces and position + header.length + FOOTER_BYTES > self._chunk_bytes:
                break
            pieces += (
                encode_disk_header(header, messages, 0, 0, file.seed, position),
                block.columns,
            )
            position += header.length
            messages += header.count
        self._files.writev(file.fd, pieces, file.data_end)
        count = len(pieces) // 2
        stage.take(blocks[:count], file, position)
        return blocks[count:]

    def _cut_back(self, stage: Stage, before: Any, error: Exception) -> NoReturn:
        """Undo a failed call, in memory and on disk, and raise the error.

        Errors on disk are ignored here, because bytes after a stage's end are never read.
        """
        if isinstance(error, StoreFailed) or (isinstance(error, OSError) and not is_full(error)):
            self._failed = f"staging in {self._folder} failed: {error}"
            raise StoreFailed(self._failed) from error
        for file in stage.restore(before):
            self._open.close(file)
            self._remove(file)
        if stage.files:
            with contextlib.suppress(OSError):
                self._files.truncate(self._open.use(stage.files[-1]), stage.files[-1].data_end)
        self._space.forget()
        if isinstance(error, OSError):
            raise self._space.refused(f"no space to stage in {self._folder}", error) from error
        raise error

    def _remove(self, file: StageFile) -> None:
        """Remove a file. If that fails now, the next start removes it.

        A file that became a chunk of the log has another name and stays.
        """
        self._count -= 1
        with contextlib.suppress(OSError):
            self._files.remove(file.path)

    # Sealing

    def begin_seal(self, stage: bytes, final: bool, now_ns: int | None = None) -> StageTicket:
        """Return a ticket that makes the blocks staged at this time durable.

        `final` is True if no more blocks will follow. Raises `DiskFull` if the disk has no space.
        Nothing has changed then. Several tickets may be unfinished at a time, even for one stage.
        """
        self._check()
        staged = self._get(stage)
        if final and not staged.ended:
            before = staged.snapshot()
            try:
                for file in staged.files:
                    self._write_footer(file)
            except (OSError, StoreFailed) as error:
                for file in staged.files:
                    file.written = file.data_end
                self._cut_back(staged, before, error)
            staged.ended = True
        staged.used_ns = max(staged.used_ns, time.time_ns() if now_ns is None else now_ns)
        ticket = StageTicket(self._files, staged, self._folder)
        for file, _, _ in ticket.targets:
            file.pins += 1
        self._tickets.append(ticket)
        return ticket

    def _write_footer(self, file: StageFile) -> None:
        """Write the footer.

        The footer's offsets are relative, so it stays valid when the file becomes a chunk. The
        footer moves only in the file that gets the mark.
        """
        footer = ChunkFooter(file.messages, 0, file.data_end)
        self._files.writev(self._open.use(file), [encode_footer(footer, file.seed)], file.data_end)
        file.written = file.data_end + FOOTER_BYTES

    def finish_seal(self, ticket: StageTicket) -> StageRow:
        """Take the result of `ticket.run` and return the row to commit.

        Raises `NotFound` if the stage was dropped since `begin_seal`.
        """
        assert ticket.done
        self._check()
        self._tickets.remove(ticket)
        stage = ticket.stage
        alive = self._stages.get(stage.name) is stage
        for file, _, written in ticket.targets:
            file.pins -= 1
            file.synced = max(file.synced, written)
            if file.synced == file.written and (
                not alive or stage.ended or file is not stage.files[-1]
            ):
                self._open.close(file)
        if not alive:
            raise NotFound(E_NOT_FOUND, f"stage {stage.name.hex()} was dropped")
        stage.names = max(stage.names, ticket.names)
        stage.sealed = max(stage.sealed, ticket.row.blocks)
        return ticket.row

    # The end of a stage

    def drop(self, stages: Iterable[bytes], batch: StateBatch) -> None:
        """Forget stages now. Unknown stages are ignored.

        `batch` removes their rows, and the `purge` after it removes their files.
        """
        files: list[StageFile] = []
        for name in stages:
            dropped = self._stages.pop(name, None)
            batch.stage_puts.pop(name, None)
            batch.stage_gones.append(name)
            if dropped is not None:
                files += dropped.files
        for file in files:
            file.synced = file.written  # a sync is no longer needed
            self._open.close(file)
        self._dropped.append((batch, files))

    def purge(self, batch: StateBatch | None = None) -> None:
        """Remove the files of the stages that a committed batch removed. None means all batches.

        Files that became chunks have another name and stay.
        """
        self.remove(self.purged(batch))

    def purged(self, batch: StateBatch | None = None) -> list[StageFile]:
        """Return the files that `purge` would remove, for `remove` in another thread.

        Staging then no longer knows these files.
        """
        kept = []
        purged_files: list[StageFile] = []
        for dropped, files in self._dropped:
            if batch is not None and dropped is not batch:
                kept.append((dropped, files))
                continue
            purged_files += files
        self._dropped = kept
        self._count -= len(purged_files)
        return purged_files

    def remove(self, files: Iterable[StageFile]) -> None:
        """Remove files, in any thread. The next start removes files that cannot be removed now."""
        for file in files:
            with contextlib.suppress(OSError):
                self._files.remove(file.path)

    def close(self) -> None:
        """Close all files. Blocks that are not sealed are lost."""
        self._open.close_all()
        self._failed = self._failed or "staging is closed"

    def _check(self) -> None:
        if any(ticket.stage.error for ticket in self._tickets):
            self._failed = "an earlier sync of staged files failed"
        if self._failed:
            raise StoreFailed(self._failed)
