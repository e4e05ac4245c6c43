"""Every byte of the delayed messages' environment: keys, checked values, and what becomes of a row. Pure.

    key                          value (all behind a checksum and the key itself)
    "d" due time, serial         a block as on the wire: header (64 bytes) and columns; its messages are due together
    "m"                          version, uuid, next serial, counts of rows, messages and bytes, sum of all rows' checksums, lost messages
    "p" producer id              a producer's next sequence and the keys of its last delayed blocks

Due time (ns since 1970) and serial stand big-endian, 8 bytes each, so that rows lie in the order in which they become due. The serial
counts messages: a row's is its first message's, and message i of it has the key (due time, serial + i), which people see as 32 hex digits.
A serial is never used again, so a row that was deleted twice was deleted once.

A row a block, not a row a message: ten thousand messages that were published together come, lie and go together. Where one of
them is cancelled, the row is replaced by what is left of it on either side.
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
    """Of a message; of a row: of its first message."""

    due_ns: int
    serial: int

    def text(self) -> str:
        return f"{self.due_ns:016x}{self.serial:016x}"


class DelayedRow(NamedTuple):
    """A block that waits. Its header still says who published it, and with which sequence."""

    key: DelayedKey
    block: Block

    def holds(self, key: DelayedKey) -> bool:
        return key.due_ns == self.key.due_ns and 0 <= key.serial - self.key.serial < self.block.count


class DelayedProducer(NamedTuple):
    """`recent`: (sequence, due time, serial of the first message) of its last delayed blocks, ascending."""

    next_sequence: int
    used_ns: int
    recent: tuple[tuple[int, int, int], ...]


def parse_key(text: str) -> DelayedKey | None:
    """The key that people are shown; None where that is none."""
    if len(text) != KEY_TEXT_DIGITS or not all(digit in "0123456789abcdefABCDEF" for digit in text):
        return None
    return DelayedKey(int(text[:16], 16), int(text[16:], 16))


def row_key(key: DelayedKey) -> bytes:
    return _KEY.pack(ROW, key.due_ns, key.serial)


def parse_row_key(key: bytes) -> DelayedKey:
    """`Damaged` where it is none."""
    if len(key) != _KEY.size or key[:1] != ROW:
        raise Damaged(f"a delayed row has the key {key[:40]!r}")
    _, due_ns, serial = _KEY.unpack(key)
    return DelayedKey(due_ns, serial)


def producer_key(producer_id: int) -> bytes:
    return PRODUCER + _U64.pack(producer_id)


def parse_producer_key(key: bytes) -> int:
    if len(key) != 1 + _U64.size:
        raise Damaged(f"a delayed producer has the key {key[:40]!r}")
    found: int = _U64.unpack_from(key, 1)[0]
    return found


def wrap(key: bytes, *data: Any) -> bytes:
    """A value: checksum, key, data."""
    rest = b"".join((len(key).to_bytes(2, "little"), key, *data))
    return crc32c(rest).to_bytes(4, "little") + rest


def unwrap(key: bytes, value: bytes) -> memoryview:
    """The data of a value that stands under this key; `Damaged` if it is not as it was written, or another key's."""
    start = _HEAD.size + len(key)
    if len(value) >= start:
        crc, size = _HEAD.unpack_from(value)
        if size == len(key) and value[_HEAD.size : start] == key and crc == crc32c(memoryview(value)[4:]):
            return memoryview(value)[start:]
    raise Damaged(f"the delayed row {key[:40]!r} is damaged")


def names_itself(key: bytes, value: bytes) -> bool:
    """Whether a row that waits has a key of ours, and its value was written under it. Cheap, and no proof of what follows."""
    return len(key) == _KEY.size and key[:1] == ROW and value[4 : _HEAD.size + len(key)] == len(key).to_bytes(2, "little") + key


def encode_row(row: DelayedRow) -> tuple[bytes, bytes]:
    """(key, value)."""
    key = row_key(row.key)
    return key, wrap(key, row.block.wire_header(), row.block.columns)


def decode_row(key: bytes, value: bytes) -> DelayedRow:
    """`Damaged` unless every byte is as it was written."""
    found = parse_row_key(key)
    data = unwrap(key, value)
    try:
        header = decode_header(data[:HEADER_BYTES])
    except ZsqError as error:
        raise Damaged(f"the delayed row {found.text()} is no block: {error}") from None
    columns = data[HEADER_BYTES:]
    if header.length != len(data):
        raise Damaged(f"the delayed row {found.text()} is no block: it has {len(data)} bytes and says {header.length}")
    try:
        check_columns(header, columns)  # the row's own checksum says what was written, this one what was published
    except ZsqError as error:
        raise Damaged(f"the delayed row {found.text()} is not as it was published: {error}") from None
    return DelayedRow(found, Block(header, columns, columns))


def count_of(key: bytes, value: bytes) -> int:
    """How many messages a damaged row had, as far as that can be known: its block's header has a checksum of its own. Else 1."""
    start = _HEAD.size + len(key)
    try:
        return decode_header(value[start : start + HEADER_BYTES]).count
    except ZsqError:
        return 1


def has_its_size(key: bytes, value: bytes) -> bool:
    """Whether nothing in a damaged row speaks against the sizes of key and value, which LMDB keeps apart from them."""
    start = _HEAD.size + len(key)
    if len(value) < start + HEADER_BYTES or (value[4:6] != len(key).to_bytes(2, "little") and value[_HEAD.size : start] != key):
        return False
    try:
        return start + decode_header(value[start : start + HEADER_BYTES]).length == len(value)
    except ZsqError:
        return True  # it is the header that is damaged


def due_block(row: DelayedRow) -> Block:
    """As it goes into the log: flag, due time and serial lie in its header there, in place of the producer's."""
    header = row.block.header._replace(flags=row.block.header.flags | DELAYED, producer_id=row.key.due_ns, sequence=row.key.serial)
    return Block(header, row.block.payload, row.block.columns)


def without(row: DelayedRow, serials: Collection[int]) -> Iterator[DelayedRow]:
    """What is left of a row when these messages are taken out: one row for each run of messages that stays."""
    first = row.key.serial
    start = 0
    for serial in sorted({*serials, first + row.block.count}):
        stop = serial - first
        assert start <= stop <= row.block.count
        if start < stop:
            yield DelayedRow(DelayedKey(row.key.due_ns, first + start), cut(row.block, start, stop))
        start = stop + 1
