"""Rows: the encoding of one row of a topic's stores.

A row has the same bytes everywhere: in LMDB, in snapshots, in the ticks and dumps in a bucket, and
in backups. It is a key and a value, and the value contains the key:

    value = checksum (4)  length of the key (2)  key  data

The checksum is the CRC-32C of everything after it, and all integers are little-endian. LMDB's pages
have no checksums, so a flipped bit may also move a value to another key. A value proves both. The
row META of a store has the format's version, the number of its other rows, and the sum of their
checksums, so that a missing row is noticed too. Nothing here knows what the data mean, and nothing
does I/O: a transaction is LMDB's, or one with the same methods.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

from ..transport.checksum import crc32c
from .errors import Damaged

META: Final = b"m"
SUM_MASK: Final = 2**64 - 1
HEAD: Final = struct.Struct("<IH")  # checksum, length of the key
assert HEAD.size == 6


def wrap(key: bytes, *data: Any) -> bytes:
    """Return the value of a row."""
    rest = b"".join((len(key).to_bytes(2, "little"), key, *data))
    return crc32c(rest).to_bytes(4, "little") + rest


def unwrap(key: bytes, value: bytes) -> memoryview:
    """Return the data of the value of this key.

    Raises `Damaged` if the value is damaged, or belongs to another key.
    """
    start = HEAD.size + len(key)
    if len(value) >= start:
        crc, size = HEAD.unpack_from(value)
        view = memoryview(value)
        if size == len(key) and value[HEAD.size : start] == key and crc == crc32c(view[4:]):
            return view[start:]
    raise Damaged(f"the row {key[:80]!r} is damaged")


def key_of(value: bytes) -> bytes:
    """Return the key that a value contains. It is not checked."""
    return bytes(value[HEAD.size : HEAD.size + int.from_bytes(value[4:6], "little")])


def crc_of(value: bytes) -> int:
    """Return the checksum that a value contains. It is not checked."""
    return int.from_bytes(value[:4], "little")


def rows_of(txn: Any, begin: bytes, end: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows from key `begin` up to `end`.

    Without `end`, yield the rows whose key starts with `begin`.
    """
    cursor = txn.cursor()
    if not cursor.set_range(begin) if begin else not cursor.first():
        return
    for key, value in cursor:
        if key >= end if end else not key.startswith(begin):
            return
        yield key, value
