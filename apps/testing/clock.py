"""The clock of a test broker: the system's wall clock plus an offset that a test moves forward.

The processes of the broker and the test share the offset: 8 bytes of a file that all of them have
mapped. `install` replaces the functions of `time` that return the wall clock. It changes only the
process that calls it.

The wall clock moves, and with it the clock of boot time, which a channel counts the delays of
requeues with (`actors/channel/due_clock.py`). Delays and the ages of messages are measured with the
wall clock. Leases, heartbeats and timeouts are measured with the monotonic clock, which is not
changed. So no client loses its connection when a test moves the clock. A broker must cope with a
wall clock that jumps forward in production, too.

Rejected: an option of `zsq serve`, or a request, that changes the clock. Somebody would use it in
production. `zsq serve` never imports this module, whatever its options and environment are.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

OFFSET_FILE: Final = "ZSQ_TESTING_CLOCK"
"""The environment variable with the path of the offset's file, for the processes of the broker."""
_SIZE: Final = 8


class ClockOffset:
    """The offset in nanoseconds. It is 0 in a new file."""

    def __init__(self, path: Path) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, _SIZE)
            self._shared = memoryview(mmap.mmap(fd, _SIZE)).cast("q")
        finally:
            os.close(fd)

    @property
    def ns(self) -> int:
        return self._shared[0]

    def add(self, ns: int) -> None:
        """Move the clock forward. One process does this at a time."""
        self._shared[0] += ns


def install(path: Path) -> None:
    """Make this process read the moved clock.

    Call it before other modules of the broker are imported, because some keep `time.time_ns`.
    """
    offset = ClockOffset(path)
    time_ns, time_s, gettime_ns = time.time_ns, time.time, time.clock_gettime_ns

    def moved_gettime_ns(clock: int) -> int:
        return gettime_ns(clock) + (offset.ns if clock == time.CLOCK_BOOTTIME else 0)

    moved: dict[str, Callable[..., object]] = {
        "clock_gettime_ns": moved_gettime_ns,
        "time_ns": lambda: time_ns() + offset.ns,
        "time": lambda: time_s() + offset.ns / 1e9,
    }
    for name, function in moved.items():
        setattr(time, name, function)
