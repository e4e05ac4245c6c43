"""Files that tell how much goes through them: what a progress bar shows of work that knows nothing of bars."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...storage.files import Files


class CountedFiles(Files):
    """`read`, `written`: called with bytes."""

    def __init__(self, *, read: Callable[[int], None] | None = None, written: Callable[[int], None] | None = None) -> None:
        super().__init__()
        self._read = read
        self._written = written

    def pread(self, fd: int, size: int, position: int) -> bytes:
        data = super().pread(fd, size, position)
        if self._read is not None:
            self._read(len(data))
        return data

    def writev(self, fd: int, buffers: Sequence[Any], position: int) -> None:
        super().writev(fd, buffers, position)
        if self._written is not None:
            self._written(sum(map(len, buffers)))


def bytes_below(folder: Path, pattern: str) -> int:
    """What the files of that pattern hold; those that go meanwhile do not count."""
    total = 0
    for path in folder.glob(pattern):
        try:
            total += path.stat().st_size
        except OSError:
            continue
    return total
