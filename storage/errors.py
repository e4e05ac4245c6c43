"""Errors of the storage layer, sorted by what the caller can do about them.

* `Locked`: another process owns the directory; wait for it to end, or give up.
* `ForeignDirectory`: not the directory of this topic, or none at all; nothing was opened, a person must look.
* `DiskFull`: nothing was stored; the same call succeeds when space returns. Everything else goes on.
* `Damaged`: bytes on disk failed their check and were not used; step over them.
* `Unreadable`: a file cannot be opened or read now (no right, too many open files, a disk that fails); nothing is known to be
  lost: everything else goes on, and the same call is tried again later.
* `StoreFailed`: what is on disk is not known any more; the process that owns the store must end and recover.
* `ShortWrite`: the seam's own word for a write that stopped early; only the log sees it.

Raised as they are by `files.py` and the rest of this folder; `OSError` never leaves the folder, except from
`Files` itself.
"""

from __future__ import annotations

import errno
from typing import Final

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

REFUSED_TEXT: Final = "publishes are refused: the disk is full"  # of a topic, where the broker's health says the rest


class StorageError(Exception):
    """The root of all errors of the storage layer."""


class Locked(StorageError):
    """Another process holds the directory; `pid` is its number, 0 where it is not known."""

    def __init__(self, text: str, pid: int = 0) -> None:
        super().__init__(text)
        self.pid = pid


class ForeignDirectory(StorageError):
    """The directory is missing, belongs to another topic, or was written by a version that is not known here."""


class DiskFull(StorageError):
    """There is no space, or less than the reserve; nothing was stored and nothing was lost.

    `wanted_bytes`: how many bytes did not fit; 0 where the system refused a write without saying.
    """

    def __init__(self, text: str, wanted_bytes: int = 0) -> None:
        super().__init__(text)
        self.wanted_bytes = wanted_bytes


class Damaged(StorageError):
    """Bytes whose check failed. `count` messages from `offset` on are gone; both are 0 where it is not about messages."""

    def __init__(self, text: str, offset: int = 0, count: int = 0) -> None:
        super().__init__(text)
        self.offset = offset
        self.count = count


class Unreadable(StorageError):
    """The operating system does not give the bytes now. That is no verdict on them: try again later, step over nothing."""


class StoreFailed(StorageError):
    """A write, a cut or a sync failed in a way that leaves the disk's content unknown: end, start again, recover."""


class ShortWrite(OSError):
    """A write stored only the first `written` bytes of what it was given."""

    def __init__(self, written: int) -> None:
        super().__init__(f"only {written} bytes were written")
        self.written = written


def is_full(error: OSError) -> bool:
    """Whether a write failed for want of space: it may be cut back and tried again later."""
    return isinstance(error, ShortWrite) or error.errno in _FULL
