"""Parts of shipping that its users need too: states, pieces on their way, and threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from ....storage.errors import StorageError, StoreFailed
from ....transport.wire import protocol as p


class ShippingState(Enum):
    CLOSED = "closed"
    OPENING = "opening"
    OPEN = "open"
    FENCED = "fenced"
    OFF = "off"


@dataclass(slots=True)
class Sent:
    """A piece on its way. `place` is where its ranges end, and `serial` its last entry."""

    message: p.Ship
    place: tuple[int, int]
    serial: int
    request: int = 0
    size: int = field(default=0)


class Threads(Protocol):
    """The threads that own the stores: each runs a job with its store, in order with commits."""

    def read_state(self, job: Callable[[Any], Any], then: Callable[[Any], None]) -> None: ...

    def read_delayed(self, job: Callable[[Any], Any], then: Callable[[Any], None]) -> None:
        """Run a job. Its argument is None if the topic has no delayed messages."""
        ...


def check_dump(value: Any) -> None:
    """Raise `StoreFailed` if a dump failed. The process ends then, and recovers."""
    if isinstance(value, (StorageError, OSError)):
        raise StoreFailed(f"the rows of a store cannot be read: {value}") from value
    if isinstance(value, Exception):
        raise value
