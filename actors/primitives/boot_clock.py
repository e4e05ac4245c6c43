"""Boot clock: the time since the machine started, which also counts while it is suspended."""

from __future__ import annotations

import time
from typing import Final

_BOOT_CLOCK: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)


def boot_ns() -> int:
    """Return the time in nanoseconds since the machine started.

    It goes on while the machine is suspended, and `time.monotonic_ns` does not on Linux. (If a
    hypervisor pauses a virtual machine, all clocks of the machine may stand still.)
    """
    return time.monotonic_ns() if _BOOT_CLOCK is None else time.clock_gettime_ns(_BOOT_CLOCK)
