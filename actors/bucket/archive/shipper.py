"""Shipper: gathers the pieces of all topics, and puts them into the bucket as ticks.

It is a part of the archive actor. It begins with a takeover: no other copy of this broker may ship
from then on. What exists only after it are `TickWriter` and `LogCollector`.

| state | event | next | action |
|---|---|---|---|
| CLOSED | the archive is this broker's, and no pause | TAKING | take over |
| TAKING | taken | OPEN | answer requests |
| TAKING | a call failed | CLOSED | try again after a pause |
| TAKING, OPEN | another copy has taken over | LOST | refuse all requests with E_FENCED |

The parts are `tick_queue.py` (pieces that wait), `tick_writer.py` (ticks on their way),
`registry_watch.py` (the broker's topics), `base_objects.py` (objects with all rows of a topic),
`log_collector.py` (removal of old ticks), and `primacy.py` (the lease, and standbys).
"""

from __future__ import annotations

import logging
import socket
import time
import uuid as uuids
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple

from ....storage.bucket.archive.archive_format import MANIFESTS
from ....storage.bucket.bucket import Bucket
from ....storage.bucket.shipping.ship_log import Fenced, ShipLog, Taken
from ....storage.bucket.shipping.standbys import Notice, terms_of
from ....storage.bucket.shipping.tick_format import (
    COPY_NAME,
    STATES,
    TAILS_EVERY,
    WINDOW,
    Copy,
    Piece,
    Range,
    Tail,
    decode_copy,
    encode_copy,
)
from ....storage.errors import Damaged, StorageError
from ....storage.files import Files
from ....transport.errors import E_BUCKET, E_FENCED, Refused
from ....transport.units import NS_PER_S
from ....transport.wire import protocol as p
from ...primitives.boot_clock import boot_ns
from ...runtime.port import Envelope
from ...runtime.worker_thread import WorkerThread
from ...settings import options
from .base_objects import BaseObjects, Send
from .log_collector import LogCollector
from .primacy import Primacy
from .registry_watch import RegistryWatch
from .tick_encoder import TickEncoder
from .tick_plan import TickPlan
from .tick_queue import TickQueue, WaitingPiece
from .tick_writer import Flight, TickWriter

log = logging.getLogger("zsq")

POLL_MS: Final = 20
COPY_BYTES_MAX: Final = 64 * 1024
_TAIL_FIELDS: Final = (
    "stream", "sequence", "end", "reserved", "chunk", "position", "base_number",
)  # fmt: skip


@dataclass(slots=True)
class ShipperLimits:
    """The limits of a broker's log of ticks. Tests make them small."""

    log_bytes: int = 512 * 1024 * 1024
    log_ticks: int = 4_000
    collect_every_ns: int = 30 * NS_PER_S
    tails_every: int = TAILS_EVERY
    """Ticks whose numbers are multiples of this have the tails of all topics."""
    wakes_at_once: int = 20
    """Topics that are woken in one round, to ship their rows again."""
    changes_bytes: int = 64 * 1024 * 1024
    """Changes of rows that wait for the bucket, of all topics. The log itself waits on the disk."""
    pause_s: float = 0.2
    """The first pause after a call failed. It doubles with each further one."""
    pause_s_max: float = 5.0


class ShipperState(Enum):
    CLOSED = "closed"
    TAKING = "taking over"
    OPEN = "open"
    LOST = "lost"


class ShipperEvent(Enum):
    DUE = "the archive is this broker's, and no pause"
    TAKEN = "taken"
    FAILED = "a call failed"
    FENCED = "another copy has taken over"


class RegistryWait(NamedTuple):
    """A caller that waits until the bucket has this registry, and this topic below `end`."""

    registry_version: int
    uuid: str
    end: int
    then: Callable[[int], object]


class BegunTakeover(NamedTuple):
    """A takeover that was begun at `begun_ns`, and the standbys that were known then."""

    ship_log: ShipLog
    taken: Taken
    notices: Mapping[str, Notice]
    begun_ns: int


class Shipper:
    """The shipping of one broker. `wake` is called with the uuid of a topic that may sleep.

    `forget_archive` is called with the uuid of a topic that was deleted and still has objects.
    """

    def __init__(
        self,
        files: Files,
        bucket: Bucket,
        data_dir: str,
        lag_ns: int,
        control: WorkerThread,
        uploads: Sequence[WorkerThread],
        threads: Callable[[str, int], list[WorkerThread]],
        send: Send,
        wake: Callable[[str], object],
        primacy: Primacy,
        forget_archive: Callable[[str], object] = lambda uuid: None,
        limits: ShipperLimits | None = None,
    ) -> None:
        self.primacy = primacy
        self._files = files
        self._bucket = bucket
        self._data_dir = data_dir
        self._control = control
        self._threads = [*threads("encode", 1), *threads("tick", WINDOW)]
        self._send = send
        self._wake = wake
        self._forget_archive = forget_archive
        self._limits = limits = limits or ShipperLimits()
        self.state = ShipperState.CLOSED
        self.trouble = ""
        self._archive = ""  # the identity of the archive, from TAKING on
        self._pause_s = limits.pause_s
        self._retry_ns = 0  # in CLOSED
        self._plan = TickPlan(lag_ns)
        self._queue = TickQueue(self._plan)
        self._registry = RegistryWatch(files, data_dir)
        self._bases = BaseObjects(files, bucket, uploads, send)
        self._writer: TickWriter | None = None  # from OPEN on
        self._collector: LogCollector | None = None  # from OPEN on
        self._opening: dict[str, tuple[Envelope, int]] = {}  # topics that ask what the log has
        self._peers: dict[str, Envelope] = {}
        self._waits: list[RegistryWait] = []
        self._is_swept = False
        self.is_releasing = False
        """True until the tick exists with which this broker hands over."""

    def _happen(self, event: ShipperEvent, *details: Any) -> None:
        """Change the state, and do what the table says. Other events change nothing."""
        if (step := self.TABLE.get((self.state, event))) is not None:
            self.state, action = step
            action(self, *details)

    def set_bound(self, lag_s: float) -> None:
        self._plan.lag_ns = int(lag_s * NS_PER_S)

    def ship_now(self) -> None:
        """Send each piece at once from now on, because the broker stops."""
        self._queue.hurries = True

    def release(self) -> None:
        """Say in the log of ticks that this broker acknowledges nothing more. All topics ended."""
        if self.state is ShipperState.OPEN:
            self.primacy.end()
            self.is_releasing = True

    # Takeover

    def open(self, archive: str) -> None:
        """Take over, if this is not done yet. `archive` is the identity of the archive."""
        if self.state is not ShipperState.CLOSED or time.monotonic_ns() < self._retry_ns:
            return
        self._registry.look()
        if not self._registry.current.version:  # it would be unknown which topics exist
            self.trouble = f"{self._registry.path} cannot be read"
            return
        self._archive = archive
        self._happen(ShipperEvent.DUE)

    def _begin_takeover(self) -> None:
        self._control.submit(self._took_over, self._take_over)

    def _take_over(self) -> BegunTakeover:
        """Read or make the identity of this data directory, and take over. Runs in a thread."""
        copy = self._read_copy()
        is_new = copy is None or copy.archive != self._archive
        if copy is None or is_new:
            copy = Copy(self._archive, uuids.uuid4().hex)
        primacy = self.primacy
        ship_log = ShipLog(
            self._bucket, self._archive, copy.copy, socket.gethostname(), primacy.addresses
        )
        if is_new:
            self._write_copy(copy)
        notices = primacy.watch_for(copy.copy).look(self._bucket, time.monotonic_ns())
        terms, begun_ns = terms_of(notices.values()), boot_ns()
        primacy.begins(terms)
        taken = ship_log.take_over(
            None if is_new else copy,
            time.time_ns(),
            options.SHIP_RESERVE,
            terms.lease_ns // 1_000_000,
        )
        if copy.after >= 0:
            self._write_copy(Copy(copy.archive, copy.copy))
        return BegunTakeover(ship_log, taken, notices, begun_ns)

    def _read_copy(self) -> Copy | None:
        path = f"{self._data_dir}/{COPY_NAME}"
        if not self._files.exists(path):
            return None
        try:
            return decode_copy(self._files.read_file(path, COPY_BYTES_MAX))
        except Damaged as error:
            raise Fenced(
                f"{path}: {error}; if no other copy of this broker runs, remove the file and "
                "use another prefix, or restore the broker with zsq restore"
            ) from error

    def _write_copy(self, copy: Copy) -> None:
        self._files.replace_file(f"{self._data_dir}/{COPY_NAME}", encode_copy(copy))

    def _took_over(self, result: Any) -> None:
        if isinstance(result, Fenced):
            self._happen(ShipperEvent.FENCED, str(result))
        elif isinstance(result, (StorageError, OSError)):
            self._happen(ShipperEvent.FAILED, result)
        elif isinstance(result, Exception):
            raise result
        else:
            self._happen(ShipperEvent.TAKEN, result)

    def _pause(self, error: Exception) -> None:
        self._note(error)
        self._refuse_opening(E_BUCKET)
        self._retry_ns = time.monotonic_ns() + int(self._pause_s * NS_PER_S)
        self._pause_s = min(2 * self._pause_s, self._limits.pause_s_max)

    def _begin(self, takeover: BegunTakeover) -> None:
        """Ship from now on."""
        ship_log, taken, notices, begun_ns = takeover
        self.primacy.looked(notices)
        self.primacy.exists(begun_ns, self.primacy.terms)
        self._registry.number = taken.registry_number
        self._look_at_registry()
        fenced = partial(self._happen, ShipperEvent.FENCED)
        encoder = TickEncoder(
            self._files, taken.digest, dict(taken.tails), self._limits.tails_every
        )
        self._writer = TickWriter(
            ship_log, taken, encoder, self.primacy, self._plan, self._registry, self._threads,
            (self._limits.pause_s, self._limits.pause_s_max),
            self.confirm, self._refuse_unreadable, fenced, self._created,
        )  # fmt: skip
        self._writer.keep_tails(taken.tails)
        self._collector = LogCollector(
            self._bucket, ship_log, taken, self._bases, self._control,
            self._limits.collect_every_ns, fenced,
        )  # fmt: skip
        self.trouble = ""
        self._answer_opening()

    def _lose(self, why: str) -> None:
        """Ship nothing any more, and refuse everything."""
        log.error("shipping ends: %s", why)
        self.primacy.end()
        self.is_releasing = False
        self.trouble = why
        pieces = self._writer.end() if self._writer is not None else []
        for waiting in [*pieces, *self._queue.clear()]:
            self._send(waiting.envelope, p.Failed(waiting.message.request, E_FENCED, why))
        self._refuse_opening(E_FENCED)

    TABLE: ClassVar[
        Mapping[tuple[ShipperState, ShipperEvent], tuple[ShipperState, Callable[..., None]]]
    ] = {
        (ShipperState.CLOSED, ShipperEvent.DUE): (ShipperState.TAKING, _begin_takeover),
        (ShipperState.TAKING, ShipperEvent.TAKEN): (ShipperState.OPEN, _begin),
        (ShipperState.TAKING, ShipperEvent.FAILED): (ShipperState.CLOSED, _pause),
        (ShipperState.TAKING, ShipperEvent.FENCED): (ShipperState.LOST, _lose),
        (ShipperState.OPEN, ShipperEvent.FENCED): (ShipperState.LOST, _lose),
    }

    def _refuse_opening(self, code: str) -> None:
        for envelope, request in self._opening.values():
            self._send(envelope, p.Failed(request, code, self.trouble))
        self._opening.clear()

    def _note(self, error: Exception) -> None:
        if not self.trouble:
            log.error("messages cannot be shipped to the bucket: %s; the broker tries again", error)
        self.trouble = str(error)

    def _created(self, error: Exception | None) -> None:
        """Note whether a tick could be created."""
        if error is not None:
            self._note(error)
        elif self.trouble:
            log.warning("messages are shipped to the bucket again")
            self.trouble = ""

    # Requests

    @property
    def is_opening(self) -> bool:
        """True while it is not known yet whether this broker may go on in the bucket.

        False after a takeover failed, so that requests are refused until the next one.
        """
        return self.state in (ShipperState.CLOSED, ShipperState.TAKING) and not self.trouble

    @property
    def epoch(self) -> int:
        """The epoch that this process has begun in the log of ticks, 0 before that."""
        return self._writer.epoch if self._writer is not None else 0

    @property
    def tails(self) -> Mapping[str, Tail]:
        """Tails of all topics in the log of ticks."""
        return self._writer.tails if self._writer is not None else {}

    @property
    def _active(self) -> TickWriter | None:
        """The writer, if this broker ships."""
        return self._writer if self.state is ShipperState.OPEN else None

    def check(self) -> None:
        """Raise `Refused` if this broker has not taken over, or another copy has."""
        if self.state is ShipperState.LOST:
            raise Refused(E_FENCED, self.trouble)
        if self.state is not ShipperState.OPEN:
            raise Refused(E_BUCKET, self.trouble or "the broker is taking over its log of ticks")

    def open_topic(self, envelope: Envelope, message: p.OpenShipping) -> None:
        """Tell a topic what the log has of it, once no piece of it is on its way.

        While this process takes over the log, the topic waits for the answer.
        """
        if not self.is_opening:
            self.check()
        self._peers[message.uuid] = envelope
        self._opening[message.uuid] = (envelope, message.request)
        self._answer_opening()

    def _answer_opening(self) -> None:
        writer = self._active
        if not self._opening or writer is None:
            return
        busy = self._queue.topics | writer.topics
        for uuid in [uuid for uuid in self._opening if uuid not in busy]:
            envelope, request = self._opening.pop(uuid)
            tail = writer.tails.get(uuid)
            data = {} if tail is None else {name: getattr(tail, name) for name in _TAIL_FIELDS}
            self._send(envelope, p.Done(request, {"period_ns": self._plan.period_ns, **data}))

    def ship(self, envelope: Envelope, message: p.Ship) -> None:
        """Put a piece into one of the next ticks."""
        self.check()
        changes = len(message.changes)
        if changes and self._queue.changes + changes > self._limits.changes_bytes:
            # The topic ships all its rows again after a pause.
            raise Refused(E_BUCKET, "too many changes wait for the bucket")
        self._peers[message.uuid] = envelope
        piece = Piece(
            message.uuid, message.stream, message.sequence, message.begins, message.base,
            message.end, message.reserved, message.kept_from,
            tuple(Range(*entry) for entry in message.ranges), changes,
        )  # fmt: skip
        self._bases.named(message.base)
        self._queue.add(WaitingPiece(envelope, message, piece), time.monotonic_ns())

    def upload_base(self, envelope: Envelope, message: p.ShipBase) -> None:
        """Upload a file with all rows of a topic."""
        self.check()
        self._bases.upload(envelope, message)

    def wait_for(self, uuid: str, end: int, then: Callable[[int], object]) -> None:
        """Call `then` with the number of a tick when the bucket has the registry as it is now.

        With `uuid`, also when it has all rows of this topic, and its messages below `end`. If this
        process ends before, `then` is not called. Raises `Refused`.
        """
        self.check()
        self._look_at_registry()
        self._waits.append(RegistryWait(self._registry.current.version, uuid, end, then))
        self._settle_waits()
        if self._waits and self._registry.is_due:
            self._begin_tick()

    def _settle_waits(self) -> None:
        writer, registry = self._writer, self._registry.in_bucket
        assert writer is not None
        waits, self._waits = self._waits, []
        for wait in waits:
            tail = writer.tails.get(wait.uuid)
            has_topic = not wait.uuid or (tail is not None and tail.end >= wait.end)
            if has_topic and registry is not None and wait.registry_version <= registry.version:
                wait.then(writer.last_number)
            else:
                self._waits.append(wait)

    def forget(self, uuid: str) -> None:
        """Forget a topic that was deleted."""
        if self._writer is not None:
            self._writer.tails.pop(uuid, None)
        self._peers.pop(uuid, None)
        self._bases.forget(uuid)
        self._registry.is_due = True

    def may_remove(self, uuid: str) -> bool:
        """Return True if the bucket knows that this topic was deleted.

        Until then a restored broker would have the topic, and would need its objects.
        """
        registry = self._registry.in_bucket
        is_open = self.state is ShipperState.OPEN
        return is_open and registry is not None and uuid not in registry.topics

    # Ticks

    @property
    def is_busy(self) -> bool:
        """True while pieces wait, or ticks are on their way."""
        writer = self._active
        return writer is not None and bool(self._queue or writer.flights or self.is_releasing)

    def poll(self) -> None:
        """Send what is due. The archive actor calls it on each turn of its loop."""
        if (writer := self._active) is None:
            return
        now = time.monotonic_ns()
        writer.retry(now)
        while not writer.is_full and self._queue.is_due(now, len(writer.flights), writer.sent_ns):
            self._begin_tick()
        if self.is_releasing and not self._queue and not writer.flights:
            self._begin_tick(is_last=True)

    def tick(self) -> None:
        """Do what is done once a second: a changed registry, and the collection."""
        if self._active is None:
            return
        self._look_at_registry()
        if self.primacy.must_look(time.monotonic_ns()):
            self._look_for_standbys()
        if not self._is_swept:
            self._is_swept = True
            self._control.submit(self._listed, self._topics_with_objects)
        if self._registry.is_due and not self._queue:
            self._begin_tick()
        self.beat()
        self._collect()

    def _begin_tick(self, *, is_last: bool = False) -> None:
        """Begin a tick with the pieces that wait, if its number is within the window."""
        writer = self._active
        assert writer is not None
        if not writer.is_full:
            pieces = self._queue.take()
            self._look_at_registry()
            writer.begin(pieces, is_last=is_last)

    def _refuse_unreadable(self, waiting: WaitingPiece, why: str) -> None:
        self._send(waiting.envelope, p.Failed(waiting.message.request, E_BUCKET, why))

    def confirm(self, flight: Flight, now_ns: int) -> None:
        """Answer the pieces of a tick. It exists, and all ticks before it."""
        assert self._collector is not None
        assert flight.tick is not None
        self._collector.note(flight.number, len(flight.tick.data))
        if flight.is_last:
            self.is_releasing = False
        period = {"period_ns": self._plan.period_ns}
        for waiting in flight.pieces:
            self._bases.shipped(waiting.piece.uuid, waiting.piece.base)
            self._send(waiting.envelope, p.Done(waiting.message.request, period))
        self._answer_opening()
        self._settle_waits()

    # Standbys

    def _look_for_standbys(self) -> None:
        assert self._writer is not None
        watch = self.primacy.watch_for(self._writer.ship_log.copy)
        look = partial(watch.look, self._bucket, time.monotonic_ns())
        self._control.submit(self._looked_for_standbys, look)

    def _looked_for_standbys(self, result: Any) -> None:
        if isinstance(result, StorageError):
            return  # the next look is soon
        if isinstance(result, Exception):
            raise result
        if self.primacy.looked(result) and (writer := self._active) is not None:
            writer.sent_ns = 0  # a tick tells the new terms at once
            self.beat()

    @property
    def beat_ms(self) -> float:
        """The interval at which `beat` must be called, 0 for never."""
        return self.primacy.terms.heartbeat_ns / 1_000_000 / 2

    def beat(self) -> None:
        """Create a tick without news if the last one is too old for a standby."""
        writer = self._active
        if writer is None or self.is_releasing or writer.flights:
            return
        due_ns = self.primacy.beats_at(writer.sent_ns)
        if (due_ns or not writer.sent_ns) and time.monotonic_ns() >= due_ns:
            self._begin_tick()

    # The registry, and topics that were deleted while the bucket was away, or shortly before this
    # process began

    def _look_at_registry(self) -> None:
        """Read the registry again if its file was replaced, and forget the topics it lost."""
        if self._registry.look():
            for uuid in self.tails.keys() - self._registry.current.shipped:
                self.forget(uuid)

    def _topics_with_objects(self) -> set[str]:
        """Return the uuids of topics that have objects. Runs in a thread."""
        folders = (f"{MANIFESTS}/", f"{STATES}/")
        return {
            name.removeprefix(below).partition("/")[0]
            for below in folders
            for name in self._bucket.names(below)
        }

    def _listed(self, result: Any) -> None:
        if isinstance(result, StorageError):
            self._is_swept = False  # listed again with the next tick
            return
        if isinstance(result, Exception):
            raise result
        # A topic has its row in the registry before it has its first object.
        self._look_at_registry()
        for uuid in result - self._registry.current.topics:
            self._forget_archive(uuid)

    # Removal of old ticks

    def _collect(self) -> None:
        """Remove old ticks if the log is too long, or ask the topics that need them."""
        collector, limits = self._collector, self._limits
        assert collector is not None
        assert self._writer is not None
        if collector.size < limits.log_bytes and collector.ticks < limits.log_ticks:
            return
        number = self._registry.number
        target = collector.collect(self.tails, self._writer.last_number, number)
        if not target:
            return
        self._registry.is_due = self._registry.is_due or number < target
        late = sorted((tail.needed, uuid) for uuid, tail in self.tails.items())
        wakes = limits.wakes_at_once
        for needed, uuid in late:
            if needed < target and not self._ship_again(uuid, self.tails[uuid], target) and wakes:
                wakes -= 1
                self._wake(uuid)

    def _ship_again(self, uuid: str, tail: Tail, target: int) -> bool:
        """Tell a topic to ship again what is in old ticks. Return False if it may be asleep."""
        old = [base for base, number in tail.chunk_numbers.items() if number < target]
        message = p.ShipAgain(tail.base_number < target, max(old) + 1 if old else 0)
        peer = self._peers.get(uuid)
        return peer is not None and bool(self._send(peer, message))

    # The end

    @property
    def pending(self) -> int:
        return sum(thread.pending for thread in self._threads)

    def threads(self) -> Iterable[WorkerThread]:
        return self._threads

    def statistics(self) -> dict[str, object]:
        writer, now = self._writer, time.monotonic_ns()
        oldest = [self._queue.oldest_ns, writer.oldest_ns if writer is not None else 0]
        oldest_ns = min(filter(None, oldest), default=0)
        return {
            "shipping": self.state.value,
            "lag_s": round((now - oldest_ns) / NS_PER_S, 3) if oldest_ns else 0.0,
            "shipped_bytes": writer.shipped_bytes if writer is not None else 0,
            "shipped_ticks": writer.shipped_ticks if writer is not None else 0,
            "log_bytes": self._collector.size if self._collector is not None else 0,
            "epoch": self.epoch,
            "standbys": len(self.primacy.notices),
            "standby_addresses": self.primacy.standby_addresses,
        }
