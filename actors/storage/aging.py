"""Age of delayed messages: what is left of a lifetime when a message becomes due. Pure."""

from __future__ import annotations

from typing import Final

from ...storage.delayed.delayed_format import DelayedRow, due_block
from ...transport.block.block import Block
from ...transport.wire.lifetime import aged

_MS: Final = 1_000_000


def aged_block(row: DelayedRow, now_ns: int) -> Block:
    """Return the block as the log stores it now. Its messages have lived since they were due."""
    late_ms = (now_ns - row.key.due_ns) // _MS
    return due_block(row._replace(block=aged(row.block, late_ms)))
