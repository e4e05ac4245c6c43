"""A topic's store on a disk that forgets, with the verbs of the domain: publish, sync, crash, reopen, check."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from zsq.storage.errors import Damaged
from zsq.storage.faulty_files import Choose, FaultyFiles, keep_all
from zsq.storage.files import Files
from zsq.storage.log import Log
from zsq.storage.log_format import chunk_name
from zsq.storage.state import StateBatch
from zsq.storage.store import Identity, Store, StoreOptions, create_store, open_store
from zsq.transport.block import Block, pack

IDENTITY = Identity("clicks", "00112233445566778899aabbccddeeff")
SMALL = StoreOptions(chunk_bytes=1024, index_every_bytes=256, map_bytes=1 << 20, reserve_bytes=0)
PRODUCER = 77


class Desk:
    """One topic's store, and what was promised about it."""

    def __init__(self, root: Path, options: StoreOptions = SMALL) -> None:
        self.root = str(root)
        self.directory = f"{root}/clicks"
        self.files = FaultyFiles(self.root)
        self.options = options
        self.store: Store | None = None
        self.sent: list[tuple[bytes, ...]] = []
        """Bodies of every block that was handed to the log, by sequence."""
        self.offsets: dict[int, int] = {}
        """Sequence -> first offset, of every block that the log took."""
        self.acknowledged = 0
        """Blocks below this sequence were synced."""
        self.damage: list[tuple[int, int]] = []
        """(offset, count) of each Damaged that a read raised."""
        self.now_ns = 1_000
        create_store(self.files, self.directory, IDENTITY, options)
        self.files.reset()

    @property
    def log(self) -> Log:
        assert self.store is not None
        return self.store.log

    def open(self) -> Store:
        self.store = open_store(self.files, self.directory, self.options, IDENTITY)
        return self.store

    def block(self, count: int = 3, size: int = 20) -> Block:
        number = len(self.sent)
        bodies = tuple(b"%d/%d" % (number, i) + b"." * size for i in range(count))
        self.sent.append(bodies)
        return pack(bodies, producer_id=PRODUCER, sequence=number)

    def publish(self, blocks: int = 1, count: int = 3, size: int = 20) -> None:
        """One append of some blocks, not synced."""
        first = len(self.sent)
        made = [self.block(count, size) for _ in range(blocks)]
        self.now_ns += 10
        offset, _ = self.log.append(made, self.now_ns)
        for i in range(blocks):
            self.offsets[first + i] = offset + i * count

    def sync(self) -> None:
        known = len(self.sent)
        ticket = self.log.begin_sync()
        ticket.run()
        self.log.finish_sync(ticket)
        self.acknowledged = known

    def checkpoint(self) -> None:
        """What the storage actor commits a few times a second; here without the producers, which recovery replays."""
        assert self.store is not None
        self.store.state.commit(StateBatch(synced_end=self.log.synced_end))

    def abandon(self) -> None:
        """The process dies: nothing more is done to files; what they are open with is closed."""
        if self.store is not None:
            self.store.state.close()
            self.store = None

    def abandon_cleanly(self) -> None:
        assert self.store is not None
        self.store.close()
        self.store = None

    def crash(self, choose: Choose = keep_all) -> Store:
        self.abandon()
        self.files.crash(choose)
        return self.open()

    def restart(self) -> Store:
        assert self.store is not None
        self.store.close()
        return self.open()

    def read_all(self) -> list[Block]:
        """Every block below the synced end; lost ones are stepped over."""
        log = self.log
        blocks: list[Block] = []
        offset = log.start
        while offset < log.synced_end:
            try:
                found = log.read(offset, 4096, log.synced_end)
            except Damaged as damage:
                self.damage.append((damage.offset, damage.count))
                assert len(self.damage) < 1000, "reads do not get past a hole"
                continue
            if not found:
                assert log.skip(offset) >= log.synced_end
                break
            assert found[0].next_offset > offset
            blocks += found
            offset = found[-1].next_offset
        return blocks

    def check(self, lost_max: int = 0) -> list[int]:
        """Nothing acknowledged lost (but `lost_max` blocks), no phantom, no reordering, no wrong body; what producers were told is true.

        Returns the sequences found.
        """
        found = []
        for block in self.read_all():
            sequence = block.header.sequence
            assert block.header.producer_id == PRODUCER
            assert tuple(block.body.values()) == self.sent[sequence], "a body is wrong"
            if sequence in self.offsets:
                assert block.first_offset == self.offsets[sequence], "an offset changed"
            found.append(sequence)
        assert found == sorted(set(found)), "blocks are out of order or doubled"
        missing = set(range(self.acknowledged)) - set(found)
        assert len(missing) <= lost_max, f"acknowledged blocks {sorted(missing)} are lost"
        assert self.store is not None
        table = self.store.state.load()
        expected = table.producers[PRODUCER].next_sequence if PRODUCER in table.producers else 0
        answered = set(range(expected)) - set(found)
        assert len(answered) <= lost_max, f"blocks {sorted(answered)} would be answered as stored and are not"
        assert table.applied_offset <= self.log.synced_end
        return found

    # Bytes

    def path(self, name: str) -> Path:
        return Path(self.directory) / name

    def chunk_path(self, base_offset: int = 0) -> Path:
        return self.path(chunk_name(base_offset))

    def replace(self, path: Path, data: bytes) -> None:
        """Somebody or something changes a file while the store is closed."""
        assert self.store is None
        path.write_bytes(data)
        self.files.reset()

    def flip(self, path: Path, bit: int) -> None:
        data = bytearray(path.read_bytes())
        data[bit >> 3] ^= 1 << (bit & 7)
        self.replace(path, bytes(data))


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """In memory where there is such a folder: the disk that forgets is a model, and LMDB's real syncs would be most of the time."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path_factory.mktemp("disk")
        return
    with tempfile.TemporaryDirectory(prefix="zsq-test-", dir=memory) as folder:
        yield Path(folder)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    made.open()
    yield made
    made.abandon()


@pytest.fixture
def files() -> Files:
    return Files()
