"""Changes of rows: recorded while a store commits, and encoded as frames for a copy elsewhere.

Both LMDB stores of a topic report the rows that each commit changed. A dump of all rows and the
later changes, in the order of the commits, are enough to build a store again, row by row. Rows are
copied as they are stored, with their checksums, and nothing here interprets them.

    stream = frame...
    frame  = length (4)  crc (4)  kind (1)  row...
    row    = length of the key (2)  length of the value (4)  key  value

All integers are little-endian, and nothing is padded. `length` counts the bytes after the checksum,
and the checksum covers them. The length of a value is -1 if the row was removed. A frame has at
most FRAME_BYTES_MAX bytes. An encoder begins a new frame after about 1 MiB, but a row is never
divided.

| kind | what the frame says |
|---|---|
| STATE, DELAYED | these rows of the store changed |
| STATE_BEGIN, DELAYED_BEGIN | all earlier rows of the store are void; the rows that follow replace them |
| DELAYED_NONE | the topic has no store of delayed messages, until a DELAYED_BEGIN; there are no rows |
| END | the stream is complete; there are no rows, and no frame follows |

A dump is a frame with BEGIN, and then frames with changes. A stream that is cut between two frames
still consists of good frames. So a reader must know where the stream ends: from a size that is
stored elsewhere, or from END, if the writer adds END and the reader requires it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from ..transport.checksum import crc32c
from .errors import Damaged

Change = tuple[bytes, bytes | None]
"""The key and the value of a row, as stored. The value is None if the row was removed."""
Row = tuple[bytes, bytes]

STATE: Final = 1
DELAYED: Final = 2
STATE_BEGIN: Final = 3
DELAYED_BEGIN: Final = 4
DELAYED_NONE: Final = 5
END: Final = 6

_KINDS: Final = frozenset({STATE, DELAYED, STATE_BEGIN, DELAYED_BEGIN, DELAYED_NONE, END})
_WITHOUT_ROWS: Final = frozenset({DELAYED_NONE, END})
# The kind of the frames after the first one, for rows that do not fit into one frame.
_FOLLOWING: Final = {STATE_BEGIN: STATE, DELAYED_BEGIN: DELAYED}

_HEAD: Final = struct.Struct("<II")  # length and checksum of what follows
_ROW: Final = struct.Struct("<Hi")  # length of the key, length of the value or _REMOVED
_REMOVED: Final = -1
_KIND_BYTES: Final = 1

FRAME_BYTES: Final = 1024 * 1024
FRAME_BYTES_MAX: Final = 64 * 1024 * 1024
BATCH_BYTES: Final = 1024 * 1024

assert _HEAD.size == 8
assert _ROW.size == 6


class Frame(NamedTuple):
    """A decoded frame. `kind` is one of the kinds above, but never END."""

    kind: int
    changes: list[Change]


# Recording


class RecordingTransaction:
    """A write transaction of LMDB that records which rows it changes.

    It has the methods of LMDB's transaction that the stores use, with the same arguments. LMDB's
    other methods are missing on purpose, because they would change rows without a record.
    """

    def __init__(self, txn: Any) -> None:
        self._txn = txn
        self._changes: dict[bytes, bytes | None] = {}

    def changes(self) -> list[Change]:
        """Return the last change of each row that was changed.

        A row that was added and removed again is included as removed.
        """
        return list(self._changes.items())

    def get(self, key: bytes, default: bytes | None = None) -> bytes | None:
        value: bytes | None = self._txn.get(key, default)
        return value

    def stat(self) -> dict[str, int]:
        counts: dict[str, int] = self._txn.stat()
        return counts

    def put(self, key: bytes, value: bytes, **flags: bool) -> bool:
        done: bool = self._txn.put(key, value, **flags)
        if done:
            self._changes[bytes(key)] = bytes(value)
        return done

    def replace(self, key: bytes, value: bytes) -> bytes | None:
        old: bytes | None = self._txn.replace(key, value)
        self._changes[bytes(key)] = bytes(value)
        return old

    def pop(self, key: bytes) -> bytes | None:
        old: bytes | None = self._txn.pop(key)
        if old is not None:
            self._changes[bytes(key)] = None
        return old

    def delete(self, key: bytes) -> bool:
        done: bool = self._txn.delete(key)
        if done:
            self._changes[bytes(key)] = None
        return done

    def cursor(self) -> RecordingCursor:
        return RecordingCursor(self._txn.cursor(), self._changes)


class RecordingCursor:
    """A cursor of a `RecordingTransaction`, which records too."""

    def __init__(self, cursor: Any, changes: dict[bytes, bytes | None]) -> None:
        self._cursor = cursor
        self._changes = changes
        # These only read. They are the methods of LMDB's cursor, so reading takes no extra time.
        self.first: Callable[[], bool] = cursor.first
        self.last: Callable[[], bool] = cursor.last
        self.next: Callable[[], bool] = cursor.next
        self.prev: Callable[[], bool] = cursor.prev
        self.set_key: Callable[[bytes], bool] = cursor.set_key
        self.set_range: Callable[[bytes], bool] = cursor.set_range
        self.key: Callable[[], bytes] = cursor.key
        self.value: Callable[[], bytes] = cursor.value
        self.item: Callable[[], Row] = cursor.item
        self.iternext: Callable[..., Iterator[Any]] = cursor.iternext
        self.iterprev: Callable[..., Iterator[Any]] = cursor.iterprev

    def __iter__(self) -> Iterator[Row]:
        return iter(self._cursor)

    def put(self, key: bytes, value: bytes, **flags: bool) -> bool:
        done: bool = self._cursor.put(key, value, **flags)
        if done:
            self._changes[bytes(key)] = bytes(value)
        return done

    def delete(self) -> bool:
        """Remove the row and move to the next one. Return False if there was no row."""
        key = bytes(self._cursor.key())
        done: bool = self._cursor.delete()
        if done:
            self._changes[key] = None
        return done


def row_batches(txn: Any, max_bytes: int = BATCH_BYTES) -> Iterator[list[Row]]:
    """Yield all rows in order, in lists. A list ends with the row that reaches `max_bytes`."""
    batch: list[Row] = []
    size = 0
    for key, value in txn.cursor():
        batch.append((key, value))
        size += len(key) + len(value)
        if size >= max_bytes:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


# Frames


def encode_frames(
    kind: int, changes: Iterable[Change] = (), max_bytes: int = FRAME_BYTES
) -> list[bytes]:
    """Return frames with these changes, of at most `max_bytes` bytes each if no row is larger.

    Without changes, STATE and DELAYED need no frame, and the other kinds have one. If BEGIN needs
    several frames, only the first has this kind.
    """
    assert kind in _KINDS
    frames: list[bytes] = []
    parts: list[bytes] = []
    size = _HEAD.size + _KIND_BYTES
    for key, value in changes:
        assert kind not in _WITHOUT_ROWS
        assert key
        row_bytes = _ROW.size + len(key) + (len(value) if value is not None else 0)
        if parts and size + row_bytes > max_bytes:
            frames.append(_frame(kind, parts))
            kind = _FOLLOWING.get(kind, kind)
            parts, size = [], _HEAD.size + _KIND_BYTES
        if value is None:
            parts += (_ROW.pack(len(key), _REMOVED), key)
        else:
            parts += (_ROW.pack(len(key), len(value)), key, value)
        size += row_bytes
    if parts or (not frames and kind not in {STATE, DELAYED}):
        frames.append(_frame(kind, parts))
    return frames


def _frame(kind: int, parts: Iterable[bytes]) -> bytes:
    body = b"".join((bytes([kind]), *parts))
    if _HEAD.size + len(body) > FRAME_BYTES_MAX:
        raise ValueError(
            f"a row makes a frame of {_HEAD.size + len(body)} bytes, and the largest frame has "
            f"{FRAME_BYTES_MAX} bytes"
        )
    return _HEAD.pack(len(body), crc32c(body)) + body


def decode_frames(data: bytes | memoryview, *, complete: bool = False) -> Iterator[Frame]:
    """Yield the frames of a stream in memory. See `read_frames`."""
    view = memoryview(data)
    position = 0

    def read(size: int) -> memoryview:
        nonlocal position
        piece = view[position : position + size]
        position += len(piece)
        return piece

    return read_frames(read, complete=complete)


def read_frames(
    read: Callable[[int], bytes | memoryview], *, complete: bool = False
) -> Iterator[Frame]:
    """Yield the frames of a stream, one at a time. Only one frame is in memory.

    `read` returns the next bytes, at most as many as its argument says, and none at the end. With
    `complete`, the stream must end with END.

    Raises `Damaged` at the first frame that is not good. The frames before it were good, but the
    caller must not use a part of a commit.
    """
    position = 0
    ended = False
    while head := _read_all(read, _HEAD.size):
        where = f"the frame of changed rows at byte {position}"
        if ended:
            raise Damaged(f"{where} follows the end of its stream")
        if len(head) < _HEAD.size:
            raise Damaged(f"{where} is cut off")
        length, crc = _HEAD.unpack(head)
        if not _KIND_BYTES <= length <= FRAME_BYTES_MAX - _HEAD.size:
            raise Damaged(f"{where} has the invalid length {length}")
        body = _read_all(read, length)
        if len(body) < length:
            raise Damaged(f"{where} is cut off: it has {len(body)} of {length} bytes")
        if crc32c(body) != crc:
            raise Damaged(f"{where} has a wrong checksum")
        if body[0] not in _KINDS:
            raise Damaged(f"{where} has the unknown kind {body[0]}; use a newer zsq")
        frame = Frame(body[0], list(_rows(body, where)))
        if frame.changes and frame.kind in _WITHOUT_ROWS:
            raise Damaged(f"{where} has the kind {frame.kind}, but also rows")
        position += _HEAD.size + length
        ended = frame.kind == END
        if not ended:
            yield frame
    if complete and not ended:
        raise Damaged(f"the stream of changed rows is cut off at byte {position}")


def _read_all(read: Callable[[int], bytes | memoryview], size: int) -> bytes:
    """Return the next `size` bytes, or fewer at the end of the stream."""
    data = bytes(read(size))
    if len(data) == size or not data:
        return data
    pieces = [data]
    size -= len(data)
    while size and (piece := read(size)):
        pieces.append(bytes(piece))
        size -= len(piece)
    return b"".join(pieces)


def _rows(body: bytes, where: str) -> Iterator[Change]:
    position = _KIND_BYTES
    while position < len(body):
        start = position + _ROW.size
        if start > len(body):
            raise Damaged(f"{where} has an incomplete row")
        key_bytes, value_bytes = _ROW.unpack_from(body, position)
        middle = start + key_bytes
        position = middle + max(0, value_bytes)
        if not key_bytes or value_bytes < _REMOVED or position > len(body):
            raise Damaged(f"{where} has a row with an invalid size")
        yield body[start:middle], None if value_bytes == _REMOVED else body[middle:position]
