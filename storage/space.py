"""Free space: refuse what would leave less than the reserve, without asking the system at each write."""

from __future__ import annotations

from typing import Final

from .errors import DiskFull
from .files import Files

SPACE_CHECK_BYTES: Final = 1024 * 1024  # free space is asked again after this many bytes,
SPACE_CHECK_NS: Final = 100_000_000  # or this long


class Space:
    """Of the file system of `folder`; one a writer."""

    def __init__(self, files: Files, folder: str, reserve_bytes: int) -> None:
        self._files = files
        self._folder = folder
        self._reserve_bytes = reserve_bytes
        self._asked_ns = 0
        self._bytes = 0

    def take(self, total: int, now_ns: int) -> None:
        """`DiskFull` where `total` bytes would go into the reserve. Asks rarely while there is much, each time while there is not.

        A file system that does not say what is free refuses nothing here: the write itself will tell.
        """
        if total <= self._bytes and 0 <= now_ns - self._asked_ns < SPACE_CHECK_NS:
            self._bytes -= total
            return
        try:
            free = self._files.free_bytes(self._folder) - self._reserve_bytes
        except OSError:
            self._bytes = 0
            return
        if free < total:
            self._bytes = 0
            raise DiskFull(f"{self._folder}: {free + self._reserve_bytes} bytes are free, {self._reserve_bytes} are kept in reserve")
        self._asked_ns = now_ns
        self._bytes = min(SPACE_CHECK_BYTES, free - total)

    def forget(self) -> None:
        """A write has just found less than was thought: ask before the next one."""
        self._bytes = 0
