"""Where a channel's next block comes from: its topic's hands, or storage. Pure.

States, as one table. A block carries its offset, so pushes and reads cannot be confused.

    OFF       no consumer wants anything: no blocks are held, none are sent
    ATTACHED  the topic pushes blocks as they become durable, within a credit of bytes
    BEHIND    what is next lies in storage only; nothing asked yet (no room)
    READING   a Fetch is out

A channel that is moved to another offset reads from there, and takes no answer to what it asked before.

Credit is a running total since the link began (granted and sent both only grow), so that words crossing each other on
the way cannot grant the same bytes twice.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from ...transport.wire.protocol import Attach, Credit, Fetch
from ..settings.options import WINDOW_BYTES_MAX


class FeedState(Enum):
    OFF = "off"
    ATTACHED = "attached"
    BEHIND = "behind"
    READING = "reading"


TRANSITIONS: Final[dict[FeedState, dict[str, FeedState]]] = {
    FeedState.OFF: {"wanted": FeedState.ATTACHED, "unwanted": FeedState.OFF, "behind": FeedState.OFF, "moved": FeedState.OFF},
    FeedState.ATTACHED: {
        "wanted": FeedState.ATTACHED,
        "unwanted": FeedState.OFF,
        "behind": FeedState.BEHIND,
        "moved": FeedState.BEHIND,
    },
    FeedState.BEHIND: {
        "wanted": FeedState.BEHIND,
        "unwanted": FeedState.OFF,
        "behind": FeedState.BEHIND,
        "moved": FeedState.BEHIND,
        "fetch": FeedState.READING,
    },
    FeedState.READING: {
        "wanted": FeedState.READING,
        "unwanted": FeedState.OFF,
        "behind": FeedState.READING,
        "moved": FeedState.BEHIND,
        "read": FeedState.BEHIND,
        "caught_up": FeedState.ATTACHED,
    },
}


class Feed:
    """Decides what to ask for next; `request` numbers tell answers to old questions from the present one."""

    __slots__ = ("_attach", "_channel", "_request", "granted", "received", "state")

    def __init__(self, channel: str) -> None:
        self._channel = channel
        self._request = 0
        self._attach = False  # an Attach must go out
        self.granted = 0
        self.received = 0
        self.state = FeedState.OFF

    def _go(self, event: str) -> None:
        self.state = TRANSITIONS[self.state][event]

    def wanted(self, is_wanted: bool) -> Attach | None:
        """Some consumer has credit, or none has any more. On the latter the topic is told to send nothing."""
        before = self.state
        self._go("wanted" if is_wanted else "unwanted")
        if before is FeedState.OFF and self.state is FeedState.ATTACHED:
            self._attach = True
        if before is FeedState.ATTACHED and self.state is FeedState.OFF:
            return Attach(self._channel, -1, 0)
        return None

    def came(self, size: int) -> bool:
        """Blocks of `size` bytes came from the topic; True if they are to be looked at."""
        self.received += size
        return self.state is FeedState.ATTACHED

    def behind(self) -> None:
        """The topic does not hold what is next (it said so, or sent a later block)."""
        self._go("behind")

    def moved(self) -> None:
        """The channel goes on at another offset."""
        self._go("moved")

    def read(self, request: int, caught_up: bool) -> bool:
        """An answer to a Fetch; False for one that nobody waits for."""
        if self.state is not FeedState.READING or request != self._request:
            return False
        self._go("caught_up" if caught_up else "read")
        if caught_up:
            self._attach = True
        return True

    def next_word(self, next_offset: int, window_bytes: int, request: int) -> Attach | Credit | Fetch | None:
        """What to send now, given the offset that is next and how much is held. `request` is used if it is a Fetch."""
        room = WINDOW_BYTES_MAX - window_bytes
        if self.state is FeedState.ATTACHED:
            if self._attach:
                self._attach = False
                self.granted = self.received + max(room, 1)
                return Attach(self._channel, next_offset, self.granted)
            if self.received + room - self.granted >= WINDOW_BYTES_MAX // 4:
                self.granted = self.received + room
                return Credit(self.granted)
        elif self.state is FeedState.BEHIND and room >= WINDOW_BYTES_MAX // 2:
            self._go("fetch")
            self._request = request
            return Fetch(request, next_offset, room)
        return None
