"""Flags of a block for headers that the broker obeys: it looks only into blocks that have them."""

from __future__ import annotations

from collections.abc import Sequence

from ..block.block import Block
from .dead_letter import with_address
from .dedupe import with_ids
from .lifetime import with_lifetime
from .unique import with_unique


def with_flags(block: Block, headers: Sequence[bytes | None] | None) -> Block:
    """Return the block with the flags that its headers need. `headers`: as they were packed."""
    flagged = with_lifetime(with_address(block, headers), headers)
    return with_unique(with_ids(flagged, headers), headers)
