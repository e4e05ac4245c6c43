"""A topic's store on a simulated disk that loses unsynced data. It has methods to publish, sync,
crash, open again and check. It records the promises, such as the blocks that were acknowledged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from support.faulty_files import Choose, FaultyFiles, keep_all

from zsq.storage.directory.store import Store, StoreOptions, TopicIdentity, create_store, open_store
from zsq.storage.errors import Damaged, DiskFull
from zsq.storage.log.group import CommittedGroup
from zsq.storage.log.log import Log
from zsq.storage.log.log_format import STAGING_NAME, chunk_name, index_name
from zsq.storage.log.transactions import Transaction, TransactionRow
from zsq.storage.staging.staging import Staging
from zsq.storage.state.state import StateBatch
from zsq.transport.block.block import Block, pack

IDENTITY = TopicIdentity("clicks", "00112233445566778899aabbccddeeff")
SMALL = StoreOptions(
    chunk_bytes=1024, index_every_bytes=256, map_bytes=1 << 20, reserve_bytes=0, ring_bytes=0
)
GROUPS = replace(SMALL, chunk_bytes=1056, adopt_bytes=500, group_append_bytes=900)
PRODUCER = 77
APP = "query"


class StorageHarness:
    """One topic's store, and a record of the promises about it."""

    def __init__(
        self, root: Path, options: StoreOptions = SMALL, files: FaultyFiles | None = None
    ) -> None:
        self.root = str(root)
        self.directory = f"{root}/clicks"
        self.files = files or FaultyFiles(self.root)
        self.options = options
        self.store: Store | None = None
        self.sent: list[tuple[bytes, ...]] = []
        """Bodies of every block that was passed to the log, by sequence."""
        self.offsets: dict[int, int] = {}
        """Sequence -> first offset, for every block that the log accepted."""
        self.acknowledged = 0
        """Blocks with a lower sequence were synced."""
        self.damage: list[tuple[int, int]] = []
        """(offset, count) of each `Damaged` error that a read raised."""
        self.now_ns = 1_000
        self.staged: dict[bytes, list[tuple[bytes, ...]]] = {}
        """Bodies of every block of each stage that may still exist."""
        self.sealed: dict[bytes, tuple[int, bool]] = {}
        """For each stage that was not dropped: the number of blocks whose seal was committed, and
        whether the seal was final.
        """
        self.tried: dict[int, dict[bytes, list[tuple[bytes, ...]]]] = {}
        """Version of a transaction -> stage -> bodies that the commit included."""
        self.groups: dict[int, CommittedGroup] = {}
        """Version -> the result of its commit."""
        self.lagging: StateBatch | None = None
        create_store(self.files, self.directory, IDENTITY, options)
        self.files.reset()

    @property
    def log(self) -> Log:
        assert self.store is not None
        return self.store.log

    def open(self) -> Store:
        self.store = open_store(self.files, self.directory, self.options, IDENTITY)
        return self.store

    @property
    def staging(self) -> Staging:
        assert self.store is not None
        return self.store.staging

    def block(self, count: int = 3, size: int = 20) -> Block:
        number = len(self.sent)
        bodies = tuple(b"%d/%d" % (number, i) + b"." * size for i in range(count))
        self.sent.append(bodies)
        return self.make_block(bodies, PRODUCER, number)

    def make_block(self, bodies: Sequence[bytes], producer_id: int, sequence: int) -> Block:
        return pack(bodies, producer_id=producer_id, sequence=sequence)

    def publish(self, blocks: int = 1, count: int = 3, size: int = 20) -> None:
        """Append blocks with one call, without a sync."""
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
        """Commit the state that the storage commits a few times a second. The producers are left
        out here, because recovery derives them from the log.
        """
        assert self.store is not None
        self.store.state.commit(StateBatch(synced_end=self.log.synced_end))

    def abandon(self) -> None:
        """Simulate the death of the process: files are closed, and nothing more is written."""
        self.lagging = None
        if self.store is not None:
            self.store.state.close()
            if self.store.delayed is not None:
                self.store.delayed.close()
            self.store = None
        for fd in (*self.files._nodes, *self.files._locks):
            self.files.close(fd)

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
        """Return every block below the synced end. Lost blocks are skipped."""
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
        """Check that no acknowledged block is lost (except `lost_max` blocks), that no block is
        invented, reordered or altered, and that all answers to producers were true.

        Return the sequences that were found.
        """
        found = []
        blocks = self.read_all()
        if self.options is GROUPS:
            self.check_groups(blocks)
        for block in blocks:
            if not block.header.producer_id:
                continue
            sequence = block.header.sequence
            assert block.header.producer_id == PRODUCER
            assert tuple(block.body.values()) == self.sent[sequence], "a body is wrong"
            if sequence in self.offsets:
                assert block.first_offset == self.offsets[sequence], "an offset changed"
            found.append(sequence)
        assert found == sorted(set(found)), "blocks are out of order or doubled"
        missing = set(range(self.acknowledged)) - set(found) - self.removed()
        assert len(missing) <= lost_max, f"acknowledged blocks {sorted(missing)} are lost"
        assert self.store is not None
        table = self.store.state.load()
        expected = table.producers[PRODUCER].next_sequence if PRODUCER in table.producers else 0
        answered = set(range(expected)) - set(found) - self.removed()
        assert len(answered) <= lost_max, (
            f"blocks {sorted(answered)} would be answered as stored and are not"
        )
        assert table.applied_offset <= self.log.synced_end
        return found

    def removed(self) -> set[int]:
        """Return the sequences that retention removed."""
        return set()

    # Stages and groups

    def stage(
        self, name: str, version: int, blocks: int = 2, count: int = 2, size: int = 20
    ) -> bytes:
        """Push blocks to a stage, one for each call."""
        key = name.encode().ljust(16, b"_")
        self.now_ns += 10
        expected, _ = self.staging.open(key, Transaction(APP, version, "app"), 0, self.now_ns)
        made = self.staged.setdefault(key, [])
        assert expected == len(made)
        for number in range(expected, expected + blocks):
            bodies = tuple(
                b"%s %d/%d" % (name.encode(), number, i) + b"." * size for i in range(count)
            )
            made.append(bodies)
            assert (
                self.staging.append(key, [pack(bodies, sequence=number)], self.now_ns) == number + 1
            )
        return key

    def seal(self, *keys: bytes, final: bool = True) -> None:
        """Seal stages durably, and commit their rows."""
        assert self.store is not None
        for key in keys:
            ticket = self.staging.begin_seal(key, final, self.now_ns)
            ticket.run()
            row = self.staging.finish_seal(ticket)
            assert (row.blocks, row.final) == (len(self.staged[key]), final)
            self.store.state.commit(StateBatch(stage_puts={key: row}))
            self.sealed[key] = (row.blocks, final)

    def commit(
        self, version: int, *keys: bytes, lag: bool = False, merge: bool = False
    ) -> CommittedGroup:
        """Commit one group. `lag`: the state is not committed, as if the process had died before
        that. `merge`: the small parts are merged first, if there are many.
        """
        self.tried[version] = {key: list(self.staged[key]) for key in keys}
        self.now_ns += 10
        transaction = Transaction(APP, version, "app")
        parts = [self.staging.part(key) for key in keys]
        merging = self.log.begin_merge(parts) if merge else None
        while merging is not None and not merging.done:
            merging.step()
        merged = None if merging is None else merging.merged
        try:
            group = self.groups[version] = self.log.append_group(
                transaction, parts, self.now_ns, merged
            )
        except (Damaged, DiskFull):
            if merging is not None:
                merging.discard()
            raise
        if merging is not None:
            merging.discard()
        batch = StateBatch(
            transactions={APP: TransactionRow(version, "app", *group)}, applied_offset=self.log.end
        )
        self.drop(*keys, batch=batch, lag=lag)
        return group

    def drop(self, *keys: bytes, batch: StateBatch | None = None, lag: bool = False) -> None:
        assert self.store is not None
        batch = batch or StateBatch()
        self.staging.drop(keys, batch)
        for key in keys:
            del self.staged[key]
            self.sealed.pop(key, None)
        if not lag:
            self.commit_dropped(batch)

    def commit_dropped(self, batch: StateBatch) -> None:
        """Commit the state that belongs to the log, and remove the files that are not used any
        more.
        """
        assert self.store is not None
        self.store.state.commit(batch)
        self.staging.purge(batch)

    def check_groups(self, blocks: list[Block]) -> None:
        """Check that each group is complete, in order and present once, or absent. The stages of a
        present group must be gone, those of an absent group must still exist, and there must be no
        other stages.
        """
        assert self.store is not None
        table = self.store.state.load()
        row = table.transactions.get(APP)
        rest = [block for block in blocks if not block.header.producer_id]
        assert all(block.header.flags == 0 and block.count for block in blocks), (
            "readers see what groups are made of"
        )
        present = set()
        for version, parts in self.tried.items():
            wanted = {bodies for part in parts.values() for bodies in part}
            mine = [block for block in rest if tuple(block.body.values()) in wanted]
            rest = [block for block in rest if block not in mine]
            assert mine or version not in self.groups, (
                f"group {version} was committed and is not there"
            )
            if not mine:
                assert row is None or row.version < version, (
                    f"group {version} is not there, and would be answered as committed"
                )
                continue
            present.add(version)
            messages = sum(map(len, wanted))
            assert (mine[-1].next_offset - mine[0].first_offset, len(mine)) == (
                messages,
                len(wanted),
            ), f"group {version} is not whole"
            order = [tuple(block.body.values()) for block in mine]
            for part in parts.values():
                assert [bodies for bodies in order if bodies in part] == part, (
                    "a part's rows changed places"
                )
            assert len({block.header.time_ns for block in mine}) == 1
            assert row is not None
            assert row.version >= version
            if row.version == version:
                assert (row.first_offset, row.messages, row.time_ns) == (
                    mine[0].first_offset,
                    messages,
                    mine[0].header.time_ns,
                )
            if version in self.groups:
                assert self.groups[version][:2] == (mine[0].first_offset, messages), (
                    "the answer was wrong"
                )
        assert not rest, "blocks of no group"
        self._check_stages(present)
        self._check_names()

    def _check_stages(self, present: set[int]) -> None:
        facts = self.staging.stages()
        for key, (blocks, final) in self.sealed.items():
            if any(key in self.tried[version] for version in present):
                if self.lagging is None and key in facts:
                    raise AssertionError(f"{key!r} is committed, and staged")
                continue
            assert key in facts, f"{key!r} was sealed and is lost"
            assert facts[key].sealed_blocks >= blocks
            assert facts[key].final >= final

    def _check_names(self) -> None:
        """Check that the folder and its staging contain no unknown file. Files that wait for their
        removal (see `purge`) count as known.
        """
        bases = self.log.chunks
        known = {chunk_name(base) for base in bases} | {index_name(base) for base in bases}
        known |= {
            "topic",
            "lock",
            "state",
            "state.snapshot",
            "state.snapshot.tmp",
            "state.starts",
            STAGING_NAME,
        }
        names = {
            name
            for name in self.files.list(self.directory)
            if not name.endswith((".bad", ".bad-1"))
        }
        assert names <= known, f"left over: {names - known}"
        assert {chunk_name(base) for base in bases} <= names
        if STAGING_NAME in names:
            staging = self.staging
            mine = {file.path for stage in staging._stages.values() for file in stage.files}
            doomed = {file.path for _, files in staging._dropped for file in files}
            found = {
                f"{self.directory}/{STAGING_NAME}/{name}"
                for name in self.files.list(f"{self.directory}/{STAGING_NAME}")
            }
            assert mine <= found <= mine | doomed, (
                f"staging: lost {mine - found}, left over {found - mine - doomed}"
            )

    def after_crash(self) -> list[int]:
        """Update the record as a writer would after a crash: unsealed blocks are gone. Return the
        versions whose commit must be tried again, and can succeed.
        """
        facts = self.staging.stages()
        self.staged = {
            key: bodies[: facts[key].blocks] for key, bodies in self.staged.items() if key in facts
        }
        self.sealed = {key: promise for key, promise in self.sealed.items() if key in facts}
        return [
            version
            for version, parts in self.tried.items()
            if version not in self.groups and parts.keys() <= facts.keys()
        ]

    def go_on(self) -> None:
        """Continue after a crash: commit what was not committed, and check that the topic still
        works.
        """
        for version in self.after_crash():
            self.commit(version, *self.tried[version])
            self.check()
        found = self.check()
        self.sent = self.sent[: found[-1] + 1] if found else []
        self.publish()
        self.sync()
        self.check()

    def fresh(self, root: Path, number: int) -> StorageHarness:
        """Make another topic with the same options."""
        folder = root / f"run{number}"
        folder.mkdir()
        made = type(self)(folder, self.options)
        made.open()
        return made

    # Bytes

    def path(self, name: str) -> Path:
        return Path(self.directory) / name

    def chunk_path(self, base_offset: int = 0) -> Path:
        return self.path(chunk_name(base_offset))

    def replace(self, path: Path, data: bytes) -> None:
        """Write other content into a file while the store is closed."""
        assert self.store is None
        path.write_bytes(data)
        self.files.reset()

    def flip(self, path: Path, bit: int) -> None:
        self.replace(path, self.flipped(path.read_bytes(), bit))

    @staticmethod
    def flipped(data: bytes, bit: int) -> bytes:
        changed = bytearray(data)
        changed[bit >> 3] ^= 1 << (bit & 7)
        return bytes(changed)
