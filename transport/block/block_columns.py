"""Block from existing columns (Arrow's buffers), with one copy and no work for single messages.

`pack` in `block.py` makes a block from single messages. Here offsets, bytes and bitmaps exist
already. One join puts them together with their padding, and one checksum covers them. The offsets
are not changed (the first offset of a slice is not 0). The sizes of single values are checked, in
C, only if the whole column is larger than the limit for one value. Nothing here does I/O.
"""

from __future__ import annotations

from itertools import islice
from operator import sub
from typing import Any, Final

from ..errors import E_BAD_ARGUMENT, E_BAD_BLOCK, E_TOO_BIG, UsageError
from .block import Block, Column, pad, padded, seal
from .block_format import (
    BLOCK_COUNT_MAX,
    HAS_HEADERS,
    HAS_KEY,
    HAS_TAG,
    HEADERS_NULLS,
    KEY_NULLS,
    TAG_NULLS,
    Limits,
)

__all__ = ["join_columns", "slice_bitmap"]

_OFFSET_BYTES: Final = 4
_STRIDE_MAX: Final = 64  # the most values in each run of the first check of a column's offsets


def join_columns(
    count: int,
    body: Column,
    key: Column | None = None,
    tag: Column | None = None,
    headers: Column | None = None,
    *,
    sequence: int = 0,
    producer_id: int = 0,
    limits: Limits | None = None,
) -> Block:
    """Return a block of `count` messages from raw columns.

    The `offsets` of a column are count + 1 ascending numbers of type int32. Its `data` has exactly
    the bytes from the first offset to the last. Its `validity` is None if no value is null, else
    (count + 7) // 8 bytes with message 0 at bit 0 (see `slice_bitmap`). Raises `UsageError`:
    E_TOO_BIG names the exceeded limit, E_BAD_ARGUMENT is for a null body, and E_BAD_BLOCK for
    columns that do not match.
    """
    limits = limits or Limits()
    if not 1 <= count <= BLOCK_COUNT_MAX:
        raise UsageError(
            E_TOO_BIG if count > 0 else E_BAD_BLOCK,
            f"a block holds 1 to {BLOCK_COUNT_MAX} messages, not {count}",
        )
    if body.validity is not None and slice_bitmap(body.validity, 0, count) is not None:
        raise UsageError(
            E_BAD_ARGUMENT,
            (
                f"the body of message {_first_null(body.validity)} of the block is null; use an "
                "empty body"
            ),
        )
    pieces: list[Any] = []
    size = _add_values(pieces, count, body, limits.max_msg_size, "message")
    bits = 0
    optional = ((key, HAS_KEY, KEY_NULLS, limits.key_bytes_max, "key"),
                (tag, HAS_TAG, TAG_NULLS, limits.tag_bytes_max, "tag"),
                (headers, HAS_HEADERS, HEADERS_NULLS, limits.headers_bytes_max, "headers"))  # fmt: skip
    for column, has, nulls, size_max, caption in optional:
        if column is None:
            continue
        bits |= has
        if column.validity is not None:
            bitmap_bytes = (count + 7) // 8
            if len(column.validity) != bitmap_bytes:
                raise UsageError(
                    E_BAD_BLOCK,
                    f"the {caption} bitmap must have {bitmap_bytes} bytes, not "
                    f"{len(column.validity)}",
                )
            bits |= nulls
            pieces += (column.validity, pad(bitmap_bytes))
            size += padded(bitmap_bytes)
        size += _add_values(pieces, count, column, size_max, caption)
    return seal(
        pieces,
        size,
        bits,
        count,
        first_offset=0,
        time_ns=0,
        producer_id=producer_id,
        sequence=sequence,
    )


def _add_values(pieces: list[Any], count: int, column: Column, size_max: int, caption: str) -> int:
    """Add a column's offsets and bytes with their padding, and return the added bytes."""
    offsets, data = column.offsets, column.data
    if offsets.itemsize != _OFFSET_BYTES or len(offsets) != count + 1:
        shape = f"{len(offsets)} of {offsets.itemsize} bytes"
        raise UsageError(
            E_BAD_BLOCK,
            (
                f"the {caption} column must have {count + 1} offsets of {_OFFSET_BYTES} bytes, not "
                f"{shape}"
            ),
        )
    if offsets[0] < 0 or offsets[count] - offsets[0] != len(data):
        raise UsageError(
            E_BAD_BLOCK,
            (
                f"the offsets of the {caption} column cover {offsets[count] - offsets[0]} bytes, "
                f"but it has {len(data)}"
            ),
        )
    if len(data) > size_max and (largest := _largest(offsets, len(data), size_max)) > size_max:
        raise UsageError(
            E_TOO_BIG, f"{caption} of {largest} bytes is over the limit of {size_max} bytes"
        )
    offsets_bytes = (count + 1) * _OFFSET_BYTES
    pieces += (offsets.cast("B"), pad(offsets_bytes), data, pad(len(data)))
    return padded(offsets_bytes) + padded(len(data))


def _largest(offsets: memoryview, size: int, size_max: int) -> int:
    """Return the size of the largest value, or a number up to `size_max` that no value exceeds.

    Offsets ascend, so a value is not larger than the run of values that contains it. If every run
    of `stride` values is small enough, the single values are not checked. For a thousand keys of 8
    bytes, this takes 10 microseconds instead of 60.
    """
    stride = min(_STRIDE_MAX, size_max * len(offsets) // (2 * size))
    if stride > 1:
        ends = [*offsets[::stride].tolist(), offsets[-1]]
        largest: int = max(map(sub, islice(ends, 1, None), ends))
        if largest <= size_max:
            return largest
    ends = offsets.tolist()
    longest: int = max(map(sub, islice(ends, 1, None), ends))
    return longest


def slice_bitmap(bitmap: memoryview, start: int, count: int) -> memoryview | None:
    """Return bits `start` to `start + count` of Arrow's bitmap as a bitmap that begins at bit 0.

    Returns None if all bits are set.
    """
    last = (start + count + 7) // 8
    if last > len(bitmap):
        raise UsageError(
            E_BAD_BLOCK, f"a bitmap of {len(bitmap)} bytes has no bits {start} to {start + count}"
        )
    full = (1 << count) - 1
    bits = int.from_bytes(bitmap[start // 8 : last], "little") >> (start % 8) & full
    return None if bits == full else memoryview(bits.to_bytes((count + 7) // 8, "little"))


def _first_null(bitmap: memoryview) -> int:
    zeros = ~int.from_bytes(bitmap, "little")
    return (zeros & -zeros).bit_length() - 1
