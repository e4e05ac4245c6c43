"""Settings of the C library's allocator, for memory that is allocated a thousand times a second."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Iterator
from typing import Any

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_KEPT_BELOW = 16 * 1024 * 1024
_kept: list[bool] = []  # not empty after `keep_memory`
# Other systems have other allocators, so the functions below do nothing there.
_libc: Any = ctypes.CDLL(None) if sys.platform == "linux" else object()


@functools.cache
def keep_memory() -> None:
    """Keep freed memory in the process.

    Actors call this, and clients when a process first opens a link. By default glibc maps and
    unmaps the memory of each large block (200 KB), and the kernel clears every page of it again.
    That causes 50 page faults for each block in each process. In a measurement, this took a quarter
    of the topic's time. With this setting, up to 32 MB of freed memory stay with the process. With
    ZSQ_MALLOC=default in the environment, this does nothing.
    """
    if os.environ.get("ZSQ_MALLOC") == "default":
        return
    with contextlib.suppress(AttributeError):  # another C library may not have this function
        _libc.mallopt(_M_MMAP_THRESHOLD, _KEPT_BELOW)
        _libc.mallopt(_M_TRIM_THRESHOLD, 32 * 1024 * 1024)
        _kept.append(True)


def return_large_memory() -> None:
    """Give large blocks back to the system as soon as they are freed.

    The archive actor calls this. Its many threads hold a few blocks of several MiB each. If they
    were kept, each thread would keep its own.
    """
    keep_one_heap()
    with contextlib.suppress(AttributeError):
        _libc.mallopt(_M_MMAP_THRESHOLD, 256 * 1024)
        _libc.mallopt(_M_TRIM_THRESHOLD, 1024 * 1024)


@contextlib.contextmanager
def untouched_memory() -> Iterator[None]:
    """Let large memory that is allocated here take no memory until it is used.

    LMDB clears tables of 3 MB when it opens an environment, and needs a few pages of them. Memory
    that the system maps for them is clear already. After `keep_memory`, it would come from the heap
    and be cleared by hand. In a measurement, this took 2 MB of each topic.
    """
    if _kept:
        _libc.mallopt(_M_MMAP_THRESHOLD, 256 * 1024)
    try:
        yield
    finally:
        if _kept:
            _libc.mallopt(_M_MMAP_THRESHOLD, _KEPT_BELOW)


def keep_one_heap() -> None:
    """Let all threads of this process share two heaps of the C library.

    Shared hosts call this. By default each of their many threads, which rarely work, gets a heap of
    its own.
    """
    with contextlib.suppress(AttributeError):
        _libc.mallopt(_M_ARENA_MAX, 2)


def release_memory() -> None:
    """Return freed memory to the system."""
    with contextlib.suppress(AttributeError):
        _libc.malloc_trim(0)
