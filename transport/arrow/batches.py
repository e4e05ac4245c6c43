"""Conversion of blocks to Arrow: record batches over the blocks' own buffers.

`Reader.arrow` and Spark's source use it. No Python object is made for a row, except for its
headers.

A block's columns have Arrow's layout, so `body`, `key` and `tag` are wrapped, not copied. A block
that is a slice of another keeps its offset values. Then one call of Arrow subtracts the first
offset value from all of them. Values that are the same in each row (topic, partition) are made once
for the largest block and sliced.

Spark takes twice as long for a row in a batch of 128 rows as in one of 1024. Therefore blocks of
fewer messages are joined, which copies them.

Arrow gets numbers as typed scalars. For each plain number, Arrow would search for numpy, which
takes 80 microseconds where numpy is not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ..block.block import Block, Column
from ..block.block_format import BLOCK_COUNT_MAX
from ..errors import E_BAD_ARGUMENT, UsageError
from ..wire.codec import HeaderValue, user_headers

__all__ = ["COLUMNS", "HEADERS", "BatchMaker", "aligned", "arrow_schema"]

HEADERS: Final = "headers"

ROWS_MIN: Final = 1024  # a batch has at least this many rows, if as many are left
# A batch of this size is large enough, even with fewer rows.
JOIN_BYTES_MAX: Final = 4 * 1024 * 1024

_TIME: Final = pa.timestamp("us", tz="UTC")
_HEADER_LIST: Final = pa.list_(
    pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
)
_TYPES: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": _TIME,
    "timestampType": pa.int32(),
    "tag": pa.string(),
    HEADERS: _HEADER_LIST,
}
COLUMNS: Final = tuple(_TYPES)
LOG_TIME: Final = 1  # Kafka's timestampType for the time when the log stored the message
OWN_TIME: Final = 0  # Kafka's timestampType for a time that the producer set


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """Return the schema of all batches. Spark derives the same one, and refuses batches that
    differ.

    Raises `UsageError` (E_BAD_ARGUMENT) for a column that does not exist.
    """
    for name in columns:
        if name not in _TYPES:
            raise UsageError(
                E_BAD_ARGUMENT, f"there is no column {name!r}; the columns are {', '.join(COLUMNS)}"
            )
    if len(set(columns)) < len(columns) or not columns:
        raise UsageError(
            E_BAD_ARGUMENT, f"name each column once, and at least one, not {', '.join(columns)!r}"
        )
    return pa.schema([(name, _TYPES[name]) for name in columns])


# Values that do not depend on the block: made once in each process, and sliced for each batch


@cache
def _numbers() -> pa.Array:
    """Return the numbers 0, 1, 2 ..., one for each row of the largest block."""
    return pa.array(range(BLOCK_COUNT_MAX), pa.int64())


@cache
def _same(value: Any, kind: pa.DataType) -> pa.Array:
    """Return `value` for each row of the largest block."""
    return pa.repeat(pa.scalar(value, kind), BLOCK_COUNT_MAX)


@cache
def _nulls(kind: pa.DataType) -> pa.Array:
    return pa.nulls(BLOCK_COUNT_MAX, kind)


# One column of one block


def wrap(column: Column | None, count: int, kind: pa.DataType) -> pa.Array:
    """Return a block's column as an Arrow array of `kind` (binary or string) over the same bytes.

    The array is all nulls if the block does not have the column.
    """
    if column is None:
        return _nulls(kind).slice(0, count)
    offsets = pa.py_buffer(column.offsets)
    first = column.offsets[0]
    if first:
        shifted = pa.Array.from_buffers(pa.int32(), count + 1, [None, offsets])
        offsets = pc.subtract(shifted, pa.scalar(first, pa.int32())).buffers()[1]
    validity = None if column.validity is None else pa.py_buffer(column.validity)
    return pa.Array.from_buffers(kind, count, [validity, offsets, pa.py_buffer(column.data)])


def _tags(block: Block) -> pa.Array:
    """Return the tags as text. ZSQ accepts bytes that are not UTF-8, which Arrow's text must be.

    Such bytes become U+FFFD, as in `Message.tag`. Only a block that has them is copied.
    """
    array = wrap(block.tag, block.count, _TYPES["tag"])
    if block.tag is None:
        return array
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        tags = [None if tag is None else tag.decode(errors="replace") for tag in block.tag.values()]
        return pa.array(tags, _TYPES["tag"])
    return array


def _times(block: Block) -> pa.Array:
    """Return the times of a block of the log.

    The time that a message was published with is never later than that of its storing. If its
    publisher's clock was ahead, it is the time of storing. So a search of the log by the time of
    storing finds all messages from a time on.
    """
    times = block.times
    stored = pa.scalar(block.header.time_ns // 1000, pa.int64())
    if times is None:
        return pa.repeat(stored.cast(_TIME), block.count)
    nanos = pa.Array.from_buffers(pa.int64(), block.count, [None, pa.py_buffer(times)])
    thousand = pa.scalar(1000, pa.int64())
    micros = pc.divide(nanos, thousand)
    # The division rounds toward zero. So it rounds up times before 1970, which are negative.
    if pc.min(nanos).as_py() < 0:
        micros = pc.subtract(micros, pc.less(nanos, pc.multiply(micros, thousand)).cast(pa.int64()))
    return pc.min_element_wise(micros, stored).view(_TIME)


def _header_rows(block: Block) -> pa.Array:
    """Unpack the headers of each row. This is the only column that makes Python objects.

    Rows with the same headers are unpacked once.
    """
    if block.headers is None:
        return _nulls(_HEADER_LIST).slice(0, block.count)
    known: dict[bytes | None, tuple[list[str], list[bytes | None]]] = {None: ([], [])}
    keys: list[str] = []
    values: list[bytes | None] = []
    ends = [0]
    rows = block.headers.values()
    for packed in rows:
        row = known.get(packed)
        if row is None:
            assert packed is not None
            headers = user_headers(packed)
            row = known[packed] = (list(headers), [_as_bytes(value) for value in headers.values()])
        keys += row[0]
        values += row[1]
        ends.append(len(keys))
    pairs = pa.StructArray.from_arrays(
        [pa.array(keys, pa.string()), pa.array(values, pa.binary())], names=["key", "value"]
    )
    nulls = pa.array([packed is None for packed in rows], pa.bool_())
    return pa.ListArray.from_arrays(
        pa.array(ends, pa.int32()), pairs, type=_HEADER_LIST, mask=nulls
    )


def _as_bytes(value: HeaderValue) -> bytes | None:
    """Return bytes unchanged, text as UTF-8, and numbers and booleans as JSON writes them."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bool):
        return b"true" if value else b"false"
    return str(value).encode()


def aligned(block: Block) -> Block:
    """Return the block at an address that is a multiple of 8, as Arrow recommends.

    A frame from the network may begin at any address. Then this copies the block once. Programs
    that do not accept other addresses would copy each column, or fail.
    """
    if pa.py_buffer(block.columns).address % 8 == 0:
        return block
    return Block(block.header, bytes(block.columns))


class BatchMaker:
    """Makes record batches of `columns` from the blocks of a topic, or of one part of it."""

    def __init__(self, topic: str, columns: Sequence[str], partition: int = 0) -> None:
        makers: dict[str, Callable[[Block], pa.Array]] = {
            "key": lambda block: wrap(block.key, block.count, _TYPES["key"]),
            "value": lambda block: wrap(block.body, block.count, _TYPES["value"]),
            "topic": lambda block: _same(topic, pa.string()).slice(0, block.count),
            "partition": lambda block: _same(partition, pa.int32()).slice(0, block.count),
            "offset": lambda block: pc.add(
                _numbers().slice(0, block.count), pa.scalar(block.first_offset, pa.int64())
            ),
            "timestamp": _times,
            "timestampType": lambda block: _same(
                LOG_TIME if block.times is None else OWN_TIME, pa.int32()
            ).slice(0, block.count),
            "tag": _tags,
            HEADERS: _header_rows,
        }
        self.schema = arrow_schema(columns)
        self._makers = [makers[name] for name in columns]

    def batch(self, block: Block, start: int, stop: int) -> pa.RecordBatch:
        """Return the block's messages from `start` to `stop` (exclusive), at least one."""
        batch = pa.RecordBatch.from_arrays(
            [make(block) for make in self._makers], schema=self.schema
        )
        first = max(start, block.first_offset)
        last = min(stop, block.next_offset)
        assert first < last, "a block that holds nothing of the range"
        return (
            batch
            if last - first == block.count
            else batch.slice(first - block.first_offset, last - first)
        )

    def batches(self, blocks: Iterable[Block], start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Yield the messages from `start` to `stop` (exclusive) as batches.

        A batch has at least 1024 rows or 4 MiB of blocks, except for the last one. Each of
        `blocks` holds some of the messages.
        """
        waiting: list[pa.RecordBatch] = []
        rows = size = 0
        for block in blocks:
            batch = self.batch(block, start, stop)
            waiting.append(batch)
            rows += batch.num_rows
            size += block.length
            if rows >= ROWS_MIN or size >= JOIN_BYTES_MAX:
                yield _joined(waiting)
                waiting = []
                rows = size = 0
        if waiting:
            yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
