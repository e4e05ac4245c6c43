"""What retention has to know of a log's chunks, and how they go.

Order: the state commits the new start, then the log forgets the chunks, then their files are removed (in another thread: the system takes
milliseconds to give back 256 MiB), oldest first, of each chunk the index and what was set aside before the chunk itself; the folder is
synced once at the end. So a crash anywhere leaves either all of a chunk, or a state that says it is to be removed, and recovery
removes what is still there or has come back: names that were removed and not synced.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from typing import Final

from ...transport.settings import Retention
from ..errors import Damaged, ForeignDirectory
from ..files import Files
from ..retention import LogView, finished_chunks
from .chunk import open_chunk, read_footer
from .log import Log
from .log_format import BAD_SUFFIX, CHUNK_SUFFIX, INDEX_SUFFIX, chunk_name, parse_chunk_name

BYTES_ANY: Final = (1 << 63) - 1
_DIGITS: Final = len(chunk_name(0)) - len(CHUNK_SUFFIX)


class LogKeeper:
    """Sizes and times of a log's chunks; each sealed one is looked at once. Used by the log's thread."""

    def __init__(self, files: Files, folder: str, uuid: bytes, log: Log) -> None:
        self._files = files
        self._folder = folder
        self._uuid = uuid
        self._log = log
        self._sizes: dict[int, int] = {}
        self._last_times: dict[int, int] = {}
        self._first_time = (-1, 0)  # of the ongoing chunk: its base, and the time

    def view(self, retention: Retention, floor: int, applied: int, now_ns: int) -> LogView:
        """The log as the plan wants it. What needs reading is read only where `retention` asks for it."""
        log = self._log
        bases = log.chunks
        sizes = [*(self._size(base) for base in bases[:-1]), log.end_position]
        by_age = retention.keep_s >= 0 or retention.max_s >= 0
        first_time_ns = self._ongoing_since(bases[-1]) if by_age and log.end > bases[-1] else now_ns
        unfinished = self.unfinished_bytes(floor, sizes) if retention.max_bytes >= 0 or retention.max_s >= 0 else 0
        return LogView(bases, sizes, log.end, floor, applied, unfinished, first_time_ns, log.last_time_ns, now_ns)

    def _size(self, base: int) -> int:
        size = self._sizes.get(base)
        if size is None:
            size = 0
            with contextlib.suppress(OSError):  # it is gone, which reading it finds out
                size = self._files.size_of(f"{self._folder}/{chunk_name(base)}")
            self._sizes[base] = size
        return size

    def unfinished_bytes(self, floor: int, sizes: list[int] | None = None) -> int:
        """What lies at or above `floor`: to the byte in the chunk that it cuts, as files behind that."""
        log = self._log
        floor = max(floor, log.start)
        if floor >= log.end:
            return 0
        bases = log.chunks
        at = bisect_right(bases, floor) - 1
        if sizes is None:
            sizes = [*(self._size(base) for base in bases[:-1]), log.end_position]
        following = bases[at + 1] if at + 1 < len(bases) else log.end
        return log.measure(floor, following, BYTES_ANY)[0] + sum(sizes[at + 1 :])

    def last_time_ns(self, chunk: int) -> int:
        """When the last message of the n-th chunk came. Of one that cannot be read: the beginning of the next that can."""
        bases = self._log.chunks
        base = bases[chunk]
        if base == bases[-1]:
            return self._log.last_time_ns
        if base not in self._last_times:
            found = self._read_last_time(base)
            self._last_times[base] = self.last_time_ns(chunk + 1) if found is None else found
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
        """When its first message came; its header may be older, if it was made ahead of it."""
        if self._first_time[0] != base:
            header = next(self._log.headers(base), None)
            self._first_time = (base, self._log.last_time_ns if header is None else header[0].time_ns)
        return self._first_time[1]

    def forget(self, start: int) -> int:
        """The log does without what lies below `start`. Returns the bytes of those chunks."""
        self._log.forget(start)
        gone = [base for base in self._sizes if base < self._log.start]
        for base in gone:
            self._last_times.pop(base, None)
        return sum(self._sizes.pop(base) for base in gone)


def finished_bytes(view: LogView) -> int:
    """Of chunks that every channel has finished; the ongoing one counts when all of it is."""
    return sum(view.sizes[: finished_chunks(view.bases, view.floor)]) + (view.sizes[-1] if view.floor >= view.end else 0)


def remove_below(files: Files, folder: str, start: int) -> int:
    """Remove the files of all chunks that lie wholly below `start`, and what they leave if only a part of them is there: how many files.

    Never the last chunk, whatever `start` says. `OSError`: some are left, and go the next time.
    """
    names = files.list(folder)
    bases = [base for name in names if (base := parse_chunk_name(name)) is not None]
    kept = bases[max(bisect_right(bases, start) - 1, 0)] if bases else 0
    doomed = [name for name in names if (base := _base_of(name)) is not None and base < min(kept, start)]
    for name in sorted(doomed, key=lambda name: (name[:_DIGITS], name.endswith(CHUNK_SUFFIX))):
        with contextlib.suppress(FileNotFoundError):
            files.remove(f"{folder}/{name}")
    if doomed:
        files.sync_folder(folder)
    return len(doomed)


def _base_of(name: str) -> int | None:
    """The chunk that a file of the log belongs to: itself, its index, or what was set aside of it."""
    digits = name[:_DIGITS]
    if len(digits) == _DIGITS and digits.isdecimal() and name.endswith((CHUNK_SUFFIX, INDEX_SUFFIX, BAD_SUFFIX)):
        return int(digits)
    return None
