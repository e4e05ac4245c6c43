"""Rows of the delayed messages' environment inside a transaction, and what LMDB's errors mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final, NamedTuple

import lmdb

from ..transport.block import Block
from ..transport.codec import pack_value, unpack_value
from .delayed_format import (
    META,
    PRODUCER,
    ROW,
    SUM_MASK,
    VERSION,
    DelayedKey,
    DelayedRow,
    count_of,
    crc_of,
    decode_row,
    encode_row,
    names_itself,
    parse_row_key,
    row_key,
    unwrap,
    wrap,
)
from .errors import Damaged, DiskFull, ForeignDirectory, StorageError, StoreFailed
from .lmdb_errors import says_full

WALK_MAX: Final = 20_000  # keys looked at, one by one, for a row that a search does not find
DUE_AT_ONCE: Final = 1  # the first row's due time cannot be believed: `due` is to look at it


class DelayedSummary(NamedTuple):
    """What waits. `next_due_ns`: 0 where nothing does. `lost`: messages that damage cost, ever."""

    messages: int = 0
    bytes: int = 0
    next_due_ns: int = 0
    lost: int = 0


class Progress(NamedTuple):
    """How far an environment has come: what its newest commit left. `commits`: how many there were."""

    commits: int = 0
    serial: int = 0
    messages: int = 0


class Listed(NamedTuple):
    """One message that waits; `size` is its body's."""

    key: DelayedKey
    size: int
    body: bytes
    message_tag: bytes | None
    message_key: bytes | None


class MapFull(StorageError):
    """More address space is needed; the caller of the transaction sees to it."""


class Rows:
    """The rows of one transaction, and the meta row that counts them. `sound`: a key that was found to be its value's before."""

    def __init__(self, txn: Any, sound: bytes = b"") -> None:
        self.txn = txn
        self.sound = sound
        self.meta = read_meta(txn)

    def put(self, key: bytes, data: bytes) -> None:
        self.put_value(key, wrap(key, data))

    def put_value(self, key: bytes, value: bytes) -> None:
        self.delete(key)
        self.txn.put(key, value)
        self.meta["rows"] += 1
        self.meta["sum"] = (self.meta["sum"] + crc_of(value)) & SUM_MASK

    def delete(self, key: bytes, *, known: bool = False) -> bytes | None:
        """`known`: it was seen among the first rows. A key with a flipped bit lies out of order, so no search finds it or some others."""
        old: bytes | None = self.txn.pop(key)
        if old is None and known:
            old = self._pick_out(key)
        if old is not None:
            self.meta["rows"] -= 1
            self.meta["sum"] = (self.meta["sum"] - crc_of(old)) & SUM_MASK
        return old

    def _pick_out(self, key: bytes) -> bytes | None:
        cursor = self.txn.cursor()
        for found in islice(row_keys(cursor), WALK_MAX):
            if found == key:
                value: bytes = cursor.value()
                cursor.delete()
                return value
        return None

    def add(self, row: DelayedRow) -> None:
        self.put_value(*encode_row(row))
        self.meta["messages"] += row.block.count
        self.meta["bytes"] += row.block.length

    def take(self, key: bytes, *, known: bool = False) -> None:
        """A row that has done its duty, if it is there."""
        value = self.delete(key, known=known)
        if value is not None:
            self.meta["messages"] -= count_of(key, value)
            self.meta["bytes"] -= max(0, len(value) - 6 - len(key))

    def drop(self, key: bytes, count: int) -> None:
        """A damaged row."""
        value = self.delete(key, known=True)
        if value is not None:
            self.meta["messages"] -= count
            self.meta["bytes"] -= max(0, len(value) - 6 - len(key))
            self.meta["lost"] += count

    def finish(self, *, missing_is_lost: bool = True, counts: bool = True) -> DelayedSummary:
        """Write the meta row. Where it counts messages and there is no row, they are lost: what a damaged page held, nobody can name."""
        meta = self.meta
        meta["messages"] = max(0, meta["messages"])
        if missing_is_lost and next(row_keys(self.txn.cursor()), None) is None:
            meta["lost"] += meta["messages"]
            meta["messages"] = meta["bytes"] = 0
        meta["bytes"] = max(0, meta["bytes"])
        meta["commits"] += counts
        self.txn.put(META, wrap(META, pack_value(meta)))
        summary, self.sound = summary_of(self.txn, meta, self.sound)
        return summary


def read_meta(txn: Any) -> dict[str, Any]:
    value = txn.get(META)
    if value is None:
        raise Damaged("the delayed messages have no meta row")
    meta: dict[str, Any] = unpack_value(unwrap(META, value))
    if meta["version"] != VERSION:
        raise ForeignDirectory(f"delayed messages of version {meta['version']}: only version {VERSION} is known here; use a newer zsq")
    return meta


def prefixed(txn: Any, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    """Rows of one kind in order, from `start` on."""
    cursor = txn.cursor()
    if cursor.set_range(start or prefix):
        for key, value in cursor:
            if not key.startswith(prefix):
                return
            yield key, value


def row_keys(cursor: Any) -> Iterator[bytes]:
    """The keys of all rows that wait, in their order on disk, the cursor on each; also what damage made of one.

    Nothing else lies before the meta row, so what looks like no row of ours is a damaged one, and not the end of them.
    """
    if cursor.first():
        for key in cursor.iternext(keys=True, values=False):
            if key == META or key.startswith(PRODUCER):
                return
            yield key


def rows_from(txn: Any, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    """As `row_keys`, with values; from `start` on."""
    cursor = txn.cursor()
    if cursor.set_range(start) if start else cursor.first():
        for key, value in cursor:
            if key == META or key.startswith(PRODUCER):
                return
            yield key, value


def summary_of(txn: Any, meta: Mapping[str, Any], sound: bytes = b"") -> tuple[DelayedSummary, bytes]:
    """And the first row's key, if it is the one that the value was written under: LMDB would not see a flipped bit in it, and a due
    time centuries ahead would keep all messages waiting. `sound`: a key that was looked at before; a value may have MiB."""
    cursor = txn.cursor()
    first = next(row_keys(cursor), b"")
    if first and first != sound and not names_itself(first, cursor.value()):
        return DelayedSummary(meta["messages"], meta["bytes"], DUE_AT_ONCE, meta["lost"]), b""
    return DelayedSummary(meta["messages"], meta["bytes"], parse_row_key(first).due_ns if first else 0, meta["lost"]), first


def holder(txn: Any, key: DelayedKey) -> DelayedRow | None:
    """The row that a message lies in; None where there is none, or it is damaged."""
    wanted = row_key(key)
    cursor = txn.cursor()
    if not cursor.set_range(wanted) or cursor.key() != wanted:
        moved = cursor.prev() if cursor.key() else cursor.last()
        if not moved or not cursor.key().startswith(ROW):
            return None
    try:
        row = decode_row(cursor.key(), cursor.value())
    except Damaged:
        return None
    return row if row.holds(key) else None


def listed_of(key: DelayedKey, block: Block, index: int, body_bytes: int) -> Listed:
    body = block.body.value(index) or b""
    tag, own = block.tag, block.key
    message_tag = None if tag is None else tag.value(index)
    return Listed(key, len(body), body[:body_bytes], message_tag, None if own is None else own.value(index))


@contextmanager
def translated(path: str) -> Iterator[None]:
    """What an error of LMDB means to the caller."""
    try:
        yield
    except lmdb.MapFullError as error:
        raise MapFull(str(error)) from error
    except lmdb.Error as error:
        text = f"{path}: {error}"
        if says_full(error):
            raise DiskFull(text) from error
        if "No such file" in text:
            raise ForeignDirectory(f"{text}; it is made once, and never again in its place") from error
        unreadable = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.PageFullError)
        if isinstance(error, unreadable) or "is not supported by this build" in text:  # the version in a head
            raise Damaged(text) from error
        raise StoreFailed(text) from error
    except SystemError as error:  # the binding's, whose `Cursor.delete` forgets an error: the row behind the deleted one cannot be read
        raise Damaged(f"{path}: {error.__cause__ or error}") from error
