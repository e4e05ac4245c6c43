"""What one receiver of alarms is still to be told: a bounded queue, tries with growing pauses, and an end to them. Pure.

| comes | then |
|---|---|
| events | they wait; beyond WAITING_MAX the oldest are given up, and counted |
| `begin` (idle, not pausing) | what waits, up to BATCH_MAX, goes out together as one try |
| the try went well | it is told; the next begins at once |
| it failed | the same again after 1, 2, 4 ... s (newer events wait behind it); after TRIES_MAX tries it is given up, and counted |

A receiver that is away for longer misses events, but never the present state: the next one tells how many were given up.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

WAITING_MAX: Final = 1_000
BATCH_MAX: Final = 100
TRIES_MAX: Final = 6
PAUSE_S: Final = 1.0  # after the first try; doubled by each further one: all in all half a minute
_S: Final = 1_000_000_000


class Outbox:
    """One receiver's. Times are monotonic."""

    def __init__(self) -> None:
        self._waiting: deque[dict[str, Any]] = deque()
        self._out: list[dict[str, Any]] = []
        self._tries = 0
        self._due_ns = 0
        self._busy = False
        self.missed = 0  # given up since one went well: the next try says so
        self.told_count = 0
        self.given_up_count = 0
        self.trouble = ""  # of the last try

    def add(self, events: list[dict[str, Any]]) -> None:
        self._waiting.extend(events)
        while len(self._waiting) > WAITING_MAX:
            self._waiting.popleft()
            self._count_lost(1)

    def begin(self, now_ns: int) -> list[dict[str, Any]]:
        """What is to be tried now; [] for nothing. `went` must follow."""
        if self._busy or now_ns < self._due_ns:
            return []
        if not self._out:
            while self._waiting and len(self._out) < BATCH_MAX:
                self._out.append(self._waiting.popleft())
        self._busy = bool(self._out)
        return list(self._out)

    def went(self, trouble: str, now_ns: int) -> bool:
        """How the try went ("": well). True: what it told of is given up."""
        assert self._busy
        self._busy = False
        self.trouble = trouble
        self._tries += 1
        if not trouble:
            self.told_count += len(self._out)
            self.missed = 0
        elif self._tries < TRIES_MAX:
            self._due_ns = now_ns + int(PAUSE_S * 2 ** (self._tries - 1) * _S)
            return False
        else:
            self._count_lost(len(self._out))
        self._out = []
        self._tries = 0
        self._due_ns = 0
        return bool(trouble)

    def _count_lost(self, count: int) -> None:
        self.missed += count
        self.given_up_count += count

    def idle(self) -> bool:
        return not self._busy

    def statistics(self) -> dict[str, Any]:
        return {
            "told_count": self.told_count,
            "waiting": len(self._waiting) + len(self._out),
            "given_up_count": self.given_up_count,
            "trouble": self.trouble,
        }
