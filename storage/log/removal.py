"""Removal of chunks, and the sizes and times of chunks that retention needs.

Order: the state commits the new start, then the log forgets the chunks, then their files are
removed, oldest first. For each chunk, the index and `.bad` files are removed before the chunk. The
removal runs in another thread, because the system takes milliseconds to free 256 MiB. The folder is
synced once at the end. So after a crash, a chunk is either complete, or the state knows that it
must be removed. In the second case, recovery removes the files that still exist or exist again
(names whose removal was not synced).
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from ...transport.settings import Retention
from ..errors import Damaged, ForeignDirectory, NotHere, OutOfReach
from ..files import Files
from ..retention import LogView, finished_chunks
from .chunk import open_chunk, read_footer
from .log import Log
from .log_format import (
    BAD_SUFFIX,
    CHUNK_SUFFIX,
    INDEX_SUFFIX,
    chunk_name,
    index_name,
    parse_chunk_name,
)

BYTES_ANY: Final = (1 << 63) - 1
_DIGITS: Final = len(chunk_name(0)) - len(CHUNK_SUFFIX)


class LogKeeper:
    """The sizes and times of a log's chunks, for the log's thread.

    It reads each sealed chunk once.
    """

    def __init__(self, files: Files, folder: str, uuid: bytes, log: Log) -> None:
        self._files = files
        self._folder = folder
        self._uuid = uuid
        self._log = log
        self._sizes: dict[int, int] = {}
        self._last_times: dict[int, int] = {}
        # The ongoing chunk's first offset, and the time of its first message.
        self._first_time = (-1, 0)

    def view(self, retention: Retention, floor: int, applied: int, now_ns: int) -> LogView:
        """Return the facts about the log that the plan needs.

        This reads files only for values that `retention` needs.
        """
        log = self._log
        bases = log.chunks
        sizes = [*(self._size(base) for base in bases[:-1]), log.end_position]
        by_age = retention.keep_time_s >= 0 or retention.max_age_s >= 0
        first_time_ns = self._ongoing_since(bases[-1]) if by_age and log.end > bases[-1] else now_ns
        unfinished = (
            self.unfinished_bytes(floor, sizes)
            if retention.max_bytes >= 0 or retention.max_age_s >= 0
            else 0
        )
        return LogView(
            bases,
            sizes,
            log.end,
            floor,
            applied,
            unfinished,
            first_time_ns,
            log.last_time_ns,
            now_ns,
        )

    def _size(self, base: int) -> int:
        row = self._log.reader.remote.get(base)
        if row is not None:
            return row.size
        size = self._sizes.get(base)
        if size is None:
            size = 0
            with contextlib.suppress(OSError):  # readers report it if the file is missing
                size = self._files.size_of(f"{self._folder}/{chunk_name(base)}")
            self._sizes[base] = size
        return size

    def unfinished_bytes(self, floor: int, sizes: list[int] | None = None) -> int:
        """Return the bytes at or above `floor`.

        The chunk that contains `floor` is measured exactly. The following chunks count with their
        file sizes.
        """
        log = self._log
        floor = max(floor, log.start)
        if floor >= log.end:
            return 0
        bases = log.chunks
        at = bisect_right(bases, floor) - 1
        if sizes is None:
            sizes = [*(self._size(base) for base in bases[:-1]), log.end_position]
        following = bases[at + 1] if at + 1 < len(bases) else log.end
        try:
            first = log.measure(floor, following, BYTES_ANY)[0]
        except (NotHere, OutOfReach):
            first = sizes[at]  # an upper bound, until the chunk's index is fetched
        return first + sum(sizes[at + 1 :])

    def last_time_ns(self, chunk: int) -> int:
        """Return the time of the last message of the n-th chunk.

        If the chunk cannot be read, this uses the next chunk that can be read.
        """
        bases = self._log.chunks
        base = bases[chunk]
        if base == bases[-1]:
            return self._log.last_time_ns
        row = self._log.reader.remote.get(base)
        if row is not None:
            return row.last_time_ns
        if base not in self._last_times:
            time_ns = self._read_last_time(base)
            self._last_times[base] = self.last_time_ns(chunk + 1) if time_ns is None else time_ns
        return self._last_times[base]

    def _read_last_time(self, base: int) -> int | None:
        files = self._files
        try:
            chunk = open_chunk(files, self._folder, base, self._uuid, 0)
            try:
                footer = read_footer(files, chunk.fd, chunk.header.seed, files.size(chunk.fd))
            finally:
                chunk.close()
        except (Damaged, ForeignDirectory, OSError):
            return None
        return None if footer is None else chunk.header.base_time_ns + footer.last_time_ns

    def _ongoing_since(self, base: int) -> int:
        """Return the time of the ongoing chunk's first message.

        The time in the chunk's header may be earlier, because it is the time of its creation.
        """
        if self._first_time[0] != base:
            header = next(self._log.headers(base), None)
            self._first_time = (
                base,
                self._log.last_time_ns if header is None else header[0].time_ns,
            )
        return self._first_time[1]

    def forget(self, start: int) -> int:
        """Make the log forget the chunks below `start`. Returns their size in bytes."""
        remote = sum(
            row.size for row in self._log.reader.remote.values() if row.next_offset <= start
        )
        self._log.forget(start)
        gone = [base for base in self._sizes if base < self._log.start]
        for base in gone:
            self._last_times.pop(base, None)
        return remote + sum(self._sizes.pop(base) for base in gone)

    def left(self, bases: Iterable[int]) -> int:
        """Note that the files of these chunks leave the disk. Returns their size in bytes."""
        return sum(self._sizes.pop(base, 0) for base in bases)

    def on_disk(self, view: LogView) -> LogView:
        """Return the view without the chunks that are only in the bucket."""
        remote = self._log.reader.remote
        if not remote:
            return view
        kept = [n for n, base in enumerate(view.bases) if base not in remote]
        return view._replace(
            bases=[view.bases[n] for n in kept], sizes=[view.sizes[n] for n in kept]
        )


def finished_bytes(view: LogView) -> int:
    """Return the bytes of chunks that every channel has finished.

    The ongoing chunk counts only if all its messages are finished.
    """
    return sum(view.sizes[: finished_chunks(view.bases, view.floor)]) + (
        view.sizes[-1] if view.floor >= view.end else 0
    )


def remove_below(files: Files, folder: str, start: int) -> int:
    """Remove the files of all chunks completely below `start`, and return their number.

    This also removes files that an incomplete removal has left. The last chunk always stays. Raises
    `OSError` if it could not remove all files. The next call removes the others.
    """
    names = files.list(folder)
    bases = [base for name in names if (base := parse_chunk_name(name)) is not None]
    kept = bases[max(bisect_right(bases, start) - 1, 0)] if bases else 0
    doomed = [
        name for name in names if (base := _base_of(name)) is not None and base < min(kept, start)
    ]
    for name in sorted(doomed, key=lambda name: (name[:_DIGITS], name.endswith(CHUNK_SUFFIX))):
        with contextlib.suppress(FileNotFoundError):
            files.remove(f"{folder}/{name}")
    if doomed:
        files.sync_folder(folder)
    return len(doomed)


def remove_archived(files: Files, folder: str, bases: Iterable[int]) -> int:
    """Remove the files of chunks that the bucket has, and return their number.

    Their `.bad` files stay, because they list messages that are lost in the bucket too. After a
    crash, the files that still exist are used again.
    """
    removed = 0
    for base in bases:
        for name in (index_name(base), chunk_name(base)):
            with contextlib.suppress(FileNotFoundError):
                files.remove(f"{folder}/{name}")
        removed += 1
    if removed:
        files.sync_folder(folder)
    return removed


def _base_of(name: str) -> int | None:
    """Return the base offset of the chunk that a file belongs to.

    The file may be the chunk, its index, or a `.bad` file.
    """
    digits = name[:_DIGITS]
    if (
        len(digits) == _DIGITS
        and digits.isdecimal()
        and name.endswith((CHUNK_SUFFIX, INDEX_SUFFIX, BAD_SUFFIX))
    ):
        return int(digits)
    return None
