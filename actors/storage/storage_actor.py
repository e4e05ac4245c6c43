"""Storage of a topic: owns all its files, appends, syncs, commits state and answers reads.

It lives in the process and the loop of its topic, which hands it blocks by a call (`append`) and
gets the outcome by a call (`StorageListener`). Channels, readers and stages reach it over separate
sockets. Separate processes for the topic and its storage were tried first. With them, each block
crossed two more sockets, and each publish woke six more threads (`docs/design.md`).

It syncs several appends at once, and commits state only after the log is synced. Up to five threads
work beside the loop. Each starts with its first job. One syncs the log, so that the loop can write
the next appends meanwhile. One commits the state store (`commits.py`). One syncs staged files
(`staging.py`). One works on the delayed store (`delayed.py`), and one does housekeeping, whose jobs
take long and are not urgent. Two rules must hold:

* An append is answered after a sync that began after its write (mode `always`).
* The stored rows of producers include only durable blocks. The commit that stores the rows also
  stores the offset up to which they include all blocks.

`ProducerTable` holds the last durable blocks of each producer, the rows for the next commit, and
the producers to forget. It does no I/O.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Final, NamedTuple, cast

from ...storage.dedupe.id_format import NO_OFFSET
from ...storage.directory.held_keys import read_held_keys
from ...storage.directory.store import (
    Store,
    StoreOptions,
    TopicIdentity,
    check_writable,
    create_store,
    open_store,
)
from ...storage.errors import DiskFull, Locked, StoreFailed
from ...storage.files import Files
from ...storage.log.log import SyncTicket
from ...storage.retention import resolve
from ...storage.space import Shortage, Space
from ...storage.state.state import HoleRow, ProducerRow, Table, producer_after
from ...transport.block.block import Block
from ...transport.block.block_format import PUBLISHED
from ...transport.errors import E_BAD_BLOCK, E_CLOSING, E_DISK_FULL, Refused, UsageError
from ...transport.wire import protocol as p
from ..primitives.ranges import unread
from ..runtime.actor import Actor, StartFailed
from ..runtime.port import Port
from ..runtime.pulses import StoragePulse
from ..runtime.worker_thread import LazyThread, WorkerThread
from ..settings import options
from ..settings.starts import StorageStart
from .backups import Backups, BackupState
from .channels import Channels, OldestTimes
from .commits import StateCommits
from .dedupe import Dedupe
from .delayed import DelayedMessages, sequences
from .extension_point import extension_class
from .reads import Reads
from .retention import LogUpkeep, RetentionRunner
from .sifting import Repeats
from .stages import Stages
from .staging import StageCommits
from .storage_listener import StorageListener

SEQUENCE_MAX: Final = 1 << 63
_GONE_MAX = 1_000  # the most producers that one commit forgets


class ProducerTable:
    """The rows of producers. `changed` are the producers whose rows changed since the last
    `take`.
    """

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
        # This limits the number of producers: the least recently used ones are forgotten.
        if len(self._rows) > options.PRODUCERS_MAX + _GONE_MAX:
            gone = sorted(self._rows, key=lambda pid: self._rows[pid].used_ns)
        gone = gone[:_GONE_MAX]
        for pid in gone:
            del self._rows[pid]
        changed, self.changed = (
            {pid: self._rows[pid] for pid in self.changed if pid in self._rows},
            set(),
        )
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
        if header.flags & ~PUBLISHED or header.sequence >= SEQUENCE_MAX:
            raise UsageError(
                E_BAD_BLOCK,
                f"a block may have no flags except those of {PUBLISHED}, and its sequence must be "
                "below 2^63",
            )
    return blocks


def log_mode(sync: str) -> str:
    """Return how a topic with this sync mode syncs its log.

    The mode of an extension syncs it as `always` does, and confirms later.
    """
    return sync if sync in ("interval", "never") else "always"


class _Pending(NamedTuple):
    """An append that is written, and waits for its sync or its answer.

    `request` is 0 for delayed messages that became due.
    """

    request: int
    first_offset: int
    time_ns: int
    end: int
    producers: list[tuple[int, int, int]]  # producer, sequence, first offset


class Recovered(NamedTuple):
    """The state of a topic at its start.

    `producers` maps an id to the next sequence and the last blocks.
    """

    producers: dict[int, tuple[int, Sequence[Sequence[int]]]]
    head: int
    visible_end: int


class StorageActor:
    """The storage of one topic. `host` is the actor whose process and loop it uses."""

    def __init__(self, host: Actor[Any], start: StorageStart, listener: StorageListener) -> None:
        self.host = host
        self.given = start
        self._listener = listener
        self.title = f"topic {start.name}"
        self.mode = log_mode(start.sync)
        self.store = self._open()
        self._log = self.store.log
        self._sealed = False
        self._said_full = ("", "", False)
        self._written: deque[_Pending] = deque()  # those that are not answered yet
        self._unsynced: deque[_Pending] = deque()  # those that the next commit must not have
        self._ticket: SyncTicket | None = None
        self._sync_ns = 0  # the duration of the last sync
        self._space = Space(self.store.files, self.store.directory, self.store.reserve_bytes)
        self._shortage = Shortage()
        self._oldest = OldestTimes(self._log.reader.header_at)
        self._threads: list[WorkerThread] = []
        self.front = host.open_router(start.front)
        self.reader = host.open_router(start.reader, answers_max=options.READER_ANSWERS_MAX)
        self._make_parts(self.store.state.load())
        self.push = host.open_pull(start.push, options.PUSH_MARK, self._take_pushes)
        self._route()
        self._set_timers()
        self._delayed.opened(True)

    def born(self) -> dict[str, Any]:
        """Return what the supervisor learns about the topic's files when the process is up."""
        return {"channels": list(self._channels.rows), "alarms": list(self.store.report.alarms)}

    def _make_parts(self, table: Table) -> None:
        """Create the parts. Each part gets the other parts and the callbacks that it needs."""
        start, store, title, send = self.given, self.store, self.title, self.front.send
        in_memory = start.in_memory
        self._sync_thread = self._thread("sync", self._sync_results)
        state_thread = self._thread("state", lambda: self.state.on_results())
        stage_thread = self._thread("stage", lambda: self._stages.on_results())
        delayed_thread = self._thread("delayed", lambda: self._delayed.on_results())
        self._housekeeping = self._thread("house", self._housekeeping_results)
        self._producers = ProducerTable(table.producers)
        self.state = StateCommits(state_thread, store.state, table, title, store.keeper)
        self.extension = extension_class()(self)
        self._channels = Channels(
            self._log, self.state, table, self.mode, in_memory=in_memory, finishes_must_wait=self.extension.finishes_must_wait,
            expires_s=start.retention.expires_s,
        )  # fmt: skip
        self._find_keys(table)
        self._dedupe = Dedupe(
            store,
            start.retention.dedupe_window_s,
            self._thread("ids", lambda: self._dedupe.on_results()),
            title,
            self._channels.locks,
        )
        self._delayed = DelayedMessages(
            store, title, delayed_thread, self._listener, self.extension, self._delayed_moved, self._hint,
            self.host.answer_order, self._shortage,
        )  # fmt: skip
        stages = Stages()
        self._retention = RetentionRunner(
            store, bytes.fromhex(start.uuid), self.state, self._channels, start.retention, title, self._housekeeping, send,
            self._delayed.waiting_bytes, lambda: stages.staged_bytes, dropped_count=table.dropped, in_memory=in_memory,
            extension=self.extension,
        )  # fmt: skip
        self._retention.refused_count = start.refused_count
        self._retention.removed_bytes = start.removed_bytes
        self._stages = StageCommits(
            store, self.state, stage_thread, table, stages,
            self.host.open_router(start.stage, answers_max=options.STAGE_ANSWERS_MAX),
            self._retention.admit_staged, self._group_committed, self._shortage, stage_timeout_s=start.stage_timeout_s,
            max_msg_size=start.max_msg_size, in_memory=in_memory, closed=start.closed, extension=self.extension,
            locks=self._channels.locks,
        )  # fmt: skip
        self._upkeep = LogUpkeep(store, title, self._housekeeping, is_woken=start.woken)
        self._reads = Reads(
            self._log,
            self._channels.end,
            self._upkeep.alarm,
            self.extension,
            self.host.stir,
        )
        self._backup = Backups(
            store,
            self.state,
            self._retention,
            self._delayed,
            title,
            self._housekeeping,
            self.host.answer_order,
        )

    def _find_keys(self, table: Table) -> None:
        """Find the messages that hold unique keys."""
        state = self.store.state

        def holes(channel: str, offsets: Sequence[int]) -> list[HoleRow]:
            if channel not in table.channels:
                return []
            return [*table.holes.get(channel, ()), *state.deferred_at(channel, offsets)]

        self._channels.locks.found(read_held_keys(self._log, table.keys), holes)

    def _route(self) -> None:
        """Register the handlers.

        Channels and scan workers use the port `front`. Readers use the port `reader`.
        """
        obey = self.host.obey
        self.front.route(p.Fetch, self._reads.fetch_for_channel)
        self.front.route(p.Scan, self._delayed.scan)
        self._channels.route(self.front)
        # A new channel may begin at a time whose chunk is not on this disk.
        self.front.route(p.OpenChannel, self._reads.patient(self._channels.open))
        self._reads.route(self.reader)
        obey(p.SetSealed, self.seal)
        obey(p.SetRetention, self._set_retention)
        obey(p.SetSync, self._set_sync)
        obey(p.ListChunks, lambda order: p.Done(order.request, {**self._log.reader.chunk_rows()}))
        obey(p.FindOffset, partial(self._reads.find_for_order, self.host.answer_order))
        obey(p.CountDelayed, self._delayed.count)
        obey(p.ListDelayed, self._delayed.list_some)
        obey(p.CancelDelayed, self._delayed.cancel)
        obey(p.BackUpState, self._back_up_state)
        obey(p.BackUpLog, self._backup.take_log)
        obey(p.EndBackup, self._backup.end)
        obey(p.LeaveChannel, self.leave_channel)
        obey(p.DropChannel, self.drop_channel)

    def _back_up_state(self, order: p.BackUpState) -> None:
        self._backup.take_state(order)
        self.host.pulse()  # a topic with a backup stays in its process

    def _set_timers(self) -> None:
        for function in (
            self._checkpoint,
            self.state.retry,
            self.state.tick,
            self._look_for_space,
            self._delayed.tick,
            lambda: self._dedupe.tick(self._log.synced_end),
            self._channels.locks.tick,
            self._unless_stopping(self._reads.tick),
            self._unless_stopping(lambda: self._upkeep.tick(time.time_ns())),
            self._unless_stopping(self._backup.tick),
        ):
            self.host.every(options.CHECKPOINT_INTERVAL_MS, function, rests=True)
        for function in (self._unless_stopping(self._retention.tick), self.extension.tick):
            self.host.every(options.RETENTION_TICK_MS, function, rests=True)
        self.host.every(options.STAGE_TICK_MS, self._stages.tick, rests=True)
        self.host.every(options.STAGE_EXPIRE_MS, self._stages.expire, rests=True)
        self._time_syncs()

    def _time_syncs(self) -> None:
        if self.mode == "interval":
            self.host.every(options.SYNC_INTERVAL_MS, self._start_sync, rests=True)

    def _unless_stopping(self, function: Callable[[], None]) -> Callable[[], None]:
        return lambda: None if self.host.stopping else function()

    def _thread(self, name: str, on_results: Callable[[], object]) -> LazyThread:
        """Return a worker thread; `on_results` is called when a job is done."""

        def start() -> WorkerThread:
            thread = WorkerThread(name)
            self._threads.append(thread)
            self.host.listen_raw(thread, on_results)
            return thread

        return LazyThread(start)

    def _housekeeping_results(self) -> None:
        """Call each job's tag with the job's value or exception."""
        for then, value in self._housekeeping.results():
            then(value)

    def _open(self) -> Store:
        start = self.given
        identity = TopicIdentity(start.name, start.uuid, start.base_offset)
        store_options = StoreOptions(
            chunk_bytes=start.chunk_bytes, open_remote=extension_class().open_remote(start)
        )
        files = Files()
        if start.create and not files.exists(start.directory):
            create_store(files, start.directory, identity)
        deadline = time.monotonic() + options.LOCK_WAIT_S
        while True:
            try:
                store = open_store(files, start.directory, store_options, identity)
            except Locked as error:  # held by a previous process that is being killed
                if time.monotonic() > deadline:
                    raise StartFailed(
                        f"{error}; waited {options.LOCK_WAIT_S:g} s for the lock"
                    ) from None
                time.sleep(0.02)
            else:
                break
        if start.failed:
            check_writable(files, start.directory)
        return store

    # For the extension

    def fetched(self) -> None:
        self._reads.arrived()

    def resume_delayed(self) -> None:
        self._delayed.resume()

    def roll(self) -> None:
        """Seal the newest log file, if the disk allows it."""
        with contextlib.suppress(DiskFull):
            self._log.roll(time.time_ns())

    def read_state(self, job: Callable[[Any], Any], then: Callable[[Any], None]) -> None:
        self.state.read(job, then)

    def read_delayed(self, job: Callable[[Any], Any], then: Callable[[Any], None]) -> None:
        self._delayed.read(job, then)

    # Settings

    def _set_retention(self, order: p.SetRetention) -> p.Done:
        policy = resolve(order.retention)
        self._dedupe.set_window(policy.dedupe_window_s)
        self.extension.policy_changed(policy)
        self._channels.expires_s = policy.expires_s
        for envelope in self._channels.owners.values():
            self.front.send(envelope, order)
        return p.Done(order.request, {"settings": self._retention.configure(policy)})

    def _set_sync(self, order: p.SetSync) -> p.Done:
        """Change when publishes are confirmed, from now on."""
        mode = log_mode(order.sync)
        if mode != self.mode:
            self._change_mode(mode)
        self.extension.sync_changed(order.sync)
        self.confirm_appends()
        return p.Done(order.request, {"sync": order.sync})

    def _change_mode(self, mode: str) -> None:
        """Sync all that is written, and go on in another mode.

        So what was confirmed or visible before is durable, and no mode has less than another one of
        what channels and readers have seen. In the mode `never`, the log only counts its messages
        as synced. This sync is real.
        """
        self._log.sync()
        self.extension.synced()
        self.confirm_appends()
        if self.mode == "interval":
            self.host.cease(self._start_sync)
        self.mode = self._channels.sync = mode
        self._time_syncs()

    # Appends

    def recovered(self) -> Recovered:
        """Return the state with which the topic goes on where its previous process ended."""
        rows = sequences(self._producers.sequences(), self._delayed.producers())
        return Recovered(
            {pid: (row[0], row[1]) for pid, row in rows.items()},
            self._log.end,
            self._channels.visible_end,
        )

    def append(self, request: int, blocks: list[Block]) -> None:
        """Write the blocks, in order. `StorageListener.appended` follows when they are stored.

        Raises `Refused` or `UsageError`. Then no block is stored, and the topic must process this
        failure before it hands over later blocks. Otherwise a producer's sequence would get a gap.
        """
        try:
            if self._sealed:
                raise Refused(E_CLOSING, "the topic is being deleted")
            self.extension.check()
            self._retention.admit()
            sifted = self._dedupe.sift(checked(blocks))
            kept = blocks if sifted is None else sifted.blocks
            # If all messages were stored before, nothing is written. The answer waits until they
            # are as durable as this append would be.
            first_offset, time_ns = (
                self._log.append(kept, time.time_ns()) if kept else (self._log.end, time.time_ns())
            )
        except DiskFull as error:
            self._shortage.refused(error, len(blocks), time.monotonic_ns())
            raise Refused(E_DISK_FULL, str(error)) from error
        if self._shortage.text:
            self._shortage.stored()
        if sifted is not None:
            self._dedupe.stored(sifted, first_offset, self._log.end)
            if sifted.rest:
                self._listener.repeated(request, self._dedupe.left(sifted, first_offset))
        pending = _Pending(
            request, first_offset, time_ns, self._log.end, placed(kept, first_offset)
        )
        self._unsynced.append(pending)
        # In a mode that was set a moment ago, an earlier append may still wait.
        if self.mode == "interval" and not self._written:
            self._listener.appended(request, first_offset, time_ns)
        else:
            self._written.append(pending)

    def append_delayed(self, request: int, blocks: list[Block], delays_ms: Sequence[int]) -> None:
        """Keep the blocks until they are due. `delayed_stored` or `delayed_failed` follows.

        Raises `Refused` or `UsageError`; then nothing is kept.
        """
        try:
            if self._sealed:
                raise Refused(E_CLOSING, "the topic is being deleted")
            self.extension.check()
            self._retention.admit_delayed()
            sifted = self._dedupe.sift(checked(blocks))
            kept, stored = blocks, None
            if sifted is not None:
                kept = sifted.blocks
                delays_ms = [delays_ms[position] for position in sifted.kept]
                stored = partial(self._dedupe.delayed, kept)
            self._delayed.append(request, kept, delays_ms, self._log.end, stored)
            if sifted is not None and sifted.rest:
                self._listener.repeated(request, self._dedupe.left(sifted, NO_OFFSET))
        except DiskFull as error:
            self._shortage.refused(error, len(blocks), time.monotonic_ns())
            raise Refused(E_DISK_FULL, str(error)) from error

    @property
    def dedupes(self) -> bool:
        """True if the topic has a window of ids. Otherwise it does not read the ids of blocks."""
        return self._dedupe.is_on

    def check_keys(self) -> None:
        """Raise `Refused` (E_LIMIT) if no more messages can hold unique keys."""
        self._channels.locks.check_room()

    def repeats_of(self, block: Block, place: tuple[int, ...]) -> Repeats:
        """Return which messages of a block that is sent again were stored by another one."""
        return self._dedupe.repeats_of(block, place)

    def pause(self, is_paused: bool, then: Callable[[int], None]) -> int:
        """Set the end up to which channels may see messages, or remove it.

        `then` is called with that end (-1: no limit) after the commit. It is returned, too.
        """
        return self._channels.pause(is_paused, then)

    def empty(self, then: Callable[[int, int], None]) -> None:
        """Clear the messages that wait for a first channel.

        `then` is called after the commit. It gets the start and the end of the messages that wait
        behind a pause. They are equal if no message waits. Otherwise every channel must agree to
        skip these messages, and then `move_pause` follows.
        """
        self._channels.empty(then)

    def move_pause(self, end: int, then: Callable[[int], None]) -> None:
        """Let the channels of a paused topic see messages up to `end` now.

        For `then`, see `pause`.
        """
        self._channels.move_pause(end, then)

    def _look_for_space(self) -> None:
        """Send a pulse when the refusal of publishes begins or ends.

        The cause is a full disk, the topic's bound, or the extension. The supervisor learns of
        it within a second.
        """
        if self._shortage.text:
            self._shortage.look(self._space.room(), time.monotonic_ns())
        full = (self._disk_full(), self._retention.full, bool(self.extension.refusal()))
        if full != self._said_full:
            self._said_full = full
            self.host.hasten_pulse()

    def _disk_full(self) -> str:
        """Return a text that says what waits for space, or ""."""
        return (
            self._shortage.text
            or (self.state.trouble if self.state.disk_full else "")
            or self._delayed.full
        )

    def _delayed_moved(self, end: int) -> None:
        """Wait for the sync of delayed messages that are now in the log, up to `end`."""
        self._stages.entered(self._delayed.moving_bytes())
        if self.mode == "interval" and not self._written:
            self._listener.head_moved(end)
        else:
            self._written.append(_Pending(0, 0, 0, end, []))

    def _hint(self, due_ns: int) -> None:
        """Ask the scan loop to scan this topic at that monotonic time."""
        self._scan.send((), p.Hint(self.host.key, due_ns))

    @cached_property
    def _scan(self) -> Port:
        return self.host.open_dealer(self.given.scan)

    def _start_sync(self) -> None:
        if self._ticket is not None or not self._log.unsynced_bytes:
            return
        lone = (
            self._log.unsynced_bytes <= options.INLINE_SYNC_BYTES_MAX
            and not self._sync_thread.pending
        )
        lone = lone and self._sync_ns <= options.INLINE_SYNC_NS_MAX
        self._ticket = self._log.begin_sync()
        if self.mode == "never":
            self._ticket.done = True
            self._synced()
        elif lone:
            self._sync(self._ticket)
            self._synced()
        else:
            self._sync_thread.submit("sync", partial(self._sync, self._ticket))

    def _sync(self, ticket: SyncTicket) -> None:
        """Run the ticket, and note how long the disk took. This may run in the thread."""
        begun_ns = time.monotonic_ns()
        ticket.run()
        self._sync_ns = time.monotonic_ns() - begun_ns

    def _synced(self) -> None:
        """Finish the ticket. All that was written before its sync began is durable."""
        assert self._ticket is not None
        self._log.finish_sync(self._ticket)
        self._ticket = None
        self.extension.synced()
        self.confirm_appends()

    def confirm_appends(self) -> None:
        """Answer the appends that are durable, and that the extension lets be confirmed.

        When the log begins a new chunk, it syncs too. That sync counts even if the append that
        caused it failed.
        """
        # The rows of producers follow the log, also while an append waits to be confirmed.
        # Otherwise the checkpoint would pass blocks that no row has, and their repetition would be
        # stored.
        synced_end = self._log.synced_end
        while self._unsynced and self._unsynced[0].end <= synced_end:
            done = self._unsynced.popleft()
            self._producers.stored(done.producers, done.time_ns)
        if self._written and self.extension.appends_must_wait():
            return
        end = self.extension.confirmed_end()
        while self._written and self._written[0].end <= end:
            done = self._written.popleft()
            if done.request:
                self._listener.appended(done.request, done.first_offset, done.time_ns)
            else:
                self._listener.head_moved(done.end)

    def _sync_results(self) -> None:
        for _, value in self._sync_thread.results():
            if isinstance(value, Exception):
                # Nothing may be acknowledged from this descriptor any more. The process ends, and
                # the next one recovers from the disk.
                raise StoreFailed(f"sync failed: {value}") from value
            self._synced()

    def turn(self) -> None:
        """Process what has arrived. The topic calls this once in each turn of the loop."""
        self.confirm_appends()
        if self.mode != "interval" or self._delayed.waits_for_log(self._log.synced_end):
            self._start_sync()
        self._delayed.turn(self._log.synced_end)
        self._stages.turn()
        self._retention.turn()
        self.extension.turn()
        self._commit()

    # Stages

    def _take_pushes(self, port: Port) -> None:
        self.host.stir(blocks=True)
        self._stages.take_pushes(port)

    def _group_committed(self) -> None:
        """Answer the appends that are durable now.

        The blocks of a commit (a group) are on disk, and so is everything that was written before
        them.
        """
        self.extension.synced()
        self.confirm_appends()
        if self.extension.confirms_late or self._written:
            # The topic must hear of the appends before it first, which may wait for the extension.
            self._written.append(_Pending(0, 0, 0, self._log.synced_end, []))
            self.confirm_appends()
            return
        self._listener.head_moved(self._log.synced_end)

    def gone(self, who: str) -> None:
        """Forget a dead gateway and all peers behind it, or another dead actor."""
        self.extension.gone(who)
        self._stages.core.gone(who.encode())

    # State

    def _checkpoint(self) -> None:
        if (
            self._channels.checkpoint()
            or self._producers.changed
            or self.state.applied != self._log.synced_end
        ):
            self.state.want()

    def _commit(self) -> None:
        """Pass the batch to its thread.

        The thread must be idle, and the log synced beyond all offsets that the batch mentions.
        """
        if not self.state.may_commit() or self._delayed.blocks_checkpoint():
            return
        if self.state.waits_for_log(self._log.synced_end):
            self._start_sync()
            return
        self.state.batch.ids = self._dedupe.range(self._log.synced_end)
        self.state.batch.keys = self._dedupe.keys_from()
        self.state.commit(self._log.synced_end, *self._producers.take(time.time_ns()))

    # Orders

    def seal(self, message: p.SetSealed) -> p.Position:
        """Refuse further messages, or accept them again. Return the end of the topic."""
        self._sealed = message.is_sealed
        self._stages.hold(message.is_sealed)
        # The end that is returned here must not move.
        self._delayed.opened(not message.is_sealed)
        return p.Position(message.request, self._log.end)

    def close_to_publishers(self, is_closed: bool) -> None:
        self._stages.close(is_closed)

    def leave_channel(self, message: p.LeaveChannel) -> p.Done:
        self._channels.leave(message.channel)
        return p.Done(message.request, {})

    def drop_channel(self, message: p.DropChannel) -> p.Done | None:
        """Remove a channel's rows."""
        done = p.Done(message.request, {})
        if message.channel not in self._channels:
            return done
        self._channels.drop(message.channel, partial(self.host.answer_order, done))
        return None

    # The end

    def stop(self) -> bool:
        """Write, sync and commit what the topic and the channels sent before they ended.

        Return True when that is done. It is called on each turn while the process stops.
        """
        self._stages.stop()
        self._delayed.opened(False)
        if self._log.unsynced_bytes and self._ticket is None:
            self._start_sync()
        if self._ticket is None and self.state.is_idle() and self._stages.is_idle():
            self._checkpoint()
        self._commit()
        idle = (
            self._ticket is None
            and self.state.is_idle()
            and self._stages.is_idle()
            and self._delayed.is_idle()
        )
        return (
            idle
            and self._dedupe.is_idle
            and not self._housekeeping.pending
            and self.extension.stop()
        )

    def end(self) -> None:
        """Close the files after a stop."""
        self.extension.end()
        for thread in reversed(self._threads):
            thread.close()
        self.store.close()

    def _troubles(self) -> list[str]:
        """Return the alarms that last as long as their causes."""
        troubles = [self._reads.unreadable] if self._reads.unreadable else []
        troubles += filter(None, [self.extension.refusal(), self._dedupe.alarm()])
        return [*troubles, *self.extension.alarms()]

    def statistics(self) -> StoragePulse:
        floors = tuple(self._channels.floors())
        holders = [floor for floor in floors if floor.channel and floor.offset < floor.end]
        holder = min(holders, key=lambda floor: floor.offset, default=None)
        pulse: StoragePulse = {
            "backup": self._backup.state is not BackupState.IDLE,
            "start": self._log.start,
            "head": self._log.synced_end,
            "kept_count": unread(self._log.start, self._log.synced_end, self._log.absent),
            "held_by": holder.channel if holder is not None else "",
            "held_offset": holder.offset if holder is not None else 0,
            "gaps": self._channels.gaps(),
            "waiting": self._channels.waiting,
            "channels": len(self._channels.rows),
            "producers_known": len(self._producers),
            **self._upkeep.statistics(self._troubles()),
            "extension_busy": self.extension.is_busy,
            "extension_settled": self.extension.is_settled,
            "extension_refusal": self.extension.refusal(),
            "state_alarm": self.state.alarm(),
            "disk_full": self._disk_full(),
            "disk_refused_count": self._shortage.refused_count,
            **self._retention.statistics(),
            **self._delayed.statistics(),
            **self._dedupe.statistics(),
            **self._stages.statistics(),
            "oldest_ns": self._oldest.refresh(floors),
        }
        return cast("StoragePulse", {**self.extension.statistics(), **pulse})
