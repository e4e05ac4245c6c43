"""Errors of the storage layer, sorted by what the caller can do about them.

* `Locked`: another process owns the directory. Wait for it to end, or give up.
* `ForeignDirectory`: the directory is missing or belongs to another topic. Nothing was opened, and
  a person must look.
* `DiskFull`: nothing was stored. The same call succeeds when space returns. Everything else goes
  on.
* `Damaged`: bytes on disk failed their check and were not used. Step over them.
* `Unreadable`: a file cannot be opened or read now (no right, too many open files, a failing disk).
  Nothing is known to be lost. Everything else goes on, and the same call is tried again later.
* `StoreFailed`: the content of the disk is no longer known. The process that owns the store must
  end and recover.
* `ShortWrite`: a write stopped early. `Files` raises it, and only the log sees it.

`files.py` and the rest of this folder raise them directly. `OSError` never leaves the folder,
except from `Files` itself.
"""

from __future__ import annotations

import errno
from typing import Final

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

# The refusal of one topic. The broker's health gives the details.
REFUSED_TEXT: Final = "publishes are refused: the disk is full"


class StorageError(Exception):
    """The root of all errors of the storage layer."""


class Locked(StorageError):
    """Another process holds the directory. `pid` is its number, or 0 if it is not known."""

    def __init__(self, text: str, pid: int = 0) -> None:
        super().__init__(text)
        self.pid = pid


class ForeignDirectory(StorageError):
    """The directory is missing, belongs to another topic, or was written by an unknown version."""


class DiskFull(StorageError):
    """The disk has no space, or less than the reserve. Nothing was stored and nothing was lost.

    `wanted_bytes` is the number of bytes that did not fit. It is 0 if the system refused a write
    without giving a size.
    """

    def __init__(self, text: str, wanted_bytes: int = 0) -> None:
        super().__init__(text)
        self.wanted_bytes = wanted_bytes


class Damaged(StorageError):
    """Bytes that failed their check.

    `count` messages from `offset` on are lost. Both are 0 if the damage does not concern messages.
    """

    def __init__(self, text: str, offset: int = 0, count: int = 0) -> None:
        super().__init__(text)
        self.offset = offset
        self.count = count


class Unreadable(StorageError):
    """The operating system does not return the bytes now.

    They may be intact: try again later, and do not step over them.
    """


class StoreFailed(StorageError):
    """A write, a cut or a sync failed and left the disk's content unknown.

    The process must end, start again, and recover.
    """


class ShortWrite(OSError):
    """A write that stored only the first `written` bytes of its data."""

    def __init__(self, written: int) -> None:
        super().__init__(f"only {written} bytes were written")
        self.written = written


def is_full(error: OSError) -> bool:
    """Return True if a write failed for lack of space. It can be cut back and tried again later."""
    return isinstance(error, ShortWrite) or error.errno in _FULL
