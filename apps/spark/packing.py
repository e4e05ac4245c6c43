"""Conversion of Arrow to blocks: the sink's record batches are packed from Arrow's own buffers.

No Python object is made for a row, except for its headers.

Blocks have 128 to 256 KB. A batch of Spark (10,000 rows, or up to 64 MB) is cut into parts of equal
size. Bisection in the batch's offsets finds the cuts. Smaller batches are collected until they
fill a block. Each block is one join of slices of the batch's buffers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ...transport.block.block import Block, Column
from ...transport.block.block_columns import join_columns, slice_bitmap
from ...transport.block.block_format import BLOCK_COUNT_MAX
from ...transport.errors import E_BAD_ARGUMENT, UsageError
from ...transport.wire.codec import CHANNEL_HEADER, pack_headers
from .schema import HEADERS

__all__ = ["BLOCK_BYTES", "Packer", "rows_as_batches", "split_by_topic"]

# The largest size of a block, unless one message is larger. Only the last block has less than half
# of it.
BLOCK_BYTES: Final = 256 * 1024
_NOTHING: Final = memoryview(b"")


class Strip(NamedTuple):
    """A binary column of a batch, as views of its buffers.

    The int32 `offsets` (rows + 1 of them) point into `data`. The first offset may be above 0. `bit`
    is the index in `bitmap` of row 0. `bitmap` is None if no value is null.
    """

    offsets: memoryview
    data: memoryview
    bitmap: memoryview | None
    bit: int

    def column(self, start: int, stop: int) -> Column:
        """Return the rows from `start` to `stop` (exclusive) as a block's column."""
        offsets = self.offsets[start : stop + 1]
        validity = (
            None
            if self.bitmap is None
            else slice_bitmap(self.bitmap, self.bit + start, stop - start)
        )
        return Column(offsets, self.data[offsets[0] : offsets[-1]], validity)


def strip_of(array: pa.Array) -> Strip | None:
    """Return the buffers of a binary or string array, or None if all values are null.

    Large types are cast to the ones with 32-bit offsets.
    """
    if pa.types.is_null(array.type) or array.null_count == len(array):
        return None
    if pa.types.is_large_binary(array.type):
        array = array.cast(pa.binary())
    elif pa.types.is_large_string(array.type):
        array = array.cast(pa.string())
    assert pa.types.is_binary(array.type) or pa.types.is_string(array.type), array.type
    validity, offsets, data = array.buffers()
    first = array.offset
    ends = memoryview(offsets).cast("B")[4 * first : 4 * (first + len(array) + 1)].cast("i")
    bitmap = memoryview(validity).cast("B") if array.null_count else None
    return Strip(ends, _NOTHING if data is None else memoryview(data).cast("B"), bitmap, first)


def _checked_text(array: pa.Array, name: str) -> pa.Array:
    """Return the column as text. Refuse bytes that are not UTF-8, which ZSQ requires.

    A string column may contain bytes that were never checked. So this function casts the column to
    binary and then to string. The second cast checks the bytes.
    """
    if array.null_count == len(array):
        return array
    try:
        return array.cast(pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        raise _wrong(
            f"column {name!r} holds bytes that are not UTF-8 in some row; a {name} is text: "
            "encode it, for example as hex or base64"
        ) from None


def _header_strip(array: pa.Array) -> Strip | None:
    """Pack the headers of each row in the form that a block contains.

    Only this column makes Python objects.
    """
    if array.null_count == len(array):
        return None
    return strip_of(pa.array([_packed(row) for row in array.to_pylist()], pa.binary()))


def _packed(row: list[Any] | None) -> bytes | None:
    """Pack one row's headers: `row` is a list of structs or, for maps, Arrow's list of pairs."""
    if row is None:
        return None
    pairs = [
        tuple(header.values()) if isinstance(header, dict) else header
        for header in row
        if header is not None
    ]
    headers = dict(pairs)
    if CHANNEL_HEADER in headers:
        raise _wrong(
            f"header {CHANNEL_HEADER!r} addresses a message to one channel, which a write of Spark "
            "cannot do: leave it out"
        )
    if None in headers:
        raise _wrong("a header has a null key; filter such headers out")
    if len(headers) < len(pairs):
        names = sorted(key for key, _ in pairs)
        twice = next(a for a, b in pairwise(names) if a == b)
        raise _wrong(
            f"header {twice!r} occurs twice in one row; a message can have only one value for "
            "each header: join them, or rename one"
        )
    return pack_headers(headers)


def split_by_topic(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows for each topic that column 'topic' names, in their order."""
    column = batch.column("topic")
    if column.null_count:
        raise _wrong(
            "column 'topic' is null in some rows: name the topic with .option('topic', NAME), "
            "or filter these rows out"
        )
    coded = column.dictionary_encode()
    topics = coded.dictionary.to_pylist()
    if len(topics) == 1:
        yield topics[0], batch
        return
    rows = batch.take(pc.array_sort_indices(coded.indices))  # this sort is stable
    # Codes are in the order of their first rows, and so are these counts.
    counts = pc.value_counts(coded.indices).field("counts").to_pylist()
    start = 0
    for topic, count in zip(topics, counts, strict=True):
        yield topic, rows.slice(start, count)
        start += count


_ROWS: Final = 10_000  # rows in one Arrow batch when Spark passes rows instead of batches
_OF_SPARK: Final = {
    "array<struct<key:string,value:binary>>": pa.list_(
        pa.struct([("key", pa.string()), ("value", pa.binary())])
    ),
    "array<struct<key:string,value:string>>": pa.list_(
        pa.struct([("key", pa.string()), ("value", pa.string())])
    ),
    "map<string,binary>": pa.map_(pa.string(), pa.binary()),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
    "binary": pa.binary(),
    "void": pa.null(),
}


def rows_as_batches(
    rows: Iterable[Any], fields: Sequence[tuple[str, str]]
) -> Iterator[pa.RecordBatch]:
    """Yield record batches of Spark's rows, for a Spark version that does not pass Arrow batches.

    `fields` are names and Spark's types, already checked.
    """
    kinds = pa.schema([(name, _OF_SPARK.get(kind.lower(), pa.string())) for name, kind in fields])
    source = iter(rows)
    while chunk := list(islice(source, _ROWS)):
        columns = zip(*chunk, strict=True)
        arrays = [
            pa.array(list(column), kind) for column, kind in zip(columns, kinds.types, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=kinds)


class Packer:
    """Packs the record batches of one `write()` into blocks. All batches have the same columns."""

    def __init__(self, block_bytes: int = BLOCK_BYTES) -> None:
        self._block_bytes = block_bytes
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0

    def blocks(self, batch: pa.RecordBatch) -> Iterator[Block]:
        """Add a batch. Yield blocks of all waiting rows if they are enough for one block."""
        if not batch.num_rows:
            return
        nulls = batch.column("value").null_count
        if nulls:
            raise _wrong(
                f"column 'value' is null in {nulls} rows; a message needs a value, even an "
                "empty one: filter them out, or use coalesce"
            )
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= self._block_bytes // 2 or self._waiting_rows >= BLOCK_COUNT_MAX:
            yield from self.rest()

    def rest(self) -> Iterator[Block]:
        """Yield blocks of all waiting rows."""
        batches, self._waiting = self._waiting, []
        self._waiting_rows = self._waiting_bytes = 0
        if batches:
            yield from self._cut(batches[0] if len(batches) == 1 else pa.concat_batches(batches))

    def _cut(self, batch: pa.RecordBatch) -> Iterator[Block]:
        names = batch.schema.names
        body = strip_of(batch.column("value"))
        assert body is not None  # null values were refused
        key = strip_of(batch.column("key")) if "key" in names else None
        tag = strip_of(_checked_text(batch.column("tag"), "tag")) if "tag" in names else None
        headers = _header_strip(batch.column(HEADERS)) if HEADERS in names else None
        strips = [strip for strip in (body, key, tag, headers) if strip is not None]
        start = 0
        for stop in cuts(strips, batch.num_rows, self._block_bytes):
            optional = (
                None if strip is None else strip.column(start, stop)
                for strip in (key, tag, headers)
            )
            yield join_columns(stop - start, body.column(start, stop), *optional)
            start = stop


def cuts(strips: list[Strip], rows: int, block_bytes: int) -> list[int]:
    """Return the ends of parts of about equal size.

    A part has at most `block_bytes`, unless one row has more, and at most `BLOCK_COUNT_MAX` rows.
    """
    firsts = sum(strip.offsets[0] for strip in strips)

    def weight(row: int) -> int:
        return sum([strip.offsets[row] for strip in strips]) - firsts + 4 * row * len(strips)

    total = weight(rows)
    parts = max(-(-total // block_bytes), -(-rows // BLOCK_COUNT_MAX))
    ends = [0]
    for part in range(1, parts):
        end = bisect_left(range(rows), total * part // parts, lo=ends[-1], key=weight)
        end = min(end, ends[-1] + BLOCK_COUNT_MAX)
        if end > ends[-1]:
            ends.append(end)
    while rows - ends[-1] > BLOCK_COUNT_MAX:
        ends.append(ends[-1] + BLOCK_COUNT_MAX)
    return [*ends[1:], rows] if ends[-1] < rows else ends[1:]


def _wrong(text: str) -> UsageError:
    return UsageError(E_BAD_ARGUMENT, text)
