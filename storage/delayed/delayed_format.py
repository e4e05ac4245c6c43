"""Format of the delayed messages' environment: keys, data, and changes to a row.

    key                    data (`rows.py` wraps them)
    "d" due time, serial   a block in wire form: header (64 bytes) and columns; its messages are due
                           at the same time
    "m"                    version, uuid, next serial, numbers of rows, messages and bytes,
                           sum of all rows' checksums, number of lost messages
    "p" producer id        a producer's next sequence and the keys of its last delayed blocks
    "u" time, serial       the digests of a block's ids (`storage/dedupe`), until they are too old

Due time (ns since 1970) and serial are big-endian, 8 bytes each, so the rows are in the order of
their due times. Each message has its own serial. A row has the serial of its first message, and
message i of the row has the key (due time, serial + i). Users see this key as 32 hex digits. A
serial is never used again, so it is harmless to delete a row twice.

There is one row for each block, and not for each message. So ten thousand messages that were
published together are stored, kept and removed together. If one of them is cancelled, two new rows
replace the row, with the messages before and after it. Nothing here does I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from ...transport.block.block import DELAYED, HEADER_BYTES, Block, check_columns, cut, decode_header
from ...transport.errors import ZsqError
from ..errors import Damaged
from ..rows import HEAD, unwrap, wrap

VERSION: Final = 1
ROW: Final = b"d"
PRODUCER: Final = b"p"
IDS: Final = b"u"

_KEY: Final = struct.Struct(">cQQ")
_U64: Final = struct.Struct(">Q")
KEY_TEXT_DIGITS: Final = 32
_FLAGS_AT: Final = 6  # the position of the flags in the header of a block


class DelayedKey(NamedTuple):
    """The key of a message. The key of a row is the key of its first message."""

    due_ns: int
    serial: int

    def text(self) -> str:
        return f"{self.due_ns:016x}{self.serial:016x}"


class DelayedRow(NamedTuple):
    """A block that waits. Its header still has the producer id and the sequence."""

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
    """Parse a key in the form that users see. Returns None if the text is not a key."""
    if len(text) != KEY_TEXT_DIGITS or not all(digit in "0123456789abcdefABCDEF" for digit in text):
        return None
    return DelayedKey(int(text[:16], 16), int(text[16:], 16))


def row_key(key: DelayedKey) -> bytes:
    return _KEY.pack(ROW, key.due_ns, key.serial)


def parse_row_key(key: bytes) -> DelayedKey:
    """Parse the key of a row. Raises `Damaged` if it is not the key of a row."""
    if len(key) != _KEY.size or key[:1] != ROW:
        raise Damaged(f"a delayed row has the invalid key {key[:40]!r}")
    _, due_ns, serial = _KEY.unpack(key)
    return DelayedKey(due_ns, serial)


def ids_key(time_ns: int, serial: int) -> bytes:
    return _KEY.pack(IDS, time_ns, serial)


def parse_ids_key(key: bytes) -> int:
    """Return the time in the key of ids. Raises `Damaged`."""
    if len(key) != _KEY.size:
        raise Damaged(f"ids of delayed messages have the invalid key {key[:40]!r}")
    time_ns: int = _KEY.unpack(key)[1]
    return time_ns


def producer_key(producer_id: int) -> bytes:
    return PRODUCER + _U64.pack(producer_id)


def parse_producer_key(key: bytes) -> int:
    if len(key) != 1 + _U64.size:
        raise Damaged(f"a delayed producer has the invalid key {key[:40]!r}")
    producer_id: int = _U64.unpack_from(key, 1)[0]
    return producer_id


def names_itself(key: bytes, value: bytes) -> bool:
    """Return True if this is the key of a row, and the value contains the same key.

    This is fast, but does not check the data after the key.
    """
    return (
        len(key) == _KEY.size
        and key[:1] == ROW
        and value[4 : HEAD.size + len(key)] == len(key).to_bytes(2, "little") + key
    )


def encode_row(row: DelayedRow) -> tuple[bytes, bytes]:
    """Return (key, value)."""
    key = row_key(row.key)
    return key, wrap(key, row.block.wire_header(), row.block.columns)


def decode_row(key: bytes, value: bytes) -> DelayedRow:
    """Return the row. Raises `Damaged` if any byte of it is damaged."""
    first_key = parse_row_key(key)
    data = unwrap(key, value)
    try:
        header = decode_header(data[:HEADER_BYTES])
    except ZsqError as error:
        raise Damaged(f"the delayed row {first_key.text()} is not a block: {error}") from None
    columns = data[HEADER_BYTES:]
    if header.length != len(data):
        raise Damaged(
            f"the delayed row {first_key.text()} is not a block: it has {len(data)} bytes, but its "
            f"header says {header.length}"
        )
    try:
        # `unwrap` has checked the row as it was written; this checks the block as published.
        check_columns(header, columns)
    except ZsqError as error:
        raise Damaged(
            f"the block in the delayed row {first_key.text()} is not the one that was published: "
            f"{error}"
        ) from None
    return DelayedRow(first_key, Block(header, columns, columns))


def flags_of(key: bytes, value: bytes) -> int:
    """Return the flags of a row's block, without a check of the row."""
    at = HEAD.size + len(key) + _FLAGS_AT
    return int.from_bytes(value[at : at + 2], "little")


def count_of(key: bytes, value: bytes) -> int:
    """Return how many messages a damaged row had, or 1 if it is unknown.

    The header of its block has its own checksum, so it may be readable.
    """
    start = HEAD.size + len(key)
    try:
        return decode_header(value[start : start + HEADER_BYTES]).count
    except ZsqError:
        return 1


def has_its_size(key: bytes, value: bytes) -> bool:
    """Return False if the content of a damaged row contradicts the sizes of its key and value.

    LMDB stores these sizes separately from key and value.
    """
    start = HEAD.size + len(key)
    if len(value) < start + HEADER_BYTES or (
        value[4:6] != len(key).to_bytes(2, "little") and value[HEAD.size : start] != key
    ):
        return False
    try:
        return start + decode_header(value[start : start + HEADER_BYTES]).length == len(value)
    except ZsqError:
        return True  # the header is damaged, so the size is not known


def due_block(row: DelayedRow) -> Block:
    """Return the block as the log stores it.

    Its header has the flag DELAYED, and due time and serial instead of producer id and sequence.
    """
    header = row.block.header._replace(
        flags=row.block.header.flags | DELAYED, producer_id=row.key.due_ns, sequence=row.key.serial
    )
    return Block(header, row.block.payload, row.block.columns)


def without(row: DelayedRow, serials: Collection[int]) -> Iterator[DelayedRow]:
    """Yield rows with those messages of a row whose serials are not in `serials`.

    Each run of these messages becomes one row.
    """
    first = row.key.serial
    start = 0
    for serial in sorted({*serials, first + row.block.count}):
        stop = serial - first
        assert start <= stop <= row.block.count
        if start < stop:
            yield DelayedRow(DelayedKey(row.key.due_ns, first + start), cut(row.block, start, stop))
        start = stop + 1
