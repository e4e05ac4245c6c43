"""Messages for one channel of a topic only: the header `zsq-channel` names it, and the block says by a flag that it holds such. Pure.

The flag is set by who packs the block, so that a channel looks into no other one. It may stand on a block that holds none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from .block import Block
from .block_format import ADDRESSED
from .codec import unpack_headers
from .errors import UsageError

CHANNEL_HEADER: Final = "zsq-channel"
_PACKED: Final = bytes([0xA0 | len(CHANNEL_HEADER)]) + CHANNEL_HEADER.encode()  # as it stands in a msgpack map
assert len(CHANNEL_HEADER) < 32


def with_address(block: Block, headers: Iterable[bytes | None] | None) -> Block:
    """The block with its flag, if it needs it; `headers`: as they were packed into it. One search, whatever their number."""
    if headers is None or _PACKED not in b"".join(filter(None, headers)):
        return block
    return Block(block.header._replace(flags=block.header.flags | ADDRESSED), block.payload, block.columns)


def addressees(block: Block) -> Iterator[tuple[int, str]]:
    """(index, channel) of the messages that are addressed to one; what is no header of ours addresses nobody."""
    column = block.headers
    if column is None or _PACKED not in bytes(column.data):
        return
    for index, packed in enumerate(column.values()):
        if packed and _PACKED in packed:
            try:
                channel = unpack_headers(packed).get(CHANNEL_HEADER)
            except UsageError:
                continue
            if isinstance(channel, str):
                yield index, channel
