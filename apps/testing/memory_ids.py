"""Ids and unique keys of messages in memory, for `MemoryBroker`. No I/O.

Which messages are duplicates is decided by the broker's own `sift`, and which keys are held by its
own `Locks`. Only the index of ids differs: a dictionary, instead of files and tables.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...actors.storage.locks import Holding, Locks
from ...actors.storage.sifting import Left, Sifted, sift
from ...storage.dedupe.id_format import NO_OFFSET
from ...transport.block.block import Block
from ...transport.block.block_format import UNIQUE
from ...transport.settings import DEDUPE_WINDOW_S
from ...transport.wire.dedupe import digests_of
from ...transport.wire.unique import digests_of_keys, modes_of, read_keys


class MemoryIds:
    """The ids and keys of one topic."""

    def __init__(self, channels: Holding) -> None:
        self.locks = Locks(channels, lambda: 0)
        self.window_s = DEDUPE_WINDOW_S
        self._ids: dict[bytes, tuple[int, int]] = {}  # digest -> (offset, time)

    def sift(self, block: Block, now_ns: int) -> Sifted | None:
        """Find the messages whose ids are known or whose keys are held.

        Return None if the block has neither.
        """
        block.ids = digests_of(block) if self.window_s else None
        if block.header.flags & UNIQUE:
            read_keys(block)
        if block.ids is None:
            return None
        modes = modes_of([block])
        since_ns = now_ns - int(self.window_s * 1e9)

        def known(digests: Sequence[bytes]) -> dict[int, int]:
            rows = enumerate(self._ids.get(digest, (0, -1)) for digest in digests)
            offsets = {index: offset for index, (offset, time_ns) in rows if time_ns > since_ns}
            return {**offsets, **self.locks.known(digests, modes)}

        return sift([block], known)

    def stored(self, sifted: Sifted, first_offset: int, now_ns: int) -> Left | None:
        """Note what is left of a block. Return what the answer must say, or None if all is left."""
        keys = digests_of_keys(sifted.blocks)
        for digest, place in zip(sifted.digests, sifted.places, strict=True):
            offset = NO_OFFSET if first_offset < 0 else first_offset + place
            if digest in keys:
                self.locks.add(digest, offset)
            else:
                self._ids[digest] = offset, now_ns
        return sifted.left(first_offset).get(0)
