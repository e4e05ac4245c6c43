"""Storage actor: owns all files of a topic, appends, syncs, commits state and answers reads.

It appends in groups with one sync, and commits state behind the log. Three threads work beside
the loop and are reached over inproc. One syncs the log, so that the next appends are written
meanwhile. One commits the state store (`commits.py`). One syncs staged files (`staging.py`). Two
more start with their first jobs: one for the delayed store (`delayed.py`), and one for
housekeeping, whose jobs take long and are not urgent. Two rules must hold:

* An append is answered after a sync that began after its write (mode `always`).
* Producers' rows count durable blocks only, and are committed together with the offset up to which
  they count.

`ProducerTable` holds the last durable blocks of each producer, the rows for the next commit, and
the producers to forget. It is pure.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

from ...storage.directory.store import Store, StoreOptions, TopicIdentity, create_store, open_store
from ...storage.errors import DiskFull, Locked, StoreFailed
from ...storage.files import Files
from ...storage.log.log import SyncTicket
from ...storage.retention import resolve
from ...storage.space import Shortage, Space
from ...storage.state.state import ProducerRow, Table, producer_after
from ...transport.block.block import Block
from ...transport.block.block_format import ADDRESSED
from ...transport.errors import E_BAD_BLOCK, E_CLOSING, E_DISK_FULL, Refused, UsageError, ZsqError
from ...transport.wire import protocol as p
from ..runtime.actor import Actor, StartFailed
from ..runtime.port import Envelope, Mail, Port
from ..runtime.pulses import StoragePulse
from ..runtime.worker_thread import LazyThread, WorkerThread
from ..settings import options
from ..settings.starts import StorageStart
from .backups import Backups
from .channels import Channels, OldestTimes
from .commits import StateCommits
from .delayed import DelayedMessages, sequences
from .reads import Reads
from .retention import LogUpkeep, RetentionRunner
from .stages import Stages
from .staging import StageCommits

SEQUENCE_MAX: Final = 1 << 63
_GONE_MAX = 1_000  # the most producers that one commit forgets


class ProducerTable:
    """Producers' rows; `changed` are the producers whose rows changed since the last `take`."""

    def __init__(self, rows: Mapping[int, ProducerRow]) -> None:
        self._rows = dict(rows)
        self.changed: set[int] = set()

    def __len__(self) -> int:
        return len(self._rows)

    def sequences(self) -> dict[int, tuple[int, tuple[tuple[int, int], ...]]]:
        """Return each producer's next sequence and its last blocks."""
        return {pid: (row.next_sequence, row.recent) for pid, row in self._rows.items()}

    def stored(self, placed: Iterable[tuple[int, int, int]], time_ns: int) -> None:
        """Record that these blocks are durable: producer, sequence and first offset of each."""
        for pid, sequence, first_offset in placed:
            self._rows[pid] = producer_after(self._rows.get(pid), sequence, first_offset, time_ns)
            self.changed.add(pid)

    def take(self, now_ns: int) -> tuple[dict[int, ProducerRow], list[int]]:
        """Return the rows that changed and the producers to forget, for a commit."""
        limit = now_ns - options.PRODUCER_KEPT_S * 1_000_000_000
        gone = [pid for pid, row in self._rows.items() if row.used_ns < limit]
        # a bound, not an expiry: the least recently used ones are forgotten
        if len(self._rows) > options.PRODUCERS_MAX + _GONE_MAX:
            gone = sorted(self._rows, key=lambda pid: self._rows[pid].used_ns)
        gone = gone[:_GONE_MAX]
        for pid in gone:
            del self._rows[pid]
        changed, self.changed = {pid: self._rows[pid] for pid in self.changed if pid in self._rows}, set()
        return changed, gone


def placed(blocks: Iterable[Block], first_offset: int) -> list[tuple[int, int, int]]:
    """Return producer, sequence and first offset of consecutive blocks from `first_offset` on."""
    rows = []
    for block in blocks:
        rows.append((block.header.producer_id, block.header.sequence, first_offset))
        first_offset += block.count
    return rows


def checked(blocks: list[Block]) -> list[Block]:
    """Return the blocks if recovery will read them correctly.

    The topic has checked everything else. Raises `UsageError` (E_BAD_BLOCK).
    """
    for block in blocks:
        header = block.header
        if header.flags & ~ADDRESSED or header.sequence >= SEQUENCE_MAX:
            raise UsageError(E_BAD_BLOCK, f"a block may have no flag except {ADDRESSED}, and its sequence must be below 2^63")
    return blocks


def publishes_of(mail: Mail) -> int:
    """Return the number of blocks of an append.

    Each block is a publish, or several publishes of one producer that waited together.
    """
    return len(mail.frames) // 2


class _Pending(NamedTuple):
    """An append that is written and waits for its sync.

    `request` is 0 for delayed messages that became due.
    """

    envelope: Envelope
    request: int
    first_offset: int
    time_ns: int
    end: int
    producers: list[tuple[int, int, int]]  # producer, sequence, first offset


class StorageActor(Actor[StorageStart]):
    store: Store
    front: Port
    reader: Port

    def on_start(self) -> dict[str, Any]:
        given = self.given
        self.mode = given.sync
        self.store = self._open()
        self._log = self.store.log
        self._epoch = 0
        self._appends = 0
        self._sealed = False
        self._failure: tuple[str, str] | None = None
        self._said_full = ("", "")
        self._written: deque[_Pending] = deque()
        self._ticket: SyncTicket | None = None
        self._topic: Envelope | None = None
        self._space = Space(self.store.files, self.store.directory, self.store.reserve_bytes)
        self._shortage = Shortage()
        self._oldest = OldestTimes(self._log.reader.header_at)
        self._raw: dict[Any, Callable[[], object]] = {}
        self._threads: list[WorkerThread] = []
        self.front = self.open_router(given.front)
        self.push = self.open_pull(given.push, options.PUSH_MARK)
        self.reader = self.open_router(given.reader, answers_max=options.READER_ANSWERS_MAX)
        self._make_parts(self.store.state.load())
        self._route()
        self._set_timers()
        return {"channels": list(self._channels.rows), "alarms": list(self.store.report.alarms)}

    def _make_parts(self, table: Table) -> None:
        """Create the parts, and pass each the other parts and the callbacks that it needs."""
        given, store, title, send = self.given, self.store, self.title, self.front.send
        in_memory = given.in_memory
        self._sync_thread = self._start_thread("sync", self._sync_results)
        state_thread = self._start_thread("state", lambda: self._state.on_results())
        stage_thread = self._start_thread("stage", lambda: self._stages.on_results())
        delayed_thread = LazyThread(lambda: self._start_thread("delayed", self._delayed.on_results))
        self._housekeeping = LazyThread(lambda: self._start_thread("house", self._housekeeping_results))
        self._producers = ProducerTable(table.producers)
        self._state = StateCommits(state_thread, store.state, table, title, store.keeper)
        self._channels = Channels(self._log, self._state, table, self.mode, in_memory=in_memory)
        self._delayed = DelayedMessages(
            store, title, delayed_thread, send, self._delayed_moved, self._hint, self.answer_order, self._shortage
        )  # fmt: skip
        stages = Stages()
        self._retention = RetentionRunner(
            store, bytes.fromhex(given.uuid), self._state, self._channels, given.retention, title, self._housekeeping, send,
            self._delayed.held_bytes, lambda: stages.staged_bytes, dropped_count=table.dropped, in_memory=in_memory,
        )  # fmt: skip
        self._stages = StageCommits(
            store, self._state, stage_thread, table, stages,
            self.open_router(given.stage, answers_max=options.STAGE_ANSWERS_MAX),
            self._retention.admit_staged, self._group_committed, self._shortage, stage_timeout_s=given.stage_timeout_s,
            message_bytes_max=given.message_bytes_max, in_memory=in_memory, closed=given.closed,
        )  # fmt: skip
        self._upkeep = LogUpkeep(store, title, self._housekeeping)
        self._reads = Reads(self._log, self._channels.end, self._upkeep.alarm)
        self._backup = Backups(store, self._state, self._retention, self._delayed, title, self._housekeeping, self.answer_order)

    def _route(self) -> None:
        """Register the handlers.

        The topic, channels and scan workers use the port `front`. Readers use the port `reader`.
        """
        self.front.route(p.OpenTopic, self.open_topic)
        self.front.route(p.Append, self.append)
        self.front.route(p.AppendDelayed, self.append_delayed)
        self.front.route(p.Fetch, self._reads.fetch_for_channel)
        self.front.route(p.Scan, self._delayed.scan)
        self._channels.route(self.front)
        self._reads.route(self.reader)
        self.obey(p.SetSealed, self.seal)
        self.obey(p.SetClosed, self.close)
        self.obey(p.SetRetention, lambda order: p.Done(order.request, {"retention": self._retention.configure(resolve(order.retention))}))
        self.obey(p.ListChunks, lambda order: p.Done(order.request, {**self._log.reader.chunk_rows()}))
        self.obey(p.FindOffset, lambda order: p.Position(order.request, self._reads.offset_at(order.time_ns)))
        self.obey(p.CountDelayed, self._delayed.count)
        self.obey(p.ListDelayed, self._delayed.list_some)
        self.obey(p.CancelDelayed, self._delayed.cancel)
        self.obey(p.BackUpState, self._backup.take_state)
        self.obey(p.BackUpLog, self._backup.take_log)
        self.obey(p.EndBackup, self._backup.end)
        self.obey(p.LeaveChannel, self.leave_channel)
        self.obey(p.DropChannel, self.drop_channel)

    def _set_timers(self) -> None:
        for function in (self._checkpoint, self._state.retry, self._state.tick, self._look_for_space, self._delayed.tick):
            self.every(options.CHECKPOINT_INTERVAL_MS, function)
        self.every(options.CHECKPOINT_INTERVAL_MS, self._unless_stopping(self._reads.tick))
        self.every(options.CHECKPOINT_INTERVAL_MS, self._unless_stopping(lambda: self._upkeep.tick(time.time_ns())))
        self.every(options.CHECKPOINT_INTERVAL_MS, self._unless_stopping(self._backup.tick))
        self.every(options.RETENTION_TICK_MS, self._unless_stopping(self._retention.tick))
        self.every(options.STAGE_TICK_MS, self._stages.tick)
        self.every(options.STAGE_EXPIRE_MS, self._stages.expire)
        if self.mode == "interval":
            self.every(options.SYNC_INTERVAL_MS, self._start_sync)

    def _unless_stopping(self, function: Callable[[], None]) -> Callable[[], None]:
        return lambda: None if self.stopping else function()

    def _start_thread(self, name: str, on_results: Callable[[], object]) -> WorkerThread:
        """Start a worker thread; `on_results` is called when a job is done."""
        thread = WorkerThread(self.context, name)
        self._threads.append(thread)
        self._raw[thread.socket] = on_results
        self.listen_raw(thread.socket)
        return thread

    def _housekeeping_results(self) -> None:
        """Call each job's tag with the job's value or exception."""
        for then, value in self._housekeeping.results():
            then(value)

    def _open(self) -> Store:
        given = self.given
        identity = TopicIdentity(given.name, given.uuid, given.base_offset)
        store_options = StoreOptions(chunk_bytes=given.chunk_bytes)
        files = Files()
        if given.create and not files.exists(given.directory):
            create_store(files, given.directory, identity)
        deadline = time.monotonic() + options.LOCK_WAIT_S
        while True:
            try:
                return open_store(files, given.directory, store_options, identity)
            except Locked as error:  # a predecessor that is being killed still holds the lock
                if time.monotonic() > deadline:
                    raise StartFailed(f"{error}; waited {options.LOCK_WAIT_S:g} s for the lock") from None
                time.sleep(0.02)

    # Appends

    def open_topic(self, port: Port, mail: Mail, message: p.OpenTopic) -> None:
        rows = sequences(self._producers.sequences(), self._delayed.producers())
        data = {"producers": rows, "head": self._log.end, "visible_end": self._channels.visible_end}
        self._topic = mail.envelope
        self._delayed.opened(not self._sealed)
        port.send(mail.envelope, p.Done(message.request, data))

    def append(self, port: Port, mail: Mail, message: p.Append) -> None:
        if message.epoch < self._epoch:
            code, text = self._failure or (E_CLOSING, "an earlier append failed")
            self._count_refused(code, mail)
            port.send(mail.envelope, p.Failed(message.request, code, text))
            return
        try:
            if self._sealed:
                raise Refused(E_CLOSING, "the topic is being deleted")
            blocks = checked(mail.blocks())
            self._retention.admit()
            first_offset, time_ns = self._log.append(blocks, time.time_ns())
        except (DiskFull, ZsqError) as error:
            self._epoch = message.epoch + 1
            self._failure = (error.code, error.text) if isinstance(error, ZsqError) else (E_DISK_FULL, str(error))
            if isinstance(error, DiskFull):
                self._shortage.refused(error, publishes_of(mail), time.monotonic_ns())
            port.send(mail.envelope, p.Failed(message.request, *self._failure))
            return
        if self._shortage.text:
            self._shortage.stored()
        producers = placed(blocks, first_offset)
        self._written.append(_Pending(mail.envelope, message.request, first_offset, time_ns, self._log.end, producers))
        if self.mode == "interval":
            port.send(mail.envelope, p.Appended(message.request, first_offset, time_ns))

    def append_delayed(self, port: Port, mail: Mail, message: p.AppendDelayed) -> None:
        try:
            if message.epoch < self._epoch:
                raise Refused(*(self._failure or (E_CLOSING, "an earlier append failed")))
            if self._sealed:
                raise Refused(E_CLOSING, "the topic is being deleted")
            blocks = checked(mail.blocks())
            self._retention.admit_delayed()
            self._delayed.append(mail.envelope, message, blocks, self._log.end)
        except DiskFull as error:
            self._shortage.refused(error, publishes_of(mail), time.monotonic_ns())
            port.send(mail.envelope, p.Failed(message.request, E_DISK_FULL, str(error)))

    def _count_refused(self, code: str, mail: Mail) -> None:
        """Count the publishes of an append that is refused because an earlier append failed."""
        if code == E_DISK_FULL:
            self._shortage.refused_count += publishes_of(mail)

    def _look_for_space(self) -> None:
        """Send a pulse when publishes begin or cease to be refused.

        The reason is a full disk or the topic's bound. The supervisor learns it within a second.
        """
        if self._shortage.text:
            self._shortage.look(self._space.room(), time.monotonic_ns())
        full = (self._disk_full(), self._retention.full)
        if full != self._said_full:
            self._said_full = full
            self.hasten_pulse()

    def _disk_full(self) -> str:
        """Return a text that says what waits for space, or ""."""
        return self._shortage.text or (self._state.trouble if self._state.disk_full else "") or self._delayed.full

    def _delayed_moved(self, end: int) -> None:
        """Wait for the sync of delayed messages that are now in the log, up to `end`.

        The topic did not send them, so it gets the new head, in the order of its appends.
        """
        assert self._topic is not None
        self._written.append(_Pending(self._topic, 0, 0, 0, end, []))
        self._stages.entered(self._delayed.moving_bytes())
        if self.mode == "interval":
            self.front.send(self._topic, p.Head(end))

    def _hint(self, due_ns: int) -> None:
        """Ask the scan loop to scan this storage at that monotonic time."""
        self._scan.send((), p.Hint(self.key, due_ns))

    @cached_property
    def _scan(self) -> Port:
        return self.open_dealer(self.given.scan)

    def _start_sync(self) -> None:
        if self._ticket is not None or not self._log.unsynced_bytes:
            return
        lone = self._log.unsynced_bytes <= options.INLINE_SYNC_BYTES_MAX and not self._sync_thread.pending
        self._ticket = self._log.begin_sync()
        if self.mode == "never":
            self._ticket.done = True
            self._synced()
        elif lone:
            self._ticket.run()
            self._synced()
        else:
            self._sync_thread.submit("sync", self._ticket.run)

    def _synced(self) -> None:
        """Finish the ticket: all that was written before its sync began is durable."""
        assert self._ticket is not None
        self._log.finish_sync(self._ticket)
        self._ticket = None
        self._answer_durable()

    def _answer_durable(self) -> None:
        """Answer the appends that are durable.

        A roll of the log also syncs. What it synced counts even if the append that caused it
        failed.
        """
        end = self._log.synced_end
        while self._written and self._written[0].end <= end:
            done = self._written.popleft()
            self._appends += 1
            if self.mode != "interval":
                head = p.Head(done.end)
                self.front.send(done.envelope, p.Appended(done.request, done.first_offset, done.time_ns) if done.request else head)
            self._producers.stored(done.producers, done.time_ns)

    def on_raw(self, source: Any) -> None:
        self._raw[source]()

    def _sync_results(self) -> None:
        for _, value in self._sync_thread.results():
            if isinstance(value, Exception):
                # Never acknowledge from this descriptor again. End, and recover from the disk.
                raise StoreFailed(f"sync failed: {value}") from value
            self._synced()

    def on_turn(self) -> None:
        self._answer_durable()
        if self.mode != "interval" or self._delayed.waits_for_log(self._log.synced_end):
            self._start_sync()
        self._delayed.turn(self._log.synced_end)
        self._stages.turn()
        self._retention.turn()
        self._commit()

    # Stages

    def _drain(self, port: Port) -> None:
        if port is self.push:
            self.stir(blocks=True)
            self._stages.take_pushes(port)
        else:
            super()._drain(port)

    def _group_committed(self) -> None:
        """Answer what is durable: a group is on disk, and so is everything written before it.

        The topic did not see the group's blocks, so it gets the new end of the log.
        """
        self._answer_durable()
        self._appends += 1
        if self._topic is not None:
            self.front.send(self._topic, p.Head(self._log.synced_end))

    def on_gone(self, who: str) -> None:
        self._stages.core.gone(who.encode())

    # State

    def _checkpoint(self) -> None:
        if self._channels.checkpoint() or self._producers.changed or self._state.applied != self._log.synced_end:
            self._state.want()

    def _commit(self) -> None:
        """Pass the batch to its thread.

        The thread must be idle, and the log synced beyond all offsets that the batch mentions.
        """
        if not self._state.may_commit() or self._delayed.holds_checkpoint():
            return
        if self._state.waits_for_log(self._log.synced_end):
            self._start_sync()
            return
        self._state.commit(self._log.synced_end, *self._producers.take(time.time_ns()))

    # Orders

    def seal(self, message: p.SetSealed) -> p.Position:
        """Refuse further messages and return the end of the topic; or accept messages again."""
        self._sealed = message.is_sealed
        self._stages.hold(message.is_sealed)
        # the end that is returned here must not move
        self._delayed.opened(not message.is_sealed and self._topic is not None)
        return p.Position(message.request, self._log.end)

    def close(self, message: p.SetClosed) -> p.Done:
        self._stages.close(message.to_publishers)
        return p.Done(message.request, {})

    def leave_channel(self, message: p.LeaveChannel) -> p.Done:
        self._channels.leave(message.channel)
        return p.Done(message.request, {})

    def drop_channel(self, message: p.DropChannel) -> p.Done | None:
        """Remove a channel's rows."""
        done = p.Done(message.request, {})
        if message.channel not in self._channels:
            return done
        self._channels.drop(message.channel, partial(self.answer_order, done))
        return None

    # The end

    def on_stop(self) -> bool:
        """Write, sync and commit what the topic and the channels sent before they ended."""
        self._stages.stop()
        self._delayed.opened(False)
        if self._log.unsynced_bytes and self._ticket is None:
            self._start_sync()
        if self._ticket is None and self._state.is_idle() and self._stages.is_idle():
            self._checkpoint()
        self._commit()
        idle = self._ticket is None and self._state.is_idle() and self._stages.is_idle() and self._delayed.is_idle()
        return idle and not self._housekeeping.pending

    def on_end(self) -> None:
        if self.stopping:
            for thread in reversed(self._threads):
                thread.close()
            self.store.close()
        else:  # nothing may wait for these files any more
            self.end_at_once(4)

    def statistics(self) -> StoragePulse:
        return {
            "appends": self._appends,
            "start": self._log.start,
            "head": self._log.synced_end,
            "waiting": self._channels.waiting,
            "channels": len(self._channels.rows),
            "producers_known": len(self._producers),
            **self._upkeep.statistics(self._reads.unreadable),
            "state_alarm": self._state.alarm(),
            "disk_full": self._disk_full(),
            "disk_refused_count": self._shortage.refused_count,
            **self._retention.statistics(),
            **self._delayed.statistics(),
            **self._stages.statistics(),
            "oldest_ns": self._oldest.refresh(self._channels.floors()),
        }
