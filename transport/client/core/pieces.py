"""Pieces: blocks with some messages of another block, which are sent instead of it. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from ...block.block import LARGEST, Block, pack
from ...wire.dead_letter import with_address
from ...wire.lifetime import with_lifetime


def rows_of(block: Block, indexes: Sequence[int]) -> Block:
    """Return a block with only these messages of another one."""
    bodies = [block.body.value(index) or b"" for index in indexes]
    keys, tags, headers = (
        None if column is None else [column.value(index) for index in indexes]
        for column in (block.key, block.tag, block.headers)
    )
    times = block.times
    row_times = None if times is None else [times[index] for index in indexes]
    piece = pack(bodies, keys=keys, tags=tags, headers=headers, times=row_times, limits=LARGEST)
    return with_lifetime(with_address(piece, headers), headers)


def halves(count: int) -> tuple[range, range]:
    """Return the indexes of the first and of the second half of a block's messages."""
    return range(count // 2), range(count // 2, count)
