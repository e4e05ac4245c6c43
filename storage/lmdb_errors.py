"""What LMDB says of a disk that is full, and what it does not say: whether a commit that found it full has counted."""

from __future__ import annotations

from typing import Final

import lmdb

from .errors import DiskFull, StoreFailed

_FULL: Final = ("No space left", "Disk quota exceeded")  # the binding gives the system's sentence, and no number


def says_full(error: lmdb.Error) -> bool:
    return isinstance(error, lmdb.DiskError) or any(sentence in str(error) for sentence in _FULL)


def after_commit(env: lmdb.Environment, error: Exception) -> Exception:
    """The same error, but `StoreFailed` for a `DiskFull` at the head of LMDB's own file: the head may be the new one or the old one, and
    LMDB takes nothing more. Only file systems that copy what is overwritten have no space for that."""
    if isinstance(error, DiskFull):
        try:
            env.begin(write=True).abort()
        except lmdb.Error as second:
            return StoreFailed(f"{error}; whether that commit counts is not known ({second})")
    return error
