"""Local files of clients: the lock of a directory, and syncs, on each operating system.

The broker's own files are in `storage/`, and exist only on Linux. What is here works for the files
that a client writes: an export runs on a laptop, too.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

LOCK_MODE: Final = 0o644


class InUse(Exception):
    """Another process holds the lock."""


def _by_flock(descriptor: int) -> None:
    import fcntl

    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _by_locking(descriptor: int) -> None:
    """Lock the first byte. Windows has only locks of ranges. The file may be empty."""
    import msvcrt

    windows: Any = msvcrt
    windows.locking(descriptor, windows.LK_NBLCK, 1)


def _chosen() -> Callable[[int], None]:
    try:
        import fcntl  # noqa: F401 - only whether it exists
    except ImportError:
        return _by_locking
    return _by_flock


_lock: Final = _chosen()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file, which is created if it does not exist. Raises `InUse`."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, LOCK_MODE)
    try:
        try:
            _lock(descriptor)
        except (BlockingIOError, PermissionError):  # Windows reports a held lock as no permission
            raise InUse(str(path)) from None
        yield
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Write a file's bytes to disk before returning."""
    descriptor = os.open(path, os.O_RDWR)  # Windows syncs only what may be written
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Write the new names in a folder to disk before returning.

    Windows cannot do this, and does not need to: NTFS keeps a log of its changes of names. They are
    then on disk some seconds later. (A power failure before that undoes the last rename, and the
    next run of an export writes the file again.)
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except PermissionError:
        if sys.platform == "win32":
            return
        raise
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
