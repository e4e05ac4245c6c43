"""Lease cell: until when a primary may acknowledge publishes, in memory that its processes share.

The archive actor writes it, and all topics read it. See `storage/shipping/standbys.py`. It is a
file of 8 bytes in the run directory, which the processes map: a time of `boot_ns`, or 0 if no lease
is needed, because there is no standby. A read costs some 200 ns and no call of the system. Each
start of a broker makes a new run directory, so no lease outlives a broker.
"""

from __future__ import annotations

import mmap
import os
import time
from typing import Final

FILE: Final = "lease"
OVER: Final = 1  # a time that is over
_BYTES: Final = 8
_BOOT_CLOCK: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)


def boot_ns() -> int:
    """Return the time in nanoseconds since the machine started.

    It goes on while the machine is suspended, and `time.monotonic_ns` does not on Linux. (If a
    hypervisor pauses a virtual machine, all clocks of the machine may stand still.)
    """
    return time.monotonic_ns() if _BOOT_CLOCK is None else time.clock_gettime_ns(_BOOT_CLOCK)


class LeaseCell:
    """The cell in a run directory. Without `make`, it must exist."""

    def __init__(self, run_dir: str, *, make: bool = False) -> None:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if make else 0)
        fd = os.open(f"{run_dir}/{FILE}", flags, 0o600)
        try:
            if make and os.fstat(fd).st_size < _BYTES:
                os.pwrite(fd, bytes(_BYTES), 0)  # a hole could not be filled on a full disk
            self._map = mmap.mmap(fd, _BYTES)
        finally:
            os.close(fd)
        self._word = memoryview(self._map).cast("q")

    @property
    def until_ns(self) -> int:
        return self._word[0]

    def write(self, until_ns: int) -> None:
        self._word[0] = until_ns

    def holds(self, now_ns: int) -> bool:
        """Return True if a publish may be acknowledged now."""
        until_ns = self._word[0]
        return not until_ns or now_ns < until_ns

    def close(self) -> None:
        self._word.release()
        self._map.close()
