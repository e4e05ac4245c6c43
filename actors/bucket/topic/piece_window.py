"""Piece window: the pieces of one stream that are on their way to the log of ticks.

The log of ticks takes the pieces of a stream in their order. If one is lost, a new stream begins.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from ....transport.wire import protocol as p

PIECES_MAX: Final = 8  # pieces that are on their way at once
OUT_BYTES_MAX: Final = 16 * 1024 * 1024


@dataclass(slots=True)
class Shipped:
    """Progress of one topic: what the log of ticks has of it.

    `end` is the offset below which it has all messages, and `serial` that of its last entry of the
    change queue. A topic that is not `is_caught_up` was never in the log, and is not held up until
    it is there completely.
    """

    end: int = -1
    serial: int = 0
    is_caught_up: bool = True


@dataclass(slots=True)
class Sent:
    """A piece on its way. `place` is where its ranges end, and `serial` its last entry."""

    message: p.Ship
    place: tuple[int, int]
    serial: int
    request: int = 0
    size: int = 0


@dataclass(slots=True)
class PieceWindow:
    """The pieces of one stream. `serial` is that of the last entry that they have.

    With `lacks_base`, the log of ticks has nothing of this topic, and no piece has all rows yet.
    """

    serial: int = 0
    lacks_base: bool = False
    stream: int = field(default_factory=lambda: random.getrandbits(62))
    sequence: int = 0  # of the last piece
    out: deque[Sent] = field(default_factory=deque)

    @property
    def is_full(self) -> bool:
        return len(self.out) >= PIECES_MAX or sum(sent.size for sent in self.out) >= OUT_BYTES_MAX

    @property
    def oldest_ns(self) -> int:
        """Since when the oldest part of the pieces waits (monotonic), 0 for none."""
        return self.out[0].message.oldest_ns if self.out else 0

    def take_up_to(self, sequence: int) -> list[Sent]:
        """Remove the pieces that the log of ticks has, and return them."""
        arrived = []
        while self.out and self.out[0].message.sequence <= sequence:
            arrived.append(self.out.popleft())
        return arrived
