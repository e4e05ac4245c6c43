"""Messages that do not lie together, as one block. Pure.

No part is cut out as a block of its own first: a checksum and a copy for each message of a thousand take 28 ms here; their values 7, and
where they lie close together, as those of a tag do, 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final

from .block import Block, Column, cut, pack
from .block_format import BLOCK_BYTES_MAX, Limits

_CLOSE: Final = 8  # one of so many messages is wanted: their columns are taken apart as a whole, in C
_UNLIMITED: Final = Limits(BLOCK_BYTES_MAX, BLOCK_BYTES_MAX, BLOCK_BYTES_MAX, BLOCK_BYTES_MAX)  # they were checked when they came


def gather(parts: Sequence[tuple[Block, int, int]]) -> Block:
    """`parts` are (block, start, stop) indexes.

    Its first offset is the first part's; the delivery that carries it names the real runs. Messages keep
    their storing times in a times column where these differ.
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
        count = sum(stop - start for start, stop in spans)
        bodies += _picked(block.body, spans, count)
        for values, column in zip(optional, (block.key, block.tag, block.headers), strict=True):
            values += [None] * count if column is None else _picked(column, spans, count)
        own_times = block.times
        if own_times is None:
            times += [block.header.time_ns] * count
        else:
            times += [time_ns for start, stop in spans for time_ns in own_times[start:stop]]
    keys, tags, headers = (values if any(value is not None for value in values) else None for values in optional)
    first, start, _ = parts[0]
    same_time = len(set(times)) == 1
    return pack(bodies, keys=keys, tags=tags, headers=headers, times=None if same_time else times,
                first_offset=first.first_offset + start, time_ns=times[0], limits=_UNLIMITED)  # fmt: skip


def _picked(column: Column, spans: Sequence[tuple[int, int]], count: int) -> list[bytes | None]:
    low = min(start for start, _ in spans)
    high = max(stop for _, stop in spans)
    if high - low > _CLOSE * count:
        return [value for start, stop in spans for value in _values(column, start, stop)]
    values = _values(column, low, high)
    return [value for start, stop in spans for value in values[start - low : stop - low]]


def _values(column: Column, start: int, stop: int) -> list[bytes | None]:
    """Of these messages only."""
    if stop - start == 1:
        return [column.value(start)]
    first = column.offsets[0]
    data = column.data[column.offsets[start] - first : column.offsets[stop] - first]
    found = Column(column.offsets[start : stop + 1], data, None).values()
    if column.validity is not None:
        bits = int.from_bytes(column.validity[start >> 3 : (stop + 7) >> 3], "little") >> (start & 7)
        found = [value if bits >> i & 1 else None for i, value in enumerate(found)]
    return found
