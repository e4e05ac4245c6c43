"""Storage: the only owner of a topic's files. Appends in groups with one sync, commits state behind the log, answers reads.

Three threads besides the loop, reached over inproc: one syncs the log, so that the next appends are written meanwhile; one commits the
state store (`state_desk.py`), one syncs staged files (`stage_desk.py`). A fourth comes with its first job: housekeeping, for what takes
long and nobody waits for. Orders that must hold:

* An append is answered after a sync that began after its write (mode `always`).
* Producers' rows count durable blocks only, and are committed together with the offset up to which they count.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, NamedTuple, cast

from ..storage.errors import DiskFull, Locked, StoreFailed
from ..storage.files import Files
from ..storage.log import SyncTicket
from ..storage.store import Identity, Store, StoreOptions, create_store, open_store
from ..transport import protocol as p
from ..transport.errors import E_CLOSING, E_DISK_FULL, Refused, ZsqError
from . import options
from .actor import Actor, StartFailed
from .backup_desk import BackupDesk
from .channel_desk import ChannelDesk
from .delayed_desk import DelayedDesk, sequences
from .log_desk import LogDesk
from .oldest import OldestTimes
from .port import Envelope, Mail, Port
from .producer_table import ProducerTable, checked, placed
from .read_desk import READER_WORDS, ReadDesk
from .retention_desk import RetentionDesk
from .stage_desk import STAGE_WORDS, StageDesk
from .state_desk import StateDesk
from .worker_thread import WorkerThread

_TOPIC_WORDS = (p.OpenTopic, p.Append, p.AppendDelayed, p.Pause, p.Empty)
_CHANNEL_WORDS = (p.OpenChannel, p.Save, p.Due, p.Fetch)
FRONT_WORDS = frozenset((*_TOPIC_WORDS, *_CHANNEL_WORDS, p.Scan))


class _Pending(NamedTuple):
    """An append that is written and waits for its sync. `request` 0: delayed messages that became due."""

    envelope: Envelope
    request: int
    first_offset: int
    time_ns: int
    end: int
    producers: list[tuple[int, int, int]]  # producer, sequence, first offset


class StorageActor(Actor):
    """Settings: front, reader, stage and push (endpoints), directory, name, uuid, base_offset, sync, chunk_bytes, stage_timeout_s."""

    store: Store
    front: Port
    reader: Port

    def on_start(self) -> dict[str, Any]:
        settings = self.settings
        self.mode: str = settings["sync"]
        self.store = self._open(settings)
        self._log = self.store.log
        table = self.store.state.load()
        self._producers = ProducerTable(table.producers)
        self._epoch = 0
        self._appends = 0
        self._sealed = False
        self._failure: tuple[str, str] | None = None
        self._written: deque[_Pending] = deque()
        self._ticket: SyncTicket | None = None
        self._topic: Envelope | None = None
        self._sync_thread = WorkerThread(self.context, "sync")
        self._state = StateDesk(WorkerThread(self.context, "state"), self.store.state, table, self.title)
        self._state.keeper = self.store.keeper
        self._channels = ChannelDesk(self._log, self._state, table, self.mode)
        self._stages = StageDesk(self.store, self._state, WorkerThread(self.context, "stage"), table, settings["stage_timeout_s"])
        self._oldest = OldestTimes(self._log.reader.header_at)
        self._raw: dict[Any, Callable[[], object]] = {}
        self._listen_to(self._sync_thread, self._sync_results)
        self._listen_to(self._state.thread, self._state.on_results)
        self._listen_to(self._stages.thread, self._stages.on_results)
        self.front = self.open_router(settings["front"], FRONT_WORDS)
        self._retention = RetentionDesk(
            self.store, bytes.fromhex(settings["uuid"]), self._state, self._channels, settings["retention"], self.title,
            lambda: self._house, self.front.send, table.dropped,
        )  # fmt: skip
        self._stages.port = self.open_router(settings["stage"], STAGE_WORDS, answers_max=options.STAGE_ANSWERS_MAX)
        self._stages.port.words_to = self._stages
        self._stages.on_committed = self._group_committed
        self._stages.admit = self._retention.admit_bytes
        self._stages.in_memory = self._retention.in_memory = self._channels.in_memory = settings.get("in_memory", False)
        self._stages.closed = settings["closed"]
        self.push = self.open_pull(settings["push"], options.PUSH_MARK)
        self.reader = self.open_router(settings["reader"], READER_WORDS, answers_max=options.READER_ANSWERS_MAX)
        self.reader.words_to = self._reads = ReadDesk(self._log, self.title)
        self.every(options.CHECKPOINT_INTERVAL_MS, self._checkpoint)
        self.every(options.CHECKPOINT_INTERVAL_MS, self._state.retry)
        self.every(options.CHECKPOINT_INTERVAL_MS, self._state.tick)
        self.every(options.RETENTION_TICK_MS, lambda: None if self.stopping else self._retention.tick())
        self.every(options.STAGE_TICK_MS, self._stages.tick)
        self.every(options.STAGE_EXPIRE_MS, self._stages.expire)
        if self.mode == "interval":
            self.every(options.SYNC_INTERVAL_MS, self._start_sync)
        self._upkeep = LogDesk(self.store, self.title, lambda: self._house)
        self._upkeep.serves(self._reads)
        self.every(options.CHECKPOINT_INTERVAL_MS, lambda: None if self.stopping else self._upkeep.tick(time.time_ns()))
        self._delayed = DelayedDesk(
            self.store, self.title, lambda: self._delayed_thread, self.front.send, self._delayed_moved, self._hint, self.answer_order
        )
        self._retention.delayed_bytes = self._delayed.held_bytes
        self.every(options.CHECKPOINT_INTERVAL_MS, self._delayed.tick)
        self._backup = BackupDesk(
            self.store, self._state, self._retention, self._delayed, self.title, lambda: self._house, self.answer_order
        )
        self.every(options.CHECKPOINT_INTERVAL_MS, lambda: None if self.stopping else self._backup.tick())
        return {"channels": list(self._channels.rows), "alarms": list(self.store.report.alarms)}

    @cached_property
    def _house(self) -> WorkerThread:
        """For removals, copies, checks. A job's tag is called in the loop with its value or exception. Most topics never need it."""
        return self._listen_to(WorkerThread(self.context, "house"), lambda: [then(value) for then, value in self._house.results()])

    @cached_property
    def _delayed_thread(self) -> WorkerThread:
        return self._listen_to(WorkerThread(self.context, "delayed"), self._delayed.on_results)

    def _listen_to(self, thread: WorkerThread, on_results: Callable[[], object]) -> WorkerThread:
        self._raw[thread.socket] = on_results
        self.listen_raw(thread.socket)
        return thread

    def _house_is_idle(self) -> bool:
        return "_house" not in self.__dict__ or not self._house.pending

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
        rows = sequences(self._producers.sequences(), self._delayed.producers())
        data = {"producers": rows, "head": self._log.end, "visible_end": self._channels.visible_end}
        self._topic = mail.envelope
        self._delayed.opened(not self._sealed)
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
            blocks = checked(mail.blocks())
            self._retention.admit()
            first_offset, time_ns = self._log.append(blocks, time.time_ns())
        except (DiskFull, ZsqError) as error:
            self._epoch = word.epoch + 1
            self._failure = (error.code, error.text) if isinstance(error, ZsqError) else (E_DISK_FULL, str(error))
            port.send(mail.envelope, p.Failed(word.request, *self._failure))
            return
        producers = placed(blocks, first_offset)
        self._written.append(_Pending(mail.envelope, word.request, first_offset, time_ns, self._log.end, producers))
        if self.mode == "interval":
            port.send(mail.envelope, p.Appended(word.request, first_offset, time_ns))

    def on_appenddelayed_word(self, port: Port, mail: Mail) -> None:
        word = cast("p.AppendDelayed", mail.word)
        try:
            if word.epoch < self._epoch:
                raise Refused(*(self._failure or (E_CLOSING, "an append before it failed")))
            if self._sealed:
                raise Refused(E_CLOSING, "the topic is being deleted")
            blocks = checked(mail.blocks())
            self._retention.admit_delayed()
            self._delayed.append(mail.envelope, word, blocks, self._log.end)
        except DiskFull as error:
            port.send(mail.envelope, p.Failed(word.request, E_DISK_FULL, str(error)))

    def on_scan_word(self, port: Port, mail: Mail) -> None:
        self._delayed.on_scan_word(port, mail)

    def _delayed_moved(self, end: int) -> None:
        """Messages that became due are in the log, up to there. The topic never had them: it is told the head, in its turn."""
        assert self._topic is not None
        self._written.append(_Pending(self._topic, 0, 0, 0, end, []))
        self._stages.entered_bytes += self._delayed.moving_bytes()
        if self.mode == "interval":
            self.front.send(self._topic, p.Head(end))

    def _hint(self, due_ns: int) -> None:
        """The scan loop shall look at that time (monotonic)."""
        self._scan.send((), p.Hint(self.key, due_ns))

    @cached_property
    def _scan(self) -> Port:
        return self.open_dealer(self.settings["scan"])

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
                head = p.Head(done.end)
                self.front.send(done.envelope, p.Appended(done.request, done.first_offset, done.time_ns) if done.request else head)
            self._producers.stored(done.producers, done.time_ns)

    def on_raw(self, source: Any) -> None:
        self._raw[source]()

    def _sync_results(self) -> None:
        for _, value in self._sync_thread.results():
            if isinstance(value, Exception):
                # Never acknowledge from this descriptor again: end, and recover from what is really on disk.
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
        """A group is on disk, and all that was written before it. The topic never saw its blocks: it is told where the log ends now."""
        self._answer_durable()
        self._appends += 1
        if self._topic is not None:
            self.front.send(self._topic, p.Head(self._log.synced_end))

    def on_gone(self, who: str) -> None:
        self._stages.core.gone(who.encode())

    # State

    def _checkpoint(self) -> None:
        if self._channels.checkpoint() or self._producers.changed or self._state.applied != self._log.synced_end:
            self._state.wanted = True

    def _commit(self) -> None:
        """Hand the batch to its thread, if that is idle and the log is synced beyond what the batch speaks of."""
        if not self._state.may_commit() or self._delayed.holds_checkpoint():
            return
        if self._state.waits_for_log(self._log.synced_end):
            self._start_sync()
            return
        producers, gone = self._producers.take(time.time_ns())
        self._state.batch.producers_gone += gone
        self._state.commit(self._log.synced_end, producers)

    def on_order(self, word: p.Order) -> dict[str, Any] | None:
        """seal: take no more, and say where the topic ends; unseal. closed (to whom). drop: a channel's rows. Others: by the desks."""
        if word.action == "seal":
            self._sealed = self._stages.closing = True
            self._delayed.opened(False)  # the end that is told here is the end
            return {"head": self._log.end}
        if word.action == "unseal":
            self._sealed = self._stages.closing = False
            self._delayed.opened(self._topic is not None)
            return {}
        if word.action == "closed":
            self._stages.closed = bool(word.options["publishers"])
            return {}
        if word.action == "configure":
            return {"retention": self._retention.configure(word.options)}
        if word.action == "chunks":
            return self._upkeep.chunks()
        if word.action == "offset_at":
            return {"offset": self._reads.offset_at(int(word.options["time_ns"]))}
        if word.action == "delayed":
            return self._delayed.on_order(word)
        if word.action == "backup":
            return self._backup.on_order(word)
        if word.action not in ("leave", "drop"):
            return super().on_order(word)
        name = str(word.options["channel"])
        if name not in self._channels:
            return {}
        if word.action == "leave":
            return self._channels.leave(name)
        self._channels.drop(name, partial(self.answer_order, word.request, {}))
        return None

    # Words that the channel desk answers

    def on_openchannel_word(self, port: Port, mail: Mail) -> None:
        self._channels.on_openchannel_word(port, mail)

    def on_save_word(self, port: Port, mail: Mail) -> None:
        self._channels.on_save_word(port, mail)

    def on_due_word(self, port: Port, mail: Mail) -> None:
        self._channels.on_due_word(port, mail)

    def on_pause_word(self, port: Port, mail: Mail) -> None:
        self._channels.on_pause_word(port, mail)

    def on_empty_word(self, port: Port, mail: Mail) -> None:
        self._channels.on_empty_word(port, mail)

    def on_fetch_word(self, port: Port, mail: Mail) -> None:
        self._reads.fetch(port, mail, self._channels.end(), options.READ_BYTES_MAX)

    # The end

    def on_stop(self) -> bool:
        """The topic and the channels have ended before; what they sent is written, synced and committed."""
        self._stages.stop()
        self._delayed.open = False
        if self._log.unsynced_bytes and self._ticket is None:
            self._start_sync()
        if self._ticket is None and self._state.is_idle() and self._stages.is_idle():
            self._checkpoint()
        self._commit()
        idle = self._ticket is None and self._state.is_idle() and self._stages.is_idle() and self._delayed.is_idle()
        return idle and self._house_is_idle()

    def on_end(self) -> None:
        if self.stopping:
            lazy = [self.__dict__[name] for name in ("_house", "_delayed_thread") if name in self.__dict__]
            for thread in (*lazy, self._sync_thread, self._stages.thread, self._state.thread):
                thread.close()
            self.store.close()
        else:  # nothing may wait for these files any more
            self.end_at_once(4)

    def statistics(self) -> dict[str, Any]:
        return {
            "appends": self._appends,
            "start": self._log.start,
            "head": self._log.synced_end,
            "waiting": self._channels.waiting,
            "channels": len(self._channels.rows),
            "producers_known": len(self._producers),
            **self._upkeep.statistics(),
            "state_alarm": self._state.alarm(),
            **self._retention.statistics(),
            **self._delayed.statistics(),
            **self._stages.statistics(),
            "oldest_ns": self._oldest.refresh(self._channels.floors()),
        }
