"""Tick writer: encodes and creates the ticks of one epoch, and confirms them in their order.

It exists from the takeover on. One thread encodes the ticks, and `WINDOW` threads create them. A
tick that cannot be created is created again after a pause, with the same bytes: its request may
have taken effect. It is confirmed when it and all before it exist, so what is confirmed is always a
prefix of the log.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ....storage.bucket.shipping.ship_log import Fenced, ShipLog, Taken
from ....storage.bucket.shipping.standbys import NO_STANDBY, Terms
from ....storage.bucket.shipping.tick_format import TICK, WINDOW, EncodedTick, Index, Tail, after
from ....storage.errors import StorageError
from ....transport.units import NS_PER_S
from ...primitives.boot_clock import boot_ns
from ...runtime.worker_thread import WorkerThread
from .primacy import Primacy
from .registry_watch import RegistryCopy, RegistryWatch
from .tick_encoder import Encoded, TickEncoder
from .tick_plan import TickPlan
from .tick_queue import WaitingPiece


@dataclass(slots=True, eq=False)
class Flight:
    """A tick that is being encoded or created. `began_ns` is when its creation began."""

    number: int
    pieces: Sequence[WaitingPiece]
    pause_s: float
    registry: RegistryCopy | None = None
    """The registry that the tick has, if it has one."""
    tick: EncodedTick | None = None
    terms: Terms = NO_STANDBY
    is_last: bool = False
    """True if the tick says that this broker hands over."""
    is_done: bool = False
    first_ns: int = 0
    """The time of `boot_ns` at which it was begun first. A standby may see it soon afterwards."""
    began_ns: int = 0
    retry_ns: int = 0
    tails: dict[str, Tail] = field(default_factory=dict)


class TickWriter:
    """The ticks of one epoch.

    `on_confirmed` is called with each flight when its tick exists, and all before it.
    `on_unreadable` is called with each piece that cannot be read, and the reason. `on_fenced` is
    called with the reason when another copy of the broker has taken over. `on_result` is called
    with the error of each creation, or None if it succeeded.
    """

    def __init__(
        self,
        ship_log: ShipLog,
        taken: Taken,
        encoder: TickEncoder,
        primacy: Primacy,
        plan: TickPlan,
        registry: RegistryWatch,
        threads: Sequence[WorkerThread],
        pauses_s: tuple[float, float],
        on_confirmed: Callable[[Flight, int], object],
        on_unreadable: Callable[[WaitingPiece, str], object],
        on_fenced: Callable[[str], object],
        on_result: Callable[[Exception | None], object],
    ) -> None:
        self.ship_log = ship_log
        self.takeover = taken.takeover
        self._encoder = encoder
        self._primacy = primacy
        self._plan = plan
        self._registry = registry
        self._encoder_thread, *self._creators = threads
        self._first_pause_s, self._pause_s_max = pauses_s
        self._on_confirmed = on_confirmed
        self._on_unreadable = on_unreadable
        self._on_fenced = on_fenced
        self._on_result = on_result
        self.flights: deque[Flight] = deque()
        self.tails: dict[str, Tail] = {}
        """The tails of all topics that are shipped, of what is confirmed."""
        self.sent_ns = time.monotonic_ns()
        """When the last tick was begun."""
        self.next_number = after(taken.takeover)
        self.last_number = taken.takeover.number
        """The number of the last tick that is confirmed."""
        self.shipped_bytes = 0
        self.shipped_ticks = 0

    @property
    def epoch(self) -> int:
        return self.takeover.epoch

    @property
    def is_full(self) -> bool:
        """True if no more ticks may be on their way."""
        return len(self.flights) >= WINDOW

    @property
    def topics(self) -> set[str]:
        """The topics with pieces on their way."""
        return {waiting.piece.uuid for flight in self.flights for waiting in flight.pieces}

    @property
    def oldest_ns(self) -> int:
        """Since when the oldest piece on its way waits, 0 for none."""
        times = [waiting.message.oldest_ns for flight in self.flights for waiting in flight.pieces]
        return min(times, default=0)

    def retry(self, now_ns: int) -> None:
        """Create the ticks again whose pause is over."""
        for flight in self.flights:
            if flight.retry_ns and now_ns >= flight.retry_ns:
                flight.retry_ns = 0
                self._create(flight)

    def begin(self, pieces: Sequence[WaitingPiece], *, is_last: bool = False) -> None:
        """Begin the next tick."""
        self.sent_ns = time.monotonic_ns()
        number = self.next_number
        self.next_number += 1
        registry = self._registry.take(number)
        terms = self._primacy.terms
        flight = Flight(
            number, pieces, self._first_pause_s, registry, terms=terms, is_last=is_last,
            first_ns=boot_ns(),
        )  # fmt: skip
        self.flights.append(flight)
        index = Index(
            kind=TICK,
            number=number,
            epoch=self.epoch,
            archive=self.takeover.archive,
            copy=self.ship_log.copy,
            host=socket.gethostname(),
            time_ns=time.time_ns(),
            previous="",
            takeover=self.takeover.number,
            registry=(),
            registry_number=self._registry.number,
            pieces=(),
            addresses=self._primacy.addresses,
            lease_ms=terms.lease_ns // 1_000_000,
            is_released=is_last,
        )
        self._encoder_thread.submit(
            partial(self._encoded, flight),
            partial(
                self._encoder.encode,
                index,
                [(waiting.piece, waiting.message) for waiting in pieces],
                registry.data if registry is not None else b"",
                self._registry.current.shipped,
            ),
        )

    def end(self) -> list[WaitingPiece]:
        """Confirm nothing any more. Return the pieces on their way."""
        pieces = [waiting for flight in self.flights for waiting in flight.pieces]
        self.flights.clear()
        return pieces

    def _encoded(self, flight: Flight, result: Any) -> None:
        if flight not in self.flights:
            return
        if not isinstance(result, Encoded):
            raise result
        flight.tick, flight.tails = result.tick, result.tails
        for number, why in result.failed.items():
            self._on_unreadable(flight.pieces[number], why)
        flight.pieces = [
            waiting for number, waiting in enumerate(flight.pieces) if number not in result.failed
        ]
        self._create(flight)

    def _create(self, flight: Flight) -> None:
        tick = flight.tick
        assert tick is not None
        thread = min(self._creators, key=lambda thread: thread.pending)
        flight.began_ns = time.monotonic_ns()
        thread.submit(partial(self._created, flight), partial(self.ship_log.create, tick))

    def _created(self, flight: Flight, result: Any) -> None:
        if flight not in self.flights:
            return
        now = time.monotonic_ns()
        if isinstance(result, Fenced):
            self._on_fenced(str(result))
            return
        if isinstance(result, (StorageError, OSError)):
            self._on_result(result)
            flight.retry_ns = now + int(flight.pause_s * NS_PER_S)
            flight.pause_s = min(2 * flight.pause_s, self._pause_s_max)
            return
        if isinstance(result, Exception):
            raise result
        self._plan.uploaded(now - flight.began_ns)
        self._on_result(None)
        flight.is_done = True
        while self.flights and self.flights[0].is_done:
            self._confirm(self.flights.popleft(), now)

    def _confirm(self, flight: Flight, now_ns: int) -> None:
        """Note that a tick exists, and all before it."""
        assert flight.tick is not None
        self.shipped_bytes += len(flight.tick.data)
        self.shipped_ticks += 1
        self.last_number = flight.number
        self._primacy.exists(flight.first_ns, flight.terms)
        if flight.registry is not None:
            self._registry.shipped(flight.registry)
        self.keep_tails(flight.tails)
        self._on_confirmed(flight, now_ns)

    def keep_tails(self, tails: dict[str, Tail]) -> None:
        """Keep those tails whose topics are shipped."""
        shipped = self._registry.current.shipped
        self.tails = {uuid: tail for uuid, tail in tails.items() if uuid in shipped}
