"""Log facts: what the shipping of a topic asks about its log files."""

from __future__ import annotations

import time

from ...directory.store import Store
from ...errors import StorageError
from ...log.log import Log
from ...log.log_format import (
    ADOPTED,
    CHUNK_HEADER_BYTES,
    chunk_name,
    decode_chunk_header,
)


def first_unarchived(store: Store) -> int:
    """Return the first log file that is not in the archive."""
    archived = store.archived
    return next(base for base in store.log.chunks if base not in archived)


def size_of(store: Store, chunk: int) -> int:
    return store.files.size_of(f"{store.directory}/{chunk_name(chunk)}")


def is_adopted(store: Store, chunk: int) -> bool:
    """Return True if a log file may continue the group of the one before it."""
    files = store.files
    try:
        fd = files.open_read(f"{store.directory}/{chunk_name(chunk)}")
        try:
            header = decode_chunk_header(files.pread(fd, CHUNK_HEADER_BYTES, 0))
        finally:
            files.close(fd)
    except (StorageError, OSError):
        return True
    return bool(header.flags & ADOPTED)


def stored_ns(log: Log, offset: int) -> int:
    """Return about when (monotonic) a message was stored, also if an earlier process did it.

    The result is above 0, also if the message is older than the start of the machine.
    """
    now_ns = time.monotonic_ns()
    try:
        header = next(iter(log.headers(offset)), None)
    except (StorageError, OSError):
        return now_ns
    age_ns = time.time_ns() - header[0].time_ns if header is not None else 0
    return max(1, now_ns - max(0, age_ns))
