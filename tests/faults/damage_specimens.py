"""Directories of topics that will be damaged. Each is made from a number. They contain every kind
of block, chunk and row. A record says what each directory must still contain after the damage.

A specimen is a tree (relative path -> bytes) in memory. Damage is a function that makes another
tree from a tree. Each try writes a new copy.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple
from unittest import mock

from zsq.storage.delayed.delayed_format import due_block
from zsq.storage.directory.store import Store, StoreOptions, TopicIdentity, create_store, open_store
from zsq.storage.errors import Damaged
from zsq.storage.files import Files
from zsq.storage.log.log_format import CHUNK_HEADER_BYTES, FOOTER_BYTES, parse_chunk_name
from zsq.storage.log.removal import remove_below
from zsq.storage.log.transactions import Transaction, TransactionRow
from zsq.storage.state.channel_row import ChannelRow
from zsq.storage.state.state import ProducerRow, StateBatch, producer_after
from zsq.transport.block.block import HEADER_BYTES, Block, Header, pack
from zsq.transport.block.block_format import ADDRESSED
from zsq.transport.wire.codec import pack_value

Tree = dict[str, bytes]
"""Relative path -> content. A path that ends with a slash is a folder."""

EPOCH_NS: Final = 1_700_000_000_000_000_000
APP: Final = "query"
CHANNELS: Final = ("archive", "billing", "search")
PRODUCERS: Final = (77, 78, 2**63 + 5)
LATE_PRODUCER: Final = 99  # producer of the delayed messages
OPTIONS: Final = StoreOptions(
    chunk_bytes=1400,
    index_every_bytes=256,
    map_bytes=1 << 20,
    reserve_bytes=0,
    adopt_bytes=500,
    group_append_bytes=900,
    ring_bytes=0,
)
TINY_OPTIONS: Final = replace(OPTIONS, chunk_bytes=460, index_every_bytes=1)


class Stored(NamedTuple):
    """A block that was acknowledged: its position, and everything that a reader sees of it."""

    path: str
    position: int
    header: Header
    columns: bytes

    @property
    def end(self) -> int:
        return self.position + self.header.length


@dataclass(slots=True)
class Specimen:
    """The directory of a topic, and its true content. `past`: the tree at earlier moments.
    `closed`: True if the topic was closed in an orderly way, so that its state covers the whole
    log.
    """

    number: int
    identity: TopicIdentity
    options: StoreOptions
    closed: bool
    tree: Tree = field(default_factory=dict)
    past: list[Tree] = field(default_factory=list)
    blocks: dict[int, Stored] = field(default_factory=dict)
    """The blocks that readers of the undamaged directory get, by first offset."""
    rotten: dict[int, bytes] = field(default_factory=dict)
    """Columns of the blocks that were damaged already when the specimen was made, by first offset.
    An older version of the file may contain the undamaged block.
    """
    start: int = 0
    end: int = 0
    synced_end: int = 0
    """The end of the log that is on disk according to the state, before a start has replayed
    anything.
    """
    applied: int = 0
    """The offset up to which the rows of the producers in the state are complete."""
    sequences: dict[int, int] = field(default_factory=dict)
    unfinished: dict[str, frozenset[int]] = field(default_factory=dict)
    transactions: dict[str, TransactionRow] = field(default_factory=dict)
    staged: dict[bytes, list[bytes]] = field(default_factory=dict)
    """Columns of the blocks of each stage that has its final seal and is not committed."""
    delayed: dict[str, bytes] = field(default_factory=dict)
    """Bodies of the delayed messages that are not due yet, by key."""

    def chunks(self) -> list[str]:
        return sorted(path for path in self.tree if parse_chunk_name(path) is not None)


class SeededFiles(Files):
    """Access to files with reproducible random numbers and without real syncs."""

    def __init__(self, source: random.Random) -> None:
        self._source = source

    def random_seed(self) -> int:
        return self._source.getrandbits(32) or 1

    def sync(self, fd: int) -> None:
        pass

    def sync_folder(self, path: str) -> None:
        pass


def capture(directory: str) -> Tree:
    root = Path(directory)
    found: Tree = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_dir():
            found[name + "/"] = b""
        elif name != "lock":
            found[name] = path.read_bytes()
    return found


class Bench:
    """A directory into which trees are written one after the other. A file that is the same in both
    trees is not written again.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._laid: dict[str, tuple[bytes, tuple[int, int, int]]] = {}
        shutil.rmtree(directory, ignore_errors=True)
        os.makedirs(directory)

    def lay(self, tree: Tree) -> None:
        there = {}
        for name, entry in _entries(self.directory, ""):
            if name not in tree:
                if name.endswith("/"):
                    shutil.rmtree(entry.path)
                # A missing entry was removed together with its folder.
                elif os.path.exists(entry.path):
                    os.unlink(entry.path)
            elif not name.endswith("/"):
                there[name] = _stamp(entry.stat())
        for name, data in tree.items():
            path = f"{self.directory}/{name}"
            if name.endswith("/"):
                os.makedirs(path, exist_ok=True)
            elif self._laid.get(name) != (data, there.get(name)):
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                os.write(fd, data)
                # A file system's clock advances in steps of milliseconds. With a time of 0, a later
                # write is noticed even within the same step.
                os.utime(
                    fd,
                    (0, 0),
                )
                os.close(fd)
                self._laid[name] = data, _stamp(os.stat(path))


def _stamp(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_size, found.st_mtime_ns


def _entries(directory: str, prefix: str) -> list[tuple[str, os.DirEntry[str]]]:
    """Return all entries, each folder before its contents and with a slash at the end."""
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir():
                found.append((f"{prefix}{entry.name}/", entry))
                found += _entries(entry.path, f"{prefix}{entry.name}/")
            else:
                found.append((prefix + entry.name, entry))
    return found


@contextmanager
def still_clock() -> Iterator[None]:
    """Fix the clock: snapshots contain the time, and a specimen that is made twice must be the
    same.
    """
    with mock.patch("time.time_ns", return_value=EPOCH_NS):
        yield


class Maker:
    """Makes one topic, with actions that seeded random numbers choose."""

    def __init__(
        self, directory: str, number: int, options: StoreOptions, *, foreign: bool = False
    ) -> None:
        self.random = random.Random(number)
        self.directory = directory
        self.files = SeededFiles(random.Random(number + 1))
        self.options = options
        self.base = self.random.choice((0, 0, 1000))
        self.identity = TopicIdentity(
            "clicks", f"{number + 1 + 0xF000_0000 * foreign:032x}", self.base
        )
        shutil.rmtree(directory, ignore_errors=True)
        create_store(self.files, directory, self.identity, options)
        self.store = self.open()
        self.now_ns = EPOCH_NS
        self.sequences: dict[int, int] = {}
        self.producers: dict[int, ProducerRow] = {}
        self.version = 0
        self.staged: dict[bytes, list[bytes]] = {}
        self.past: list[Tree] = []
        self.rotten: dict[int, bytes] = {}

    def open(self) -> Store:
        return open_store(self.files, self.directory, self.options, self.identity)

    def tick(self) -> int:
        self.now_ns += self.random.randrange(1, 10**9)
        return self.now_ns

    def remember(self) -> None:
        self.past.append(capture(self.directory))

    # Blocks

    def block(self, producer: int, sequence: int, count: int = 0, size: int = 40) -> Block:
        """Make a block with some of the optional columns."""
        source = self.random
        count = count or source.randrange(1, 5)

        def column(limit: int) -> list[bytes | None]:
            return [
                None if source.random() < 0.3 else source.randbytes(source.randrange(limit))
                for _ in range(count)
            ]

        made = pack(
            [source.randbytes(source.randrange(size)) for _ in range(count)],
            keys=column(9) if source.random() < 0.4 else None,
            tags=column(5) if source.random() < 0.3 else None,
            headers=[pack_value({"n": i}) for i in range(count)] if source.random() < 0.3 else None,
            times=[self.now_ns - i for i in range(count)] if source.random() < 0.3 else None,
            producer_id=producer,
            sequence=sequence,
        )
        if made.headers is not None and source.random() < 0.5:
            return Block(made.header._replace(flags=ADDRESSED), made.payload)
        return made

    def publish(self, blocks: int = 1, count: int = 0, size: int = 40) -> None:
        """Append blocks with one call, without a sync."""
        made = []
        for _ in range(blocks):
            producer = self.random.choice(PRODUCERS)
            sequence = self.sequences.get(producer, 0)
            self.sequences[producer] = sequence + 1
            made.append(self.block(producer, sequence, count, size))
        offset, time_ns = self.store.log.append(made, self.tick())
        for block in made:
            header = block.header
            known = self.producers.get(header.producer_id)
            self.producers[header.producer_id] = producer_after(
                known, header.sequence, offset, time_ns
            )
            offset += block.count

    def checkpoint(self, **more: object) -> None:
        """Sync, and commit the rows that the storage commits a few times a second."""
        end = self.store.log.sync()
        self.store.state.commit(
            replace(
                StateBatch(synced_end=end, applied_offset=end, producers=dict(self.producers)),
                **more,  # type: ignore[arg-type]
            )
        )

    def consume(self) -> None:
        """Move the channels forward. They leave holes, some of them deferred."""
        log, batch = self.store.log, StateBatch()
        table = self.store.state.load()
        for name in CHANNELS:
            row = table.channels.get(name, ChannelRow(log.start, counters={"turn": 0}))
            before, after = (
                row.next_offset,
                self.random.randrange(row.next_offset, log.synced_end + 1),
            )
            batch.channel_puts[name] = replace(
                row, next_offset=after, counters={"turn": row.counters["turn"] + 1}
            )
            if after > before and self.random.random() < 0.6:
                at = self.random.randrange(before, after)
                due_ns = self.random.choice((0, self.now_ns + 10**15))
                batch.hole_puts.append((name, at, 1, self.random.randrange(1, 4), due_ns))
        self.store.state.commit(batch)

    # Groups, delays, removal

    def stage(self, name: str, blocks: int, size: int) -> bytes:
        """Make a stage with its final seal."""
        key = name.encode().ljust(16, b"_")
        staging = self.store.staging
        staging.open(key, Transaction(APP, self.version, "app"), 0, self.now_ns)
        made = [self.block(0, sequence, 2, size) for sequence in range(blocks)]
        for block in made:
            staging.append(key, [block], self.now_ns)
        ticket = staging.begin_seal(key, True, self.now_ns)
        ticket.run()
        self.store.state.commit(StateBatch(stage_puts={key: staging.finish_seal(ticket)}))
        self.staged[key] = [bytes(block.columns) for block in made]
        return key

    def group(self) -> None:
        """Commit a group that is appended, adopted, or both."""
        self.version += 1
        shapes = [
            self.random.choice(((1, 10), (2, 20), (5, 60)))
            for _ in range(self.random.randrange(1, 4))
        ]
        keys = [
            self.stage(f"v{self.version}p{number}", *shape) for number, shape in enumerate(shapes)
        ]
        parts = [self.store.staging.part(key) for key in keys]
        group = self.store.log.append_group(
            Transaction(APP, self.version, "app"), parts, self.tick()
        )
        row = TransactionRow(self.version, "app", *group)
        end = self.store.log.end
        batch = StateBatch(
            transactions={APP: row},
            applied_offset=end,
            synced_end=end,
            producers=dict(self.producers),
        )
        self.store.staging.drop(keys, batch)
        self.store.state.commit(batch)
        self.store.staging.purge(batch)
        for key in keys:
            del self.staged[key]

    def delay(self, blocks: int = 2) -> None:
        """Publish messages with a delay. They are due soon, or in a week."""
        delayed = self.store.make_delayed(self.now_ns)
        for _ in range(blocks):
            known = delayed.producers.get(LATE_PRODUCER)
            block = self.block(LATE_PRODUCER, known.next_sequence if known else 0)
            due_ns = self.now_ns + self.random.choice((1, 7 * 86_400 * 10**9))
            delayed.put([(block, due_ns + self.random.randrange(1000))], self.now_ns)

    def move(self) -> None:
        """Move due messages into the log."""
        delayed = self.store.make_delayed(self.now_ns)
        rows = delayed.due(self.tick() + 10_000, 1 << 20, 99)
        if rows:
            self.store.log.append([due_block(row) for row in rows], self.now_ns)
            self.store.log.sync()
            delayed.remove([row.key for row in rows], known=True)

    def retain(self) -> None:
        """Remove the oldest chunk."""
        log = self.store.log
        if len(log.chunks) < 4:
            return
        start = log.chunks[1]
        batch = StateBatch(start=start)
        for name, row in self.store.state.load().channels.items():
            batch.channel_puts[name] = replace(row, next_offset=max(start, row.next_offset))
            batch.deferred_clears.append(name)
            batch.hole_gones += [
                (name, hole.start) for hole in self.store.state.holes(name) if hole.start < start
            ]
        self.checkpoint()
        self.store.state.commit(batch)
        log.forget(start)
        remove_below(self.files, self.directory, start)

    def scar(self) -> None:
        """Damage one block and read it, so that its bytes are copied to a `.bad` file."""
        for block in self.store.log.read(self.store.log.start, 1, self.store.log.end):
            self.rotten[block.first_offset] = bytes(block.columns)
        self.store.close()
        path = next(
            name for name in sorted(capture(self.directory)) if parse_chunk_name(name) is not None
        )
        file = Path(self.directory) / path
        data = bytearray(file.read_bytes())
        data[CHUNK_HEADER_BYTES + HEADER_BYTES + 9] ^= 16
        file.write_bytes(data)
        self.store = self.open()
        log = self.store.log
        try:
            log.read(log.start, 1, log.end)
        except Damaged:
            job = log.reader.damage.take(EPOCH_NS)
            assert job is not None
            job()
        assert log.holes

    def abandon(self) -> None:
        abandon(self.store)


def abandon(store: Store) -> None:
    """Simulate the death of the process: close all files, and write nothing."""
    store.state.close()
    if store.delayed is not None:
        store.delayed.close()
    store.log.reader.close()
    store.staging.close()
    store.files.close(store._lock)


def stored_blocks(tree: Tree, seen: dict[int, Block]) -> dict[int, Stored]:
    """Find the position of each block that a reader gets. The files are undamaged, so each block's
    length leads to the next block.
    """
    found: dict[int, Stored] = {}
    for path in tree:
        base = parse_chunk_name(path)
        if base is None:
            continue
        data, position = tree[path], CHUNK_HEADER_BYTES
        while data[position : position + 4] == b"ZSQD":
            offset = base + int.from_bytes(data[position + 16 : position + 24], "little")
            block = seen.get(offset)
            length = int.from_bytes(data[position + 8 : position + 12], "little")
            if (
                block is not None
                and data[position + 12 : position + 16] != bytes(4)
                and block.length == length
            ):
                found[offset] = Stored(path, position, block.header, bytes(block.columns))
            position += length
        assert position in {len(data), len(data) - FOOTER_BYTES}
    assert found.keys() == seen.keys()
    return found
