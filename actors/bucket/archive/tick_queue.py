"""Tick queue: the pieces of all topics that are in no tick yet, and when the next tick takes them.

`tick_plan.py` has the rules. The queue holds what a topic has sent, and not the log: that one waits
on the disk.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ....storage.bucket.shipping.tick_format import TICK_BYTES, Piece
from ....transport.wire import protocol as p
from ...runtime.port import Envelope
from .tick_plan import NEVER, Crowd, TickPlan


@dataclass(frozen=True, slots=True)
class WaitingPiece:
    """A piece with the request that its topic waits for."""

    envelope: Envelope
    message: p.Ship
    piece: Piece

    @property
    def size(self) -> int:
        return max(1, self.piece.size)


class TickQueue:
    """The pieces that wait, in the order of their arrival."""

    def __init__(self, plan: TickPlan) -> None:
        self._plan = plan
        self._crowd = Crowd()
        self._pieces: deque[WaitingPiece] = deque()
        self._size = 0
        self.changes = 0
        """The bytes of changes of these pieces."""
        self._urgent = 0
        self.oldest_ns = 0
        """Since when the oldest of them waits, 0 if none waits."""
        self.hurries = False
        """True if each piece goes at once, because the broker stops."""

    def __bool__(self) -> bool:
        return bool(self._pieces)

    @property
    def topics(self) -> set[str]:
        return {waiting.piece.uuid for waiting in self._pieces}

    def add(self, waiting: WaitingPiece, now_ns: int) -> None:
        message = waiting.message
        self._pieces.append(waiting)
        self._size += waiting.size
        self.changes += len(message.changes)
        self._urgent += message.is_urgent
        self.oldest_ns = min(self.oldest_ns or message.oldest_ns, message.oldest_ns)
        self._crowd.came(message.uuid, now_ns, self._plan)

    def is_due(self, now_ns: int, flights: int, last_ns: int) -> bool:
        """Return True if a tick must go now. The last one went at `last_ns`, and `flights` are on
        their way.
        """
        if not self._pieces:
            return False
        due_ns = self._plan.due_ns(
            self._size,
            self.oldest_ns,
            self.hurries or self._urgent > 0,
            flights,
            is_complete=self._crowd.is_complete(now_ns, self._plan),
            last_ns=last_ns,
        )
        return due_ns != NEVER and due_ns <= now_ns

    def take(self) -> list[WaitingPiece]:
        """Remove the pieces of the next tick, and return them."""
        pieces: list[WaitingPiece] = []
        size = 0
        while self._pieces and (not pieces or size + self._pieces[0].size <= TICK_BYTES):
            waiting = self._pieces.popleft()
            pieces.append(waiting)
            size += waiting.size
            self.changes -= len(waiting.message.changes)
            self._urgent -= waiting.message.is_urgent
        self._size -= size
        self.oldest_ns = min((waiting.message.oldest_ns for waiting in self._pieces), default=0)
        return pieces

    def clear(self) -> list[WaitingPiece]:
        """Remove all pieces, and return them."""
        pieces = list(self._pieces)
        self._pieces.clear()
        self._size = self.changes = self._urgent = self.oldest_ns = 0
        return pieces
