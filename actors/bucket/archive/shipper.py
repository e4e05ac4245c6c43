"""Shipper: gathers the pieces of all topics, and puts them into the bucket as ticks.

It is a part of the archive actor. One thread reads the ranges of a tick from the chunk files and
encodes it. `WINDOW` threads create the ticks. A piece is answered when its tick and all ticks
before it exist, so what is answered is always a prefix of the log.

| state | event | next | action |
|---|---|---|---|
| CLOSED | the archive is this broker's | TAKING | take over |
| TAKING | taken | OPEN | answer requests |
| TAKING | a call failed | CLOSED | try again after a pause |
| TAKING, OPEN | another copy has taken over | LOST | refuse all requests with E_FENCED |
| OPEN | a tick cannot be created | OPEN | create the same tick again after a pause |

The log of ticks is made shorter when it has `LOG_BYTES` or `LOG_TICKS`. Then every topic that still
needs the older half of it ships all its rows again, and ends its log file if that is the reason.
When no topic needs the older half any more, a boundary is created, and what is below it is removed.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
import uuid as uuids
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from ....storage.bucket.archive.archive_format import MANIFESTS
from ....storage.bucket.bucket import Bucket
from ....storage.bucket.shipping.ship_log import Fenced, ShipLog, Taken, find_chain, read_index
from ....storage.bucket.shipping.standbys import NO_STANDBY, Notice, Terms, terms_of
from ....storage.bucket.shipping.tick_format import (
    COPY_NAME,
    STATES,
    TICK,
    TICK_BYTES,
    WINDOW,
    Boundary,
    Copy,
    EncodedTick,
    Index,
    Piece,
    Range,
    Tail,
    after,
    decode_copy,
    encode_copy,
    state_object,
)
from ....storage.errors import Damaged, StorageError
from ....storage.files import Files
from ....transport.errors import E_BUCKET, E_FENCED, Refused
from ....transport.wire import protocol as p
from ...primitives.lease_cell import boot_ns
from ...runtime.port import Envelope
from ...runtime.worker_thread import WorkerThread
from ...settings.options import SHIP_RESERVE
from .primacy import Primacy
from .tick_encoder import Encoded, TickEncoder
from .tick_plan import NEVER, Crowd, TickPlan

log = logging.getLogger("zsq")

LOG_BYTES: Final = 512 * 1024 * 1024
LOG_TICKS: Final = 4_000
REMOVED_AT_ONCE: Final = 1_000
WAKES_AT_ONCE: Final = 20  # topics that are woken in one round, to ship their rows again
# Changes of rows that wait for the bucket, of all topics. The log itself waits on the disk.
CHANGES_WAITING_MAX: Final = 64 * 1024 * 1024
COLLECT_EVERY_NS: Final = 30_000_000_000
PAUSE_S: Final = 0.2
PAUSE_S_MAX: Final = 5.0
POLL_MS: Final = 20
REGISTRY_NAME: Final = "registry.json"
REGISTRY_BYTES_MAX: Final = 64 * 1024 * 1024
COPY_BYTES_MAX: Final = 64 * 1024
_NS: Final = 1_000_000_000

Send = Callable[[Envelope, p.Wire], object]


class ShipperState(Enum):
    CLOSED = "closed"
    TAKING = "taking over"
    OPEN = "open"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class WaitingPiece:
    """A piece that is in no tick yet."""

    envelope: Envelope
    message: p.Ship
    piece: Piece

    @property
    def size(self) -> int:
        return max(1, self.piece.size)


@dataclass(slots=True)
class Flight:
    """A tick that is being encoded or created. `began_ns` is when its creation began."""

    number: int
    pieces: Sequence[WaitingPiece]
    tick: EncodedTick | None = None
    terms: Terms = NO_STANDBY
    is_done: bool = False
    first_ns: int = 0
    """The time of `boot_ns` at which it was begun first. A standby may see it soon afterwards."""
    began_ns: int = 0
    pause_s: float = PAUSE_S
    retry_ns: int = 0
    tails: dict[str, Tail] = field(default_factory=dict)
    topics: frozenset[str] | None = None
    """The topics of the registry that the tick has, or None if it has none."""
    registry_version: int = 0
    """How many times this process had read a new registry when the tick was begun."""


class _Wait(NamedTuple):
    """A caller that waits until the bucket has this registry, and this topic below `end`."""

    registry_version: int
    uuid: str
    end: int
    then: Callable[[int], object]


class Registry(NamedTuple):
    """The broker's registry as it was read: its bytes, the topics that are shipped, and all."""

    mark: tuple[int, int, int]
    data: bytes
    topics: frozenset[str]
    all: frozenset[str]


class _Takeover(NamedTuple):
    """A takeover that was begun at `begun_ns`, and the standbys that were known then."""

    ship_log: ShipLog
    taken: Taken
    notices: Mapping[str, Notice]
    begun_ns: int


NO_REGISTRY: Final = Registry((0, 0, 0), b"", frozenset(), frozenset())


class Shipper:
    """The shipping of one broker. `wake` is called with the uuid of a topic that may sleep.

    `forget_archive` is called with the uuid of a topic that was deleted and still has objects.
    """

    def __init__(
        self,
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
    ) -> None:
        self.primacy = primacy
        self._forget_archive = forget_archive
        self._is_swept = False
        self._bucket = bucket
        self._files = Files()
        self._data_dir = data_dir
        self._plan = TickPlan(lag_ns)
        self._control = control
        self._uploads = uploads
        (self._encoder,) = threads("encode", 1)
        self._creators = threads("tick", WINDOW)
        self._send = send
        self._wake = wake
        self.state = ShipperState.CLOSED
        self.trouble = ""
        self._pause_s = PAUSE_S
        self._retry_ns = 0
        self._log: ShipLog | None = None
        self._archive = ""
        self._epoch = 0
        self._takeover = -1
        self._next_number = 0
        self._tick_encoder: TickEncoder | None = None
        self._waiting: deque[WaitingPiece] = deque()
        self._waiting_bytes = 0
        self._waiting_changes = 0  # the bytes of changes of these pieces
        self._waiting_urgent = 0
        self._oldest_ns = 0  # since when the oldest of them waits, 0 if none waits
        self._crowd = Crowd()
        self._sent_ns = 0  # when the last tick was begun
        self._flights: deque[Flight] = deque()
        self._tails: dict[str, Tail] = {}  # of what is in the log
        self._opening: dict[str, tuple[Envelope, int]] = {}  # topics that ask what the log has
        self._peers: dict[str, Envelope] = {}
        self._registry = NO_REGISTRY
        self._registry_number = -1
        self._registry_due = True
        self._registry_version = 0  # how many times a new registry was read
        self._shipped_version = 0  # that of the newest registry in the bucket
        self._awaiting: list[_Wait] = []
        # The topics of the newest registry in the bucket, None if this process does not know.
        self._shipped_topics: frozenset[str] | None = None
        # Objects with rows that may be in no tick yet, and those that are in a tick by now.
        self._fresh_bases: set[str] = set()
        self._used_bases: set[str] = set()
        self._heard: set[str] = set()  # topics that have shipped a piece to this process
        self._boundary = 0
        self._last_number = -1
        self._sizes: deque[tuple[int, int]] = deque()  # numbers and sizes since the boundary
        self._sizes_bytes = 0
        self._older_ticks = 0  # ticks of earlier processes since the boundary
        self._collect_ns = 0
        self._collecting = False
        self.shipped_bytes = 0
        self.shipped_ticks = 0
        self._lag_ns = 0
        self._hurries = False
        self.is_releasing = False
        """True until the tick exists with which this broker hands over."""
        self._released = -1  # the number of that tick

    def set_bound(self, lag_s: float) -> None:
        self._plan.lag_ns = int(lag_s * _NS)

    def ship_now(self) -> None:
        """Send each piece at once from now on, because the broker stops."""
        self._hurries = True

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
        self._look_at_registry()
        if self._registry is NO_REGISTRY:  # it would be unknown which topics exist
            self.trouble = f"{self._data_dir}/{REGISTRY_NAME} cannot be read"
            return
        self.state, self._archive = ShipperState.TAKING, archive
        self._control.submit(self._taken, self._take_over)

    def _take_over(self) -> _Takeover:
        """Read or make the identity of this data directory, and take over. Runs in a thread."""
        own = self._read_copy()
        if own is None or own.archive != self._archive:
            own = Copy(self._archive, uuids.uuid4().hex)
            is_new = True
        else:
            is_new = False
        primacy = self.primacy
        ship_log = ShipLog(
            self._bucket, self._archive, own.copy, socket.gethostname(), primacy.addresses
        )
        if is_new:
            self._write_copy(own)
        notices = primacy.watch_for(own.copy).look(self._bucket, time.monotonic_ns())
        terms, begun_ns = terms_of(notices.values()), boot_ns()
        primacy.begins(terms)
        taken = ship_log.take_over(
            None if is_new else own, time.time_ns(), SHIP_RESERVE, terms.lease_ns // 1_000_000
        )
        if own.after >= 0:
            self._write_copy(Copy(own.archive, own.copy))
        return _Takeover(ship_log, taken, notices, begun_ns)

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

    def _write_copy(self, own: Copy) -> None:
        self._files.replace_file(f"{self._data_dir}/{COPY_NAME}", encode_copy(own))

    def _taken(self, value: Any) -> None:
        if isinstance(value, Fenced):
            self._lose(str(value))
            return
        if isinstance(value, (StorageError, OSError)):
            self.state = ShipperState.CLOSED
            self._note(value)
            self._refuse_opening(E_BUCKET)
            self._retry_ns = time.monotonic_ns() + int(self._pause_s * _NS)
            self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)
            return
        if isinstance(value, Exception):
            raise value
        self._log, taken = value.ship_log, value.taken
        index = taken.takeover
        self.primacy.looked(value.notices)
        self.primacy.exists(value.begun_ns, self.primacy.terms)
        self._sent_ns = time.monotonic_ns()
        self._epoch, self._takeover = index.epoch, index.number
        self._next_number, self._last_number = after(index), index.number
        self._registry_number = taken.registry_number
        self._boundary = taken.chain.boundary.number
        self._older_ticks = len(taken.chain.numbers)
        self._look_at_registry()
        self._tails = {
            uuid: tail for uuid, tail in taken.tails.items() if uuid in self._registry.topics
        }
        self._tick_encoder = TickEncoder(self._files, taken.digest, dict(self._tails))
        self.state, self.trouble, self._pause_s = ShipperState.OPEN, "", PAUSE_S
        self._answer_opening()

    def _lose(self, why: str) -> None:
        log.error("shipping ends: %s", why)
        self.primacy.end()
        self.is_releasing = False
        self.state, self.trouble = ShipperState.LOST, why
        for flight in self._flights:
            self._refuse(flight.pieces)
        self._refuse(self._waiting)
        self._refuse_opening(E_FENCED)
        self._flights.clear()
        self._waiting.clear()
        self._waiting_bytes = self._waiting_changes = self._waiting_urgent = self._oldest_ns = 0

    def _refuse_opening(self, code: str) -> None:
        for envelope, request in self._opening.values():
            self._send(envelope, p.Failed(request, code, self.trouble))
        self._opening.clear()

    def _refuse(self, pieces: Sequence[WaitingPiece] | deque[WaitingPiece]) -> None:
        for one in pieces:
            self._send(one.envelope, p.Failed(one.message.request, E_FENCED, self.trouble))

    def _note(self, error: Exception) -> None:
        if not self.trouble:
            log.error("messages cannot be shipped to the bucket: %s; the broker tries again", error)
        self.trouble = str(error)

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
        return self._epoch

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
        if not self._opening or self.state is not ShipperState.OPEN:
            return
        busy = {one.piece.uuid for one in self._waiting}
        busy |= {one.piece.uuid for flight in self._flights for one in flight.pieces}
        for uuid in [one for one in self._opening if one not in busy]:
            envelope, request = self._opening.pop(uuid)
            tail = self._tails.get(uuid)
            names = (
                "stream", "sequence", "end", "reserved", "chunk", "position", "base_number",
            )  # fmt: skip
            data = {} if tail is None else {name: getattr(tail, name) for name in names}
            self._send(envelope, p.Done(request, {"period_ns": self._plan.period_ns, **data}))

    def ship(self, envelope: Envelope, message: p.Ship) -> None:
        """Put a piece into one of the next ticks."""
        self.check()
        changes = len(message.changes)
        if changes and self._waiting_changes + changes > CHANGES_WAITING_MAX:
            # The topic ships all its rows again after a pause.
            raise Refused(E_BUCKET, "too many changes wait for the bucket")
        self._waiting_changes += changes
        self._peers[message.uuid] = envelope
        piece = Piece(
            message.uuid, message.stream, message.sequence, message.begins, message.base,
            message.end, message.reserved, message.kept_from,
            tuple(Range(*one) for one in message.ranges), len(message.changes),
        )  # fmt: skip
        if message.base:
            self._fresh_bases.add(message.base)
        self._waiting.append(WaitingPiece(envelope, message, piece))
        self._waiting_bytes += self._waiting[-1].size
        self._waiting_urgent += message.is_urgent
        self._oldest_ns = min(self._oldest_ns or message.oldest_ns, message.oldest_ns)
        self._crowd.came(message.uuid, time.monotonic_ns(), self._plan)

    def upload_base(self, envelope: Envelope, message: p.ShipBase) -> None:
        self.check()
        thread = min(self._uploads, key=lambda one: one.pending)
        thread.submit(
            partial(self._base_uploaded, envelope, message.request),
            partial(self._upload_base, message),
        )

    def _upload_base(self, message: p.ShipBase) -> str:
        """Upload the file, in a thread. Its name contains the checksum, so it may be repeated."""
        crc = 0
        fd = self._files.open_read(message.path)
        try:
            position = 0
            while piece := self._files.pread(fd, 1 << 20, position):
                crc = crc32c(piece, crc)
                position += len(piece)
        finally:
            self._files.close(fd)
        name = state_object(message.uuid, message.stream, crc)
        self._fresh_bases.add(name)  # before it exists, because `_remove` runs in another thread
        self._bucket.upload(name, message.path)
        return name

    def _base_uploaded(self, envelope: Envelope, request: int, value: Any) -> None:
        if isinstance(value, (StorageError, OSError)):
            self._send(envelope, p.Failed(request, E_BUCKET, str(value)))
        elif isinstance(value, Exception):
            raise value
        else:
            self._send(envelope, p.Done(request, {"base": value}))

    def wait_for(self, uuid: str, end: int, then: Callable[[int], object]) -> None:
        """Call `then` with the number of a tick when the bucket has the registry as it is now.

        With `uuid`, also when it has all rows of this topic, and its messages below `end`. If this
        process ends before, `then` is not called. Raises `Refused`.
        """
        self.check()
        self._look_at_registry()
        self._awaiting.append(_Wait(self._registry_version, uuid, end, then))
        self._settle_waits()
        if self._awaiting and self._registry_due and len(self._flights) < WINDOW:
            self._begin_tick()

    def _settle_waits(self) -> None:
        waits, self._awaiting = self._awaiting, []
        for wait in waits:
            tail = self._tails.get(wait.uuid)
            has_topic = not wait.uuid or (tail is not None and tail.end >= wait.end)
            if has_topic and wait.registry_version <= self._shipped_version:
                wait.then(self._last_number)
            else:
                self._awaiting.append(wait)

    def forget(self, uuid: str) -> None:
        """Forget a topic that was deleted."""
        self._tails.pop(uuid, None)
        self._peers.pop(uuid, None)
        self._heard.discard(uuid)
        self._registry_due = True

    def may_remove(self, uuid: str) -> bool:
        """Return True if the bucket knows that this topic was deleted.

        Until then a restored broker would have the topic, and would need its objects.
        """
        shipped = self._shipped_topics
        return self.state is ShipperState.OPEN and shipped is not None and uuid not in shipped

    # Ticks

    @property
    def is_busy(self) -> bool:
        """True while pieces wait, or ticks are on their way."""
        waits = bool(self._waiting or self._flights) or self.is_releasing
        return waits and self.state is ShipperState.OPEN

    def poll(self) -> None:
        """Send what is due. The archive actor calls it on each turn of its loop."""
        if self.state is not ShipperState.OPEN:
            return
        now = time.monotonic_ns()
        for flight in self._flights:
            if flight.retry_ns and now >= flight.retry_ns:
                flight.retry_ns = 0
                self._create(flight)
        while self._is_due(now):
            self._begin_tick()
        if self.is_releasing and self._released < 0 and not self._waiting and not self._flights:
            self._released = self._next_number
            self._begin_tick()

    def _is_due(self, now: int) -> bool:
        if not self._waiting or len(self._flights) >= WINDOW:
            return False
        due = self._plan.due_ns(
            self._waiting_bytes,
            self._oldest_ns,
            self._hurries or self._waiting_urgent > 0,
            len(self._flights),
            is_complete=self._crowd.is_complete(now, self._plan),
            last_ns=self._sent_ns,
        )
        return due != NEVER and due <= now

    def tick(self) -> None:
        """Do what is done once a second: a changed registry, and the collection."""
        if self.state is not ShipperState.OPEN:
            return
        self._look_at_registry()
        if self.primacy.must_look(time.monotonic_ns()):
            self._look_for_standbys()
        if not self._is_swept:
            self._is_swept = True
            self._control.submit(self._listed, self._topics_with_objects)
        if self._registry_due and not self._waiting and len(self._flights) < WINDOW:
            self._begin_tick()
        self._beat_if_due()
        self._collect()

    # Standbys

    def _look_for_standbys(self) -> None:
        assert self._log is not None
        watch = self.primacy.watch_for(self._log.copy)
        look = partial(watch.look, self._bucket, time.monotonic_ns())
        self._control.submit(self._looked_for_standbys, look)

    def _looked_for_standbys(self, value: Any) -> None:
        if isinstance(value, StorageError):
            return  # the next look is soon
        if isinstance(value, Exception):
            raise value
        if self.primacy.looked(value) and self.state is ShipperState.OPEN:
            self._sent_ns = 0  # a tick tells the new terms at once
            self._beat_if_due()

    def _beat_if_due(self) -> None:
        """Create a tick without news if the last one is too old for a standby."""
        now = time.monotonic_ns()
        due_ns = self.primacy.beats_at(self._sent_ns)
        is_wanted = bool(due_ns or not self._sent_ns) and not self.is_releasing
        if is_wanted and now >= due_ns and not self._flights:
            self._begin_tick()

    @property
    def beat_ms(self) -> float:
        """The interval at which `beat` must be called, 0 for never."""
        return self.primacy.terms.heartbeat_ns / 1_000_000 / 2

    def beat(self) -> None:
        """Let standbys know that this broker lives."""
        if self.state is ShipperState.OPEN:
            self._beat_if_due()

    def _begin_tick(self) -> None:
        pieces: list[WaitingPiece] = []
        size = 0
        while self._waiting and (not pieces or size + self._waiting[0].size <= TICK_BYTES):
            pieces.append(self._waiting.popleft())
            self._waiting_changes -= len(pieces[-1].message.changes)
            self._waiting_urgent -= pieces[-1].message.is_urgent
            size += pieces[-1].size
        self._waiting_bytes -= size
        self._oldest_ns = min((one.message.oldest_ns for one in self._waiting), default=0)
        self._sent_ns = time.monotonic_ns()
        # The registry is read after the pieces arrived, so it has their topics.
        self._look_at_registry()
        registry = b""
        if self._registry_due:
            registry, self._registry_due = self._registry.data, False
        number = self._next_number
        self._next_number += 1
        if registry:
            self._registry_number = number
        flight = Flight(
            number,
            pieces,
            terms=self.primacy.terms,
            first_ns=boot_ns(),
            topics=self._registry.all if registry else None,
            registry_version=self._registry_version,
        )
        self._flights.append(flight)
        index = Index(
            kind=TICK,
            number=number,
            epoch=self._epoch,
            archive=self._archive,
            copy=self._log.copy if self._log is not None else "",
            host=socket.gethostname(),
            time_ns=time.time_ns(),
            previous="",
            takeover=self._takeover,
            registry=(),
            registry_number=self._registry_number,
            pieces=(),
            addresses=self.primacy.addresses,
            lease_ms=flight.terms.lease_ns // 1_000_000,
            is_released=number == self._released,
        )
        given = [(one.piece, one.message) for one in pieces]
        encoder = self._tick_encoder
        assert encoder is not None
        self._encoder.submit(
            partial(self._encoded, flight),
            partial(encoder.encode, index, given, registry, self._registry.topics),
        )

    def _encoded(self, flight: Flight, value: Any) -> None:
        if self.state is not ShipperState.OPEN:
            return
        if not isinstance(value, Encoded):
            raise value
        flight.tick, flight.tails = value.tick, value.tails
        for number, why in value.failed.items():
            one = flight.pieces[number]
            self._send(one.envelope, p.Failed(one.message.request, E_BUCKET, why))
        flight.pieces = [
            one for number, one in enumerate(flight.pieces) if number not in value.failed
        ]
        self._create(flight)

    def _create(self, flight: Flight) -> None:
        tick, ship_log = flight.tick, self._log
        assert tick is not None
        assert ship_log is not None
        thread = min(self._creators, key=lambda one: one.pending)
        flight.began_ns = time.monotonic_ns()
        thread.submit(partial(self._created, flight), partial(ship_log.create, tick))

    def _created(self, flight: Flight, value: Any) -> None:
        if self.state is not ShipperState.OPEN:
            return
        now = time.monotonic_ns()
        if isinstance(value, Fenced):
            self._lose(str(value))
            return
        if isinstance(value, (StorageError, OSError)):
            self._note(value)
            flight.retry_ns = now + int(flight.pause_s * _NS)
            flight.pause_s = min(2 * flight.pause_s, PAUSE_S_MAX)
            return
        if isinstance(value, Exception):
            raise value
        self._plan.uploaded(now - flight.began_ns)
        if self.trouble:
            log.warning("messages are shipped to the bucket again")
            self.trouble = ""
        flight.is_done = True
        while self._flights and self._flights[0].is_done:
            self._confirm(self._flights.popleft(), now)

    def _confirm(self, flight: Flight, now: int) -> None:
        """Answer the pieces of a tick. All ticks before it exist."""
        assert flight.tick is not None
        size = len(flight.tick.data)
        self._sizes.append((flight.number, size))
        self._sizes_bytes += size
        self.shipped_bytes += size
        self.shipped_ticks += 1
        self._last_number = flight.number
        self.primacy.exists(flight.first_ns, flight.terms)
        if flight.number == self._released:
            self.is_releasing = False
        if flight.topics is not None:
            self._shipped_topics = flight.topics
            self._shipped_version = max(self._shipped_version, flight.registry_version)
        topics = self._registry.topics
        self._tails = {uuid: tail for uuid, tail in flight.tails.items() if uuid in topics}
        for one in flight.pieces:
            self._lag_ns = now - one.message.oldest_ns
            self._used_bases.add(one.piece.base)
            self._heard.add(one.piece.uuid)
            self._send(
                one.envelope, p.Done(one.message.request, {"period_ns": self._plan.period_ns})
            )
        flight.tick = None
        self._answer_opening()
        self._settle_waits()

    # The registry

    def _look_at_registry(self) -> None:
        """Read the registry again if its file was replaced."""
        path = f"{self._data_dir}/{REGISTRY_NAME}"
        try:
            found = os.stat(path)
            mark = (found.st_ino, found.st_mtime_ns, found.st_size)
            if mark == self._registry.mark:
                return
            data = self._files.read_file(path, REGISTRY_BYTES_MAX)
            topics = json.loads(data)["topics"]
        except (OSError, ValueError, KeyError) as error:
            log.warning("%s cannot be read to be shipped: %s", path, error)
            return
        shipped = {
            row["uuid"]
            for row in topics.values()
            if row.get("retention", {}).get("archive", "on") != "off"
        }
        every = frozenset(row["uuid"] for row in topics.values())
        self._registry = Registry(mark, data, frozenset(shipped), every)
        self._registry_version += 1
        self._registry_due = True
        for uuid in self._tails.keys() - shipped:
            self.forget(uuid)

    # Topics that were deleted while the bucket was away, or shortly before this process began

    def _topics_with_objects(self) -> set[str]:
        """Return the uuids of topics that have objects. Runs in a thread."""
        folders = (f"{MANIFESTS}/", f"{STATES}/")
        return {
            name.removeprefix(below).partition("/")[0]
            for below in folders
            for name in self._bucket.names(below)
        }

    def _listed(self, value: Any) -> None:
        if isinstance(value, StorageError):
            self._is_swept = False  # listed again with the next tick
            return
        if isinstance(value, Exception):
            raise value
        # A topic has its row in the registry before it has its first object.
        self._look_at_registry()
        for uuid in value - self._registry.all if self._registry.data else ():
            self._forget_archive(uuid)

    # Removal of old ticks

    def _collect(self) -> None:
        ticks = self._older_ticks + len(self._sizes)
        if self._collecting or (self._sizes_bytes < LOG_BYTES and ticks < LOG_TICKS):
            return
        now = time.monotonic_ns()
        if now < self._collect_ns:
            return
        target = self._middle()
        needed = {uuid: tail.needed for uuid, tail in self._tails.items()}
        oldest = min([self._last_number, self._registry_number, *needed.values()])
        if oldest >= target:
            self._collecting = True
            boundary = self._boundary_at(oldest)
            # A topic that this process has not heard of may still name an object that it gave to
            # the process before.
            live = {uuid: tail.base for uuid, tail in self._tails.items() if uuid in self._heard}
            self._fresh_bases -= self._used_bases
            self._used_bases.clear()
            self._control.submit(self._collected, partial(self._remove, boundary, live))
            return
        self._collect_ns = now + COLLECT_EVERY_NS
        self._registry_due = self._registry_due or self._registry_number < target
        late = sorted((tail.needed, uuid) for uuid, tail in self._tails.items())
        wakes = WAKES_AT_ONCE
        for number, uuid in late:
            if number < target and not self._ship_again(uuid, self._tails[uuid], target) and wakes:
                wakes -= 1
                self._wake(uuid)

    def _middle(self) -> int:
        """Return the number in the middle of the log, by ticks."""
        return (self._boundary + self._last_number) // 2 + 1

    def _ship_again(self, uuid: str, tail: Tail, target: int) -> bool:
        """Tell a topic to ship again what is in old ticks. Return False if it may be asleep."""
        old = [base for base, number in tail.chunk_numbers.items() if number < target]
        message = p.ShipAgain(tail.base_number < target, max(old) + 1 if old else 0)
        peer = self._peers.get(uuid)
        return peer is not None and bool(self._send(peer, message))

    def _boundary_at(self, number: int) -> Boundary:
        return Boundary(number, "", self._epoch, self._last_number, time.time_ns())

    def _remove(self, boundary: Boundary, live: dict[str, str]) -> tuple[Boundary, int]:
        """Create the boundary, and remove what nobody needs any more. Runs in a thread.

        `live` maps topics to the objects with their rows. Other objects of these topics are
        removed.
        """
        assert self._log is not None
        boundary = boundary._replace(number=self._with_tails(boundary.number))
        self._log.bound(self._log.with_digest(boundary))
        removed = 0
        while count := self._log.remove_below(boundary.number, REMOVED_AT_ONCE):
            removed += count
        bases = self._log.names(f"{STATES}/")
        # A successor uploads its objects after its takeover, so none of them is in this list.
        last = find_chain(self._bucket).last
        if last is None or last.index.epoch != self._epoch:
            return boundary, removed
        kept = self._fresh_bases.union(live.values())
        self._log.remove(
            [name for name in bases if name not in kept and name.split("/")[1] in live]
        )
        return boundary, removed

    def _with_tails(self, number: int) -> int:
        """Return the newest tick up to this number that has the tails of all topics.

        The log must begin with one. Otherwise a successor would not find all tails.

        Raises `Fenced` if another copy has taken over. The boundary may be that copy's then, and
        above its takeover. If this process removed the ticks below it, the takeover would be gone,
        and the ticks that this process has on their way could be created, and would be answered.
        """
        chain = find_chain(self._bucket)
        if chain.last is not None and chain.last.index.epoch > self._epoch:
            raise Fenced(
                f"{self._bucket.url}: copy {chain.last.index.copy[:8]} of this broker on host "
                f"{chain.last.index.host} has taken over"
            )
        numbers = [one for one in chain.numbers if one <= number]
        return next(
            (
                one
                for one in reversed(numbers)
                if read_index(self._bucket, one).index.tails is not None
            ),
            chain.boundary.number,
        )

    def _collected(self, value: Any) -> None:
        self._collecting = False
        self._collect_ns = time.monotonic_ns() + COLLECT_EVERY_NS
        if isinstance(value, Fenced):
            if self.state is ShipperState.OPEN:
                self._lose(str(value))
            return
        if isinstance(value, (StorageError, OSError)):
            log.warning("old ticks cannot be removed from the bucket: %s", value)
            return
        if isinstance(value, Exception):
            raise value
        boundary, removed = value
        self._boundary = boundary.number
        if boundary.number >= self._takeover:
            self._older_ticks = 0
        while self._sizes and self._sizes[0][0] < boundary.number:
            self._sizes_bytes -= self._sizes.popleft()[1]
        log.info("removed %d old ticks from the bucket", removed)

    # The end

    @property
    def pending(self) -> int:
        return sum(one.pending for one in (self._encoder, *self._creators))

    def threads(self) -> Sequence[WorkerThread]:
        return (self._encoder, *self._creators)

    def statistics(self) -> dict[str, object]:
        now = time.monotonic_ns()
        waiting = [one.message.oldest_ns for one in self._waiting]
        waiting += [one.message.oldest_ns for flight in self._flights for one in flight.pieces]
        return {
            "shipping": self.state.value,
            "lag_s": round((now - min(waiting)) / _NS, 3) if waiting else 0.0,
            "shipped_bytes": self.shipped_bytes,
            "shipped_ticks": self.shipped_ticks,
            "log_bytes": self._sizes_bytes,
            "epoch": self._epoch,
            "standbys": len(self.primacy.notices),
            "standby_addresses": self.primacy.standby_addresses,
        }
