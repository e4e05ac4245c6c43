"""What is to be delivered again, gathered: messages that do not lie together, as far as their blocks are at hand. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ..transport.block import Block
from ..transport.protocol import Run
from . import options
from .shelf import bytes_between

Part = tuple[Block, int, int]


def collect(again: deque[Run], quota: int, find: Callable[[int], Block | None], wanted: set[int]) -> tuple[list[Part], list[Run]]:
    """Take up to `quota` messages out of `again`; the offsets of those whose block `find` does not have go to `wanted`."""
    parts: list[Part] = []
    runs: list[Run] = []
    waiting: list[Run] = []
    size = 0
    while again and quota > 0 and size < options.GATHER_BYTES_MAX and len(waiting) < options.FETCHES_MAX:
        first, count, attempts = again.popleft()
        block = find(first)
        if block is None:
            wanted.add(first)
            waiting.append((first, count, attempts))
            continue
        start = first - block.first_offset
        stop = min(block.count, start + count, start + quota)
        size += bytes_between(block, start, stop)
        if parts and size > options.GATHER_BYTES_MAX:  # one part may be as large as its block; several must fit into a block
            again.appendleft((first, count, attempts))
            break
        parts.append((block, start, stop))
        runs.append((first, stop - start, attempts))
        quota -= stop - start
        if stop - start < count:
            again.appendleft((first + stop - start, count - (stop - start), attempts))
    again.extendleft(reversed(waiting))
    return parts, runs
