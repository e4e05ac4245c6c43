"""Lives of the parts of a store beside the log, for `calls.py`: channels and their snapshot,
delayed messages, and chunks that retention removes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Final

from faults.call_lives import Step, StoreLife, require
from support.storage_harness import SMALL

from zsq.storage.delayed.delayed import DelayedStore
from zsq.storage.delayed.delayed_format import DelayedKey, due_block
from zsq.storage.errors import DiskFull, StoreFailed
from zsq.storage.log.removal import LogKeeper, remove_below
from zsq.storage.retention import plan
from zsq.storage.state.channel_row import ChannelRow
from zsq.storage.state.state import StateBatch, StateStore, Table
from zsq.transport.block.block import Block, pack
from zsq.transport.settings import Retention

ROW: Final = ChannelRow(0)
PUBLISHER: Final = 99
LATER_NS: Final = 1 << 60


def facts(table: Table) -> tuple[object, ...]:
    """Return the part of the state that commits promise, without what recovery derives from the
    log.
    """
    return (
        table.channels,
        table.holes,
        table.deferred,
        table.paused_end,
        table.waiting,
        table.start,
        table.dropped,
    )


class ChannelLife(StoreLife):
    """Commits of channels, holes, deferred messages, a pause and the removal of a channel, with an
    LMDB map that must grow. Two other stores (shadows) get each commit that succeeds.
    """

    options = replace(SMALL, map_bytes=1 << 16)

    def prepare(self) -> None:
        self.harness.publish(1, 1_000, 1)
        self.harness.sync()
        self.unsure_late = False
        self.shadows = []
        """The first shadow also gets a commit that failed. The second shadow does not."""
        for name in ("with", "without"):
            path = self.root.parent / name
            path.mkdir()
            self.shadows.append(StateStore(str(path), create=True))
            self.shadows[-1].create(bytes(16), 0)

    def steps(self) -> list[Step]:
        many = [("d", start, 1, 1, 1_000 + start) for start in range(0, 900, 2)]
        batches = [
            StateBatch(channel_puts={"c": ROW}),
            StateBatch(
                channel_puts={"c": replace(ROW, next_offset=5)},
                hole_puts=[("c", 0, 1, 2, 0), ("c", 4, 1, 1, 0)],
            ),
            StateBatch(
                channel_puts={"d": replace(ROW, next_offset=6), "e": ROW},
                hole_puts=[("d", 1, 1, 3, 0), ("d", 3, 1, 1, 99)],
            ),
            StateBatch(
                hole_gones=[("c", 0), ("d", 1)], hole_puts=[("c", 4, 1, 2, 0)], paused_end=4
            ),
            StateBatch(channel_puts={"d": replace(ROW, next_offset=900)}, hole_puts=many),
            StateBatch(deferred_clears=["d"], channel_drops=["e"], paused_end=-1, waiting=3),
            StateBatch(channel_puts={"c": replace(ROW, next_offset=2)}),
        ]
        found: list[Step] = []
        for number, batch in enumerate(batches):
            found += [self.publish(), self.sync] if number < 3 else []
            found.append(partial(self.commit, batch))
        return [*found, self.checkpoint, self.keep]

    def commit_one(self, batch: StateBatch) -> None:
        try:
            super().commit_one(batch)
        except StoreFailed:
            self.shadows[0].commit(batch)
            raise
        for shadow in self.shadows:
            shadow.commit(batch)

    def while_failing(self) -> None:
        """Try a commit after one that failed. If the answer is success, the commit must have taken
        effect. The broker itself makes no such commit.
        """
        super().while_failing()
        if self.failed and not self.log_failed():
            assert self.harness.store is not None
            late = StateBatch(channel_puts={"late": ROW})
            try:
                self.harness.store.state.commit(late)
            except (StoreFailed, DiskFull):
                self.unsure_late = True
                return
            for shadow in self.shadows:
                shadow.commit(late)

    def go_on(self) -> None:
        super().go_on()
        self.check_channels()

    def check_log(self) -> None:
        super().check_log()
        self.check_channels()

    def check_channels(self) -> None:
        assert self.harness.store is not None
        table = self.harness.store.state.load()
        if self.unsure_late:
            table.channels.pop("late", None)
        found = facts(table)
        allowed = [facts(shadow.load()) for shadow in self.shadows]
        require(found in allowed, f"the channels are {found}, and were {allowed}")

    def close(self) -> None:
        super().close()
        for shadow in self.shadows:
            shadow.close()


class DelayedLife(StoreLife):
    """Delayed blocks are published, become due, are moved to the log, and are cancelled, in the
    order in which the storage does it.
    """

    def prepare(self) -> None:
        self.certain: set[bytes] = set()
        self.unsure: set[bytes] = set()
        """Messages whose publish or cancellation failed."""
        self.gone: set[bytes] = set()
        """Messages whose cancellation was answered."""
        self.keys: dict[bytes, DelayedKey] = {}
        self.sequence = 0
        self.moving: list[DelayedKey] = []
        """Messages that are synced in the log and still stored as delayed.

        Until they are removed from the delayed messages, nothing is cancelled, and no checkpoint
        counts them.
        """

    def steps(self) -> list[Step]:
        put, move, cancel = self.put, self.move, self.cancel
        return [
            self.publish(), self.sync, partial(put, b"a", b"b"), partial(put, b"c"), partial(move, 10), self.publish(), self.sync,
            self.note_moved, partial(put, b"d", b"e", b"f"), partial(cancel, b"e"), partial(move, 11), partial(cancel, b"c"),
            self.note_moved, partial(put, b"g"), partial(move, 12), self.publish(), self.sync,
        ]  # fmt: skip

    def store(self) -> DelayedStore:
        assert self.harness.store is not None
        return self.harness.store.make_delayed(1_000)

    def put(self, *bodies: bytes) -> None:
        block = pack(list(bodies), producer_id=PUBLISHER, sequence=self.sequence)
        due_ns = 10 + self.sequence
        try:
            [key] = self.store().put([(block, due_ns)], 5)
        except StoreFailed:
            self.unsure |= set(bodies)
            raise
        self.sequence += 1
        self.certain |= set(bodies)
        self.keys |= {
            body: DelayedKey(key.due_ns, key.serial + number) for number, body in enumerate(bodies)
        }

    def move(self, now_ns: int) -> None:
        self.finish_move()
        rows = self.store().due(now_ns, 1 << 20, 99)
        if not rows:
            return
        self.harness.log.append([due_block(row) for row in rows], self.harness.now_ns)
        self.harness.log.sync()
        self.moving = [row.key for row in rows]
        self.finish_move()

    def finish_move(self) -> None:
        if self.moving:
            self.store().remove(self.moving, known=True)
            self.moving = []

    def cancel(self, body: bytes) -> None:
        self.finish_move()
        if body not in self.keys:
            return
        try:
            [found] = self.store().cancel([self.keys[body]])
        except StoreFailed:
            self.unsure.add(body)
            self.certain.discard(body)
            raise
        if found:
            self.gone.add(body)
            self.certain.discard(body)

    def note_moved(self) -> None:
        self.finish_move()
        self.checkpoint()

    def go_on(self) -> None:
        super().go_on()
        self.put(b"h")
        self.move(LATER_NS)
        self.note_moved()
        self.check_messages()

    def check_log(self) -> None:
        super().check_log()
        self.check_messages()

    def check_messages(self) -> None:
        """Check that each acknowledged message is present once, in the log or as delayed. Messages
        without an answer may be present at most once. There must be no other messages.
        """
        assert self.harness.store is not None
        store = self.harness.store.delayed
        waits = [] if store is None else [one.body for one in store.listed(None, 999, 999)]
        count = Counter([*self.moved(), *waits])
        require(
            all(count[body] == 1 for body in self.certain),
            f"{self.certain} were published, there is {count}",
        )
        require(not self.gone & count.keys(), f"{self.gone} were cancelled, there is {count}")
        require(set(count) <= self.certain | self.unsure, f"{count} was never published")
        require(max(count.values(), default=0) <= 1, f"twice: {count}")
        if store is not None:
            row = store.producers.get(PUBLISHER)
            following = row.next_sequence if row else 0
            require(
                following in {self.sequence, self.sequence + bool(self.unsure)},
                f"the publisher is asked for {following}",
            )

    def moved(self) -> list[bytes]:
        blocks: list[Block] = [
            block for block in self.harness.read_all() if not block.header.producer_id
        ]
        return [bytes(body or b"") for block in blocks for body in block.body.values()]


class RetentionLife(StoreLife):
    """Chunks before the committed start are removed, after they were measured and counted, and new
    ones are made.
    """

    def prepare(self) -> None:
        for _ in range(10):
            self.harness.publish(2)
        self.harness.sync()
        self.checkpoint()
        assert self.harness.store is not None
        self.keep()
        self.starts = {self.harness.log.start}
        """The log begins at one of these offsets."""
        self.left_below = 0
        uuid = self.harness.store._uuid
        self.keeper = LogKeeper(self.files, self.harness.directory, uuid, self.harness.log)

    def steps(self) -> list[Step]:
        return [partial(self.look, 2), partial(self.remove, 2), self.publish(3), self.sync, self.checkpoint, self.read,
                lambda: self.harness.log.roll(self.harness.now_ns), self.publish(), self.sync, self.checkpoint, partial(self.look, 1),
                partial(self.remove, 2), self.read]  # fmt: skip

    def look(self, kept: int) -> None:
        """Ask for the retention plan, as the storage does each second."""
        retention = Retention(keep_chunks=kept, keep_time_s=1, keep_bytes=100)
        end = self.harness.log.end
        view = self.keeper.view(retention, end, end, self.harness.now_ns)
        found = plan(retention, view, self.keeper.last_time_ns)
        require(found.chunks < len(self.harness.log.chunks), "the ongoing chunk would go")

    def remove(self, chunks: int) -> None:
        start = self.harness.log.chunks[chunks]
        before = max(self.starts)
        self.starts = {before, start}
        try:
            self.commit(StateBatch(start=start))
        except DiskFull:
            self.starts = {before}
            self.waiting.pop()
            raise
        self.starts = {start}
        self.keeper.forget(start)
        self.left_below = start
        self.remove_left()

    def remove_left(self) -> None:
        """Remove files. If that fails now, it is tried again later, and nothing depends on it."""
        try:
            remove_below(self.files, self.harness.directory, self.left_below)
        except OSError:
            self.refusals.append("OSError")

    def go_on(self) -> None:
        self.remove_left()
        super().go_on()

    def check_log(self) -> None:
        harness = self.harness
        log = harness.log
        require(
            log.start in self.starts, f"the log begins at {log.start}, and should at {self.starts}"
        )
        names = [
            name
            for name in self.files.list(harness.directory)
            if name[:1].isdigit() and int(name[:20]) < log.start
        ]
        require(not names, f"files of chunks that have gone: {names}")
        self.read()
        self.check_producer([block.header.sequence for block in harness.read_all()])
