"""Pieces: blocks with some messages of another block, which are sent instead of it. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from ...block.block import Block, pick
from ...wire.header_flags import with_flags


def rows_of(block: Block, indexes: Sequence[int]) -> Block:
    """Return a block with only these messages of another one, and with the flags that they need."""
    piece = pick(block, indexes)
    headers = None if piece.headers is None else piece.headers.values()
    plain = Block(piece.header._replace(flags=0), piece.payload, piece.columns)
    return with_flags(plain, headers)


def halves(count: int) -> tuple[range, range]:
    """Return the indexes of the first and of the second half of a block's messages."""
    return range(count // 2), range(count // 2, count)
