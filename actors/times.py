"""When the messages of a delivery came into their topic. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from ..transport.block import Block
from ..transport.protocol import Run
from .ranges import total


class Times(NamedTuple):
    """When the messages of a delivery came: each time holds from its offset on, up to the next one."""

    starts: Sequence[int]
    times_ns: Sequence[int]


def times_of(parts: Sequence[tuple[Block, int, int]]) -> Times:
    """Of the parts of blocks that a delivery is made of."""
    if len(parts) == 1:
        block, start, _ = parts[0]
        return Times((block.first_offset + start,), (block.header.time_ns,))
    rows = sorted((block.first_offset + start, block.header.time_ns) for block, start, _ in parts)
    return Times([row[0] for row in rows], [row[1] for row in rows])


def by_time(times: Times, runs: Sequence[Run]) -> dict[int, int]:
    """How many of these messages came at which time."""
    if len(times.starts) == 1:
        return {times.times_ns[0]: total(runs)} if runs else {}
    found: dict[int, int] = {}
    for start, count, _ in runs:
        time_ns = times.times_ns[bisect_right(times.starts, start) - 1]
        found[time_ns] = found.get(time_ns, 0) + count
    return found
