"""Blocks on their way into a chunk: their headers in disk form, and their entries in its index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..transport.block import HEADER_BYTES, Block
from .chunk import Chunk
from .log_format import encode_disk_header


def place(chunk: Chunk, blocks: Sequence[Block], time_ns: int, synced_position: int, flags: int = 0) -> tuple[list[Any], int, int]:
    """What to write at the chunk's end: a header and the columns (as they came) of each block; and the offset and the position behind them.

    The offset is relative to the chunk. `synced_position`: what lies before it in the chunk is on disk. Who then does not write must
    cut the index.
    """
    position = chunk.end_position
    offset = chunk.end_offset - chunk.base_offset
    chunk_time_ns = time_ns - chunk.header.base_time_ns
    seed = chunk.header.seed
    index = chunk.index
    assert index is not None
    pieces: list[Any] = []
    for block in blocks:
        header = block.header
        assert header.length == HEADER_BYTES + len(block.columns)
        if flags:
            header = header._replace(flags=header.flags | flags)
        pieces.append(encode_disk_header(header, offset, chunk_time_ns, position - synced_position, seed, position))
        pieces.append(block.columns)
        if position >= index.next_position:
            index.note(offset, position, chunk_time_ns)
        offset += header.count
        position += header.length
    return pieces, offset, position
