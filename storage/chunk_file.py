"""A chunk's file: its bytes, and a walk through its blocks, forwards or backwards.

A walk tells a chunk's content as stretches: blocks that are good, and what is not. A block whose header is good
but whose columns are not has a known end and known offsets. Where the header itself is bad, the next one is
looked for by its magic in steps of 8 bytes and believed by its checksum, which is seeded with the chunk's random
number: bytes in a message's body cannot pass for a block, because who wrote them cannot know the seed.

Backwards: each block ends with its length. Where that is damaged there is no way on; who walks back finds a border by the index then.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from ..transport.block import DISK_MAGIC, HEADER_BYTES, TRAILER_BYTES, Header, check_columns
from ..transport.block import VERSION as BLOCK_VERSION
from ..transport.errors import ZsqError
from .errors import Unreadable
from .files import Files
from .log_format import ALIGNMENT, CHUNK_HEADER_BYTES, ChunkHeader, chunk_name, decode_disk_header

WALK_BYTES: Final = 1024 * 1024  # read at once when blocks are checked whole
HEADERS_BYTES: Final = 16 * 1024  # read at once when only headers are wanted
SEARCH_BYTES: Final = 1024 * 1024  # read at once when the next header is looked for
PAGE_BYTES: Final = 4096  # what a disk that fails to read loses at a time
# What a header begins with: magic, version, columns, flags, a length that is a multiple of 8 below 16 MiB, a count below 65,536. So a body
# full of magic costs a search, not a decoding each (7.9 s for 5 MB). Two never overlap: no byte of a magic is what the others want there.
_LENGTHS: Final = bytes(range(0, 256, ALIGNMENT))
_CANDIDATE: Final = re.compile(re.escape(DISK_MAGIC) + bytes([BLOCK_VERSION]) + rb".{3}[" + _LENGTHS + rb"]..\0..\0\0", re.DOTALL)


class Stretch(NamedTuple):
    """Bytes `position` to `end` of a chunk. `header` (disk form) is None where it could not be read."""

    position: int
    end: int
    header: Header | None
    good: bool


class ChunkFile:
    """An open chunk file. `end_position` is where its blocks end."""

    __slots__ = ("base_offset", "end_position", "fd", "files", "folder", "header", "unreadable")

    def __init__(self, files: Files, folder: str, fd: int, header: ChunkHeader) -> None:
        self.files = files
        self.folder = folder
        self.fd = fd
        self.header = header
        self.base_offset = header.base_offset
        self.end_position = CHUNK_HEADER_BYTES
        self.unreadable = -1
        """The last position met that the disk cannot read. It counts as damaged, and may be readable tomorrow: nobody cuts it off."""

    @property
    def path(self) -> str:
        return f"{self.folder}/{chunk_name(self.base_offset)}"

    def close(self) -> None:
        self.files.close(self.fd)

    def walk(self, position: int, *, columns: bool) -> Iterator[Stretch]:
        """From the block at `position` to the end of the chunk; `columns`: check these too, not only the headers."""
        window = memoryview(b"")
        window_at = position
        while position < self.end_position:
            start = position - window_at
            if start + HEADER_BYTES > len(window):
                window = memoryview(self._pread(WALK_BYTES if columns else HEADERS_BYTES, position))
                window_at, start = position, 0
            header = decode_disk_header(window[start : start + HEADER_BYTES], self.header.seed, position)
            if header is None:
                end = self._find_header(position + ALIGNMENT)
                yield Stretch(position, end, None, False)
                position = end
                continue
            end = position + header.length
            good = end <= self.end_position
            if good and columns:
                if start + header.length > len(window):
                    window = memoryview(self._pread(header.length, position))
                    window_at, start = position, 0
                good = columns_agree(header, window[start + HEADER_BYTES : start + header.length])
            yield Stretch(position, min(end, self.end_position), header, good)
            position = end

    def _find_header(self, position: int) -> int:
        """The next place, from `position` on, where a header of this chunk stands; `end_position` if there is none."""
        while position < self.end_position:
            data = self._pread(SEARCH_BYTES, position)
            for candidate in _CANDIDATE.finditer(data):
                at = candidate.start()
                header = data[at : at + HEADER_BYTES]
                if (position + at) % ALIGNMENT or crc32c(header[:-4], self.header.seed) != int.from_bytes(header[-4:], "little"):
                    continue
                if decode_disk_header(header, self.header.seed, position + at) is not None:
                    return position + at
            if position + len(data) >= self.end_position or not data:
                break
            position += max(len(data) - HEADER_BYTES, ALIGNMENT) & -ALIGNMENT  # a header may lie across the border
        return self.end_position

    def _pread(self, size: int, position: int) -> bytes:
        size = max(0, min(size, self.end_position - position))  # a file may end within its own header
        try:
            return self.files.pread(self.fd, size, position)
        except OSError as error:
            if error.errno != errno.EIO:
                raise Unreadable(f"{self.path} cannot be read at {position}: {error}") from error
        return b"".join(self._pread_page(min(PAGE_BYTES, size - at), position + at) for at in range(0, size, PAGE_BYTES))

    def _pread_page(self, size: int, position: int) -> bytes:
        """Zeros where the disk has lost the page: the checksums make damage of it, and only of the blocks that lie there."""
        try:
            return self.files.pread(self.fd, size, position)
        except OSError as error:
            if error.errno != errno.EIO:
                raise Unreadable(f"{self.path} cannot be read at {position}: {error}") from error
            self.unreadable = max(self.unreadable, position + size - 1)
            return bytes(size)

    def block_before(self, position: int) -> tuple[int, Header] | None:
        """(position, header) of the block that ends at `position`: its trailer says where it begins. None: damaged, or nothing there."""
        at = max(CHUNK_HEADER_BYTES, position - HEADERS_BYTES)
        data = self._pread(position - at, at)
        length = int.from_bytes(data[-TRAILER_BYTES : -TRAILER_BYTES + 4], "little")
        start = position - length
        if start < CHUNK_HEADER_BYTES:
            return None  # any other length that is wrong leads to no header that agrees with it
        found = data[start - at : start - at + HEADER_BYTES] if start >= at else self._pread(HEADER_BYTES, start)
        header = decode_disk_header(found, self.header.seed, start)
        return (start, header) if header is not None and header.length == length else None


def columns_agree(header: Header, columns: memoryview) -> bool:
    try:
        check_columns(header, columns)
    except ZsqError:
        return False
    return True
