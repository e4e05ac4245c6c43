"""Storage: the only owner of a topic's files. Appends in groups with one sync, commits state behind the log, answers reads.

Two threads besides the loop, reached over inproc: one syncs the log, so that the next appends are written meanwhile; one commits the
state store. Orders that must hold:

* An append is answered after a sync that began after its write (mode `always`).
* A state batch goes to its thread only when the log is synced beyond all it speaks of, so state never runs ahead.
* Producers' rows count durable blocks only, and are committed together with the offset up to which they count.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from ..storage.errors import Damaged, DiskFull, Locked, StoreFailed
from ..storage.files import Files
from ..storage.log import SyncTicket
from ..storage.state import ProducerRow, StateBatch, producer_after
from ..storage.store import Identity, Store, StoreOptions, create_store, open_store
from ..transport import protocol as p
from ..transport.block import Block
from ..transport.errors import E_BAD_ARGUMENT, E_CLOSING, E_DISK_FULL, Refused, UsageError, ZsqError
from . import options
from .actor import Actor, StartFailed
from .port import Envelope, Mail, Port
from .worker_thread import WorkerThread

log = logging.getLogger("zsq")
FRONT_WORDS = frozenset((p.OpenTopic, p.Append, p.OpenChannel, p.Save, p.Pause, p.Empty, p.Fetch))  # its topic and channels
READER_WORDS = frozenset((p.Fetch, p.Beat, p.Bye))  # offset readers: anybody
_Answers = list[tuple[Port, Envelope, p.Wire]]


class _Pending(NamedTuple):
    """An append that is written and waits for its sync."""

    envelope: Envelope
    request: int
    first_offset: int
    time_ns: int
    end: int
    producers: list[tuple[int, int, int]]  # producer, sequence, first offset


class StorageActor(Actor):
    """Settings: front and reader (endpoints), directory, name, uuid, base_offset, sync, chunk_bytes."""

    store: Store
    front: Port
    reader: Port

    def on_start(self) -> dict[str, Any]:
        settings = self.settings
        self.mode: str = settings["sync"]
        self.store = self._open(settings)
        self._log, self._state = self.store.log, self.store.state
        table = self._state.load()
        self._channels, self._waiting, self._visible_end = dict(table.channels), table.waiting, table.paused_end
        self._holes = {name: {hole[0]: tuple(hole) for hole in holes} for name, holes in table.holes.items()}
        self._producers: dict[int, ProducerRow] = dict(table.producers)
        self._producers_changed: set[int] = set()
        self._applied = table.applied_offset
        self._owners: dict[str, Envelope] = {}
        self._epoch = 0
        self._appends = 0
        self._sealed = False
        self._failure: tuple[str, str] | None = None
        self._written: deque[_Pending] = deque()
        self._ticket: SyncTicket | None = None
        self._batch = StateBatch()
        self._hole_changes: dict[tuple[str, int], tuple[int, int, int] | None] = {}  # of the batch; the later word wins
        self._batch_waits = False
        self._batch_failed: Callable[[], None] | None = None
        self._batch_end = 0
        self._disk_full = False
        self._after_commit: _Answers = []
        self._sync_thread = WorkerThread(self.context, "sync")
        self._state_thread = WorkerThread(self.context, "state")
        self.listen_raw(self._sync_thread.socket)
        self.listen_raw(self._state_thread.socket)
        self.front = self.open_router(settings["front"], FRONT_WORDS)
        self.reader = self.open_router(settings["reader"], READER_WORDS, answers_max=options.READER_ANSWERS_MAX)
        self.every(options.CHECKPOINT_INTERVAL_MS, self._checkpoint)
        self.every(options.CHECKPOINT_INTERVAL_MS, self._retry_commit)
        if self.mode == "interval":
            self.every(options.SYNC_INTERVAL_MS, self._start_sync)
        report = self.store.report
        noteworthy = report.cut_bytes or report.replayed_blocks or report.holes or report.notes or report.alarms
        log.log(logging.INFO if noteworthy else logging.DEBUG, "%s: %s", self.title, report)
        for alarm in self.store.report.alarms:
            log.error("%s: %s", self.title, alarm)
        return {"channels": list(self._channels), "alarms": list(self.store.report.alarms)}

    def _open(self, settings: dict[str, Any]) -> Store:
        identity = Identity(settings["name"], settings["uuid"], settings["base_offset"])
        store_options = StoreOptions(chunk_bytes=settings["chunk_bytes"])
        files = Files()
        if settings["create"] and not files.exists(settings["directory"]):
            create_store(files, settings["directory"], identity)
        deadline = time.monotonic() + options.LOCK_WAIT_S
        while True:
            try:
                return open_store(files, settings["directory"], store_options, identity)
            except Locked as error:  # a predecessor that is being killed still holds it
                if time.monotonic() > deadline:
                    raise StartFailed(f"{error}; waited {options.LOCK_WAIT_S:g} s for it") from None
                time.sleep(0.02)

    # Appends

    def on_opentopic_word(self, port: Port, mail: Mail) -> None:
        rows = {pid: (row.next_sequence, row.recent) for pid, row in self._producers.items()}
        data = {"producers": rows, "head": self._log.end, "visible_end": self._visible_end}
        port.send(mail.envelope, p.Done(cast("p.OpenTopic", mail.word).request, data))

    def on_append_word(self, port: Port, mail: Mail) -> None:
        word = cast("p.Append", mail.word)
        if word.epoch < self._epoch:
            code, text = self._failure or (E_CLOSING, "an append before it failed")
            port.send(mail.envelope, p.Failed(word.request, code, text))
            return
        try:
            if self._sealed:
                raise Refused(E_CLOSING, "the topic is being deleted")
            blocks = mail.blocks()
            first_offset, time_ns = self._log.append(blocks, time.time_ns())
        except (DiskFull, ZsqError) as error:
            self._epoch = word.epoch + 1
            self._failure = (error.code, error.text) if isinstance(error, ZsqError) else (E_DISK_FULL, str(error))
            port.send(mail.envelope, p.Failed(word.request, *self._failure))
            return
        producers = self._place(blocks, first_offset)
        self._written.append(_Pending(mail.envelope, word.request, first_offset, time_ns, self._log.end, producers))
        if self.mode == "interval":
            port.send(mail.envelope, p.Appended(word.request, first_offset, time_ns))

    def _place(self, blocks: list[Block], first_offset: int) -> list[tuple[int, int, int]]:
        rows = []
        for block in blocks:
            rows.append((block.header.producer_id, block.header.sequence, first_offset))
            first_offset += block.count
        return rows

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
        """The ticket's sync has returned: everything written before it began is durable."""
        assert self._ticket is not None
        self._log.finish_sync(self._ticket)
        self._ticket = None
        self._answer_durable()

    def _answer_durable(self) -> None:
        """Also what a roll has synced on its way, whether or not the append that made it roll was stored."""
        end = self._log.synced_end
        while self._written and self._written[0].end <= end:
            done = self._written.popleft()
            self._appends += 1
            if self.mode != "interval":
                self.front.send(done.envelope, p.Appended(done.request, done.first_offset, done.time_ns))
            for producer_id, sequence, first_offset in done.producers:
                row = producer_after(self._producers.get(producer_id), sequence, first_offset, done.time_ns)
                self._producers[producer_id] = row
                self._producers_changed.add(producer_id)

    def on_raw(self, source: Any) -> None:
        thread = self._sync_thread if source is self._sync_thread.socket else self._state_thread
        for tag, value in thread.results():
            if isinstance(value, DiskFull) and tag != "sync":
                log.error("%s: the state store has no space; finishes wait for it: %s", self.title, value)
                self._disk_full = True
            elif isinstance(value, Exception):
                # Never acknowledge from these descriptors again: end, and recover from what is really on disk.
                raise StoreFailed(f"{'sync' if tag == 'sync' else 'commit'} failed: {value}") from value
            elif tag == "sync":
                self._synced()
            else:
                self._disk_full = False
                self._committed(tag)

    def on_turn(self) -> None:
        if self._written and self._written[0].end <= self._log.synced_end:
            self._answer_durable()
        if self._log.unsynced_bytes and self._ticket is None and self.mode != "interval":
            self._start_sync()
        self._commit()

    # State

    def _checkpoint(self) -> None:
        if self._producers_changed or self._applied != self._log.synced_end:
            self._batch_waits = True

    def _commit(self) -> None:
        """Hand the batch to its thread, if that is idle and the log is synced beyond what the batch speaks of."""
        if not self._batch_waits or self._state_thread.pending or self._disk_full:
            return
        if self._log.synced_end < self._batch_end:
            self._start_sync()
            return
        batch, self._batch, self._batch_waits = self._batch, StateBatch(), False
        changes, self._hole_changes = self._hole_changes, {}
        batch.hole_gones = [key for key, row in changes.items() if row is None]
        batch.hole_puts = [(*key, *row) for key, row in changes.items() if row is not None]
        batch.applied_offset = batch.synced_end = self._log.synced_end
        batch.producers = {pid: self._producers[pid] for pid in self._producers_changed}
        self._expire_producers(batch)
        self._producers_changed = set()
        answers, self._after_commit = self._after_commit, []
        self._hand_over(batch, answers)

    def _hand_over(self, batch: StateBatch, answers: _Answers) -> None:
        self._batch_failed = lambda: self._hand_over(batch, answers)
        self._state_thread.submit((batch.applied_offset, answers), lambda: self._state.commit(batch))

    def _retry_commit(self) -> None:
        """After a full disk: the same batch again, before any later one."""
        if self._disk_full and not self._state_thread.pending and self._batch_failed is not None:
            self._batch_failed()

    def _expire_producers(self, batch: StateBatch) -> None:
        limit = time.time_ns() - options.PRODUCER_KEPT_S * 1_000_000_000
        old = [pid for pid, row in self._producers.items() if row.used_ns < limit]
        if len(self._producers) > options.PRODUCERS_MAX + 1_000:  # a bound, not an expiry: those not used for longest go
            old = sorted(self._producers, key=lambda pid: self._producers[pid].used_ns)[:1_000]
        for pid in old[:1_000]:
            del self._producers[pid]
            batch.producers.pop(pid, None)
            batch.producers_gone.append(pid)

    def _committed(self, tag: tuple[int, _Answers]) -> None:
        self._applied, answers = tag
        for port, envelope, word in answers:
            port.send(envelope, word)

    def _answer_after_commit(self, port: Port, mail: Mail, data: dict[str, Any]) -> None:
        request = getattr(mail.word, "request", 0)
        self._after_commit.append((port, mail.envelope, p.Done(request, data)))
        self._batch_waits = True

    # Channels' rows

    def on_openchannel_word(self, port: Port, mail: Mail) -> None:
        word = cast("p.OpenChannel", mail.word)
        row = self._channels.get(word.channel)
        if row is None:
            if len(self._channels) >= options.CHANNELS_MAX:
                raise Refused("E_LIMIT", f"a topic has at most {options.CHANNELS_MAX} channels")
            start = self._waiting if not self._channels else self._log.synced_end
            row = {"next": start, "paused": False, "created_ns": time.time_ns(), "counters": {}}
            self._channels[word.channel] = row
            self._batch.channel_puts[word.channel] = row
        self._owners[word.channel] = mail.envelope  # words of a dead predecessor may still lie in its pipe
        holes = tuple(self._holes.get(word.channel, {}).values())
        data = {"row": row, "holes": holes, "end": self._channel_end(), "start": self._log.start}
        self._answer_after_commit(port, mail, data)

    def on_save_word(self, port: Port, mail: Mail) -> None:
        word = cast("p.Save", mail.word)
        if self._owners.get(word.channel) != mail.envelope:
            raise Refused(E_CLOSING, f"channel {word.channel!r} has another owner now")
        row = self._channels[word.channel] | word.row
        if not isinstance(row.get("next"), int):
            raise UsageError(E_BAD_ARGUMENT, "a channel's row says where it is")
        self._channels[word.channel] = row
        self._batch.channel_puts[word.channel] = row
        self._batch_end = max(self._batch_end, row["next"])
        # The batch may already hold older changes of the same rows: the later word wins.
        holes = self._holes.setdefault(word.channel, {})
        for start in word.holes_gone:
            if holes.pop(start, None) is not None:
                self._hole_changes[word.channel, start] = None
        for start, count, attempts, due_ns in word.holes_put:
            holes[start] = (start, count, attempts, due_ns)
            self._hole_changes[word.channel, start] = (count, attempts, due_ns)
        self._answer_after_commit(port, mail, {})

    def on_order(self, word: p.Order) -> dict[str, Any] | None:
        """seal: take no more, and say where the topic ends; unseal. drop: a channel that ended, with its rows."""
        if word.action == "seal":
            self._sealed = True
            return {"head": self._log.end}
        if word.action == "unseal":
            self._sealed = False
            return {}
        if word.action != "drop":
            return super().on_order(word)
        name = str(word.options["channel"])
        if name not in self._channels:
            return {}
        self._holes.pop(name, None)
        self._hole_changes = {key: row for key, row in self._hole_changes.items() if key[0] != name}
        del self._channels[name]
        self._owners.pop(name, None)
        self._batch.channel_puts.pop(name, None)
        self._batch.channel_drops.append(name)
        if not self._channels:  # from here on messages wait for a first channel again
            self._waiting = self._batch.waiting = self._log.synced_end
        self._after_commit.append((self.supervisor, (), p.Done(word.request, {})))
        self._batch_waits = True
        return None

    def on_pause_word(self, port: Port, mail: Mail) -> None:
        paused = cast("p.Pause", mail.word).paused
        if not paused or self._visible_end < 0:  # pausing twice does not move the end
            self._visible_end = self._log.end if paused else -1
        self._batch.paused_end = self._visible_end
        self._batch_end = max(self._batch_end, self._visible_end)
        self._answer_after_commit(port, mail, {"visible_end": self._visible_end})

    def on_empty_word(self, port: Port, mail: Mail) -> None:
        if not self._channels:
            self._waiting = self._batch.waiting = self._log.synced_end
        self._answer_after_commit(port, mail, {})

    # Reads

    def _channel_end(self) -> int:
        end: int = self._log.end if self.mode == "interval" else self._log.synced_end  # as far as the topic offers
        return end if self._visible_end < 0 else min(end, self._visible_end)

    def on_fetch_word(self, port: Port, mail: Mail) -> None:
        word = cast("p.Fetch", mail.word)
        end = self._channel_end() if port is self.front else self._log.synced_end
        if word.offset < 0 or word.bytes_max < 0:
            raise UsageError(E_BAD_ARGUMENT, "offset and bytes_max are 0 or more")
        bytes_max = min(max(1, word.bytes_max), options.READ_BYTES_MAX if port is self.front else options.READER_BYTES_MAX)
        offset = max(word.offset, self._log.start)
        blocks = self._read(offset, bytes_max, end)[: p.FRAMES_MAX // 2]
        next_offset = self._log.skip(blocks[-1].next_offset if blocks else offset)
        port.send(mail.envelope, p.Blocks(word.request, self._log.start, end, next_offset), blocks)

    def _read(self, offset: int, bytes_max: int, end: int) -> list[Block]:
        """Damage is set aside by the log when it is met, and stepped over by the next read; readers see the gap."""
        while True:
            try:
                return self._log.read(offset, bytes_max, end)
            except Damaged as damage:
                log.error("%s: %s", self.title, damage)

    def on_beat_word(self, port: Port, mail: Mail) -> None:
        port.send(mail.envelope, p.Beat())

    def on_bye_word(self, port: Port, mail: Mail) -> None:
        pass

    # The end

    def on_stop(self) -> bool:
        """The topic and the channels have ended before; what they sent is written, synced and committed."""
        if self._log.unsynced_bytes and self._ticket is None:
            self._start_sync()
        if self._ticket is None and not self._batch_waits and (self._producers_changed or self._applied != self._log.synced_end):
            self._batch_waits = not self._state_thread.pending
        self._commit()
        return self._ticket is None and not self._batch_waits and not self._state_thread.pending

    def on_end(self) -> None:
        if self.stopping:
            self._sync_thread.close()
            self._state_thread.close()
            self.store.close()
        else:  # a failure: nothing may wait for these files any more, but what was told goes out
            self.context.destroy(linger=200)
            logging.shutdown()
            os._exit(4)

    def statistics(self) -> dict[str, Any]:
        return {
            "appends": self._appends,
            "start": self._log.start,
            "head": self._log.synced_end,
            "waiting": self._waiting,
            "channels": len(self._channels),
            "producers_known": len(self._producers),
        }
