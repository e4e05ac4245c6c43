"""Lives of a topic's store for `calls.py`: what is done step by step, what was promised by it, and how that is checked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from faults.failing import FailingFiles
from support.desk import SMALL, Desk

from zsq.storage.errors import Damaged, DiskFull, StoreFailed, Unreadable
from zsq.storage.faulty_files import keep_all, keep_none
from zsq.storage.state import StateBatch
from zsq.storage.store import StoreOptions

Step = Callable[[], None]
ENDINGS: Final = ("died", "kept", "lost")
"""Only the process ends; the power goes too, and all that was pending reached the disk; or nothing of it did."""


class Violation(AssertionError):
    """A promise that was not kept."""


def require(kept: bool, text: str) -> None:
    if not kept:
        raise Violation(text)


class StoreLife:
    """A desk whose steps may be refused: then nothing of the step happened, and the others go on."""

    options: StoreOptions = SMALL

    def __init__(self, root: Path, files: FailingFiles) -> None:
        self.files = files
        self.desk = Desk(root, self.options, files)
        self.desk.open()
        self.waiting: list[StateBatch] = []
        """Commits that found no space: tried again, in order, before anything else is committed."""
        self.refusals: list[str] = []
        self.failed = False
        self.prepare()

    def prepare(self) -> None:
        """What is there before the first call that may fail."""

    def steps(self) -> list[Step]:
        raise NotImplementedError

    def live(self) -> None:
        """All steps, or those up to a `StoreFailed`."""
        for step in self.steps():
            try:
                step()
            except (DiskFull, Unreadable, Damaged) as error:
                self.refusals.append(type(error).__name__)
                self.refused()
            except StoreFailed:
                self.refusals.append("StoreFailed")
                self.failed = True
                return

    def refused(self) -> None:
        """The last step did nothing; what it began to note is taken back."""
        desk = self.desk
        del desk.sent[max(desk.offsets, default=-1) + 1 :]

    # Steps

    def publish(self, blocks: int = 1, count: int = 3) -> Step:
        return lambda: self.desk.publish(blocks, count)

    def sync(self) -> None:
        self.desk.sync()

    def commit(self, batch: StateBatch) -> None:
        """The storage actor's way: in order, and the same again after a full disk."""
        self.waiting.append(batch)
        self.commit_waiting()

    def commit_waiting(self) -> None:
        assert self.desk.store is not None
        while self.waiting:
            self.desk.store.state.commit(self.waiting[0])
            self.waiting.pop(0)

    def read(self) -> None:
        """What reads give is right, whatever else fails."""
        desk = self.desk
        found = [block for block in desk.read_all() if block.header.producer_id]
        for block in found:
            require(tuple(block.body.values()) == desk.sent[block.header.sequence], "a body is wrong")
        order = [block.header.sequence for block in found]
        require(order == sorted(set(order)), "blocks are out of order, or doubled")
        if not desk.damage:
            require(set(range(desk.acknowledged)) <= set(order), "acknowledged blocks are not read")

    # After the trouble

    def while_failing(self) -> None:
        """Before it is lifted. A failed log takes nothing more, and what it has is read all the same."""
        if self.failed and self.log_failed():
            for call in (lambda: self.desk.log.append([], 0), self.desk.log.begin_sync, self.desk.log.sync, lambda: self.desk.log.roll(0)):
                try:
                    call()
                except StoreFailed:
                    continue
                raise Violation("a log that failed goes on")
        if not (self.files.still_failing and not self.files.reads_work):
            self.read()

    def log_failed(self) -> bool:
        try:
            self.desk.log._check()
        except StoreFailed:
            return True
        return False

    def go_on(self) -> None:
        """Once the trouble is over, in the same process: nothing was refused for ever."""
        self.commit_waiting()
        self.desk.publish()
        self.desk.sync()
        self.read()

    def end(self, ending: str) -> None:
        """The process ends, and another one opens what it left."""
        desk = self.desk
        desk.damage.clear()
        self.files.lose_lmdb = ending == "lost"
        if ending == "died":
            desk.abandon()
            desk.open()
        else:
            desk.crash(keep_none if ending == "lost" else keep_all)

    def check(self) -> None:
        """All promises, in a store that was just opened without trouble."""
        assert self.desk.store is not None
        require(not self.desk.store.report.alarms, f"alarms: {self.desk.store.report.alarms}")
        self.desk.check()
        require(not self.desk.damage, f"damage: {self.desk.damage}")

    def afterlife(self) -> None:
        """It is a store like any other: it takes blocks, and a loss of power costs nothing."""
        desk = self.desk
        found = desk.check()
        desk.sent = desk.sent[: found[-1] + 1] if found else []
        desk.publish()
        desk.sync()
        self.files.lose_lmdb = True
        desk.crash(keep_none)
        self.check()

    def close(self) -> None:
        self.desk.abandon()


class LogLife(StoreLife):
    """Appends, syncs, rolls, checkpoints, reads; an orderly end."""

    def steps(self) -> list[Step]:
        found: list[Step] = []
        for turn in range(6):
            found.append(self.publish(1 + turn % 3))
            if turn % 2:
                found += [self.sync, self.read]
            if turn % 4 == 3:
                found.append(self.checkpoint)
        return [*found, lambda: self.desk.log.roll(self.desk.now_ns), self.publish(), self.sync, self.read, self.keep]

    def checkpoint(self) -> None:
        table_end = self.desk.log.synced_end
        self.commit(StateBatch(synced_end=table_end))

    def keep(self) -> None:
        assert self.desk.store is not None
        self.desk.store.keeper.write()


LIVES: Final[dict[str, type[StoreLife]]] = {"log": LogLife}
