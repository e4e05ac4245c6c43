"""The block: a run of messages of one topic, packed; the unit of wire, disk and Spark. Pure.

A block is two byte strings, so that its head can be rewritten without copying its messages:

    header   64 bytes, little-endian; a wire form and a disk form (FORMAT.md, PROTOCOL.md)
    columns  body, key, tag, headers (each Arrow's binary layout), times; then the 8-byte trailer

A binary column is [validity bitmap] [int32 offsets, count + 1] [bytes], each piece padded with zeros to
8 bytes. `pyarrow` wraps it without copying. A slice of a block is a slice of its columns: it keeps its
offset values, and readers subtract the first. So nothing here runs once per message except `pack`,
which reads what a person made, `gather`, and the views that hand single messages to a person;
and those run in C (map, accumulate, join).

Rejected: one frame with header and columns together (storing an offset would copy or alter 200 KB),
and a row format (Spark would take each message apart, and so would every slice).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import sub
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from .errors import E_BAD_BLOCK, E_CHECKSUM, E_TOO_BIG, CorruptBlock, UsageError

HEADER_BYTES: Final = 64
TRAILER_BYTES: Final = 8
BLOCK_BYTES_MAX: Final = 8 * 1024 * 1024
BLOCK_COUNT_MAX: Final = 10_000
MESSAGE_BYTES_MAX: Final = 1024 * 1024
KEY_BYTES_MAX: Final = 256
TAG_BYTES_MAX: Final = 256
HEADERS_BYTES_MAX: Final = 16 * 1024
VERSION: Final = 1

WIRE_MAGIC: Final = b"ZSQB"
DISK_MAGIC: Final = b"ZSQD"
TRAILER_MAGIC: Final = 0x42515A5F

# Which columns follow, and which of them carry a validity bitmap.
HAS_KEY: Final = 1
HAS_TAG: Final = 2
HAS_HEADERS: Final = 4
HAS_TIMES: Final = 8
KEY_NULLS: Final = 16
TAG_NULLS: Final = 32
HEADERS_NULLS: Final = 64
_COLUMN_BITS_KNOWN: Final = 127
COMPRESSION_MASK: Final = 15  # of the flags; reserved, not built

# magic, version, columns, flags, length, count, first offset, time, producer, sequence, columns crc, reserved x 2
_HEAD: Final = struct.Struct("<4sBBHIIqqQQIII")
_CRC: Final = struct.Struct("<I")
_TRAILER: Final = struct.Struct("<II")
assert _HEAD.size + _CRC.size == HEADER_BYTES
assert _TRAILER.size == TRAILER_BYTES
_PAD: Final = tuple(b"\0" * n for n in range(8))

Buffer = bytes | bytearray | memoryview


class Header(NamedTuple):
    """The fields of a block's header; in the disk form `first_offset` and `time_ns` are relative to the chunk.

    A tuple, because one is made for every block on every hop (0.3 against 1.5 microseconds for a frozen dataclass).
    """

    columns: int
    flags: int
    length: int
    count: int  # type: ignore[assignment]  # tuple has a method of that name, which nobody needs here
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
    """Largest sizes of one message's parts, in bytes."""

    message_bytes_max: int = MESSAGE_BYTES_MAX
    key_bytes_max: int = KEY_BYTES_MAX
    tag_bytes_max: int = TAG_BYTES_MAX
    headers_bytes_max: int = HEADERS_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Column:
    """One binary column as views: `offsets` (int32, count + 1; the first need not be 0), `data`, `validity` (Arrow's bitmap) or None."""

    offsets: memoryview
    data: memoryview
    validity: memoryview | None

    def value(self, index: int) -> bytes | None:
        if self.validity is not None and not self.validity[index >> 3] & (1 << (index & 7)):
            return None
        first = self.offsets[0]
        return bytes(self.data[self.offsets[index] - first : self.offsets[index + 1] - first])

    def values(self) -> list[bytes | None]:
        """All values, with one copy of the column's bytes and one slice in C for each."""
        first = self.offsets[0]
        whole = bytes(self.data)
        ends = self.offsets.tolist() if not first else [end - first for end in self.offsets]
        found: list[bytes | None] = list(map(whole.__getitem__, map(slice, ends, ends[1:])))
        if self.validity is not None:
            bits = int.from_bytes(self.validity, "little")
            found = [value if bits >> i & 1 else None for i, value in enumerate(found)]
        return found


class Block:
    """A header and its columns; `payload` is whatever object carries the column bytes, kept so that it can be sent on without a copy."""

    __slots__ = ("_layout", "columns", "header", "payload")

    def __init__(self, header: Header, payload: Any, columns: memoryview | None = None) -> None:
        self.header = header
        self.payload = payload
        self.columns = memoryview(payload) if columns is None else columns
        self._layout: tuple[tuple[Column | None, ...], memoryview | None] | None = None

    @property
    def count(self) -> int:
        return self.header.count

    @property
    def first_offset(self) -> int:
        return self.header.first_offset

    @property
    def next_offset(self) -> int:
        return self.header.first_offset + self.header.count

    @property
    def length(self) -> int:
        """Bytes on wire and disk, header and trailer included."""
        return self.header.length

    def _parts(self) -> tuple[tuple[Column | None, ...], memoryview | None]:
        if self._layout is None:
            self._layout = _split(self.header, self.columns)
        return self._layout

    @property
    def body(self) -> Column:
        column = self._parts()[0][0]
        assert column is not None
        return column

    @property
    def key(self) -> Column | None:
        return self._parts()[0][1]

    @property
    def tag(self) -> Column | None:
        return self._parts()[0][2]

    @property
    def headers(self) -> Column | None:
        return self._parts()[0][3]

    @property
    def times(self) -> memoryview | None:
        """int64 nanoseconds, one a message, where messages have a time of their own."""
        return self._parts()[1]

    def time_of(self, index: int) -> int:
        times = self.times
        return int(times[index]) if times is not None else self.header.time_ns

    def wire_header(self) -> bytes:
        return encode_header(self.header)


def encode_header(header: Header, *, magic: bytes = WIRE_MAGIC, seed: int = 0) -> bytes:
    """64 bytes. `seed` is the chunk's random number in the disk form and 0 on the wire."""
    head = _HEAD.pack(
        magic, VERSION, header.columns, header.flags, header.length, header.count, header.first_offset,
        header.time_ns, header.producer_id, header.sequence, header.columns_crc, header.reserved_1, header.reserved_2,
    )  # fmt: skip
    return head + _CRC.pack(crc32c(head, seed))


def decode_header(buffer: Buffer, *, magic: bytes = WIRE_MAGIC, seed: int = 0) -> Header:
    """The fields, or `UsageError` E_BAD_BLOCK (not a block, unknown version) or `CorruptBlock` E_CHECKSUM."""
    if len(buffer) != HEADER_BYTES:
        raise UsageError(E_BAD_BLOCK, f"a block header has {HEADER_BYTES} bytes, not {len(buffer)}")
    found, version, columns, *rest = _HEAD.unpack_from(buffer)
    if found != magic:
        raise UsageError(E_BAD_BLOCK, f"not a block: it starts with {found!r}, not {magic!r}")
    if crc32c(memoryview(buffer)[: _HEAD.size], seed) != _CRC.unpack_from(buffer, _HEAD.size)[0]:
        raise CorruptBlock(E_CHECKSUM, "the checksum of a block header does not agree")
    if version != VERSION or columns & ~_COLUMN_BITS_KNOWN:
        raise UsageError(E_BAD_BLOCK, f"block version {version}, columns {columns:#x}: only version {VERSION} is known; upgrade the reader")
    header = Header(columns, *rest)
    if header.flags & COMPRESSION_MASK:
        raise UsageError(E_BAD_BLOCK, "compressed blocks are reserved, not built; send the columns as they are")
    if not 1 <= header.count <= BLOCK_COUNT_MAX:
        raise UsageError(E_TOO_BIG if header.count else E_BAD_BLOCK, f"a block holds 1 to {BLOCK_COUNT_MAX} messages, not {header.count}")
    if header.length > BLOCK_BYTES_MAX:
        raise UsageError(E_TOO_BIG, f"a block of {header.length} bytes is over the limit of {BLOCK_BYTES_MAX}; send smaller batches")
    if header.length < HEADER_BYTES + TRAILER_BYTES or header.length % 8:
        raise UsageError(E_BAD_BLOCK, f"a block of {header.length} bytes cannot be")
    return header


def check_columns(header: Header, columns: memoryview) -> None:
    """End-to-end check: length, trailer and checksum of the columns; `CorruptBlock` E_CHECKSUM or `UsageError` E_BAD_BLOCK."""
    if header.length != HEADER_BYTES + len(columns):
        raise UsageError(E_BAD_BLOCK, f"a block says {header.length} bytes and has {HEADER_BYTES + len(columns)}")
    if _TRAILER.unpack_from(columns, len(columns) - TRAILER_BYTES) != (header.length, TRAILER_MAGIC):
        raise CorruptBlock(E_CHECKSUM, "the trailer of a block does not repeat its length")
    if crc32c(columns[:-TRAILER_BYTES]) != header.columns_crc:
        raise CorruptBlock(E_CHECKSUM, f"the columns of block {header.producer_id:x}/{header.sequence} do not match their checksum")


def check_block(block: Block, limits: Limits | None = None) -> None:
    """All that a stranger's block must satisfy: checksum, layout, ascending offsets, limits a message."""
    limits = limits or Limits()
    check_columns(block.header, block.columns)
    columns = block._parts()[0]
    sizes_max = (limits.message_bytes_max, limits.key_bytes_max, limits.tag_bytes_max, limits.headers_bytes_max)
    for column, size_max, what in zip(columns, sizes_max, ("message", "key", "tag", "headers"), strict=True):
        if column is None:
            continue
        ends = column.offsets.tolist()
        if ends != sorted(ends):
            raise UsageError(E_BAD_BLOCK, f"the {what} column's offsets go backwards")
        if len(column.data) > size_max:
            largest = max(map(sub, ends[1:], ends))
            if largest > size_max:
                raise UsageError(E_TOO_BIG, f"{what} of {largest} bytes is over the limit of {size_max} bytes")


def open_block(header: Buffer, payload: Any, columns: memoryview | None = None) -> Block:
    """A block from its two wire frames; only the header is checked here."""
    return Block(decode_header(header), payload, columns)


def _split(header: Header, columns: memoryview) -> tuple[tuple[Column | None, ...], memoryview | None]:
    """Walk the layout once; `UsageError` E_BAD_BLOCK where a piece would leave the block."""
    count = header.count
    end = len(columns) - TRAILER_BYTES
    position = 0
    found: list[Column | None] = []
    present = ((True, False), (header.columns & HAS_KEY, header.columns & KEY_NULLS),
               (header.columns & HAS_TAG, header.columns & TAG_NULLS),
               (header.columns & HAS_HEADERS, header.columns & HEADERS_NULLS))  # fmt: skip
    for has, nulls in present:
        if not has:
            if nulls:
                raise UsageError(E_BAD_BLOCK, "a validity bitmap without its column")
            found.append(None)
            continue
        validity = None
        if nulls:
            validity = columns[position : position + (count + 7) // 8]
            position += _padded((count + 7) // 8)
        offsets_bytes = (count + 1) * 4
        if position + _padded(offsets_bytes) > end:
            raise UsageError(E_BAD_BLOCK, "a column's offsets leave the block")
        offsets = columns[position : position + offsets_bytes].cast("i")
        position += _padded(offsets_bytes)
        size = offsets[count] - offsets[0]
        if offsets[0] < 0 or size < 0 or position + _padded(size) > end:
            raise UsageError(E_BAD_BLOCK, "a column's bytes leave the block")
        found.append(Column(offsets, columns[position : position + size], validity))
        position += _padded(size)
    times = None
    if header.columns & HAS_TIMES:
        if position + count * 8 > end:
            raise UsageError(E_BAD_BLOCK, "the times leave the block")
        times = columns[position : position + count * 8].cast("q")
        position += count * 8
    if position != end:
        raise UsageError(E_BAD_BLOCK, f"{end - position} bytes of a block belong to no column")
    return tuple(found), times


def _padded(size: int) -> int:
    return (size + 7) & ~7


def _pad(size: int) -> bytes:
    return _PAD[-size & 7]


def _seal(
    pieces: list[Any], bits: int, count: int, *, first_offset: int, time_ns: int, producer_id: int, sequence: int, flags: int = 0
) -> Block:
    """Join the pieces of the columns with the trailer (the only copy), checksum them, make the header."""
    length = HEADER_BYTES + sum(map(len, pieces)) + TRAILER_BYTES
    if length > BLOCK_BYTES_MAX:
        raise UsageError(E_TOO_BIG, f"a block of {length} bytes is over the limit of {BLOCK_BYTES_MAX}; send smaller batches")
    pieces.append(_TRAILER.pack(length, TRAILER_MAGIC))
    payload = b"".join(pieces)
    view = memoryview(payload)
    header = Header(bits, flags, length, count, first_offset, time_ns, producer_id, sequence, crc32c(view[:-TRAILER_BYTES]))
    return Block(header, payload, view)


def pack(
    bodies: Sequence[bytes],
    *,
    keys: Sequence[bytes | None] | None = None,
    tags: Sequence[bytes | None] | None = None,
    headers: Sequence[bytes | None] | None = None,
    times: Sequence[int] | None = None,
    producer_id: int = 0,
    sequence: int = 0,
    first_offset: int = 0,
    time_ns: int = 0,
    limits: Limits | None = None,
) -> Block:
    """Pack messages; the optional columns have one value (or None) a message. `UsageError` E_TOO_BIG names the limit that is passed."""
    limits = limits or Limits()
    count = len(bodies)
    if not 1 <= count <= BLOCK_COUNT_MAX:
        raise UsageError(E_TOO_BIG if count else E_BAD_BLOCK, f"a block holds 1 to {BLOCK_COUNT_MAX} messages, not {count}")
    pieces: list[Any] = []
    bits = 0
    _pack_column(pieces, bodies, limits.message_bytes_max, "message")
    optional = ((keys, HAS_KEY, KEY_NULLS, limits.key_bytes_max, "key"),
                (tags, HAS_TAG, TAG_NULLS, limits.tag_bytes_max, "tag"),
                (headers, HAS_HEADERS, HEADERS_NULLS, limits.headers_bytes_max, "headers"))  # fmt: skip
    for values, has, nulls, size_max, what in optional:
        if values is None:
            continue
        assert len(values) == count
        bits |= has
        full = values
        if None in values:
            bits |= nulls
            pieces.append(_bitmap(value is not None for value in values))
            pieces.append(_pad((count + 7) // 8))
            full = [b"" if value is None else value for value in values]
        _pack_column(pieces, full, size_max, what)
    if times is not None:
        assert len(times) == count
        bits |= HAS_TIMES
        pieces.append(array("q", times).tobytes())
    try:
        return _seal(pieces, bits, count, first_offset=first_offset, time_ns=time_ns, producer_id=producer_id, sequence=sequence)
    except TypeError as error:
        raise UsageError(E_BAD_BLOCK, f"messages, keys, tags and headers must be bytes; encode text first ({error})") from None


def _pack_column(pieces: list[Any], values: Sequence[Any], size_max: int, what: str) -> None:
    try:
        sizes = list(map(len, values))
        largest = max(sizes)
        if largest > size_max:
            raise UsageError(E_TOO_BIG, f"{what} of {largest} bytes is over the limit of {size_max} bytes")
        offsets = array("i", accumulate(sizes, initial=0)).tobytes()
    except (TypeError, OverflowError) as error:
        raise UsageError(E_BAD_BLOCK, f"a {what} must be bytes: {error}") from None  # join() finds text among them
    pieces += (offsets, _pad(len(offsets)))
    pieces += values
    pieces.append(_pad(sum(sizes)))


def _bitmap(present: Iterable[bool]) -> bytes:
    bits = 0
    count = 0
    for count, there in enumerate(present, 1):
        if there:
            bits |= 1 << (count - 1)
    return bits.to_bytes((count + 7) // 8, "little")


def with_place(block: Block, first_offset: int, time_ns: int) -> Block:
    """The same columns at an offset and time: what storage does when it stores a block. No byte of the columns is touched."""
    return Block(block.header._replace(first_offset=first_offset, time_ns=time_ns), block.payload, block.columns)


def cut(block: Block, start: int, stop: int) -> Block:
    """Messages `start` to `stop` (indexes in the block) as a block of their own; the block itself if that is all of it.

    Work does not depend on how many messages there are: one slice and one copy a column, one checksum.
    """
    if not 0 <= start < stop <= block.count:
        raise ValueError(f"cannot cut {start}:{stop} from a block of {block.count}")
    if start == 0 and stop == block.count:
        return block
    count = stop - start
    columns, times = block._parts()
    pieces: list[Any] = []
    for column in columns:
        if column is None:
            continue
        if column.validity is not None:
            shifted = int.from_bytes(column.validity, "little") >> start & ((1 << count) - 1)
            pieces += (shifted.to_bytes((count + 7) // 8, "little"), _pad((count + 7) // 8))
        first = column.offsets[0]
        data = column.data[column.offsets[start] - first : column.offsets[stop] - first]
        pieces += (column.offsets[start : stop + 1].cast("B"), _pad((count + 1) * 4), data, _pad(len(data)))
    if times is not None:
        pieces.append(times[start:stop].cast("B"))
    old = block.header
    return _seal(pieces, old.columns, count, first_offset=old.first_offset + start, time_ns=old.time_ns,
                 producer_id=old.producer_id, sequence=old.sequence, flags=old.flags)  # fmt: skip


def gather(parts: Sequence[tuple[Block, int, int]]) -> Block:
    """Messages that do not lie together, as one block: `parts` are (block, start, stop) indexes.

    Its first offset is the first part's; the delivery that carries it names the real runs. Messages keep
    their storing times in a times column where these differ.
    """
    if len(parts) == 1:
        return cut(*parts[0])
    bodies: list[Any] = []
    optional: list[list[bytes | None]] = [[], [], []]
    times: list[int] = []
    for block, start, stop in parts:
        piece = cut(block, start, stop)
        columns, own_times = piece._parts()
        assert columns[0] is not None
        bodies += columns[0].values()
        for values, column in zip(optional, columns[1:], strict=True):
            values += [None] * piece.count if column is None else column.values()
        times += own_times.tolist() if own_times is not None else [piece.header.time_ns] * piece.count
    keys, tags, headers = (values if any(value is not None for value in values) else None for values in optional)
    first = parts[0][0]
    same_time = len(set(times)) == 1
    unlimited = Limits(BLOCK_BYTES_MAX, BLOCK_BYTES_MAX, BLOCK_BYTES_MAX, BLOCK_BYTES_MAX)  # they were checked when they came
    return pack(bodies, keys=keys, tags=tags, headers=headers, times=None if same_time else times,
                first_offset=first.first_offset + parts[0][1], time_ns=times[0], limits=unlimited)  # fmt: skip
