"""Format of the delayed messages' environment: keys, checked values, and changes to a row.

    key                          value (each begins with a checksum and the key)
    "d" due time, serial         a block as on the wire: header (64 bytes) and columns; its messages
    are due together "m"                          version, uuid, next serial, counts of rows,
    messages and bytes, sum of all rows' checksums, lost messages "p" producer id              a
    producer's next sequence and the keys of its last delayed blocks

Due time (ns since 1970) and serial are big-endian, 8 bytes each, so the rows are in the order of
their due times. The serial counts messages. A row has the serial of its first message, and message
i of the row has the key (due time, serial + i). Users see this key as 32 hex digits. A serial is
never used again, so deleting a row twice is harmless.

Each block has one row, instead of one row for each message: ten thousand messages that were
published together are stored, kept and removed together. If one of them is cancelled, the messages
before and after it replace the row. Nothing here does I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from ...transport.block.block import DELAYED, HEADER_BYTES, Block, check_columns, cut, decode_header
from ...transport.errors import ZsqError
from ..errors import Damaged

VERSION: Final = 1
META: Final = b"m"
ROW: Final = b"d"
PRODUCER: Final = b"p"

_KEY: Final = struct.Struct(">cQQ")
_U64: Final = struct.Struct(">Q")
_HEAD: Final = struct.Struct("<IH")  # checksum, length of the key
KEY_TEXT_DIGITS: Final = 32


class DelayedKey(NamedTuple):
    """The key of a message. The key of a row is that of its first message."""

    due_ns: int
    serial: int

    def text(self) -> str:
        return f"{self.due_ns:016x}{self.serial:016x}"


class DelayedRow(NamedTuple):
    """A block that waits. Its header still has its producer and that producer's sequence."""

    key: DelayedKey
    block: Block

    def holds(self, key: DelayedKey) -> bool:
        return (
            key.due_ns == self.key.due_ns and 0 <= key.serial - self.key.serial < self.block.count
        )


class DelayedProducer(NamedTuple):
    """A producer's state.

    `recent` has (sequence, due time, serial of the first message) of its last delayed blocks,
    ascending.
    """

    next_sequence: int
    used_ns: int
    recent: tuple[tuple[int, int, int], ...]


def parse_key(text: str) -> DelayedKey | None:
    """Return the key that users see, parsed. Returns None if the text is not a key."""
    if len(text) != KEY_TEXT_DIGITS or not all(digit in "0123456789abcdefABCDEF" for digit in text):
        return None
    return DelayedKey(int(text[:16], 16), int(text[16:], 16))


def row_key(key: DelayedKey) -> bytes:
    return _KEY.pack(ROW, key.due_ns, key.serial)


def parse_row_key(key: bytes) -> DelayedKey:
    """Return the key of a row. Raises `Damaged` if it is not one."""
    if len(key) != _KEY.size or key[:1] != ROW:
        raise Damaged(f"a delayed row has the invalid key {key[:40]!r}")
    _, due_ns, serial = _KEY.unpack(key)
    return DelayedKey(due_ns, serial)


def producer_key(producer_id: int) -> bytes:
    return PRODUCER + _U64.pack(producer_id)


def parse_producer_key(key: bytes) -> int:
    if len(key) != 1 + _U64.size:
        raise Damaged(f"a delayed producer has the invalid key {key[:40]!r}")
    found: int = _U64.unpack_from(key, 1)[0]
    return found


def wrap(key: bytes, *data: Any) -> bytes:
    """Return a value: checksum, key, data."""
    rest = b"".join((len(key).to_bytes(2, "little"), key, *data))
    return crc32c(rest).to_bytes(4, "little") + rest


def unwrap(key: bytes, value: bytes) -> memoryview:
    """Return the data of the value of this key.

    Raises `Damaged` if it is not as written, or belongs to another key.
    """
    start = _HEAD.size + len(key)
    if len(value) >= start:
        crc, size = _HEAD.unpack_from(value)
        if (
            size == len(key)
            and value[_HEAD.size : start] == key
            and crc == crc32c(memoryview(value)[4:])
        ):
            return memoryview(value)[start:]
    raise Damaged(f"the delayed row {key[:40]!r} is damaged")


def names_itself(key: bytes, value: bytes) -> bool:
    """Return True if this is the key of a row, and its value was written under it.

    This is cheap, and proves nothing about the data that follow.
    """
    return (
        len(key) == _KEY.size
        and key[:1] == ROW
        and value[4 : _HEAD.size + len(key)] == len(key).to_bytes(2, "little") + key
    )


def encode_row(row: DelayedRow) -> tuple[bytes, bytes]:
    """Return (key, value)."""
    key = row_key(row.key)
    return key, wrap(key, row.block.wire_header(), row.block.columns)


def decode_row(key: bytes, value: bytes) -> DelayedRow:
    """Return the row. Raises `Damaged` unless every byte is as written."""
    found = parse_row_key(key)
    data = unwrap(key, value)
    try:
        header = decode_header(data[:HEADER_BYTES])
    except ZsqError as error:
        raise Damaged(f"the delayed row {found.text()} is not a block: {error}") from None
    columns = data[HEADER_BYTES:]
    if header.length != len(data):
        raise Damaged(
            f"the delayed row {found.text()} is not a block: it has {len(data)} bytes, but its "
            f"header says {header.length}"
        )
    try:
        # The row's checksum proves what was written, this one what was published.
        check_columns(header, columns)
    except ZsqError as error:
        raise Damaged(
            f"the block in the delayed row {found.text()} is not the one that was published: "
            f"{error}"
        ) from None
    return DelayedRow(found, Block(header, columns, columns))


def count_of(key: bytes, value: bytes) -> int:
    """Return how many messages a damaged row had, or 1 if it is unknown.

    The header of its block has its own checksum, so it may be whole.
    """
    start = _HEAD.size + len(key)
    try:
        return decode_header(value[start : start + HEADER_BYTES]).count
    except ZsqError:
        return 1


def has_its_size(key: bytes, value: bytes) -> bool:
    """Return True if nothing in a damaged row contradicts the sizes of its key and value.

    LMDB stores these sizes apart from key and value.
    """
    start = _HEAD.size + len(key)
    if len(value) < start + HEADER_BYTES or (
        value[4:6] != len(key).to_bytes(2, "little") and value[_HEAD.size : start] != key
    ):
        return False
    try:
        return start + decode_header(value[start : start + HEADER_BYTES]).length == len(value)
    except ZsqError:
        return True  # the header itself is damaged


def due_block(row: DelayedRow) -> Block:
    """Return the block as the log stores it.

    Its header has the flag DELAYED, and the due time and serial instead of producer and sequence.
    """
    header = row.block.header._replace(
        flags=row.block.header.flags | DELAYED, producer_id=row.key.due_ns, sequence=row.key.serial
    )
    return Block(header, row.block.payload, row.block.columns)


def without(row: DelayedRow, serials: Collection[int]) -> Iterator[DelayedRow]:
    """Yield the rest of a row without these messages.

    Each run of messages that stays becomes one row.
    """
    first = row.key.serial
    start = 0
    for serial in sorted({*serials, first + row.block.count}):
        stop = serial - first
        assert start <= stop <= row.block.count
        if start < stop:
            yield DelayedRow(DelayedKey(row.key.due_ns, first + start), cut(row.block, start, stop))
        start = stop + 1
