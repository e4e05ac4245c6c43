"""Processor time of the steps of a block, each measured alone in one thread.

These are the steps whose cost grows with the messages of a block. The rest of a process's time is
spent for each block as a whole, or by the threads of ZeroMQ, which copy its bytes.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from zsq.transport.block.block import check_block, check_columns, open_block, pack

from ..harness.loads import Shape, make_bodies
from ..peers.limits import SYNC_BYTES

PASSES: Final = 3  # the cheapest one counts
# Fewer blocks would stay in the processor's caches, where a broker's blocks are not.
BLOCKS_MAX: Final = 100


def step_costs(shape: Shape, folder: Path) -> dict[str, float]:
    """Return the seconds of each step for a block."""
    bodies = make_bodies(shape)
    starts = range(0, min(len(bodies), shape.block * BLOCKS_MAX), shape.block)
    batches = [bodies[start : start + shape.block] for start in starts]
    blocks = [pack(batch) for batch in batches]
    frames = [(block.wire_header(), block.payload) for block in blocks]
    return {
        "producer, packs": _cost(pack, [(batch,) for batch in batches]),
        "topic, checks": _cost(lambda *pair: check_block(open_block(*pair)), frames),
        **_file_costs(frames, folder),
        "consumer, checks": _cost(lambda *pair: _check_sum(*pair), frames),
        "consumer, unpacks": _cost(lambda *pair: open_block(*pair).body.values(), frames),
    }


def _check_sum(header: bytes, payload: bytes) -> None:
    block = open_block(header, payload)
    check_columns(block.header, block.columns)


def _cost(step: Callable[..., object], arguments: Iterable[tuple[Any, ...]]) -> float:
    costs = []
    for _ in range(PASSES):
        start = time.thread_time()
        count = 0
        for count, each in enumerate(arguments, 1):  # noqa: B007
            step(*each)
        costs.append((time.thread_time() - start) / count)
    return min(costs)


def _file_costs(frames: list[tuple[bytes, bytes]], folder: Path) -> dict[str, float]:
    written, synced = [], []
    for _ in range(PASSES):
        with tempfile.TemporaryFile(prefix="steps-", dir=folder) as file:
            writing = syncing = 0.0
            unsynced = 0
            for pair in frames:
                start = time.thread_time()
                unsynced += os.writev(file.fileno(), pair)
                writing += time.thread_time() - start
                if unsynced >= SYNC_BYTES or pair is frames[-1]:
                    unsynced = 0
                    start = time.thread_time()
                    os.fdatasync(file.fileno())
                    syncing += time.thread_time() - start
        written.append(writing / len(frames))
        synced.append(syncing / len(frames))
    return {"topic, writes": min(written), "topic, syncs": min(synced)}
