"""Adoption: staged files become chunks of the log.

The files are prepared and committed by one rename, and then the adoption is finished. After a
crash, recovery finishes it.

    prepare   each file gets its header (base offset, base time) and its footer;
              the last file, the *carrier*, also gets the mark, between its blocks and its footer;
              each file is synced, but they are still only files of their stage
    commit    the carrier is renamed to its name in the log
    finish    the folder of the log is synced, so the group is durable; the other files are renamed;
              the folder is synced again; then the log writes the footer of the chunk before them

The mark is in the last adopted file, because recovery reads the last chunk and finds the mark
there. Rejected: a chunk that contains only the mark. It would have the same first offset, and so
the same name, as the chunk after it. The old chunk gets its footer after the commit, because a
footer means that all bytes before it are part of the log.

The staging folder is not synced after the renames. So after a crash, a file may have its old name
in that folder again. The state store has no row for it, and the next start removes this name.
"""

from __future__ import annotations

import errno
from typing import Final

from ..errors import Damaged, ForeignDirectory, StoreFailed
from ..files import Files
from .chunk import Chunk, open_chunk
from .log_format import (
    ADOPTED,
    CHUNK_HEADER_BYTES,
    FOOTER_BYTES,
    STAGING_NAME,
    ChunkFooter,
    ChunkHeader,
    chunk_name,
    decode_chunk_header,
    encode_chunk_header,
    encode_footer,
    part_name,
)
from .transactions import Adopted, Mark, encode_mark, encode_mark_header

OPEN_FILES_MAX: Final = 64  # the most files that are written and then synced together


def part_path(folder: str, adopted: Adopted) -> str:
    return f"{folder}/{STAGING_NAME}/{part_name(adopted.stage, adopted.number)}"


def chunk_path(folder: str, adopted: Adopted) -> str:
    return f"{folder}/{chunk_name(adopted.base_offset)}"


class Adoption:
    """The adoption of one group. `chunk` is the carrier after `prepare`, and None before."""

    def __init__(
        self,
        files: Files,
        folder: str,
        uuid: bytes,
        index_every_bytes: int,
        mark: Mark,
        time_ns: int,
    ) -> None:
        self._files = files
        self._folder = folder
        self._uuid = uuid
        self._index_every_bytes = index_every_bytes
        self._mark = mark
        self._time_ns = time_ns
        self.chunk: Chunk | None = None

    def prepare(self) -> None:
        """Write the headers, footers and the mark, and sync the files.

        Raises `Damaged` if a file was changed after it was sealed. After any error, the files can
        be prepared again.
        """
        others, carrier = self._mark.adopted[:-1], self._mark.adopted[-1]
        for at in range(0, len(others), OPEN_FILES_MAX):
            fds: list[int] = []
            try:
                for adopted in others[at : at + OPEN_FILES_MAX]:
                    fds.append(self._open(adopted))
                    self._write(fds[-1], adopted, b"")
                self._sync(fds)
            finally:
                for fd in fds:
                    self._files.close(fd)
        fd = self._open(carrier)
        header = ChunkHeader(carrier.base_offset, self._time_ns, carrier.seed, self._uuid, ADOPTED)
        self.chunk = Chunk(self._files, self._folder, fd, header, self._index_every_bytes)
        columns = encode_mark(self._mark)
        head = encode_mark_header(columns, carrier.messages, 0, 0, carrier.seed, carrier.data_end)
        self.chunk.end_position = self._write(fd, carrier, head + columns)
        self.chunk.end_offset = self._mark.next_offset
        self.chunk.sealed = True
        self._sync([fd])

    def _open(self, adopted: Adopted) -> int:
        path = part_path(self._folder, adopted)
        try:
            fd = self._files.open_append(path)
            try:
                header = decode_chunk_header(self._files.pread(fd, CHUNK_HEADER_BYTES, 0))
                size = self._files.size(fd)
            except BaseException:
                self._files.close(fd)
                raise
        except OSError as error:
            if error.errno in {errno.ENOENT, errno.EIO}:
                raise Damaged(f"{path} cannot be read: {error}") from error
            raise
        if header.uuid != self._uuid or header.seed != adopted.seed or size < adopted.data_end:
            self._files.close(fd)
            raise Damaged(f"{path} was changed or replaced after it was sealed")
        return fd

    def _write(self, fd: int, adopted: Adopted, mark: bytes) -> int:
        """Write header, mark and footer, and return the position of the footer.

        If an earlier try has written more bytes after that, they are cut off.
        """
        data_end = adopted.data_end + len(mark)
        header = ChunkHeader(adopted.base_offset, self._time_ns, adopted.seed, self._uuid, ADOPTED)
        footer = encode_footer(ChunkFooter(adopted.messages, 0, data_end), adopted.seed, header)
        self._files.writev(fd, [encode_chunk_header(header)], 0)
        self._files.writev(fd, [mark, footer], adopted.data_end)
        if self._files.size(fd) > data_end + FOOTER_BYTES:
            self._files.truncate(fd, data_end + FOOTER_BYTES)
        return data_end

    def _sync(self, fds: list[int]) -> None:
        try:
            self._files.sync_all(fds)
        except OSError as error:  # never sync these pages again, even if the disk was only full
            raise StoreFailed(f"fdatasync of a staged file failed: {error}") from error

    def commit(self) -> None:
        """Rename the carrier, which commits the group. `finish` makes the commit durable.

        Raises `OSError` if the group is not committed.
        """
        carrier = self._mark.adopted[-1]
        self._files.rename(part_path(self._folder, carrier), chunk_path(self._folder, carrier))

    def finish(self) -> Chunk:
        """Rename the other files into place, and return the carrier's chunk.

        Raises `OSError` if a step failed. Recovery must then finish the group.
        """
        assert self.chunk is not None
        self._files.sync_folder(self._folder)
        for adopted in self._mark.adopted[:-1]:
            self._files.rename(part_path(self._folder, adopted), chunk_path(self._folder, adopted))
        if len(self._mark.adopted) > 1:
            self._files.sync_folder(self._folder)
        return self.chunk

    def close(self) -> None:
        """Close the carrier if the adoption ends before the commit."""
        if self.chunk is not None:
            self.chunk.close()


def finish_after_crash(chunk: Chunk, notes: list[str], alarms: list[str], start: int = 0) -> None:
    """Finish the adoption of the group whose mark is in `chunk`, at whatever step it stopped.

    `chunk` is the last chunk of the log, and was adopted. If a file is in neither folder, this adds
    an alarm, but not for files below `start`, because retention has removed those.
    """
    mark = chunk.mark_at(chunk.last_position())
    if mark is None:
        alarms.append(
            f"{chunk.path}: the mark of its group is damaged; if its commit did not finish, the "
            "other files of the group are still staged"
        )
        return
    files, folder = chunk.files, chunk.folder
    renamed = 0
    for adopted in mark.adopted[:-1]:
        path = chunk_path(folder, adopted)
        if adopted.base_offset < start or _is_there(files, path, adopted.seed):
            continue
        if not files.exists(part_path(folder, adopted)):
            alarms.append(
                f"{path} is missing, with {adopted.messages} messages from offset "
                f"{adopted.base_offset} on"
            )
            continue
        files.rename(part_path(folder, adopted), path)
        renamed += 1
    if renamed:
        files.sync_folder(folder)
        step = (
            f"the interrupted commit of {mark.transaction.app!r} {mark.transaction.version} was "
            "finished"
        )
        notes.append(f"{folder}: {step}: {renamed} files were moved into place")
    if mark.unsealed and mark.unsealed[0] >= start:
        _seal_unsealed(chunk, mark, notes)


def _is_there(files: Files, path: str, seed: int) -> bool:
    """Return True if the file at this path is the chunk with this seed.

    It may instead be the empty chunk that this chunk must replace.
    """
    if not files.exists(path):
        return False
    fd = files.open_read(path)
    try:
        return decode_chunk_header(files.pread(fd, CHUNK_HEADER_BYTES, 0)).seed == seed
    except Damaged:
        return True  # a damaged file is not the empty chunk
    finally:
        files.close(fd)


def _seal_unsealed(chunk: Chunk, mark: Mark, notes: list[str]) -> None:
    """Write and sync the footer of the chunk before the adopted ones.

    Readers do not need the footer, so a failure is only noted. The footer is synced here, because
    no later write seals that chunk when the log continues after the adopted chunks, and a missing
    footer would cause an alarm. It is written even if it can be read. After a failed sync, it may
    be only in the page cache and never be written to the disk.
    """
    base_offset, data_end, last_time_ns = mark.unsealed
    files = chunk.files
    try:
        old = open_chunk(
            files, chunk.folder, base_offset, chunk.header.uuid, chunk.index_every_bytes, write=True
        )
        try:
            end_offset = mark.first_offset + mark.appended - base_offset
            footer = ChunkFooter(end_offset, last_time_ns - old.header.base_time_ns, data_end)
            files.writev(old.fd, [encode_footer(footer, old.header.seed, old.header)], data_end)
            files.sync(old.fd)
        finally:
            old.close()
    except (Damaged, ForeignDirectory, OSError) as error:
        notes.append(f"{chunk.folder}: the chunk of offset {base_offset} cannot be sealed: {error}")
