"""Every byte and every name of a log's files: chunk header, footer, disk form of a block, index entry. Pure.

    chunk = header (64 bytes, twice)  blocks...  footer (64 bytes, once it is sealed)
    index = head (32 bytes)  entries of 24 bytes

FORMAT.md shows each with an example, which a test compares with this file. All integers are little-endian; all
pieces are multiples of 8 bytes, so a reader that lost its way looks for the next block in steps of 8.

The chunk's header stands twice because its seed is in the checksum of every block of the chunk: one flipped bit
there would otherwise cost 256 MiB and not one block.

A block's first spare field says, on disk, how many bytes before it were not yet known to be synced when it was
written. So a block vouches for what lies before it: recovery, finding a bad stretch before a good block, can
tell rot in what was acknowledged (step over it) from a write that a power cut left half done (cut it off).
Without that, a lost block of a producer whose next one survived would be taken for stored when it is sent again.

Its second spare field says where it stands in the file. A block is right by all its checksums wherever it lies in its chunk: a write that
went astray, or an old page that came back, would be read twice, or set the log's end back to where that block ended.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from crc32c import crc32c

from ...transport.block.block import DELAYED, DISK_MAGIC, HEADER_BYTES, IN_GROUP, MARK, Buffer, Header, decode_header, encode_header
from ...transport.errors import ZsqError
from ..errors import Damaged, ForeignDirectory

VERSION: Final = 1

CHUNK_MAGIC: Final = b"ZSQC"
FOOTER_MAGIC: Final = b"ZSQF"
INDEX_MAGIC: Final = b"ZSQI"

# magic, version, flags, base offset, base time, seed, uuid, spare, crc
_CHUNK_HEAD: Final = struct.Struct("<4sHHqqI16s16s")
# magic, version, flags, next offset and last time (both relative), data end, spare, crc
_FOOTER: Final = struct.Struct("<4sHHqqq28s")
# seed, base time and uuid of the chunk, once more; in the footer's spare bytes
_AGAIN: Final = struct.Struct("<Iq16s")
# magic, version, entry size, seed of the chunk, count of entries, crc of the entries, spare, crc
_INDEX_HEAD: Final = struct.Struct("<4sHHIII8s")
_CRC: Final = struct.Struct("<I")

CHUNK_COPY_BYTES: Final = _CHUNK_HEAD.size + _CRC.size
CHUNK_HEADER_BYTES: Final = 2 * CHUNK_COPY_BYTES
FOOTER_BYTES: Final = _FOOTER.size + _CRC.size
INDEX_HEAD_BYTES: Final = _INDEX_HEAD.size + _CRC.size
INDEX_ENTRY_BYTES: Final = 24  # three int64: offset and time relative to the chunk, position in the file
INDEX_FIELDS: Final = 3
ALIGNMENT: Final = 8
UNSYNCED_MAX: Final = 2**32 - 1  # in units of 8 bytes; a larger distance is written as this one
PLACE_MAX: Final = 2**32 - 1  # in units of 8 bytes

assert CHUNK_COPY_BYTES == 64
assert FOOTER_BYTES == 64
assert INDEX_HEAD_BYTES == 32
assert CHUNK_HEADER_BYTES % ALIGNMENT == 0
assert HEADER_BYTES % ALIGNMENT == 0

CHUNK_SUFFIX: Final = ".chunk"
INDEX_SUFFIX: Final = ".index"
BAD_SUFFIX: Final = ".bad"
TEMPORARY_SUFFIX: Final = ".tmp"
IDENTITY_NAME: Final = "topic"
LOCK_NAME: Final = "lock"
STATE_NAME: Final = "state"
STAGING_NAME: Final = "staging"
DELAYED_NAME: Final = "delayed"
BACKUP_NAME: Final = "backup"
PART_SUFFIX: Final = ".part"
_DIGITS: Final = 20

ADOPTED: Final = 1  # flag of a chunk header: the chunk was staged, synced and renamed, not appended to here
_ON_DISK_ONLY: Final = IN_GROUP | MARK | DELAYED  # flags of a block


class ChunkHeader(NamedTuple):
    """What every block of the chunk is relative to. `uuid` is 16 bytes, the topic's."""

    base_offset: int
    base_time_ns: int
    seed: int
    uuid: bytes
    flags: int = 0


class ChunkFooter(NamedTuple):
    """Written when a chunk is sealed. `next_offset` and `last_time_ns` are relative to the chunk, `data_end` is the footer's position."""

    next_offset: int
    last_time_ns: int
    data_end: int
    flags: int = 0


def chunk_name(base_offset: int) -> str:
    return f"{base_offset:0{_DIGITS}d}{CHUNK_SUFFIX}"


def index_name(base_offset: int) -> str:
    return f"{base_offset:0{_DIGITS}d}{INDEX_SUFFIX}"


def bad_name(base_offset: int, position: int) -> str:
    """Where the bytes of a damaged stretch are kept, and those that were cut off although something valid lay behind them."""
    return f"{base_offset:0{_DIGITS}d}-{position}{BAD_SUFFIX}"


def parse_bad_name(name: str) -> tuple[int, int] | None:
    """(base offset, position), or None where the name is not that of such a file."""
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
    """A file of a stage, in the staging folder."""
    return f"{stage.hex()}-{number}{PART_SUFFIX}"


def parse_chunk_name(name: str) -> int | None:
    """The base offset, or None where the name is not a chunk's."""
    digits = name.removesuffix(CHUNK_SUFFIX)
    if digits == name or len(digits) != _DIGITS or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits)


def encode_chunk_header(header: ChunkHeader) -> bytes:
    """128 bytes: the same 64 twice."""
    assert len(header.uuid) == 16
    head = _CHUNK_HEAD.pack(
        CHUNK_MAGIC, VERSION, header.flags, header.base_offset, header.base_time_ns, header.seed, header.uuid, bytes(16)
    )
    copy = head + _CRC.pack(crc32c(head))
    return copy + copy


def decode_chunk_header(buffer: Buffer) -> ChunkHeader:
    """From either copy; `Damaged` where both are, `ForeignDirectory` for a version that is not known."""
    view = memoryview(buffer)
    for start in (0, CHUNK_COPY_BYTES):
        copy = view[start : start + CHUNK_COPY_BYTES]
        if len(copy) < CHUNK_COPY_BYTES or crc32c(copy[: _CHUNK_HEAD.size]) != _CRC.unpack_from(copy, _CHUNK_HEAD.size)[0]:
            continue
        magic, version, flags, base_offset, base_time_ns, seed, uuid, _ = _CHUNK_HEAD.unpack_from(copy)
        if magic != CHUNK_MAGIC:
            continue
        if version != VERSION:
            raise ForeignDirectory(f"a chunk of version {version}: only version {VERSION} is known here; use a newer zsq")
        return ChunkHeader(base_offset, base_time_ns, seed, uuid, flags)
    raise Damaged("both copies of a chunk's header are damaged")


def encode_footer(footer: ChunkFooter, seed: int, header: ChunkHeader | None = None) -> bytes:
    """With `header`: what its chunk's header says again, for the day on which both copies of that, in one sector, cannot be read."""
    again = bytes(_AGAIN.size) if header is None else _AGAIN.pack(header.seed, header.base_time_ns, header.uuid)
    flags = footer.flags if header is None else header.flags
    head = _FOOTER.pack(FOOTER_MAGIC, VERSION, flags, footer.next_offset, footer.last_time_ns, footer.data_end, again)
    return head + _CRC.pack(crc32c(head, seed))


def decode_footer(buffer: Buffer, seed: int, position: int) -> ChunkFooter | None:
    """The footer that stands at `position`, or None where these bytes are not one."""
    if len(buffer) != FOOTER_BYTES or crc32c(memoryview(buffer)[: _FOOTER.size], seed) != _CRC.unpack_from(buffer, _FOOTER.size)[0]:
        return None
    magic, version, flags, next_offset, last_time_ns, data_end, _ = _FOOTER.unpack_from(buffer)
    if magic != FOOTER_MAGIC or version != VERSION or data_end != position:
        return None
    return ChunkFooter(next_offset, last_time_ns, data_end, flags)


def header_of_footer(buffer: Buffer, base_offset: int, position: int) -> ChunkHeader | None:
    """The chunk's header, as its footer at `position` says it again; None where that is no footer, or does not say it."""
    if len(buffer) != FOOTER_BYTES:
        return None
    *_, flags, _, _, _, again = _FOOTER.unpack_from(buffer)
    seed, base_time_ns, uuid = _AGAIN.unpack(again)
    if not seed or decode_footer(buffer, seed, position) is None:
        return None
    return ChunkHeader(base_offset, base_time_ns, seed, uuid, flags)


def encode_disk_header(header: Header, offset: int, time_ns: int, unsynced_bytes: int, seed: int, position: int = 0) -> bytes:
    """A block's header in its disk form: `offset` and `time_ns` relative to the chunk. `position`: where it is to stand in the file."""
    unsynced = unsynced_bytes // ALIGNMENT
    placed = header._replace(
        first_offset=offset,
        time_ns=time_ns,
        reserved_1=unsynced if unsynced < UNSYNCED_MAX else UNSYNCED_MAX,
        reserved_2=_place(position),
    )
    return encode_header(placed, magic=DISK_MAGIC, seed=seed)


def decode_disk_header(buffer: Buffer, seed: int, position: int = 0) -> Header | None:
    """The header in disk form, or None where these bytes are not one of this chunk's, or one that belongs elsewhere than at `position`.

    `position` 0: wherever that is.
    """
    try:
        header = decode_header(buffer, magic=DISK_MAGIC, seed=seed)
    except ZsqError:
        return None
    return header if header.reserved_2 == 0 or position == 0 or header.reserved_2 == _place(position) else None


def _place(position: int) -> int:
    """A position as headers say it: in units of 8 bytes, 0 for one too far to say."""
    place = position // ALIGNMENT
    return place if place <= PLACE_MAX else 0


def wire_header(header: Header, chunk: ChunkHeader) -> Header:
    """The wire form of a header in disk form: absolute offset and time, spare fields zero, not a word of groups and delays."""
    own = not header.flags & DELAYED  # else due time and serial stand there
    return Header(
        header.columns, header.flags & ~_ON_DISK_ONLY, header.length, header.count, header.first_offset + chunk.base_offset,
        header.time_ns + chunk.base_time_ns, header.producer_id if own else 0, header.sequence if own else 0, header.columns_crc,
    )  # fmt: skip


def replay_header(header: Header, chunk: ChunkHeader) -> Header:
    """As `wire_header`, but of a block that was published with a delay the flag, due time and serial stay, for recovery."""
    found = wire_header(header, chunk)
    if header.flags & DELAYED:
        found = found._replace(flags=found.flags | DELAYED, producer_id=header.producer_id, sequence=header.sequence)
    return found


def unsynced_bytes(header: Header) -> int | None:
    """How many bytes before this block were not known to be synced when it was written; None where that was too far to say."""
    return None if header.reserved_1 >= UNSYNCED_MAX else header.reserved_1 * ALIGNMENT


def encode_index(entries: bytes, seed: int) -> bytes:
    """The whole index file from its entries."""
    assert len(entries) % INDEX_ENTRY_BYTES == 0
    head = _INDEX_HEAD.pack(INDEX_MAGIC, VERSION, INDEX_ENTRY_BYTES, seed, len(entries) // INDEX_ENTRY_BYTES, crc32c(entries), bytes(8))
    return head + _CRC.pack(crc32c(head)) + entries


def decode_index(buffer: Buffer, seed: int) -> bytes | None:
    """The entries, or None where this is not the whole, undamaged index of the chunk with this seed."""
    view = memoryview(buffer)
    if len(view) < INDEX_HEAD_BYTES or crc32c(view[: _INDEX_HEAD.size]) != _CRC.unpack_from(view, _INDEX_HEAD.size)[0]:
        return None
    magic, version, size, found_seed, count, crc, _ = _INDEX_HEAD.unpack_from(view)
    entries = view[INDEX_HEAD_BYTES:]
    if magic != INDEX_MAGIC or version != VERSION or size != INDEX_ENTRY_BYTES or found_seed != seed:
        return None
    if len(entries) != count * INDEX_ENTRY_BYTES or crc32c(entries) != crc:
        return None
    return bytes(entries)
