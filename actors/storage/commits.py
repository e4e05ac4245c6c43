"""Commits of state: changes are collected in a batch while the thread commits the one before it.

Reads of the state store also go through its thread (`read`). The LMDB database has no lock file, so
it must not be read while another thread commits.

Two rules hold. A batch goes to the thread only when the log is synced beyond all offsets that the
batch mentions, so state never gets ahead of the log. After a full disk, the same batch is tried
again before any later one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ...storage.errors import DiskFull, StoreFailed
from ...storage.state.state import ProducerRow, StateBatch, StateStore, Table
from ...storage.state.state_keeper import StateKeeper
from ...transport.errors import E_DISK_FULL, Refused
from ..runtime.worker_thread import Jobs

log = logging.getLogger("zsq")

Action = Callable[[], object]


class StateCommits:
    """Gathers changes of the state and commits them in order.

    `batch` is committed next. `applied` is the offset up to which the last commit covers the log.
    `floors` is the first unfinished offset of each channel. `waiting` is the offset at which a
    first channel would begin. Both have the values of the last commit.
    """

    def __init__(
        self,
        thread: Jobs,
        store: StateStore,
        table: Table,
        title: str,
        keeper: StateKeeper | None = None,
    ) -> None:
        self.thread = thread
        self.batch = StateBatch()
        self.applied = table.applied_offset
        self.floors = {name: table.first_unfinished(name) for name in table.channels}
        self.waiting = table.waiting
        self._wanted = False  # a commit was requested
        self.disk_full = False
        self.trouble = ""  # why the disk counts as full, for the health report
        self.on_full: list[Callable[[str], None]] = []
        self.keeper = keeper
        self._problem = ""
        self._store = store
        self._title = title
        # The holes of the batch. A later change replaces an earlier one.
        self._holes: dict[tuple[str, int], tuple[int, int, int] | None] = {}
        self._end = 0
        self._then: list[Action] = []
        self._out: Callable[[], None] | None = None

    def cover(self, end: int) -> None:
        """Note that the batch mentions offsets up to `end`."""
        self._end = max(self._end, end)

    def want(self) -> None:
        """Request a commit soon."""
        self._wanted = True

    def then(self, action: Action) -> None:
        """Request a commit soon, and call `action` when all that is in the batch now is on disk."""
        self._then.append(action)
        self.want()

    def put_hole(self, channel: str, start: int, row: tuple[int, int, int] | None) -> None:
        """Put a hole's row (count, attempts, due_ns) into the batch. None removes the hole."""
        self._holes[channel, start] = row

    def clear_deferred(self, channel: str) -> None:
        """Remove the channel's deferred holes, including those in the batch."""
        self._holes = {
            key: None if key[0] == channel and row and row[2] else row
            for key, row in self._holes.items()
        }
        self.batch.deferred_clears.append(channel)

    def read(self, job: Callable[[StateStore], Any], action: Callable[[Any], object]) -> None:
        """Call `action` with the result of `job`, which reads the store as last committed."""
        self.thread.submit(("read", action), lambda: job(self._store))

    def drop_channel(self, channel: str) -> None:
        self._holes = {key: row for key, row in self._holes.items() if key[0] != channel}
        self.batch.channel_puts.pop(channel, None)
        self.batch.channel_drops.append(channel)

    def check_space(self) -> None:
        """Raise `Refused` (E_DISK_FULL) if the disk is full, because a commit might wait for
        long.
        """
        if self.disk_full:
            raise Refused(E_DISK_FULL, self.trouble)

    def alarm(self) -> str:
        """Return the alarm for the health report, or ""."""
        stale = self.keeper.problem if self.keeper is not None else ""
        return self.trouble or (
            f"{stale}; no log files are removed beyond the last snapshot" if stale else ""
        )

    def is_idle(self) -> bool:
        """Return True when no commit is running or will start.

        A stop does not wait for space: state that was not committed was not confirmed to any
        client.
        """
        return not self.thread.pending and (self.disk_full or not self._wanted)

    def may_commit(self) -> bool:
        return self._wanted and not self.thread.pending and not self.disk_full

    def waits_for_log(self, synced_end: int) -> bool:
        return synced_end < self._end

    def commit(
        self,
        synced_end: int,
        producers: Mapping[int, ProducerRow],
        producers_gone: Sequence[int] = (),
    ) -> None:
        """Pass the batch to the thread and begin the next one.

        `producers` are the producers' rows that changed, as of `synced_end`.
        """
        assert self.may_commit()
        assert not self.waits_for_log(synced_end)
        batch, self.batch, self._wanted = self.batch, StateBatch(), False
        holes, self._holes = self._holes, {}
        then, self._then = self._then, []
        batch.hole_gones = [key for key, row in holes.items() if row is None]
        batch.hole_puts = [(*key, *row) for key, row in holes.items() if row is not None]
        batch.applied_offset = batch.synced_end = synced_end
        batch.producers = dict(producers)
        batch.producers_gone += producers_gone
        self._out = lambda: self.thread.submit(
            ("commit", (synced_end, batch.waiting, then)), partial(_commit, self._store, batch)
        )
        self._out()

    def tick(self) -> None:
        """Write a snapshot if one is due. Request a commit if the store has garbage to remove."""
        self._wanted = self._wanted or self._store.garbage
        keeper = self.keeper
        if keeper is None:
            return
        if keeper.problem != self._problem:
            self._problem = keeper.problem
            if keeper.problem:
                log.error("%s: %s", self._title, keeper.problem)
        if keeper.is_due() and not self.thread.pending:
            self.thread.submit(("read", lambda _: None), keeper.write)

    def retry(self) -> None:
        """Submit the batch again after a full disk."""
        if self.disk_full and not self.thread.pending and self._out is not None:
            self._out()

    def on_results(self) -> None:
        """Process the thread's results when its socket is readable.

        Raises `StoreFailed` if it is unknown what was committed, or if data that was read is
        damaged.
        """
        for (kind, tag), value in self.thread.results():
            if kind == "commit" and isinstance(value, DiskFull):
                if not self.disk_full:
                    log.error(
                        (
                            "%s: the state store has no space; finishes, seals and new channels "
                            "wait: %s"
                        ),
                        self._title,
                        value,
                    )
                self.disk_full = True
                self.trouble = (
                    f"the state store has no space: {value}; finishes, seals and new channels "
                    "wait for space"
                )
                for tell in self.on_full:
                    tell(self.trouble)
            elif isinstance(value, Exception):
                if self.keeper is not None:
                    # The next start checks the whole store and rebuilds it if it is damaged.
                    self.keeper.distrust()
                raise StoreFailed(f"a {kind} of the state store failed: {value}") from value
            elif kind == "read":
                tag(value)
            else:
                if self.disk_full:
                    log.info("%s: the state store has space again", self._title)
                self.disk_full, self.trouble = False, ""
                self._committed(value, *tag)

    def _committed(
        self, floors: dict[str, int | None], applied: int, waiting: int | None, then: list[Action]
    ) -> None:
        self.applied = applied
        self.floors = {
            name: floor for name, floor in (self.floors | floors).items() if floor is not None
        }
        self.waiting = self.waiting if waiting is None else waiting
        for action in then:
            action()


def _commit(store: StateStore, batch: StateBatch) -> dict[str, int | None]:
    """Commit the batch, in the thread. Return the new floor of each channel that it changed."""
    store.commit(batch)
    names = {*batch.channel_puts, *batch.channel_drops}
    return {name: store.first_unfinished(name) for name in names}
