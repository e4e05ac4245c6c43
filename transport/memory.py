"""Memory for blocks that come and go a thousand times a second: what is told to the C library's allocator, and why."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_libc = ctypes.CDLL(None)


@functools.cache
def keep_memory() -> None:
    """Do not give each freed block back to the system at once; called when a process first opens a link, and by actors.

    By default glibc maps and unmaps 200 KB each time, and the kernel clears every page of it anew: 50 page faults a block and
    hop (measured: a quarter of the topic's time). With it up to 32 MB that were freed stay with the process.
    ZSQ_MALLOC=default in the environment leaves the allocator alone.
    """
    if os.environ.get("ZSQ_MALLOC") == "default":
        return
    with contextlib.suppress(AttributeError):  # another C library has its own ways
        _libc.mallopt(_M_MMAP_THRESHOLD, 16 * 1024 * 1024)
        _libc.mallopt(_M_TRIM_THRESHOLD, 32 * 1024 * 1024)


def release_memory() -> None:
    """Give freed blocks back to the system."""
    with contextlib.suppress(AttributeError):
        _libc.malloc_trim(0)
