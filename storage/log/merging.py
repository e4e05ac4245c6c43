"""Merging: before a commit, many small staged files are copied into a few large ones.

If each small part became a chunk, there would be thousands of tiny files, and their syncs would
stop the log for seconds. So if there are too many small parts to append, they are copied first, in
the order of the commit. The blocks do not change, but get new headers for their new position. The
result is a sealed part with a new name, for which the state store has no row. It replaces the old
parts in the commit. The old parts stay until the commit. After a crash, the next start removes the
merged files like all files without a row. But if a mark names them, it finishes their adoption.

A merge is created in the log's thread. Its steps run in any thread, one after the other. Each step
has a size limit, so that a seal that waits for the same thread can run between two steps.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Sequence
from typing import Any, Final

from ...transport.block.block import Header
from ..errors import Damaged, DiskFull, StoreFailed, is_full
from ..files import IOV_MAX, Files
from ..space import Space
from .group import Merged, StagedPart, walk_staged
from .log_format import (
    CHUNK_HEADER_BYTES,
    FOOTER_BYTES,
    ChunkFooter,
    ChunkHeader,
    encode_chunk_header,
    encode_disk_header,
    encode_footer,
    part_name,
)
from .transactions import StagedFile

STEP_BYTES: Final = 32 * 1024 * 1024  # with a sync, this takes some tens of milliseconds
# The bytes of one read and one write. The event loop can run during these calls.
PIECE_BYTES: Final = 1024 * 1024


class Merge:
    """A merge of parts that have blocks.

    No file exceeds `chunk_bytes` unless it has only one block.
    """

    def __init__(
        self, files: Files, uuid: bytes, chunk_bytes: int, space: Space, parts: Sequence[StagedPart]
    ) -> None:
        self._files = files
        self._uuid = uuid
        self._chunk_bytes = chunk_bytes
        self._space = space
        self._parts = parts
        self._folder = parts[0].folder
        self._name = b"".join(files.random_seed().to_bytes(4, "little") for _ in range(4))
        self._source = self._blocks()
        self._next: tuple[Header, memoryview] | None = None
        self._made: list[StagedFile] = []
        self._begun = 0
        """The number of files whose creation was begun, so that they may exist."""
        self._fd = -1
        self._seed = self._count = self._messages = 0
        self._end = CHUNK_HEADER_BYTES
        self.done = False

    @property
    def merged(self) -> Merged:
        assert self.done
        return Merged(
            StagedPart(self._name, self._folder, tuple(self._made)),
            frozenset(part.stage for part in self._parts),
        )

    def step(self) -> None:
        """Copy about STEP_BYTES more. When `done` is True, the result is on disk.

        Raises `DiskFull`, or `Damaged` if a part was changed after it was sealed. Then the merged
        files are removed, and the parts are unchanged. Raises `StoreFailed` if the process must end
        and recover.
        """
        assert not self.done
        try:
            if self._next is None:
                self._next = next(self._source)
            copied = 0
            while self._next is not None and copied < STEP_BYTES:
                copied += self._copy()
            self._sync()
            if self._next is None:
                self._end_file()
                self._files.sync_folder(self._folder)
                self.done = True
        except (DiskFull, Damaged):
            self.discard()
            raise
        except OSError as error:
            self.discard()
            if is_full(error):
                raise DiskFull(
                    f"no space to merge staged files in {self._folder}: {error}"
                ) from error
            raise StoreFailed(
                f"staged files in {self._folder} could not be merged: {error}"
            ) from error
        except BaseException:
            self._source.close()
            raise

    def _copy(self) -> int:
        """Copy one piece into the open file or a new one, and return its size in bytes."""
        assert self._next is not None
        if self._fd >= 0 and not self._fits(self._end + self._next[0].length):
            self._sync()
            self._end_file()
        if self._fd < 0:
            self._begin_file()
        pieces: list[Any] = []
        end = self._end
        while (
            self._next is not None and end - self._end < PIECE_BYTES and len(pieces) <= IOV_MAX - 2
        ):
            header, columns = self._next
            if not self._fits(end + header.length):
                break
            pieces += (encode_disk_header(header, self._messages, 0, 0, self._seed, end), columns)
            end += header.length
            self._messages += header.count
            self._count += 1
            self._next = next(self._source, None)
        size = end - self._end
        self._space.take(size, time.time_ns())
        self._files.writev(self._fd, pieces, self._end)
        self._end = end
        return size

    def _fits(self, end: int) -> bool:
        return self._count == 0 or end + FOOTER_BYTES <= self._chunk_bytes

    def _begin_file(self) -> None:
        self._seed = self._files.random_seed()
        self._end, self._count, self._messages = CHUNK_HEADER_BYTES, 0, 0
        self._begun += 1
        self._fd = self._files.open_new(self._path(self._begun - 1))
        self._files.writev(
            self._fd, [encode_chunk_header(ChunkHeader(0, 0, self._seed, self._uuid))], 0
        )

    def _end_file(self) -> None:
        """Write the footer and close the file.

        The commit writes the footer again with the final values, so it is not synced here.
        """
        footer = ChunkFooter(self._messages, 0, self._end)
        self._files.writev(self._fd, [encode_footer(footer, self._seed)], self._end)
        self._files.close(self._fd)
        self._fd = -1
        self._made.append(
            StagedFile(self._begun - 1, self._seed, self._count, self._messages, self._end)
        )

    def _sync(self) -> None:
        if self._fd < 0:
            return
        try:
            self._files.sync(self._fd)
        except OSError as error:  # bytes of any of the files may be lost
            raise StoreFailed(
                f"fdatasync of merged files in {self._folder} failed: {error}"
            ) from error

    def _path(self, number: int) -> str:
        return f"{self._folder}/{part_name(self._name, number)}"

    def discard(self) -> None:
        """Remove the merged files that did not become chunks, when the commit has ended.

        The next start removes the files that cannot be removed now.
        """
        self._source.close()
        self._next = None
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1
        for number in range(self._begun):
            with contextlib.suppress(OSError):
                self._files.remove(self._path(number))
        self._begun = 0

    # Reading

    def _blocks(self) -> Generator[tuple[Header, memoryview]]:
        for part in self._parts:
            yield from walk_staged(self._files, part)
