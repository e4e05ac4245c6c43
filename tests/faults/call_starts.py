"""Lives that consist of one start, for `calls.py`: a start after a power cut, a start with a
damaged state store, the creation of a topic, and a run of fsck.

A start that fails may only raise an error after which it is tried again (`StoreFailed`,
`DiskFull`). After any other error the broker waits for a person. A failed start must leave no file
open.
"""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import replace
from typing import Final

from faults.call_groups import GroupLife
from faults.call_lives import FULL_CODES, Life, Step, StoreLife, require
from faults.call_state import ROW
from support.faulty_files import Change, keep_all, keep_none
from support.storage_harness import IDENTITY, SMALL

from zsq.storage.checks.fsck import check_topic
from zsq.storage.delayed.delayed_format import due_block
from zsq.storage.directory.store import create_store, open_store
from zsq.storage.errors import DiskFull, StorageError, StoreFailed
from zsq.storage.log.log_format import IDENTITY_NAME, chunk_name, index_name
from zsq.storage.state.state import StateBatch
from zsq.transport.block.block import pack

PUBLISHER: Final = 99


def torn(number: int, change: Change) -> int:
    """Keep the first 100 bytes of each write, and every name."""
    return min(100, len(change.data)) if change.kind == "write" else 1


def open_paths(root: str) -> list[str]:
    """Return the paths below `root` that this process has open."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return [path for path in found if path.startswith(f"{root}/")]


class StartLife(StoreLife):
    """The end of the log is incomplete, and a part of it was never synced."""

    def prepare(self) -> None:
        for turn in range(6):
            self.harness.publish(1 + turn % 3)
            if turn % 2:
                self.harness.sync()
            if turn == 3:
                self.checkpoint()
        self.harness.publish(2)
        self.leave()

    def leave(self) -> None:
        self.harness.abandon()
        self.files.crash(torn)

    def steps(self) -> list[Step]:
        return [self.harness.open]

    def judge(self, error: StorageError) -> None:
        full = isinstance(error, DiskFull) and self.files.code in FULL_CODES
        require(full or isinstance(error, StoreFailed), f"{error!r} is nothing that is tried again")
        self.failed = True

    def while_failing(self) -> None:
        if self.failed:
            require(
                not open_paths(self.files.root), f"these stay open: {open_paths(self.files.root)}"
            )
        else:
            super().while_failing()

    def go_on(self) -> None:
        """A block that could not be read is a hole for this process. The next process reads it
        again.
        """
        log = self.harness.log
        if not log.holes:
            self.forget_lost()
            self.harness.publish()
            self.harness.sync()
            self.read()


class MixedStartLife(StartLife, GroupLife):
    """The start finds a commit that was not finished, sealed and unsealed stages, channels, and a
    delayed block that was moved to the log and is still stored as delayed.
    """

    def prepare(self) -> None:
        harness = self.harness
        # The harness has a check of file names that does not know delayed messages. Leave it out.
        harness._check_names = lambda: None  # type: ignore[method-assign]
        assert harness.store is not None
        harness.publish()
        harness.sync()
        self.commit(StateBatch(channel_puts={"c": ROW}, hole_puts=[("c", 0, 1, 2, 0)]))
        delayed = harness.store.make_delayed(1_000)
        delayed.put(
            [
                (pack([b"x", b"y"], producer_id=PUBLISHER, sequence=0), 10),
                (pack([b"z"], producer_id=PUBLISHER, sequence=1), 11),
            ],
            5,
        )
        harness.log.append([due_block(row) for row in delayed.due(10, 1 << 20, 1)], harness.now_ns)
        harness.log.sync()
        for name, blocks in (("a", 10), ("b", 3), ("c", 9)):
            self.stage(name, 1, blocks)
            self.seal(name)
        self.stage("d", 2, 2)
        self.seal("d")
        self.stage("e", 2, 12)
        self.seal("e", final=False)
        self.stage("e", 2, 1)
        before = self.files._calls["sync_folder"]
        self.files.fail["sync_folder"] = {before + 1: 5}
        with contextlib.suppress(StoreFailed):
            self.commit_group(1, "a", "b", "c")
        self.leave()

    def leave(self) -> None:
        self.harness.abandon()
        self.files.crash(keep_all)

    def go_on(self) -> None:
        """Accept that a stage was dropped if it was still being written and the disk failed to read
        it at the start. An alarm must report it.
        """
        assert self.harness.store is not None
        if self.files.code == errno.EIO and any(
            "is dropped" in alarm for alarm in self.harness.store.report.alarms
        ):
            self.harness.sealed.pop(b"e".ljust(16, b"_"))
        StartLife.go_on(self)

    def check_log(self) -> None:
        harness = self.harness
        assert harness.store is not None
        blocks = harness.read_all()
        moved = [
            body for block in blocks for body in block.body.values() if body in (b"x", b"y", b"z")
        ]
        delayed = harness.store.delayed
        require(delayed is not None, "the delayed messages are gone")
        assert delayed is not None
        waits = [one.body for one in delayed.listed(None, 99, 99)]
        require(
            (moved, waits) == ([b"x", b"y"], [b"z"]), f"in the log are {moved}, and wait do {waits}"
        )
        table = harness.store.state.load()
        require(
            table.channels == {"c": ROW} and len(table.holes["c"]) == 1,
            f"the channels are {table.channels}, {table.holes}",
        )
        groups = [
            block
            for block in blocks
            if not block.header.producer_id and not set(block.body.values()) & {b"x", b"y", b"z"}
        ]
        harness.check_groups([block for block in blocks if block.header.producer_id] + groups)
        sequences = [block.header.sequence for block in blocks if block.header.producer_id]
        require(
            sequences == list(range(len(sequences))) and len(sequences) >= harness.acknowledged,
            f"the blocks {sequences} are there",
        )
        self.check_producer(sequences)

    def afterlife(self) -> None:
        StartLife.afterlife(self)


class RebuildLife(StartLife):
    """The state store is damaged. The start rebuilds it from its snapshot and the log."""

    def prepare(self) -> None:
        harness = self.harness
        harness.publish(2)
        harness.sync()
        puts = {"c": replace(ROW, next_offset=4), "d": ROW}
        self.commit(
            StateBatch(
                channel_puts=puts,
                hole_puts=[("c", 1, 2, 1, 0)],
                applied_offset=6,
                producers=self.producers(6),
            )
        )
        harness.publish(2)
        harness.sync()
        harness.abandon()
        harness.replace(harness.path("state/data.mdb"), bytes(20_000))

    def check(self) -> None:
        store = self.harness.store
        assert store is not None
        alarms = [
            alarm
            for alarm in store.report.alarms
            if "damaged" not in alarm and "rebuilt" not in alarm
        ]
        require(not alarms, f"alarms: {alarms}")
        self.check_log()
        table = store.state.load()
        require(
            table.channels == {"c": replace(ROW, next_offset=4), "d": ROW},
            f"the channels are {table.channels}",
        )
        require([hole.start for hole in table.holes["c"]] == [1], f"the holes are {table.holes}")


class CreationLife(Life):
    """A topic is made, completely or not at all."""

    def prepare(self) -> None:
        self.directory = f"{self.files.root}/topics"
        self.files.make_folder(self.directory)
        self.files.sync_folder(self.files.root)
        self.topic = f"{self.directory}/000001"
        self.made = False

    def steps(self) -> list[Step]:
        return [self.make]

    def make(self) -> None:
        create_store(self.files, self.topic, IDENTITY, SMALL)
        self.made = True

    def refused(self) -> None:
        self.failed = True

    def while_failing(self) -> None:
        require(not open_paths(self.files.root), f"these stay open: {open_paths(self.files.root)}")

    def end(self, ending: str) -> None:
        self.files.lose_lmdb = ending == "lost"
        if ending != "died":
            self.files.crash(keep_none if ending == "lost" else keep_all)

    def check(self) -> None:
        there = self.files.exists(self.topic)
        require(there or not self.made, "a topic that was made is gone")
        if not there:
            create_store(self.files, self.topic, IDENTITY, SMALL)
        store = open_store(self.files, self.topic, SMALL, IDENTITY)
        try:
            require(not store.report.alarms, f"alarms: {store.report.alarms}")
            offset, _ = store.log.append([pack([b"a"], producer_id=1, sequence=0)], 5)
            store.log.sync()
            require(offset == 0, f"a new topic begins at {offset}")
        finally:
            store.close()


class CheckLife(StartLife):
    """fsck checks a topic with damage of several kinds. It may raise `OSError` if it cannot check
    at all.
    """

    repair = False

    def prepare(self) -> None:
        harness = self.harness
        for _ in range(5):
            harness.publish(2)
            harness.sync()
        self.checkpoint()
        harness.restart()
        harness.abandon()
        [first, second, *_] = [
            int(name[:20]) for name in self.files.list(harness.directory) if name.endswith(".chunk")
        ]
        self.hurt(chunk_name(first), 128 + 64 + 20)
        self.hurt(index_name(second), 10)
        self.hurt(IDENTITY_NAME, 5)

    def hurt(self, name: str, at: int) -> None:
        harness = self.harness
        harness.flip(harness.path(name), at * 8)

    def steps(self) -> list[Step]:
        return [self.look]

    def look(self) -> None:
        try:
            report = check_topic(
                self.files, self.harness.directory, IDENTITY, 1, repair=self.repair
            )
        except OSError:
            self.refusals.append("OSError")
            return
        require(bool(report.findings), "nothing was found")

    def while_failing(self) -> None:
        require(not open_paths(self.files.root), f"these stay open: {open_paths(self.files.root)}")

    def go_on(self) -> None:
        """Do nothing: no store is open."""

    def check(self) -> None:
        self.harness.check(lost_max=1)
        require(
            len(self.harness.store.log.holes) == 1 if self.harness.store else False,
            "one block was hurt",
        )

    def afterlife(self) -> None:
        self.harness.sent = self.harness.sent[: self.harness.check(lost_max=1)[-1] + 1]
        self.harness.publish()
        self.harness.sync()
        self.harness.crash(keep_none)
        self.check()


class RepairLife(CheckLife):
    """fsck checks the same topic and repairs it."""

    repair = True
