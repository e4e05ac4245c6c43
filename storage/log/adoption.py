"""Staged files on their way to be chunks of the log: prepared, committed by one rename, finished (after a crash by recovery).

    prepare   each file gets its header (base offset, base time) and its footer; the last one, the *carrier*, the mark between
              its blocks and its footer; each is synced. They still are files of their stage and nothing but that.
    commit    the carrier is renamed to its name in the log, and the log's folder synced: from here on the group is there.
    finish    the others are renamed, the folder is synced, the chunk before them gets its footer.

Why the mark lies in an adopted file, the last one: a chunk that held nothing but a mark would have the first offset, and so the
name, of what follows it; and recovery, which looks at the last chunk, finds the mark there. Why the old chunk's footer comes after the
commit: a footer says that all before it counts.

The staging folder is not synced after the renames: a name that came back in it is a file without a row, and removed at start.
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

OPEN_FILES_MAX: Final = 64  # written, and then synced together


def part_path(folder: str, adopted: Adopted) -> str:
    return f"{folder}/{STAGING_NAME}/{part_name(adopted.stage, adopted.number)}"


def chunk_path(folder: str, adopted: Adopted) -> str:
    return f"{folder}/{chunk_name(adopted.base_offset)}"


class Adoption:
    """One group's. `chunk`: the carrier, once prepared."""

    def __init__(self, files: Files, folder: str, uuid: bytes, index_every_bytes: int, mark: Mark, time_ns: int) -> None:
        self._files = files
        self._folder = folder
        self._uuid = uuid
        self._index_every_bytes = index_every_bytes
        self._mark = mark
        self._time_ns = time_ns
        self.chunk: Chunk | None = None

    def prepare(self) -> None:
        """`Damaged` where a file is not what was sealed; any error leaves stages that can be prepared again."""
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
            raise Damaged(f"{path} is not what was sealed")
        return fd

    def _write(self, fd: int, adopted: Adopted, mark: bytes) -> int:
        """Header, mark and footer; the position of the footer. A longer end that an earlier try has left is cut off."""
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
        except OSError as error:  # never to be tried again on these pages, full disk or not
            raise StoreFailed(f"fdatasync of a staged file failed: {error}") from error

    def commit(self) -> None:
        """The rename that decides; durable by `finish`. `OSError`: it did not happen."""
        carrier = self._mark.adopted[-1]
        self._files.rename(part_path(self._folder, carrier), chunk_path(self._folder, carrier))

    def finish(self) -> Chunk:
        """All in place; the carrier's chunk. `OSError`: recovery has to do it."""
        assert self.chunk is not None
        self._files.sync_folder(self._folder)
        for adopted in self._mark.adopted[:-1]:
            self._files.rename(part_path(self._folder, adopted), chunk_path(self._folder, adopted))
        if len(self._mark.adopted) > 1:
            self._files.sync_folder(self._folder)
        return self.chunk

    def close(self) -> None:
        """Given up before the commit."""
        if self.chunk is not None:
            self.chunk.close()


def finish_after_crash(chunk: Chunk, notes: list[str], alarms: list[str], start: int = 0) -> None:
    """Finish what the mark of `chunk` (the last of the log, adopted) names, wherever it stopped. A file that is nowhere is an alarm, unless
    it was in its place once and has been removed since, as all below `start`."""
    mark = chunk.mark_at(chunk.last_position())
    if mark is None:
        alarms.append(f"{chunk.path}: the mark of its group is damaged; if its commit was not finished, the rest is still in staging")
        return
    files, folder = chunk.files, chunk.folder
    renamed = 0
    for adopted in mark.adopted[:-1]:
        path = chunk_path(folder, adopted)
        if adopted.base_offset < start or _is_there(files, path, adopted.seed):
            continue
        if not files.exists(part_path(folder, adopted)):
            alarms.append(f"{path} is gone, with {adopted.messages} messages from offset {adopted.base_offset} on")
            continue
        files.rename(part_path(folder, adopted), path)
        renamed += 1
    if renamed:
        files.sync_folder(folder)
        notes.append(f"{folder}: the commit of {mark.transaction.app!r} {mark.transaction.version} finished: {renamed} files in place")
    if mark.unsealed and mark.unsealed[0] >= start:
        _seal_unsealed(chunk, mark, notes)


def _is_there(files: Files, path: str, seed: int) -> bool:
    """Whether this chunk has its name already: it may still be that of the empty chunk which it replaces."""
    if not files.exists(path):
        return False
    fd = files.open_read(path)
    try:
        return decode_chunk_header(files.pread(fd, CHUNK_HEADER_BYTES, 0)).seed == seed
    except Damaged:
        return True  # whatever it was, it is not the empty one
    finally:
        files.close(fd)


def _seal_unsealed(chunk: Chunk, mark: Mark, notes: list[str]) -> None:
    """The footer of the chunk before the adopted ones. Readers can do without, so what hinders it is only noted. It is synced, as nobody
    writes it again once the log goes on behind the adopted ones: then a footer that is missing is an alarm. And written even where it can
    be read: after a failed sync it may be in the page cache and never reach the disk."""
    base_offset, data_end, last_time_ns = mark.unsealed
    files = chunk.files
    try:
        old = open_chunk(files, chunk.folder, base_offset, chunk.header.uuid, chunk.index_every_bytes, write=True)
        try:
            end_offset = mark.first_offset + mark.appended - base_offset
            footer = ChunkFooter(end_offset, last_time_ns - old.header.base_time_ns, data_end)
            files.writev(old.fd, [encode_footer(footer, old.header.seed, old.header)], data_end)
            files.sync(old.fd)
        finally:
            old.close()
    except (Damaged, ForeignDirectory, OSError) as error:
        notes.append(f"{chunk.folder}: the chunk of offset {base_offset} cannot be sealed: {error}")
