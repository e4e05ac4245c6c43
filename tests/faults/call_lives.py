"""Lives of a topic's store for `calls.py`. A life (see `__main__.py`) consists of steps. It records
what each step promised, and checks the promises at its end.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Final

from faults.failing import FailingFiles
from support.faulty_files import keep_all, keep_none
from support.storage_harness import PRODUCER, SMALL, StorageHarness

from zsq.storage.directory.store import StoreOptions
from zsq.storage.errors import Damaged, DiskFull, StorageError, StoreFailed, Unreadable
from zsq.storage.state.state import ProducerRow, StateBatch, producer_after

Step = Callable[[], object]
ENDINGS: Final = ("died", "kept", "lost")
"""Each case ends in one of these ways. `died`: only the process ends. `kept`: the power is cut too,
but all pending changes reached the disk. `lost`: the power is cut, and no pending change reached
the disk.
"""
FULL_CODES: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
REFUSABLE: Final = frozenset({"writev", "open_new", "make_folder", "note", "lmdb_write"})
"""Calls that may fail because the disk is full. The request that needed them is refused, and
nothing else happens.
"""


class Violation(AssertionError):
    """A promise was broken."""


def require(kept: bool, text: str) -> None:
    if not kept:
        raise Violation(text)


class Life:
    """One life. `calls.run` calls `live` with planned failures, `go_on` without them, then `end`,
    `check` and `afterlife`.
    """

    def __init__(self, root: Path, files: FailingFiles) -> None:
        self.root = root
        self.files = files
        self.refusals: list[str] = []
        """The errors that its steps raised."""
        self.failed = False
        """True if an error said that the store must not be used any more."""
        self.prepare()

    def prepare(self) -> None:
        """Make the state that exists before the first call that may fail."""

    def steps(self) -> list[Step]:
        raise NotImplementedError

    def live(self) -> None:
        """Run all steps, or those up to a `StoreFailed`. A step that was refused has changed
        nothing, and the next steps are run.
        """
        for step in self.steps():
            try:
                step()
            except StorageError as error:
                self.refusals.append(type(error).__name__)
                self.judge(error)
                if self.failed:
                    return
                self.refused()

    def judge(self, error: StorageError) -> None:
        """Check that this error fits the failure that was planned."""
        code = self.files.code
        if isinstance(error, StoreFailed):
            self.failed = True
            # If only a part of a page is written, LMDB reports a failed disk, and does not say that
            # the disk was full.
            was_full = (
                code in FULL_CODES
                and self.files.met in REFUSABLE
                and (self.files.met, self.files.mode) != ("lmdb_write", "short")
            )
            require(not was_full, f"{error!r}, and the disk was only full")
        elif isinstance(error, DiskFull):
            require(code in FULL_CODES, f"{error!r} after {errno.errorcode[code]}")
        elif isinstance(error, Damaged):
            require(code == errno.EIO, f"{error!r} after {errno.errorcode[code]}")
        else:
            require(
                isinstance(error, Unreadable), f"{error!r} is not what this store's calls may say"
            )

    def refused(self) -> None:
        """Correct the record after a step was refused: the step changed nothing."""

    def while_failing(self) -> None:
        """Check what must hold while calls still fail."""

    def go_on(self) -> None:
        """Continue in the same process after the failures are over."""

    def end(self, ending: str) -> None:
        """End the process, and open its files in another process."""
        raise NotImplementedError

    def check(self) -> None:
        """Check all promises on a store that was opened without failures."""
        raise NotImplementedError

    def afterlife(self) -> None:
        """Check that the store can be used like any other."""

    def close(self) -> None:
        """Close all files."""


class StoreLife(Life):
    """A life of a part of the storage, with a real store."""

    options: StoreOptions = SMALL
    names_are_known = True

    def __init__(self, root: Path, files: FailingFiles) -> None:
        self.harness = StorageHarness(root, self.options, files)
        self.harness.open()
        self.waiting: list[StateBatch] = []
        """Commits that failed because the disk was full. They are tried again, in order, before
        anything else is committed.
        """
        super().__init__(root, files)

    def refused(self) -> None:
        harness = self.harness
        del harness.sent[max(harness.offsets, default=-1) + 1 :]

    # Steps

    def publish(self, blocks: int = 1, count: int = 3) -> Step:
        return lambda: self.harness.publish(blocks, count)

    def sync(self) -> None:
        """Sync the log. A sync that failed never counts."""
        log, known = self.harness.log, len(self.harness.sent)
        ticket = log.begin_sync()
        try:
            ticket.run()
        except StoreFailed:
            before = log.synced_end
            with contextlib.suppress(StoreFailed):
                log.finish_sync(ticket)
                raise Violation("a sync that failed counts") from None
            require(log.synced_end == before, "what a failed sync covered counts as synced")
            raise
        log.finish_sync(ticket)
        self.harness.acknowledged = known

    def commit(self, batch: StateBatch) -> None:
        """Commit as the storage does: in order. If the disk was full, commit the same
        batch again.
        """
        self.waiting.append(batch)
        self.commit_waiting()

    def commit_waiting(self) -> None:
        while self.waiting:
            self.commit_one(self.waiting[0])
            self.waiting.pop(0)

    def commit_one(self, batch: StateBatch) -> None:
        assert self.harness.store is not None
        self.harness.store.state.commit(batch)

    def checkpoint(self) -> None:
        """Commit how far the log is synced, with the producer's row."""
        end = self.harness.log.synced_end
        self.commit(StateBatch(synced_end=end, applied_offset=end, producers=self.producers(end)))

    def producers(self, end: int) -> dict[int, ProducerRow]:
        row: ProducerRow | None = None
        for sequence, offset in self.harness.offsets.items():
            if offset < end:
                row = producer_after(row, sequence, offset, 1)
        return {PRODUCER: row} if row else {}

    def keep(self) -> None:
        """Write a snapshot."""
        assert self.harness.store is not None
        self.harness.store.keeper.write()

    def read(self) -> None:
        """Check that reads return correct blocks, whatever else fails."""
        harness = self.harness
        found = [block for block in harness.read_all() if block.header.producer_id]
        for block in found:
            require(
                tuple(block.body.values()) == harness.sent[block.header.sequence], "a body is wrong"
            )
        order = [block.header.sequence for block in found]
        require(order == sorted(set(order)), "blocks are out of order, or doubled")
        if not harness.damage:
            kept = {
                sequence
                for sequence in range(harness.acknowledged)
                if harness.offsets[sequence] >= harness.log.start
            }
            require(kept <= set(order), "acknowledged blocks are not read")

    # After the failure

    def while_failing(self) -> None:
        """Check that a log that has failed accepts nothing more, and that its blocks can still be
        read.
        """
        if self.harness.store is None:
            return
        if self.failed and self.log_failed():
            for call in (
                lambda: self.harness.log.append([], 0),
                self.harness.log.begin_sync,
                self.harness.log.sync,
                lambda: self.harness.log.roll(0),
            ):
                try:
                    call()
                except StoreFailed:
                    continue
                raise Violation("a log that failed goes on")
        if self.files.reads_work:
            self.read()

    def log_failed(self) -> bool:
        try:
            self.harness.log._check()
        except StoreFailed:
            return True
        return False

    def go_on(self) -> None:
        """Check that requests which were refused are accepted now."""
        self.commit_waiting()
        self.harness.publish()
        self.harness.sync()
        self.read()

    def end(self, ending: str) -> None:
        harness = self.harness
        harness.damage.clear()
        self.files.lose_lmdb = ending == "lost"
        if ending == "died":
            harness.abandon()
            harness.open()
        else:
            harness.crash(keep_none if ending == "lost" else keep_all)

    def check(self) -> None:
        store = self.harness.store
        assert store is not None
        alarms = [alarm for alarm in store.report.alarms if not self.is_harmless(alarm)]
        require(not alarms, f"alarms: {alarms}")
        self.check_log()
        require(not self.harness.damage, f"damage: {self.harness.damage}")

    def is_harmless(self, alarm: str) -> bool:
        """Return True if this alarm may follow the planned failure and means no loss."""
        return False

    def check_log(self) -> None:
        found = self.harness.check()
        self.check_producer(found)

    def check_producer(self, found: list[int]) -> None:
        """Check that the producer is asked for the block that follows its last stored block,
        neither an earlier nor a later one.
        """
        assert self.harness.store is not None
        row = self.harness.store.state.load().producers.get(PRODUCER)
        require(
            (row.next_sequence if row else 0) == (found[-1] + 1 if found else 0),
            f"the producer's row is {row}, and stored is {found}",
        )

    def forget_lost(self) -> None:
        """Forget the blocks that were never acknowledged and are not stored. The producer sends
        others in their place.
        """
        harness = self.harness
        found = {
            block.header.sequence: block.first_offset
            for block in harness.read_all()
            if block.header.producer_id
        }
        end = max(found, default=-1) + 1
        harness.sent = harness.sent[:end]
        harness.offsets = {
            sequence: offset for sequence, offset in harness.offsets.items() if sequence < end
        } | found

    def afterlife(self) -> None:
        """Check that the store accepts blocks, and that a power cut then loses nothing."""
        harness = self.harness
        self.forget_lost()
        harness.publish()
        harness.sync()
        self.files.lose_lmdb = True
        harness.crash(keep_none)
        self.check()

    def close(self) -> None:
        self.harness.abandon()


class LogLife(StoreLife):
    """Appends, syncs, new chunks, checkpoints, snapshots and reads."""

    def steps(self) -> list[Step]:
        found: list[Step] = []
        for turn in range(6):
            found.append(self.publish(1 + turn % 3))
            if turn % 2:
                found += [self.sync, self.read]
            if turn % 4 == 3:
                found.append(self.checkpoint)
        return [
            *found,
            lambda: self.harness.log.roll(self.harness.now_ns),
            self.publish(),
            self.sync,
            self.read,
            self.keep,
        ]


class ClosingLife(LogLife):
    """The store is closed in an orderly way while a block is not synced yet."""

    def prepare(self) -> None:
        for _ in range(3):
            self.harness.publish(2)
            self.harness.sync()
        self.harness.publish()

    def steps(self) -> list[Step]:
        return [self.leave]

    def leave(self) -> None:
        """Close the store. It may raise errors, but it must close everything."""
        store, self.harness.store = self.harness.store, None
        assert store is not None
        acknowledged = len(self.harness.sent)
        store.close()
        self.harness.acknowledged = acknowledged

    def go_on(self) -> None:
        require(not self.files._nodes, "files stay open")

    def while_failing(self) -> None:
        self.go_on()
