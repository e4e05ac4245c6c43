"""Block: packed messages of one topic. It is the unit that is sent, stored, and read by Spark.

A block is two byte strings, so that its header can be rewritten without copying its messages:

    header   64 bytes, little-endian; a wire form and a disk form (FORMAT.md, PROTOCOL.md)
    columns  body, key, tag, headers (each Arrow's binary layout), times; then the 8-byte trailer

A binary column is [validity bitmap] [int32 offsets, count + 1] [bytes]. Each part is padded with
zeros to 8 bytes. `pyarrow` wraps a column without copying. A slice of a block is a slice of its
columns. Its offset values do not change, and readers subtract the first one. So nothing here runs
once for each message, except in `pack`, `gather`, and the views that return single messages. Those
loops run in C (map, accumulate, join).

`cut` and `gather` compute a new checksum of bytes from an old block, so they check these bytes
first. The first check of a block covers the whole block. It divides the columns into pieces, and
keeps the checksum of all bytes up to the end of each piece. Later checks cover only the pieces that
contain the messages: `crc32c` continues from the kept checksum before a piece, and the result must
equal the kept checksum after it. Without this, taking a large block message by message would check
the whole block each time.

Two alternatives were rejected. With a single frame for header and columns, setting the offset would
copy or change 200 KB. With a row format, Spark and every slice would have to parse each message.

`gather` makes one block of messages that are not adjacent. It reads their values, which takes 7 ms
for a thousand single messages. It takes only 1 ms if the messages are close together, which is
usual for messages with the same tag. It does not make a block of each part first, because the
checksums and copies of a thousand such blocks would take 28 ms. Nothing here does I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, groupby, pairwise
from operator import sub
from typing import Any, Final

from ..checksum import crc32c
from ..errors import E_BAD_BLOCK, E_CHECKSUM, E_TOO_BIG, CorruptBlock, UsageError
from ..records import Record, record
from .block_format import (
    BLOCK_BYTES_MAX,
    BLOCK_COUNT_MAX,
    COMPRESSION_MASK,
    DELAYED,
    DISK_MAGIC,
    HAS_HEADERS,
    HAS_KEY,
    HAS_TAG,
    HAS_TIMES,
    HEADER_BYTES,
    HEADERS_BYTES_MAX,
    HEADERS_NULLS,
    IN_GROUP,
    KEY_BYTES_MAX,
    KEY_NULLS,
    LARGEST,
    MARK,
    MESSAGE_BYTES_LARGEST,
    MESSAGE_BYTES_MAX,
    TAG_BYTES_MAX,
    TAG_NULLS,
    TRAILER_BYTES,
    TRAILER_MAGIC,
    VERSION,
    WIRE_MAGIC,
    Buffer,
    Header,
    Limits,
    decode_header,
    encode_header,
)

__all__ = [
    "BLOCK_BYTES_MAX",
    "BLOCK_COUNT_MAX",
    "COMPRESSION_MASK",
    "DELAYED",
    "DISK_MAGIC",
    "HAS_HEADERS",
    "HAS_KEY",
    "HAS_TAG",
    "HAS_TIMES",
    "HEADERS_BYTES_MAX",
    "HEADERS_NULLS",
    "HEADER_BYTES",
    "IN_GROUP",
    "KEY_BYTES_MAX",
    "KEY_NULLS",
    "LARGEST",
    "MARK",
    "MESSAGE_BYTES_LARGEST",
    "MESSAGE_BYTES_MAX",
    "TAG_BYTES_MAX",
    "TAG_NULLS",
    "TRAILER_BYTES",
    "TRAILER_MAGIC",
    "VERSION",
    "WIRE_MAGIC",
    "Block",
    "Buffer",
    "Column",
    "Header",
    "Limits",
    "check_block",
    "check_columns",
    "cut",
    "decode_header",
    "encode_header",
    "missing",
    "open_block",
    "pack",
    "pick",
    "with_place",
]


# fmt: off
# fmt: on

_TRAILER: Final = struct.Struct("<II")
assert _TRAILER.size == TRAILER_BYTES
_PAD: Final = tuple(b"\0" * n for n in range(8))
PIECE_BYTES: Final = 8 * 1024
"""The bytes of a piece, which one check covers in half a microsecond.

Smaller pieces make the first check slower. Larger pieces make all other checks slower.
"""
EVEN_COUNT_MIN: Final = 16
"""The fewest values of a column whose offsets are taken from `even_offsets`."""


@lru_cache(maxsize=16)
def even_offsets(first: int, size: int, count: int) -> bytes:
    """Return the offsets of `count` values that have the same size.

    Messages of equal sizes are usual (records, fixed rows), and their blocks have equal offsets.
    The offsets of a block are compared with these bytes as a whole, instead of one by one.
    """
    return struct.pack(f"<{count + 1}i", *range(first, first + size * count + 1, size))


@record
class Column(Record):
    """One binary column as views.

    `offsets` are count + 1 numbers of type int32, and the first need not be 0. `validity` is
    Arrow's bitmap or None. `position` is the position of `offsets` in the columns of their block.
    """

    offsets: memoryview
    data: memoryview
    validity: memoryview | None
    position: int = 0

    def value(self, index: int) -> bytes | None:
        if self.validity is not None and not self.validity[index >> 3] & (1 << (index & 7)):
            return None
        first = self.offsets[0]
        return bytes(self.data[self.offsets[index] - first : self.offsets[index + 1] - first])

    def even_size(self) -> int:
        """Return the size of each value if there are many and all have the same size, else 0."""
        count = len(self.offsets) - 1
        first = self.offsets[0]
        size = self.offsets[1] - first
        is_even = (
            count >= EVEN_COUNT_MIN
            and size > 0
            and size * count == len(self.data)
            and self.offsets.tobytes() == even_offsets(first, size, count)
        )
        return size if is_even else 0

    def values(self) -> list[bytes | None]:
        """Return all values.

        `struct` cuts values of equal sizes in one call. This takes 20 instead of 110 microseconds
        for a thousand values.
        """
        values: list[bytes | None]
        if size := self.even_size():
            values = list(struct.unpack(f"{size}s" * (len(self.offsets) - 1), self.data))
        else:
            data = bytes(self.data)
            ends = self.offsets.tolist()
            if first := ends[0]:
                ends = [end - first for end in ends]
            values = [data[start:stop] for start, stop in pairwise(ends)]
        if self.validity is not None:
            bits = int.from_bytes(self.validity, "little")
            values = [value if bits >> i & 1 else None for i, value in enumerate(values)]
        return values


class Block:
    """A header and its columns.

    `payload` is the object that contains the bytes of the columns. It is kept so that it can be
    sent without a copy.
    """

    __slots__ = ("_layout", "_prefixes", "columns", "header", "ids", "modes", "payload")

    def __init__(self, header: Header, payload: Any, columns: memoryview | None = None) -> None:
        self.header = header
        self.payload = payload
        self.columns = memoryview(payload) if columns is None else columns
        self._layout: tuple[tuple[Column | None, ...], memoryview | None] | None = None
        self.ids: tuple[bytes | None, ...] | None = None
        """The digest of each message's id (`wire/dedupe.py`) or key (`wire/unique.py`), if they
        were read from the block.
        """
        self.modes: tuple[bool | None, ...] | None = None
        """For each message with a key, True if it is unique while an earlier one works."""
        self._prefixes: tuple[int, ...] = ()
        """The checksum of the columns up to the end of each piece, or () before the first check."""

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
        """The size in bytes, with header and trailer, in messages and on disk."""
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
        """One int64 per message, in nanoseconds, or None if all have the header's time."""
        return self._parts()[1]

    def time_of(self, index: int) -> int:
        times = self.times
        return int(times[index]) if times is not None else self.header.time_ns

    def wire_header(self) -> bytes:
        return encode_header(self.header)

    @property
    def was_checked(self) -> bool:
        """True if the whole block was checked once. Its memory may have changed since then."""
        return bool(self._prefixes)

    def check(self) -> None:
        """Check all columns against the checksum that their producer computed.

        Raises `CorruptBlock` (E_CHECKSUM) if they differ.
        """
        columns = self.columns[:-TRAILER_BYTES]
        prefixes = [0]
        for position in range(0, len(columns), PIECE_BYTES):
            prefixes.append(crc32c(columns[position : position + PIECE_BYTES], prefixes[-1]))
        if prefixes[-1] != self.header.columns_crc:
            raise self._corrupt()
        self._parts()  # `_parts` reads sizes in the columns, which were just checked
        self._prefixes = tuple(prefixes)

    def check_messages(self, spans: Iterable[tuple[int, int]]) -> None:
        """Check messages `start` to `stop` of each span, and the bytes that locate them.

        Raises `CorruptBlock` (E_CHECKSUM) if they differ from what the producer sent.
        """
        if len(self._prefixes) <= 2:  # the block was not checked yet, or has only one piece
            self.check()
            return
        columns, times = self._parts()
        for start, stop in spans:
            for column in columns:
                if column is None:
                    continue
                offsets, at = column.offsets, column.position
                if column.validity is not None:
                    bitmap = at - padded(len(column.validity))
                    self._check_pieces(bitmap + (start >> 3), bitmap + ((stop + 7) >> 3))
                if (at + start * 4) // PIECE_BYTES > at // PIECE_BYTES:
                    # Check the first offset, because all other offsets are relative to it.
                    self._check_pieces(at, at + 4)
                # Check the offsets of the messages before they are used.
                self._check_pieces(at + start * 4, at + stop * 4 + 4)
                data = at + padded(len(offsets) * 4) - offsets[0]
                self._check_pieces(data + offsets[start], data + offsets[stop])
            if times is not None:
                at = len(self.columns) - TRAILER_BYTES - self.count * 8
                self._check_pieces(at + start * 8, at + stop * 8)

    def _check_pieces(self, low: int, high: int) -> None:
        """Check the pieces that contain bytes `low` to `high` of the columns."""
        if low >= high:
            return
        first, end = low // PIECE_BYTES, (high - 1) // PIECE_BYTES + 1
        columns = self.columns[
            first * PIECE_BYTES : min(end * PIECE_BYTES, len(self.columns) - TRAILER_BYTES)
        ]
        if crc32c(columns, self._prefixes[first]) != self._prefixes[end]:
            raise self._corrupt()

    def _corrupt(self) -> CorruptBlock:
        header = self.header
        where = (
            f"{header.producer_id:x}/{header.sequence} (offsets {header.first_offset} to "
            f"{self.next_offset - 1})"
        )
        return CorruptBlock(E_CHECKSUM, f"the columns of block {where} do not match their checksum")


def check_columns(header: Header, columns: memoryview) -> None:
    """Check length, trailer and checksum of the columns.

    Raises `CorruptBlock` (E_CHECKSUM) if the trailer or the checksum is wrong. Raises `UsageError`
    (E_BAD_BLOCK) if the length is wrong.
    """
    if header.length != HEADER_BYTES + len(columns):
        raise UsageError(
            E_BAD_BLOCK,
            (
                f"the header of a block says {header.length} bytes, but the block has "
                f"{HEADER_BYTES + len(columns)}"
            ),
        )
    if _TRAILER.unpack_from(columns, len(columns) - TRAILER_BYTES) != (
        header.length,
        TRAILER_MAGIC,
    ):
        raise CorruptBlock(E_CHECKSUM, "the trailer of a block does not match its length")
    if crc32c(columns[:-TRAILER_BYTES]) != header.columns_crc:
        raise CorruptBlock(
            E_CHECKSUM,
            (
                f"the columns of block {header.producer_id:x}/{header.sequence} do not match their "
                "checksum"
            ),
        )


def check_block(block: Block, limits: Limits | None = None) -> None:
    """Check a block of a client: checksum, layout, ascending offsets, limits of each message."""
    limits = limits or Limits()
    check_columns(block.header, block.columns)
    columns = block._parts()[0]
    sizes_max = (
        limits.max_msg_size,
        limits.key_bytes_max,
        limits.tag_bytes_max,
        limits.headers_bytes_max,
    )
    for column, size_max, caption in zip(
        columns, sizes_max, ("message", "key", "tag", "headers"), strict=True
    ):
        if column is None:
            continue
        largest = column.even_size()
        if not largest:
            ends = column.offsets.tolist()
            if ends != sorted(ends):
                raise UsageError(E_BAD_BLOCK, f"the offsets of the {caption} column do not ascend")
            if len(column.data) > size_max:
                largest = max(map(sub, ends[1:], ends))
        if largest > size_max:
            raise UsageError(
                E_TOO_BIG, f"{caption} of {largest} bytes is over the limit of {size_max} bytes"
            )


def open_block(header: Buffer, payload: Any, columns: memoryview | None = None) -> Block:
    """Return a block from its two wire frames. This checks only the header."""
    return Block(decode_header(header), payload, columns)


def _split(
    header: Header, columns: memoryview
) -> tuple[tuple[Column | None, ...], memoryview | None]:
    """Find the columns. Raises `UsageError` (E_BAD_BLOCK) if a part ends outside of the block."""
    count = header.count
    end = len(columns) - TRAILER_BYTES
    position = 0
    split: list[Column | None] = []
    present = ((True, False), (header.columns & HAS_KEY, header.columns & KEY_NULLS),
               (header.columns & HAS_TAG, header.columns & TAG_NULLS),
               (header.columns & HAS_HEADERS, header.columns & HEADERS_NULLS))  # fmt: skip
    for has, nulls in present:
        if not has:
            if nulls:
                raise UsageError(E_BAD_BLOCK, "a block has a validity bitmap without its column")
            split.append(None)
            continue
        validity = None
        if nulls:
            validity = columns[position : position + (count + 7) // 8]
            position += padded((count + 7) // 8)
        offsets_bytes = (count + 1) * 4
        if position + padded(offsets_bytes) > end:
            raise UsageError(
                E_BAD_BLOCK, "the offsets of a column extend beyond the end of the block"
            )
        offsets = columns[position : position + offsets_bytes].cast("i")
        position += padded(offsets_bytes)
        size = offsets[count] - offsets[0]
        if offsets[0] < 0 or size < 0 or position + padded(size) > end:
            raise UsageError(
                E_BAD_BLOCK, "the bytes of a column extend beyond the end of the block"
            )
        split.append(
            Column(
                offsets,
                columns[position : position + size],
                validity,
                position - padded(offsets_bytes),
            )
        )
        position += padded(size)
    times = None
    if header.columns & HAS_TIMES:
        if position + count * 8 > end:
            raise UsageError(E_BAD_BLOCK, "the times column extends beyond the end of the block")
        times = columns[position : position + count * 8].cast("q")
        position += count * 8
    if position != end:
        raise UsageError(E_BAD_BLOCK, f"{end - position} bytes of a block belong to no column")
    return tuple(split), times


def padded(size: int) -> int:
    return (size + 7) & ~7


def pad(size: int) -> bytes:
    return _PAD[-size & 7]


def seal(
    pieces: list[Any],
    size: int,
    bits: int,
    count: int,
    *,
    first_offset: int,
    time_ns: int,
    producer_id: int,
    sequence: int,
    flags: int = 0,
) -> Block:
    """Join the parts of the columns (`size` bytes) and the trailer, and compute checksum and
    header.

    The bytes are copied only once, by this join.
    """
    length = HEADER_BYTES + size + TRAILER_BYTES
    if length > BLOCK_BYTES_MAX:
        raise UsageError(
            E_TOO_BIG,
            (
                f"a block of {length} bytes is over the limit of {BLOCK_BYTES_MAX} bytes; send "
                "smaller batches"
            ),
        )
    pieces.append(_TRAILER.pack(length, TRAILER_MAGIC))
    payload = b"".join(pieces)
    view = memoryview(payload)
    header = Header(
        bits,
        flags,
        length,
        count,
        first_offset,
        time_ns,
        producer_id,
        sequence,
        crc32c(view[:-TRAILER_BYTES]),
    )
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
    """Pack messages. Each optional column has one value or None for each message.

    Raises `UsageError` (E_TOO_BIG), which names the exceeded limit.
    """
    limits = limits or Limits()
    count = len(bodies)
    if not 1 <= count <= BLOCK_COUNT_MAX:
        raise UsageError(
            E_TOO_BIG if count else E_BAD_BLOCK,
            f"a block holds 1 to {BLOCK_COUNT_MAX} messages, not {count}",
        )
    pieces: list[Any] = []
    bits = 0
    size = _pack_column(pieces, bodies, limits.max_msg_size, "message")
    optional = ((keys, HAS_KEY, KEY_NULLS, limits.key_bytes_max, "key"),
                (tags, HAS_TAG, TAG_NULLS, limits.tag_bytes_max, "tag"),
                (headers, HAS_HEADERS, HEADERS_NULLS, limits.headers_bytes_max, "headers"))  # fmt: skip
    for values, has, nulls, size_max, caption in optional:
        if values is None:
            continue
        assert len(values) == count
        bits |= has
        full = values
        if None in values:
            bits |= nulls
            pieces.append(_bitmap(value is not None for value in values))
            pieces.append(pad((count + 7) // 8))
            size += padded((count + 7) // 8)
            full = [b"" if value is None else value for value in values]
        size += _pack_column(pieces, full, size_max, caption)
    if times is not None:
        assert len(times) == count
        bits |= HAS_TIMES
        pieces.append(struct.pack(f"<{count}q", *times))
        size += count * 8
    try:
        return seal(
            pieces,
            size,
            bits,
            count,
            first_offset=first_offset,
            time_ns=time_ns,
            producer_id=producer_id,
            sequence=sequence,
        )
    except TypeError as error:
        raise UsageError(
            E_BAD_BLOCK,
            f"messages, keys, tags and headers must be bytes; encode text first ({error})",
        ) from None


def _pack_column(pieces: list[Any], values: Sequence[Any], size_max: int, caption: str) -> int:
    """Add the column's parts and return their number of bytes.

    `struct` takes 29 microseconds for a thousand offsets, and `array` would take 59.
    """
    try:
        sizes = list(map(len, values))
    except TypeError as error:
        # `join` finds text among the values, and raises a TypeError.
        raise UsageError(E_BAD_BLOCK, f"a {caption} must be bytes: {error}") from None
    count, size = len(sizes), sizes[0]
    is_even = 0 < size == sizes[-1] and EVEN_COUNT_MIN <= count == sizes.count(size)
    largest = size if is_even else max(sizes)
    if largest > size_max:
        raise UsageError(
            E_TOO_BIG, f"{caption} of {largest} bytes is over the limit of {size_max} bytes"
        )
    ends: Sequence[int] = (
        range(0, size * count + 1, size) if is_even else list(accumulate(sizes, initial=0))
    )
    try:
        offsets = even_offsets(0, size, count) if is_even else struct.pack(f"<{len(ends)}i", *ends)
    except struct.error:  # the size does not fit in 32 bits
        text = (
            f"a column of {ends[-1]} bytes is over the limit of a block, {BLOCK_BYTES_MAX} "
            "bytes; send smaller batches"
        )
        raise UsageError(E_TOO_BIG, text) from None
    pieces += (offsets, pad(len(offsets)))
    pieces += values
    pieces.append(pad(ends[-1]))
    return padded(len(offsets)) + padded(ends[-1])


def _bitmap(present: Iterable[bool]) -> bytes:
    bits = 0
    count = 0
    for count, is_present in enumerate(present, 1):
        if is_present:
            bits |= 1 << (count - 1)
    return bits.to_bytes((count + 7) // 8, "little")


def missing(offset: int, blocks: Iterable[Block], stop: int) -> list[tuple[int, int]]:
    """Return the ranges from `offset` to `stop` that no block has, as (first offset, count).

    `blocks` ascend.
    """
    gaps: list[tuple[int, int]] = []
    for first, end in (
        *((block.first_offset, block.next_offset) for block in blocks),
        (stop, stop),
    ):
        if first > offset:
            gaps.append((offset, first - offset))
        offset = max(offset, end)
    return gaps


def with_place(block: Block, first_offset: int, time_ns: int) -> Block:
    """Return the same columns at an offset and time, without touching their bytes.

    Storage does this when it stores a block.
    """
    return Block(
        block.header._replace(first_offset=first_offset, time_ns=time_ns),
        block.payload,
        block.columns,
    )


def without_bodies(block: Block) -> Block:
    """Return the same messages with empty bodies, at the same offsets and times."""
    old = block.header
    offsets_bytes = padded((old.count + 1) * 4)
    body_bytes = offsets_bytes + padded(len(block.body.data))
    rest = block.columns[body_bytes:-TRAILER_BYTES]
    return seal([bytes(offsets_bytes), rest], offsets_bytes + len(rest), old.columns, old.count,
                first_offset=old.first_offset, time_ns=old.time_ns, producer_id=old.producer_id,
                sequence=old.sequence, flags=old.flags)  # fmt: skip


def cut(block: Block, start: int, stop: int) -> Block:
    """Return messages `start` to `stop` (indexes in the block) as a new block.

    The number of steps does not depend on the number of messages: one slice and one copy for each
    column, one checksum, and the check of the copied bytes. Raises `CorruptBlock` (E_CHECKSUM) if
    that check fails. If the range is the whole block, this returns the block itself without a
    check, because the block keeps its old checksum.
    """
    if not 0 <= start < stop <= block.count:
        raise ValueError(
            f"cannot cut messages {start} to {stop} from a block of {block.count} messages"
        )
    if start == 0 and stop == block.count:
        return block
    block.check_messages(((start, stop),))
    count = stop - start
    columns, times = block._parts()
    pieces: list[Any] = []
    for column in columns:
        if column is None:
            continue
        if column.validity is not None:
            shifted = int.from_bytes(column.validity, "little") >> start & ((1 << count) - 1)
            pieces += (shifted.to_bytes((count + 7) // 8, "little"), pad((count + 7) // 8))
        first = column.offsets[0]
        data = column.data[column.offsets[start] - first : column.offsets[stop] - first]
        pieces += (
            column.offsets[start : stop + 1].cast("B"),
            pad((count + 1) * 4),
            data,
            pad(len(data)),
        )
    if times is not None:
        pieces.append(times[start:stop].cast("B"))
    old = block.header
    return seal(pieces, sum(map(len, pieces)), old.columns, count, first_offset=old.first_offset + start, time_ns=old.time_ns,
                 producer_id=old.producer_id, sequence=old.sequence, flags=old.flags)  # fmt: skip


def pick(block: Block, indexes: Sequence[int]) -> Block:
    """Return a block with only these messages, of the same producer, sequence, time and flags."""
    bodies = [block.body.value(index) or b"" for index in indexes]
    keys, tags, headers = (
        None if column is None else [column.value(index) for index in indexes]
        for column in (block.key, block.tag, block.headers)
    )
    times = block.times
    old = block.header
    new = pack(bodies, keys=keys, tags=tags, headers=headers,
               times=None if times is None else [times[index] for index in indexes],
               producer_id=old.producer_id, sequence=old.sequence, time_ns=old.time_ns, limits=_UNLIMITED)  # fmt: skip
    picked = Block(new.header._replace(flags=old.flags), new.payload, new.columns)
    if block.ids is not None:
        picked.ids = tuple(block.ids[index] for index in indexes)
    if block.modes is not None:
        picked.modes = tuple(block.modes[index] for index in indexes)
    return picked


# If at least one of this number of messages is picked, all values of the range are read in one
# call.
_CLOSE: Final = 8
# `gather` needs no limits, because the messages were checked when they arrived.
_UNLIMITED: Final = Limits(BLOCK_BYTES_MAX, BLOCK_BYTES_MAX, BLOCK_BYTES_MAX, BLOCK_BYTES_MAX)


def gather(parts: Sequence[tuple[Block, int, int]]) -> Block:
    """Return one block of `parts`, which are (block, start, stop) indexes.

    The header has only the first message's offset. The delivery with this block lists the offsets
    of all its messages (`runs`). If the messages were stored at different times, the block has a
    column with their times. Raises `CorruptBlock` if a part is not as it was sent.
    """
    if len(parts) == 1:
        return cut(*parts[0])
    bodies: list[Any] = []
    optional: list[list[bytes | None]] = [[], [], []]
    times: list[int] = []
    for _, group in groupby(parts, lambda part: id(part[0])):
        of_block = list(group)
        block = of_block[0][0]
        spans = [(start, stop) for _, start, stop in of_block]
        _check(block, spans)
        count = sum(stop - start for start, stop in spans)
        bodies += _picked(block.body, spans, count)
        for values, column in zip(optional, (block.key, block.tag, block.headers), strict=True):
            values += [None] * count if column is None else _picked(column, spans, count)
        own_times = block.times
        if own_times is None:
            times += [block.header.time_ns] * count
        else:
            times += [time_ns for start, stop in spans for time_ns in own_times[start:stop]]
    keys, tags, headers = (
        values if any(value is not None for value in values) else None for values in optional
    )
    first, start, _ = parts[0]
    same_time = len(set(times)) == 1
    return pack(bodies, keys=keys, tags=tags, headers=headers, times=None if same_time else times,
                first_offset=first.first_offset + start, time_ns=times[0], limits=_UNLIMITED)  # fmt: skip


def _check(block: Block, spans: Sequence[tuple[int, int]]) -> None:
    """Check the picked messages, or the whole block if that is faster than many small checks."""
    if len(spans) * PIECE_BYTES > len(block.columns):
        block.check()
    else:
        block.check_messages(spans)


def _picked(column: Column, spans: Sequence[tuple[int, int]], count: int) -> list[bytes | None]:
    low = min(start for start, _ in spans)
    high = max(stop for _, stop in spans)
    if high - low > _CLOSE * count:
        return [value for start, stop in spans for value in _values(column, start, stop)]
    values = _values(column, low, high)
    return [value for start, stop in spans for value in values[start - low : stop - low]]


def _values(column: Column, start: int, stop: int) -> list[bytes | None]:
    """Return the values of these messages only."""
    if stop - start == 1:
        return [column.value(start)]
    first = column.offsets[0]
    data = column.data[column.offsets[start] - first : column.offsets[stop] - first]
    values = Column(column.offsets[start : stop + 1], data, None).values()
    if column.validity is not None:
        bits = int.from_bytes(column.validity[start >> 3 : (stop + 7) >> 3], "little") >> (
            start & 7
        )
        values = [value if bits >> i & 1 else None for i, value in enumerate(values)]
    return values
