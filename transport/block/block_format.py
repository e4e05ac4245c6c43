"""Header of a block: constants, limits, and its 64 bytes in wire form and disk form."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from ..checksum import crc32c
from ..errors import E_BAD_BLOCK, E_CHECKSUM, E_TOO_BIG, CorruptBlock, UsageError

HEADER_BYTES: Final = 64
TRAILER_BYTES: Final = 8
BLOCK_BYTES_MAX: Final = 8 * 1024 * 1024
BLOCK_COUNT_MAX: Final = 10_000
MESSAGE_BYTES_MAX: Final = 1024 * 1024  # the default of the broker's option --max-msg-size
# The largest allowed value of --max-msg-size. Such a message with key, tag and headers fits into a
# block.
MESSAGE_BYTES_LARGEST: Final = 7 * 1024 * 1024
KEY_BYTES_MAX: Final = 256
TAG_BYTES_MAX: Final = 256
HEADERS_BYTES_MAX: Final = 16 * 1024
VERSION: Final = 1

WIRE_MAGIC: Final = b"ZSQB"
DISK_MAGIC: Final = b"ZSQD"
TRAILER_MAGIC: Final = 0x42515A5F

# Bits of the field `columns`: the columns that the block has, and those that have a validity
# bitmap.
HAS_KEY: Final = 1
HAS_TAG: Final = 2
HAS_HEADERS: Final = 4
HAS_TIMES: Final = 8
KEY_NULLS: Final = 16
TAG_NULLS: Final = 32
HEADERS_NULLS: Final = 64
_COLUMN_BITS_KNOWN: Final = 127
COMPRESSION_MASK: Final = 15  # these bits of the flags are reserved; no compression exists yet
# Flag, on disk only: the block is part of an atomic group. It is valid only if the group's mark
# follows.
IN_GROUP: Final = 16
# Flag, on disk only: the block has no messages. It ends an atomic group and contains the group's
# transaction.
MARK: Final = 32
# Flag, on disk only: a delayed block. Its due time and serial are in the fields of producer and
# sequence.
DELAYED: Final = 64
ADDRESSED: Final = 128  # flag: some messages may be for only one channel (see dead_letter.py)
EXPIRES: Final = 256  # flag: some messages may expire (see lifetime.py)
HAS_IDS: Final = 512  # flag: some messages may have an id, and are stored once (see dedupe.py)
REVOCABLE: Final = 1024  # flag: some messages may have a revoke key (see lifetime.py)
UNIQUE: Final = 2048  # flag: some messages may hold a key while they are unfinished (see unique.py)
# The flags that a staged block may have. An address needs a right of its own, and a transaction
# stores its messages once without ids. Only that of a schedule may have a unique key.
STAGED: Final = EXPIRES | REVOCABLE
# The flags that a published block may have.
PUBLISHED: Final = ADDRESSED | EXPIRES | HAS_IDS | REVOCABLE | UNIQUE

# magic, version, columns, flags, length, count, first offset, time, producer, sequence, columns
# crc, reserved x 2
_HEAD: Final = struct.Struct("<4sBBHIIqqQQIII")
_CRC: Final = struct.Struct("<I")
assert _HEAD.size + _CRC.size == HEADER_BYTES

Buffer = bytes | bytearray | memoryview
_FLAGS_AT: Final = 6  # the position of the lower byte of the flags


def is_addressed(header: Buffer) -> bool:
    """Return True if the 64 bytes of a header have the flag ADDRESSED. Nothing else is checked."""
    return len(header) == HEADER_BYTES and bool(header[_FLAGS_AT] & ADDRESSED)


class Header(NamedTuple):
    """The fields of a block's header.

    In the disk form `first_offset` and `time_ns` are relative to the chunk.

    This is a tuple, because each process makes one for every block. It takes 0.3 microseconds, and
    a frozen dataclass would take 1.5.
    """

    columns: int
    flags: int
    length: int
    # This field hides the method `tuple.count`, which is not used here.
    count: int  # type: ignore[assignment]
    first_offset: int
    time_ns: int
    producer_id: int
    sequence: int
    columns_crc: int
    reserved_1: int = 0
    reserved_2: int = 0

    @property
    def next_offset(self) -> int:
        return self.first_offset + self.count


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest sizes of one message's parts, in bytes."""

    max_msg_size: int = MESSAGE_BYTES_MAX
    key_bytes_max: int = KEY_BYTES_MAX
    tag_bytes_max: int = TAG_BYTES_MAX
    headers_bytes_max: int = HEADERS_BYTES_MAX


# The limits for blocks that the broker checks later, or has checked.
LARGEST: Final = Limits(MESSAGE_BYTES_LARGEST)


def encode_header(header: Header, *, magic: bytes = WIRE_MAGIC, seed: int = 0) -> bytes:
    """Return the 64 bytes.

    `seed` is the chunk's random number in the disk form and 0 on the wire.
    """
    head = _HEAD.pack(
        magic, VERSION, header.columns, header.flags, header.length, header.count, header.first_offset,
        header.time_ns, header.producer_id, header.sequence, header.columns_crc, header.reserved_1, header.reserved_2,
    )  # fmt: skip
    return head + _CRC.pack(crc32c(head, seed))


def decode_header(buffer: Buffer, *, magic: bytes = WIRE_MAGIC, seed: int = 0) -> Header:
    """Return the fields of a header.

    Raises `UsageError` (E_BAD_BLOCK) if it is not a block or has an unknown version, `UsageError`
    (E_TOO_BIG) if it exceeds a limit, and `CorruptBlock` (E_CHECKSUM) if its checksum is wrong.
    """
    if len(buffer) != HEADER_BYTES:
        raise UsageError(
            E_BAD_BLOCK, f"a block header must have {HEADER_BYTES} bytes, not {len(buffer)}"
        )
    start, version, columns, *rest = _HEAD.unpack_from(buffer)
    if start != magic:
        raise UsageError(E_BAD_BLOCK, f"not a block: it starts with {start!r}, not {magic!r}")
    if crc32c(memoryview(buffer)[: _HEAD.size], seed) != _CRC.unpack_from(buffer, _HEAD.size)[0]:
        raise CorruptBlock(E_CHECKSUM, "the checksum of a block header does not match")
    if version != VERSION or columns & ~_COLUMN_BITS_KNOWN:
        text = (
            f"block version {version}, columns {columns:#x}: this program reads only version "
            f"{VERSION}; upgrade it"
        )
        raise UsageError(E_BAD_BLOCK, text)
    header = Header(columns, *rest)
    if header.flags & COMPRESSION_MASK:
        raise UsageError(
            E_BAD_BLOCK, "compressed blocks are not supported; send the columns uncompressed"
        )
    if not (0 if header.flags & MARK else 1) <= header.count <= BLOCK_COUNT_MAX:
        raise UsageError(
            E_TOO_BIG if header.count else E_BAD_BLOCK,
            f"a block holds 1 to {BLOCK_COUNT_MAX} messages, not {header.count}",
        )
    if header.length > BLOCK_BYTES_MAX:
        raise UsageError(
            E_TOO_BIG,
            (
                f"a block of {header.length} bytes is over the limit of {BLOCK_BYTES_MAX} bytes; "
                "send smaller batches"
            ),
        )
    if header.length < HEADER_BYTES + TRAILER_BYTES or header.length % 8:
        least = HEADER_BYTES + TRAILER_BYTES
        raise UsageError(
            E_BAD_BLOCK,
            (
                f"the length of a block must be at least {least} bytes and a multiple of 8, not "
                f"{header.length}"
            ),
        )
    return header
