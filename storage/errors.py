"""Errors of the storage layer, sorted by what the caller can do about them.

* `Locked`: another process owns the directory. Wait until it ends, or give up.
* `ForeignDirectory`: the directory is missing or belongs to another topic. Nothing was opened, and
  a person must examine it.
* `DiskFull`: nothing was stored. The same call succeeds when there is space again. Other calls are
  not affected.
* `Damaged`: bytes on disk failed their check and were not used. Continue after them.
* `Unreadable`: a file cannot be opened or read now (no permission, too many open files, a failing
  disk). Nothing is known to be lost. Other calls are not affected. Try the same call again later.
* `NotHere`: the bytes are in the bucket and are being fetched. Try the same call again when they
  have arrived.
* `OutOfReach`: the bytes are in the bucket, which cannot be used now. Nothing is lost. Try the same
  call again later.
* `StoreFailed`: the content of the disk is not known any more. The process that owns the store must
  end, start again, and recover.
* `ShortWrite`: a write stopped early. `Files` raises it, and `is_full` accepts it.

All modules of this folder raise these errors. They let no `OSError` pass to other folders, except
the methods of `Files`.
"""

from __future__ import annotations

import errno
from typing import Final

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

# The text for one topic. The health of the broker has the details.
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


class NewerVersion(ForeignDirectory):
    """A newer version has written this. It is not damaged, and nothing may change it.

    `path` is the file, or "" if only a caller knows it.
    """

    def __init__(self, text: str, path: str = "") -> None:
        super().__init__(f"{path}: {text}" if path else text)
        self.path = path
        self.text = text

    def at(self, path: str) -> NewerVersion:
        """Return the same error with the path of the file, unless it has one."""
        return NewerVersion(self.text, self.path or path)


def newer(what: str, version: object, known: int, path: str = "") -> NewerVersion:
    """Return the error of a reader that knows only the version `known`."""
    text = f"{what} has format version {version}, and this zsq reads only version {known}"
    return NewerVersion(f"{text}; use a newer zsq", path)


class DiskFull(StorageError):
    """The disk has no space, or less than the reserve. Nothing was stored and nothing was lost.

    `wanted_bytes` is the number of bytes that did not fit. It is 0 if the operating system refused
    the write, because then the missing size is not known.
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

    They may be intact. So a caller must try again later, and must not continue after them.
    """


class NotHere(Unreadable):
    """The bytes are only in the bucket. They are being fetched, and a later call finds them."""


class OutOfReach(Unreadable):
    """The bytes are only in the bucket, and the bucket does not return them now."""


class StoreFailed(StorageError):
    """A write, a truncation or a sync failed, so the disk's content is not known.

    The process must end, start again, and recover.
    """


class ShortWrite(OSError):
    """A write that stored only the first `written` bytes of its data.

    Its errno is ENOSPC: a file takes a part of a write only if there is no room for the rest.
    """

    def __init__(self, written: int, path: str = "") -> None:
        text = f"no space left: only {written} bytes were written"
        super().__init__(errno.ENOSPC, text, *([path] if path else []))
        self.written = written


def is_full(error: OSError) -> bool:
    """Return True if a write failed for lack of space. It can be undone and tried again later."""
    return isinstance(error, ShortWrite) or error.errno in _FULL
