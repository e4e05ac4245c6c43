"""An actor's way to publish to another topic: the client library's engine, turned by the actor's own loop.

The engine never waits (`transport/engine.py`), so it needs no thread: its epoll set is one more thing that the loop listens to. Rejected:
a thread with a blocking Producer. It would have to be stopped while it waits for a topic that is down; an actor that ends does not wait.

Everything is made at the first publish and let go when nothing was published for a while: a thousand channels that have no dead letters
pay nothing for it.
"""

from __future__ import annotations

import os.path
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..transport.address import Address
from ..transport.block import Block
from ..transport.lane import ProducerEngine
from ..transport.session import Parcel

_ROUNDS_MAX = 8  # of work that is due at once, in one turn


class Publisher:
    """`endpoint`: any of the actor's own; the supervisor listens in the same directory. `listen`, `ignore`: to be woken by a descriptor."""

    def __init__(self, endpoint: str, idle_s: float, listen: Callable[[Any], None], ignore: Callable[[Any], None]) -> None:
        self._address = Address(os.path.dirname(endpoint), True)
        self._idle_ns = int(idle_s * 1e9)
        self._listen = listen
        self._ignore = ignore
        self._engine: ProducerEngine | None = None
        self._used_ns = 0

    def publish(self, topic: str, blocks: Sequence[Block]) -> list[Parcel]:
        """Hand them over; returns at once. `UsageError` for a name that cannot be."""
        if self._engine is None:
            self._engine = ProducerEngine(self._address, 0, 1, 1, None)
            self._listen(self._engine.epoll.fileno())
        now = self._used_ns = time.monotonic_ns()
        lane = self._engine.lane(topic)
        parcels = [Parcel(block) for block in blocks]
        for parcel in parcels:
            lane.push(parcel, now)
        return parcels

    def turn(self) -> None:
        """Take in what came, do what is due: each turn of the loop."""
        engine = self._engine
        if engine is None:
            return
        for _ in range(_ROUNDS_MAX):
            engine.turn(engine.epoll.poll(0))
            if engine.due_ns > time.monotonic_ns():
                break
        engine.failed.clear()  # parcels tell it
        if engine.unanswered:
            self._used_ns = time.monotonic_ns()
        elif time.monotonic_ns() - self._used_ns > self._idle_ns:
            self.stop()

    @property
    def open(self) -> bool:
        return self._engine is not None

    def trouble(self) -> str:
        return "" if self._engine is None else self._engine.trouble()

    def stop(self) -> None:
        """Say goodbye, and forget what was not answered."""
        engine, self._engine = self._engine, None
        if engine is not None:
            self._ignore(engine.epoll.fileno())
            engine.stop(linger_ms=200)
            engine.epoll.close()
