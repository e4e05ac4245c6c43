"""Reading of the messages that may hold unique keys, from the log, when a topic is opened."""

from __future__ import annotations

from collections.abc import Iterator

from ...transport.block.block_format import UNIQUE
from ...transport.errors import ZsqError
from ...transport.wire.unique import digest_of_key, keys_of
from ..errors import Damaged, Unreadable
from ..log.log import Log


def read_held_keys(log: Log, start: int) -> Iterator[tuple[bytes, int]]:
    """Yield (digest, offset) of the messages with keys from `start` on. -1: there are none.

    Only blocks with the flag are read. A block that cannot be read holds no key: its messages are
    lost for channels, too.
    """
    if start < 0:
        return
    for header, _ in log.headers(max(start, log.start)):
        if not header.flags & UNIQUE or not header.count:
            continue
        try:
            for block in log.read(header.first_offset, 1, log.end, 1):
                for offset, key in enumerate(keys_of(block), block.first_offset):
                    if key is not None and offset >= start:
                        yield digest_of_key(key.name), offset
        except (Damaged, Unreadable, ZsqError):
            continue
