"""Files of the broker whose bytes are counted, for the progress bar of work that knows of none.

This is not in `progress.py`, because the broker's files can be read only on Linux, and commands on
other systems have progress bars, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....storage.files import Files


class CountedFiles(Files):
    """A `Files` that reports progress.

    It calls `read` after each read and `written` after each write, with the number of bytes.
    """

    def __init__(
        self,
        *,
        read: Callable[[int], None] | None = None,
        written: Callable[[int], None] | None = None,
    ) -> None:
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
