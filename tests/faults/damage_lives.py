"""The workloads that made the specimens (directories of topics), and the content that each must
still have. That content is read once from an undamaged copy.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

from zsq.storage.directory.store import Store, open_store
from zsq.storage.errors import Damaged
from zsq.storage.log.log import Log
from zsq.storage.state.state import Table
from zsq.transport.block.block import Block

from .damage_specimens import (
    CHANNELS,
    OPTIONS,
    TINY_OPTIONS,
    Bench,
    Maker,
    SeededFiles,
    Specimen,
    capture,
    still_clock,
    stored_blocks,
)

TINY: Final = 0
"""A topic with few small blocks in two chunks: each of their bits is flipped."""
RICH: Final = 1
KILLED: Final = 2
"""A topic whose process died, so that its state is older than its log."""
SCARRED: Final = 3
"""A topic with one block that is known to be damaged."""
LISTED_MAX: Final = 10_000
READS_MAX: Final = 1_000


def make(number: int, directory: str, *, foreign: bool = False) -> Specimen:
    """Make a specimen. The same number gives the same specimen. `foreign`: the same topic with
    another uuid.
    """
    with still_clock():
        maker = Maker(
            directory, number, TINY_OPTIONS if number == TINY else OPTIONS, foreign=foreign
        )
        if number == TINY:
            for _ in range(5):
                maker.publish(count=1, size=2)
                maker.store.log.sync()
            maker.checkpoint()
        else:
            _live(maker, 12 if number <= SCARRED else maker.random.randrange(20, 60))
        if number == SCARRED:
            maker.scar()
        return _finish(maker, number, closed=number % 3 != KILLED)


def _live(maker: Maker, steps: int) -> None:
    """Do each kind of action at least once, and then random ones."""
    maker.publish(3)
    maker.group()
    maker.delay(4)
    maker.checkpoint()
    maker.move()
    maker.consume()
    maker.remember()
    kinds = [
        maker.publish,
        maker.publish,
        lambda: maker.publish(3),
        maker.checkpoint,
        maker.consume,
        maker.group,
        maker.delay,
        maker.move,
    ]
    if maker.identity.base_offset:
        kinds.append(maker.retain)
    for step in range(steps):
        maker.random.choice(kinds)()
        if step % 5 == 4:
            maker.store.log.sync()
            maker.remember()
    maker.checkpoint()
    maker.consume()
    maker.version += 1  # so no group in the log is newer than this one
    maker.stage("left", 3, 20)


def _finish(maker: Maker, number: int, *, closed: bool) -> Specimen:
    if closed:
        maker.store.close()
    else:
        for _ in range(3):
            maker.publish()
            maker.store.log.sync()
    specimen = Specimen(number, maker.identity, maker.options, closed)
    if not closed:
        table = maker.store.state.load()
        specimen.synced_end, specimen.applied = table.synced_end, table.applied_offset
        maker.abandon()
    specimen.tree = capture(maker.directory)
    specimen.past = [tree for tree in maker.past if tree != specimen.tree]
    specimen.staged = dict(maker.staged)
    specimen.rotten = maker.rotten
    store = reopen(specimen, maker.directory)
    seen, _ = read_all(store.log)
    specimen.blocks = stored_blocks(specimen.tree, seen)
    specimen.start, specimen.end = store.log.start, store.log.end
    if closed:
        specimen.synced_end = specimen.applied = specimen.end
    table = store.state.load()
    specimen.sequences = {producer: row.next_sequence for producer, row in table.producers.items()}
    assert specimen.sequences == maker.sequences
    specimen.transactions = dict(table.transactions)
    specimen.unfinished = {
        name: unfinished(store, table, name, specimen.end)
        for name in CHANNELS
        if name in table.channels
    }
    specimen.delayed = delayed_bodies(store)
    store.close()
    return specimen


def reopen(specimen: Specimen, directory: str) -> Store:
    Bench(directory).lay(specimen.tree)
    return open_store(SeededFiles(random.Random(1)), directory, specimen.options, specimen.identity)


def read_all(log: Log) -> tuple[dict[int, Block], list[tuple[int, int]]]:
    """Return every block by its offset, in the order of the reads, and (offset, count) for each
    range that a read reported as lost.
    """
    found: dict[int, Block] = {}
    damage: list[tuple[int, int]] = []
    offset = log.start
    while offset < log.end:
        try:
            blocks = log.read(offset, 4096, log.end)
        except Damaged as error:
            damage.append((error.offset, error.count))
            assert len(damage) < READS_MAX, "reads do not get past damage"
            continue
        if not blocks:
            assert log.skip(offset) >= log.end, (
                f"a read at {offset} gives nothing, and the end is {log.end}"
            )
            break
        for block in blocks:
            assert block.first_offset >= offset or not found, (
                f"offset {block.first_offset} comes behind {offset}"
            )
            found[block.first_offset] = block
            offset = block.next_offset
    return found, damage


def unfinished(store: Store, table: Table, name: str, end: int) -> frozenset[int]:
    """Return all offsets that a channel still has to deliver."""
    rows = [
        *table.holes.get(name, ()),
        *(store.state.deferred_rows(name) if name in table.deferred else ()),
    ]
    following = table.channels[name].next_offset
    return frozenset(
        offset for one in rows for offset in range(one.start, one.start + one.count)
    ) | set(range(following, end))


def delayed_bodies(store: Store) -> dict[str, bytes]:
    if store.delayed is None:
        return {}
    return {one.key.text(): one.body for one in store.delayed.listed(None, LISTED_MAX, LISTED_MAX)}


def log_files(specimen: Specimen) -> list[str]:
    """Return all files except LMDB's: chunks, indexes, `.bad` files, snapshot, identity, notes and
    staged parts.
    """
    return [
        path for path in specimen.tree if not path.endswith("/") and Path(path).name != "data.mdb"
    ]
