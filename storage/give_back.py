"""Giving pages back behind a reader that goes through an old part of the log, so that its backlog does not push out the hot end.

Only what lies more than FAR_BYTES behind the end, and KEPT_BYTES behind the reader: others may follow it closely (four channels that
catch up together read the same blocks), and shall find its pages. A step is some MiB, because each is a system call.

Rejected: advice on the whole chunk when a reader leaves it (256 MiB stay meanwhile for each reader), and O_DIRECT (no sharing between
readers, and a cache of our own).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Final

from .chunk import Chunk
from .chunk_book import Facts

FAR_BYTES: Final = 64 * 1024 * 1024
KEPT_BYTES: Final = 8 * 1024 * 1024
STEP_BYTES: Final = 4 * 1024 * 1024
PAGE_BYTES: Final = 4096
CHUNKS_COUNTED_MAX: Final = 1024  # whoever has more chunks before him than that is far behind, whatever their sizes are


class GiveBack:
    """One log's. `bases` and `facts` are the reader's own, and change."""

    def __init__(self, bases: Sequence[int], facts: Mapping[int, Facts], far_bytes: int = FAR_BYTES) -> None:
        self._bases = bases
        self._facts = facts
        self._far_bytes = far_bytes
        self.kept_bytes = min(KEPT_BYTES, far_bytes)
        self.step_bytes = min(STEP_BYTES, far_bytes)

    def read(self, chunk: Chunk, since: int, position: int, active: Chunk) -> int:
        """A reader has come to `position`; its pages before `since` are given back already. Up to where they are now."""
        if position - since < self.kept_bytes + self.step_bytes:
            return since
        upto = (position - self.kept_bytes) & -PAGE_BYTES
        return upto if self._advise(chunk, since, upto, active) else since

    def left(self, chunk: Chunk, since: int, active: Chunk) -> None:
        """A reader goes on with the next chunk."""
        self._advise(chunk, since, chunk.end_position, active)

    def begins(self, chunk: Chunk, position: int, active: Chunk) -> None:
        """A reader that reads on has come into this chunk: a hint to read far ahead. Not for the one that is written."""
        if chunk is not active and not chunk.sequential and self._is_far(chunk, position, active):
            chunk.sequential = True
            with contextlib.suppress(OSError):
                chunk.files.advise_sequential(chunk.fd)

    def _advise(self, chunk: Chunk, since: int, upto: int, active: Chunk) -> bool:
        if upto <= since or not self._is_far(chunk, upto, active):
            return False
        with contextlib.suppress(OSError):  # advice, and nothing more
            chunk.files.advise_done(chunk.fd, since, upto - since)
        return True

    def _is_far(self, chunk: Chunk, position: int, active: Chunk) -> bool:
        distance = chunk.end_position - position
        for number in range(len(self._bases) - 1, max(-1, len(self._bases) - 1 - CHUNKS_COUNTED_MAX), -1):
            base = self._bases[number]
            if base <= chunk.base_offset or distance >= self._far_bytes:
                return distance >= self._far_bytes
            facts = self._facts.get(base)
            distance += active.end_position if base == active.base_offset else 0 if facts is None else facts.bytes
        return True
