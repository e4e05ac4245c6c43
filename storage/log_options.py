"""What a log is told when it is opened."""

from __future__ import annotations

from dataclasses import dataclass

from .group import ADOPT_BYTES, GROUP_APPEND_BYTES_MAX
from .ring import RING_BYTES


@dataclass(frozen=True, slots=True)
class LogOptions:
    """`chunk_bytes`: roll before a chunk would pass it; `reserve_bytes`: refuse appends that would leave less free.

    Of a group, parts of `adopt_bytes` become chunks, and so do the largest of the others until at most `group_append_bytes` are left.
    The newest `ring_bytes` of blocks are kept in memory for readers.
    """

    chunk_bytes: int
    index_every_bytes: int
    reserve_bytes: int
    adopt_bytes: int = ADOPT_BYTES
    group_append_bytes: int = GROUP_APPEND_BYTES_MAX
    ring_bytes: int = RING_BYTES
