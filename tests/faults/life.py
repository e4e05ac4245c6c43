"""A topic's store with promises about channels, producers, delayed messages and retention. Its
calls are recorded, and its promises are checked after a crash. `__main__.py` explains the terms.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Self

import pytest
from support.faulty_files import FaultyFiles
from support.storage_harness import PRODUCER, SMALL, StorageHarness

from zsq.storage.delayed.delayed import DelayedStore
from zsq.storage.delayed.delayed_format import DelayedKey, DelayedRow, due_block
from zsq.storage.directory.store import Store, StoreOptions
from zsq.storage.errors import DiskFull
from zsq.storage.log.log_format import chunk_name
from zsq.storage.log.removal import remove_below
from zsq.storage.state.channel_row import ChannelRow
from zsq.storage.state.state import HoleRow, StateBatch, Table, producer_after
from zsq.transport.block.block import Block

from .recording import RecordingFiles

PUBLISHER: Final = 99  # producer of the delayed messages
# Attributes that are not part of a promise, or that are not copied.
_NOT_PROMISED: Final = frozenset(
    {"files", "store", "root", "directory", "options", "facts", "lagging", "damage", "rig"}
)

Facts = dict[str, Any]


class Life(StorageHarness):
    """A topic's store, and what was promised about it. `facts`: the content of the state before the
    first commit and after each commit. All promises of one recording share this list.
    """

    def __init__(self, root: Path, options: StoreOptions = SMALL) -> None:
        self.facts: list[Facts] = []
        self.commits = 0
        """The number of confirmed commits."""
        self.put: dict[bytes, int] = {}
        """Body -> due time, for delayed messages whose publish was answered."""
        self.perhaps: list[tuple[bytes, ...]] = []
        """Bodies of the messages of each publish or cancellation without an answer. After a crash,
        either all messages of a tuple are present, or none.
        """
        self.gone: set[bytes] = set()
        """Bodies of messages whose cancellation was answered."""
        self.moved_ns = 0
        """No message that is due later than this was moved to the log."""
        self.damaged = False
        self.lost: set[int] = set()
        self.given_up: set[bytes] = set()
        super().__init__(root, options, RecordingFiles(str(root)))

    def open(self) -> Store:
        store = super().open()
        if not self.facts:
            self.facts.append(self.facts_now())
        return store

    # Recording, and reviving after a crash

    def promise(self) -> dict[str, Any]:
        found = {
            name: copy.deepcopy(value)
            for name, value in self.__dict__.items()
            if name not in _NOT_PROMISED
        }
        return {**found, "facts": self.facts}

    @classmethod
    def revived(cls, files: FaultyFiles, promise: dict[str, Any], options: StoreOptions) -> Self:
        """Continue on an existing disk. `promise` is what the earlier run had promised until the
        crash.
        """
        made = cls.__new__(cls)
        made.__dict__.update(
            {
                name: value if name == "facts" else copy.deepcopy(value)
                for name, value in promise.items()
            }
        )
        made.root, made.directory, made.options, made.files = (
            files.root,
            f"{files.root}/clicks",
            options,
            files,
        )
        made.store = made.lagging = None
        made.damage = []
        return made

    def recover(self) -> None:
        self.open()

    def live(self) -> None:
        """Make the content that recovery found the new promise, and continue to use the topic."""
        end = self.log.end
        self.settle()
        if self.tried or self.staged:
            self.go_on()
        else:
            self.publish()
            self.sync()
            assert self.offsets[len(self.sent) - 1] >= end, "an offset is given twice"
            self.check()

    def verify(self) -> None:
        self.check()

    # The state

    def facts_now(self) -> Facts:
        """Return the part of the state that recovery must not change."""
        assert self.store is not None
        return facts_of(self.store.state.load(), self.store)

    def commit_state(self, batch: StateBatch) -> None:
        assert self.store is not None
        self.store.state.commit(batch)
        self.facts.append(self.facts_now())
        self.commits += 1

    def save_channel(
        self,
        name: str,
        following: int,
        holes: Sequence[tuple[int, int, int, int]] = (),
        *,
        paused: bool = False,
    ) -> None:
        """Save a channel. `holes`: (start, count, attempts, due time)."""
        self.commit_state(
            StateBatch(
                channel_puts={name: ChannelRow(following, paused)},
                hole_puts=[(name, *hole) for hole in holes],
            )
        )

    def checkpoint(self) -> None:
        """Commit the state with the producers."""
        self.commit_state(self.counted(StateBatch()))

    def commit_dropped(self, batch: StateBatch) -> None:
        super().commit_dropped(self.counted(batch))

    def counted(self, batch: StateBatch) -> StateBatch:
        """Add to the batch the offset up to which it includes the log, and the rows of the
        producers at that offset. A recovery reads the log from there.

        So the rows must include all blocks below that offset, also blocks that became durable
        without a request to sync. At the start of each turn, the storage answers such blocks and
        adds them to the rows. At the end of the turn it commits. (If a commit left them out,
        recovery would ask producers for blocks that are stored.
        tests/actors/storage/test_storage_commits.py shows that the storage does not leave them
        out.)
        """
        assert self.store is not None
        self.answer_durable()
        row = self.store.state.load().producers.get(PRODUCER)
        for sequence in range(row.next_sequence if row else 0, self.acknowledged):
            row = producer_after(row, sequence, self.offsets[sequence], self.now_ns)
        batch.producers = {PRODUCER: row} if row is not None else {}
        batch.applied_offset = batch.synced_end = self.log.synced_end
        return batch

    def publish(self, blocks: int = 1, count: int = 3, size: int = 20) -> None:
        super().publish(blocks, count, size)
        self.answer_durable()

    def answer_durable(self) -> None:
        """Count the blocks as acknowledged that became durable with a new chunk or a group. From
        now on they must not be lost.
        """
        while self.offsets.get(self.acknowledged, self.log.synced_end) < self.log.synced_end:
            self.acknowledged += 1

    # Retention

    def retain(self, start: int) -> None:
        """Remove everything below `start`, in the order in which retention does it."""
        assert self.store is not None
        self.given_up.update(
            body
            for block in self.read_all()
            if block.first_offset < start
            for body in block.body.values()
            if body
        )
        self.store.keeper.write()
        self.commit_state(StateBatch(start=start))
        self.log.forget(start)
        remove_below(self.files, self.directory, start)

    def removed(self) -> set[int]:
        return self.lost | {
            sequence for sequence, offset in self.offsets.items() if offset < self.log.start
        }

    # Delayed messages

    @property
    def delayed(self) -> DelayedStore:
        assert self.store is not None
        return self.store.make_delayed(1_000)

    def waiting(self) -> list[bytes]:
        assert self.store is not None
        return (
            []
            if self.store.delayed is None
            else [one.body for one in self.store.delayed.listed(None, 999, 999)]
        )

    def publish_delayed(self, *due: int, count: int = 2) -> list[DelayedKey]:
        """Publish one block for each due time, in one commit."""
        made: list[tuple[Block, int]] = []
        bodies: dict[bytes, int] = {}
        first = (
            self.delayed.producers[PUBLISHER].next_sequence
            if PUBLISHER in self.delayed.producers
            else 0
        )
        for number, due_ns in enumerate(due, first):
            mine = tuple(b"delayed %d/%d" % (number, index) for index in range(count))
            bodies.update(dict.fromkeys(mine, due_ns))
            made.append((self.make_block(mine, PUBLISHER, number), due_ns))
        self.perhaps.append(tuple(bodies))
        keys = self.delayed.put(made, self.now_ns)
        self.perhaps.clear()
        self.put.update(bodies)
        return keys

    def cancel(self, *keys: DelayedKey) -> None:
        waiting = {one.key: one.body for one in self.delayed.listed(None, 999, 999)}
        bodies = tuple(waiting[key] for key in keys)
        due = [self.put.pop(body) for body in bodies]
        self.perhaps.append(bodies)
        assert all(self.delayed.cancel(keys))
        assert len(due) == len(bodies)
        self.perhaps.clear()
        self.gone.update(bodies)

    def move(self, until_ns: int, rows_max: int = 99) -> None:
        self.forget_moved(self.move_into_log(until_ns, rows_max))

    def move_into_log(self, until_ns: int, rows_max: int = 99) -> list[DelayedRow]:
        """Move messages to the log. No checkpoint may count them before `forget_moved`."""
        self.moved_ns = max(self.moved_ns, until_ns)
        rows = self.delayed.due(until_ns, 1 << 20, rows_max)
        self.now_ns = max(self.now_ns, until_ns)
        self.log.append([due_block(row) for row in rows], self.now_ns)
        self.sync()
        return rows

    def forget_moved(self, rows: list[DelayedRow]) -> None:
        self.delayed.remove([row.key for row in rows], known=True)

    # Other failures, before or between the steps

    def refused(self, taken: int) -> None:
        """Try a publish for which there is space for `taken` bytes only."""
        first = len(self.sent)
        self.files.short = {self.files._calls.get("writev", 0) + 1: taken}
        with pytest.raises(DiskFull):
            self.publish(blocks=2, size=60)
        del self.sent[first:]
        self.answer_durable()

    def damage_while_closed(self, name: str, change: Callable[[bytes], bytes]) -> None:
        """Change a file while the store is closed. From then on alarms are allowed."""
        if self.store is not None:
            self.abandon_cleanly()
        path = Path(self.directory) / name
        path.write_bytes(change(path.read_bytes()))
        self.damaged = True

    def lose(self, sequence: int) -> None:
        """Flip a bit in a block that was acknowledged."""
        body = self.sent[sequence][0]
        self.damage_while_closed(
            chunk_name(0), lambda data: data.replace(body, bytes([body[0] ^ 1]) + body[1:])
        )
        self.lost.add(sequence)

    def lose_delayed(self, *bodies: bytes) -> None:
        """Damage the row of these bodies in LMDB's file. Also leave a note that the last process
        crashed when it read due messages.
        """
        data = bytes([bodies[0][0] ^ 1]) + bodies[0][1:]
        self.damage_while_closed("delayed/data.mdb", lambda whole: whole.replace(bodies[0], data))
        (Path(self.directory) / "delayed.attempt").write_bytes(b"due")
        for body in bodies:
            del self.put[body]

    # What must hold

    def check(self, lost_max: int = 0) -> list[int]:
        found = super().check(lost_max)
        assert self.store is not None
        assert self.damaged or not self.store.report.alarms, self.store.report.alarms
        table = self.store.state.load()
        mine = table.producers.get(PRODUCER)
        for sequence, offset in mine.recent if mine is not None else ():
            assert self.offsets.get(sequence, offset) == offset, (
                f"block {sequence} sent again would be answered with another offset"
            )
        now = facts_of(table, self.store)
        self.check_facts(now, self.facts[self.commits : self.commits + 2])
        bases = self.log.chunks
        assert bases[0] <= now["start"], "chunks are gone that were not given up"
        assert len(bases) < 2 or bases[1] > now["start"], "removed chunks are there again"
        if self.put or self.perhaps or self.gone or self.store.delayed is not None:
            self._check_delayed()
        return found

    def check_facts(self, now: Facts, allowed: list[Facts]) -> None:
        """Check the state. `allowed`: the state after the last confirmed commit, and after the
        commit that was not confirmed yet, if there is one.
        """
        assert now in allowed, (
            f"the state is neither {' nor '.join(map(repr, allowed))} but {now!r}"
        )

    def _check_delayed(self) -> None:
        assert self.store is not None
        logged = [
            body
            for block in self.read_all()
            for body in block.body.values()
            if body is not None and body.startswith(b"delayed ")
        ]
        waiting = self.waiting()
        found = logged + waiting
        assert len(set(found)) == len(found), f"delayed messages are there twice: {sorted(found)}"
        # Retention may have removed messages that had moved to the log.
        missing = self.put.keys() - set(found) - self.given_up
        assert not missing, f"delayed messages {sorted(missing)} are lost"
        assert not self.gone & set(found), "cancelled messages are there again"
        known = {*self.put, *(body for bodies in self.perhaps for body in bodies)}
        assert set(found) <= known, f"nobody published {set(found) - known}"
        for bodies in self.perhaps:
            assert set(bodies) <= set(found) or not set(bodies) & set(found), (
                "a part of a block is there"
            )
        assert all(self.put.get(body, 0) <= self.moved_ns for body in logged), (
            "a delayed message came early"
        )
        summary = None if self.store.delayed is None else self.store.delayed.summary
        assert (
            summary is None or self.damaged or (summary.messages, summary.lost) == (len(waiting), 0)
        )

    def settle(self) -> None:
        """Make the content that is present after a crash the new promise."""
        found = self.check()
        following = self._following()
        last = max({*found, *self.lost}, default=following - 1)
        assert following == last + 1, (
            f"block {last} was the last one, and the producer would be asked for {following}"
        )
        assert following >= self.acknowledged, (
            f"block {following} is there and would be taken once more"
        )
        waiting = set(self.waiting())
        for bodies in self.perhaps:
            self.put.update(
                dict.fromkeys((body for body in bodies if body in waiting), self.moved_ns)
            )
            self.gone.update(body for body in bodies if body not in waiting)
        self.perhaps.clear()
        self.facts, self.commits = [self.facts_now()], 0
        self.sent = self.sent[:following]
        self.offsets = {
            sequence: offset for sequence, offset in self.offsets.items() if sequence < following
        }
        self.acknowledged = following

    def _following(self) -> int:
        assert self.store is not None
        row = self.store.state.load().producers.get(PRODUCER)
        return row.next_sequence if row is not None else 0


def facts_of(table: Table, store: Store) -> Facts:
    return {
        "channels": table.channels,
        "holes": table.holes,
        "deferred": {
            name: list[HoleRow](store.state.deferred_rows(name)) for name in table.deferred
        },
        "start": table.start,
        "dropped": table.dropped,
        "paused": table.paused_end,
        "waiting": table.waiting,
    }
