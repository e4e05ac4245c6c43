"""Format of a log's files: chunk header, footer, disk form of a block, index, and all names. Pure.

    chunk = header (64 bytes, twice)  blocks...  footer (64 bytes, when the chunk is sealed)
    index = head (32 bytes)  entries of 24 bytes

FORMAT.md shows each with an example, which a test compares with this file. All integers are
little-endian. All parts are multiples of 8 bytes, so a reader can search for the next block in
steps of 8.

The chunk's header is stored twice, because its seed is in the checksum of every block of the chunk.
With only one copy, one flipped bit in it would make the whole chunk (256 MiB) unusable.

On disk, a block's first spare field is the number of bytes directly before it that were not known
to be synced when it was written. So a block proves that the bytes before those were synced. When
recovery finds a bad stretch before a good block, there are two cases. If the stretch was synced, it
is damage in acknowledged messages, and recovery continues after it. Otherwise a power cut stopped a
write, and recovery cuts the stretch off. Without that field, a producer's block could be lost and
its next block kept. If the producer then sent the lost block again, the topic would answer that
this block is stored.

The second spare field is the block's position in the file. Without it, a block would pass its
checksums at any position in its chunk. So a write to a wrong position, or an old page that the disk
returns, would not be noticed. The block would be read twice, or the log's end would be set back to
the end of that block.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from ...transport.block.block import (
    DELAYED,
    DISK_MAGIC,
    HEADER_BYTES,
    IN_GROUP,
    MARK,
    Buffer,
    Header,
    decode_header,
    encode_header,
)
from ...transport.checksum import crc32c
from ...transport.errors import ZsqError
from ..errors import Damaged, newer

VERSION: Final = 1

CHUNK_MAGIC: Final = b"ZSQC"
FOOTER_MAGIC: Final = b"ZSQF"
INDEX_MAGIC: Final = b"ZSQI"

# magic, version, flags, base offset, base time, seed, uuid, spare, crc
_CHUNK_HEAD: Final = struct.Struct("<4sHHqqI16s16s")
# magic, version, flags, next offset and last time (both relative), data end, spare, crc
_FOOTER: Final = struct.Struct("<4sHHqqq28s")
# seed, base time and uuid of the chunk, repeated in the footer's spare bytes
_AGAIN: Final = struct.Struct("<Iq16s")
# magic, version, entry size, seed of the chunk, count of entries, crc of the entries, spare, crc
_INDEX_HEAD: Final = struct.Struct("<4sHHIII8s")
_CRC: Final = struct.Struct("<I")

CHUNK_COPY_BYTES: Final = _CHUNK_HEAD.size + _CRC.size
CHUNK_HEADER_BYTES: Final = 2 * CHUNK_COPY_BYTES
FOOTER_BYTES: Final = _FOOTER.size + _CRC.size
INDEX_HEAD_BYTES: Final = _INDEX_HEAD.size + _CRC.size
# Three int64: offset and time relative to the chunk, position in the file.
INDEX_ENTRY_BYTES: Final = 24
INDEX_FIELDS: Final = 3
ALIGNMENT: Final = 8
# The largest number of unsynced bytes, in units of 8 bytes. It stands for every larger number too.
UNSYNCED_MAX: Final = 2**32 - 1
PLACE_MAX: Final = 2**32 - 1  # the largest position, in units of 8 bytes
CHUNK_FILE_BYTES_MAX: Final = 8 * PLACE_MAX

assert CHUNK_COPY_BYTES == 64
assert FOOTER_BYTES == 64
assert INDEX_HEAD_BYTES == 32
assert CHUNK_HEADER_BYTES % ALIGNMENT == 0
assert HEADER_BYTES % ALIGNMENT == 0

CHUNK_SUFFIX: Final = ".chunk"
INDEX_SUFFIX: Final = ".index"
BAD_SUFFIX: Final = ".bad"
IDENTITY_NAME: Final = "topic"
LOCK_NAME: Final = "lock"
STATE_NAME: Final = "state"
STAGING_NAME: Final = "staging"
DELAYED_NAME: Final = "delayed"
BACKUP_NAME: Final = "backup"
PART_SUFFIX: Final = ".part"
_DIGITS: Final = 20

# Flag of a chunk header: the chunk was a staged file that was renamed. Nothing is appended to it.
ADOPTED: Final = 1
_ON_DISK_ONLY: Final = IN_GROUP | MARK | DELAYED  # the flags that only the disk form of a block has


class ChunkHeader(NamedTuple):
    """The header of a chunk.

    Offsets and times of its blocks are relative to it. `uuid` is the topic's 16 bytes.
    """

    base_offset: int
    base_time_ns: int
    seed: int
    uuid: bytes
    flags: int = 0


class ChunkFooter(NamedTuple):
    """The footer of a sealed chunk.

    `next_offset` and `last_time_ns` are relative to the chunk. `data_end` is the footer's position.
    """

    next_offset: int
    last_time_ns: int
    data_end: int
    flags: int = 0


def chunk_name(base_offset: int) -> str:
    return f"{base_offset:0{_DIGITS}d}{CHUNK_SUFFIX}"


def index_name(base_offset: int) -> str:
    return f"{base_offset:0{_DIGITS}d}{INDEX_SUFFIX}"


def bad_name(base_offset: int, position: int) -> str:
    """Return the name of the file for the bytes of a stretch that was damaged or cut off."""
    return f"{base_offset:0{_DIGITS}d}-{position}{BAD_SUFFIX}"


def parse_bad_name(name: str) -> tuple[int, int] | None:
    """Return (base offset, position), or None if this is not the name of a `.bad` file."""
    digits, _, position = name.removesuffix(BAD_SUFFIX).partition("-")
    if (
        not name.endswith(BAD_SUFFIX)
        or len(digits) != _DIGITS
        or len(position) > _DIGITS
        or not (digits.isascii() and digits.isdigit() and position.isascii() and position.isdigit())
    ):
        return None
    return int(digits), int(position)


def part_name(stage: bytes, number: int) -> str:
    """Return the name of a stage's file in the staging folder."""
    return f"{stage.hex()}-{number}{PART_SUFFIX}"


def parse_chunk_name(name: str) -> int | None:
    """Return the base offset, or None if this is not the name of a chunk."""
    digits = name.removesuffix(CHUNK_SUFFIX)
    if digits == name or len(digits) != _DIGITS or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits)


def encode_chunk_header(header: ChunkHeader) -> bytes:
    """Encode a chunk header as 128 bytes: two copies of 64 bytes."""
    assert len(header.uuid) == 16
    head = _CHUNK_HEAD.pack(
        CHUNK_MAGIC,
        VERSION,
        header.flags,
        header.base_offset,
        header.base_time_ns,
        header.seed,
        header.uuid,
        bytes(16),
    )
    copy = head + _CRC.pack(crc32c(head))
    return copy + copy


def decode_chunk_header(buffer: Buffer) -> ChunkHeader:
    """Decode a chunk header from either copy.

    Raises `Damaged` if both copies are damaged, `NewerVersion` if the version is unknown.
    """
    view = memoryview(buffer)
    for start in (0, CHUNK_COPY_BYTES):
        copy = view[start : start + CHUNK_COPY_BYTES]
        if (
            len(copy) < CHUNK_COPY_BYTES
            or crc32c(copy[: _CHUNK_HEAD.size]) != _CRC.unpack_from(copy, _CHUNK_HEAD.size)[0]
        ):
            continue
        magic, version, flags, base_offset, base_time_ns, seed, uuid, _ = _CHUNK_HEAD.unpack_from(
            copy
        )
        if magic != CHUNK_MAGIC:
            continue
        if version != VERSION:
            raise newer("the chunk", version, VERSION)
        return ChunkHeader(base_offset, base_time_ns, seed, uuid, flags)
    raise Damaged("both copies of a chunk's header are damaged")


def encode_footer(footer: ChunkFooter, seed: int, header: ChunkHeader | None = None) -> bytes:
    """Encode a footer. With `header`, it repeats the content of the chunk's header.

    The repetition is useful because both copies of the header are in one sector, and may become
    unreadable together.
    """
    again = (
        bytes(_AGAIN.size)
        if header is None
        else _AGAIN.pack(header.seed, header.base_time_ns, header.uuid)
    )
    flags = footer.flags if header is None else header.flags
    head = _FOOTER.pack(
        FOOTER_MAGIC,
        VERSION,
        flags,
        footer.next_offset,
        footer.last_time_ns,
        footer.data_end,
        again,
    )
    return head + _CRC.pack(crc32c(head, seed))


def decode_footer(buffer: Buffer, seed: int, position: int) -> ChunkFooter | None:
    """Decode the footer at `position`. Returns None if these bytes are not a footer."""
    if (
        len(buffer) != FOOTER_BYTES
        or crc32c(memoryview(buffer)[: _FOOTER.size], seed)
        != _CRC.unpack_from(buffer, _FOOTER.size)[0]
    ):
        return None
    magic, version, flags, next_offset, last_time_ns, data_end, _ = _FOOTER.unpack_from(buffer)
    if magic != FOOTER_MAGIC or version != VERSION or data_end != position:
        return None
    return ChunkFooter(next_offset, last_time_ns, data_end, flags)


def header_of_footer(buffer: Buffer, base_offset: int, position: int) -> ChunkHeader | None:
    """Return the chunk's header from the copy in its footer at `position`.

    Returns None if there is no footer, or if it has no copy.
    """
    if len(buffer) != FOOTER_BYTES:
        return None
    *_, flags, _, _, _, again = _FOOTER.unpack_from(buffer)
    seed, base_time_ns, uuid = _AGAIN.unpack(again)
    if not seed or decode_footer(buffer, seed, position) is None:
        return None
    return ChunkHeader(base_offset, base_time_ns, seed, uuid, flags)


def encode_disk_header(
    header: Header, offset: int, time_ns: int, unsynced_bytes: int, seed: int, position: int = 0
) -> bytes:
    """Encode a block's header in disk form, to be written at `position` in the file.

    `offset` and `time_ns` are relative to the chunk.
    """
    unsynced = unsynced_bytes // ALIGNMENT
    placed = header._replace(
        first_offset=offset,
        time_ns=time_ns,
        reserved_1=unsynced if unsynced < UNSYNCED_MAX else UNSYNCED_MAX,
        reserved_2=_place(position),
    )
    return encode_header(placed, magic=DISK_MAGIC, seed=seed)


def decode_disk_header(buffer: Buffer, seed: int, position: int = 0) -> Header | None:
    """Decode a header in disk form.

    Returns None if it is not a header of this chunk, or if it belongs to another position. With
    `position` 0, any position is accepted.
    """
    try:
        header = decode_header(buffer, magic=DISK_MAGIC, seed=seed)
    except ZsqError:
        return None
    return (
        header
        if header.reserved_2 == 0 or position == 0 or header.reserved_2 == _place(position)
        else None
    )


def _place(position: int) -> int:
    """Return a position in units of 8 bytes, as headers store it, or 0 if it is too large."""
    place = position // ALIGNMENT
    return place if place <= PLACE_MAX else 0


def wire_header(header: Header, chunk: ChunkHeader) -> Header:
    """Return the wire form of a header in disk form.

    In the result, offset and time are absolute, the spare fields are zero, and the flags of groups
    and delays are cleared.
    """
    has_producer = not header.flags & DELAYED  # otherwise these fields contain due time and serial
    return Header(
        header.columns, header.flags & ~_ON_DISK_ONLY, header.length, header.count, header.first_offset + chunk.base_offset,
        header.time_ns + chunk.base_time_ns, header.producer_id if has_producer else 0,
        header.sequence if has_producer else 0, header.columns_crc,
    )  # fmt: skip


def replay_header(header: Header, chunk: ChunkHeader) -> Header:
    """Return the wire form for recovery.

    It is like `wire_header`, but a block that was published with a delay keeps its flag, due time
    and serial.
    """
    replayed = wire_header(header, chunk)
    if header.flags & DELAYED:
        replayed = replayed._replace(
            flags=replayed.flags | DELAYED, producer_id=header.producer_id, sequence=header.sequence
        )
    return replayed


def unsynced_bytes(header: Header) -> int | None:
    """Return how many bytes before this block were not known to be synced when it was written.

    Returns None if the distance was too large to store.
    """
    return None if header.reserved_1 >= UNSYNCED_MAX else header.reserved_1 * ALIGNMENT


def encode_index(entries: bytes, seed: int) -> bytes:
    """Encode a whole index file from its entries."""
    assert len(entries) % INDEX_ENTRY_BYTES == 0
    head = _INDEX_HEAD.pack(
        INDEX_MAGIC,
        VERSION,
        INDEX_ENTRY_BYTES,
        seed,
        len(entries) // INDEX_ENTRY_BYTES,
        crc32c(entries),
        bytes(8),
    )
    return head + _CRC.pack(crc32c(head)) + entries


def decode_index(buffer: Buffer, seed: int) -> bytes | None:
    """Return the entries of the index of the chunk with this seed.

    Returns None if the file is damaged, incomplete, or of another chunk.
    """
    view = memoryview(buffer)
    if (
        len(view) < INDEX_HEAD_BYTES
        or crc32c(view[: _INDEX_HEAD.size]) != _CRC.unpack_from(view, _INDEX_HEAD.size)[0]
    ):
        return None
    magic, version, size, found_seed, count, crc, _ = _INDEX_HEAD.unpack_from(view)
    entries = view[INDEX_HEAD_BYTES:]
    if (
        magic != INDEX_MAGIC
        or version != VERSION
        or size != INDEX_ENTRY_BYTES
        or found_seed != seed
    ):
        return None
    if len(entries) != count * INDEX_ENTRY_BYTES or crc32c(entries) != crc:
        return None
    return bytes(entries)
