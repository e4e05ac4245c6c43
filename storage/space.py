"""Free space: refuses writes that would use the reserve, without a system call for each write."""

from __future__ import annotations

from typing import Final

from .errors import DiskFull
from .files import Files

# Free space is read again after this number of written bytes, or after this time.
SPACE_CHECK_BYTES: Final = 1024 * 1024
SPACE_CHECK_NS: Final = 100_000_000
RESERVE_BYTES_MAX: Final = 1024**3
RESERVE_SHARE: Final = 20  # the reserve is one twentieth (5%) of the file system
# A shortage that the free space does not explain ends this time after the last refusal.
UNTOLD_NS: Final = 60_000_000_000

ADVICE: Final = "Free space on this file system or enlarge it; publishing then resumes by itself"


def reserve_bytes(files: Files, folder: str) -> int:
    """Return how many bytes are kept free on the file system of `folder`.

    The reserve lets consumers finish messages on a full disk.
    """
    return min(RESERVE_BYTES_MAX, files.total_bytes(folder) // RESERVE_SHARE)


def describe(folder: str, free: int, reserve: int) -> str:
    """Return a sentence with the free bytes, the bytes that are kept free, and what to do."""
    return (
        f"{folder} is on a file system with {sized(free)} free, and zsq keeps a reserve of "
        f"{sized(reserve)}. {ADVICE}"
    )


def sized(count: int) -> str:
    """Return a number of bytes for people: `1.5 MiB`."""
    value = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(value) < 1024 or unit == "GiB":
            return f"{count} bytes" if unit == "bytes" else f"{value:,.1f} {unit}"
        value /= 1024
    return ""


class Space:
    """The free space on the file system of `folder`. Each writer has one."""

    def __init__(self, files: Files, folder: str, reserve_bytes: int) -> None:
        self._files = files
        self._folder = folder
        self._reserve_bytes = reserve_bytes
        self._asked_ns = 0
        self._bytes = 0

    def take(self, total: int, now_ns: int) -> None:
        """Reserve `total` bytes. Raises `DiskFull` if they would use the reserve.

        While there is much free space, this reads it rarely. While there is little, it reads it in
        each call. If the system does not report free space, this refuses nothing, and the write
        itself fails on a full disk.
        """
        if total <= self._bytes and 0 <= now_ns - self._asked_ns < SPACE_CHECK_NS:
            self._bytes -= total
            return
        free = self.room()
        if free is None:
            self._bytes = 0
            return
        if free < total:
            self._bytes = 0
            text = (
                f"{sized(total)} do not fit: "
                f"{describe(self._folder, free + self._reserve_bytes, self._reserve_bytes)}"
            )
            raise DiskFull(text, wanted_bytes=total)
        self._asked_ns = now_ns
        self._bytes = min(SPACE_CHECK_BYTES, free - total)

    def room(self) -> int | None:
        """Return how many bytes are free beyond the reserve.

        The number is negative if the reserve is in use. Returns None if the system does not report
        free space.
        """
        try:
            return self._files.free_bytes(self._folder) - self._reserve_bytes
        except OSError:
            return None

    def refused(self, what: str, error: OSError) -> DiskFull:
        """Return the error for a write that the system refused for lack of space.

        The free space is read again before the next write.
        """
        self._bytes = 0
        room = self.room()
        if room is None:
            return DiskFull(f"{what}: {error}. {ADVICE}")
        return DiskFull(
            f"{what}: {error}. "
            f"{describe(self._folder, room + self._reserve_bytes, self._reserve_bytes)}"
        )

    def forget(self) -> None:
        """Read the free space again before the next write.

        The caller has noticed that there is less space than expected.
        """
        self._bytes = 0


class Shortage:
    """The refusals of one store for lack of space, and the state of the shortage. No I/O.

    The shortage ends when the write that was refused last would fit. Free space does not explain
    some refusals (a quota of the file system, no inodes left). Such a shortage ends with the next
    write that succeeds, or a minute after the last refusal.
    """

    def __init__(self) -> None:
        self.text = ""  # the reason why publishes are refused now, or "" if they are accepted
        self.refused_count = 0
        self._wanted_bytes = 0
        self._refused_ns = 0

    def refused(self, error: DiskFull, publishes: int, now_ns: int) -> None:
        """Count publishes that were refused, and remember why."""
        self.text = str(error)
        self.refused_count += publishes
        self._wanted_bytes = error.wanted_bytes
        self._refused_ns = now_ns

    def stored(self) -> None:
        """Note that a write succeeded."""
        if not self._wanted_bytes:
            self.text = ""

    def look(self, room: int | None, now_ns: int) -> None:
        """End the shortage if enough bytes are free.

        `room` is the number of bytes free beyond the reserve (None: not known).
        """
        if not self.text:
            return
        if self._wanted_bytes and room is not None:
            if room >= self._wanted_bytes:
                self.text = ""
        elif now_ns - self._refused_ns >= UNTOLD_NS:
            self.text = ""
