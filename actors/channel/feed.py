"""Feed: selects the source of a channel's next block, its topic or the topic's storage. No I/O.

A block carries its offset, so blocks from the topic and from the storage cannot be confused.

    OFF       no consumer wants messages: no blocks are held, and none are sent
    ATTACHED  the topic sends blocks as they become durable, within a credit of bytes
    BEHIND    the next block is only in the storage, and is not requested yet (no room)
    READING   a Fetch is unanswered

A channel that moves to another offset reads from there, and ignores replies to earlier requests.

Credit is a running total since the link was opened. The granted total and the sent total only grow,
so messages that cross each other on the way cannot grant the same bytes twice.
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
    FeedState.OFF: {
        "wanted": FeedState.ATTACHED,
        "unwanted": FeedState.OFF,
        "behind": FeedState.OFF,
        "moved": FeedState.OFF,
    },
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
    """Selects the next request for blocks.

    `request` numbers distinguish replies to old requests from the reply to the present one.
    """

    __slots__ = ("_attach", "_channel", "_request", "granted", "received", "state")

    def __init__(self, channel: str) -> None:
        self._channel = channel
        self._request = 0
        self._attach = False  # an Attach must be sent
        self.granted = 0
        self.received = 0
        self.state = FeedState.OFF

    def _go(self, event: str) -> None:
        self.state = TRANSITIONS[self.state][event]

    def wanted(self, is_wanted: bool) -> Attach | None:
        """Note whether some consumer has credit.

        If no consumer has credit, return the message that tells the topic to stop sending.
        """
        before = self.state
        self._go("wanted" if is_wanted else "unwanted")
        if before is FeedState.OFF and self.state is FeedState.ATTACHED:
            self._attach = True
        if before is FeedState.ATTACHED and self.state is FeedState.OFF:
            return Attach(self._channel, -1, 0)
        return None

    def came(self, size: int) -> bool:
        """Note that blocks of `size` bytes came from the topic.

        Return True if they are to be used.
        """
        self.received += size
        return self.state is FeedState.ATTACHED

    def behind(self) -> None:
        """Note that the topic does not hold the next block. It reported this, or sent a later
        one.
        """
        self._go("behind")

    def moved(self) -> None:
        """Note that the channel continues at another offset."""
        self._go("moved")

    def read(self, request: int, caught_up: bool) -> bool:
        """Note the reply to a Fetch. Return False if this reply is not awaited."""
        if self.state is not FeedState.READING or request != self._request:
            return False
        self._go("caught_up" if caught_up else "read")
        if caught_up:
            self._attach = True
        return True

    def next_word(
        self, next_offset: int, window_bytes: int, request: int
    ) -> Attach | Credit | Fetch | None:
        """Return the message to send now, if any.

        `next_offset` is the next offset that is needed, and `window_bytes` is the size of the
        blocks held. `request` is used if the message is a Fetch.
        """
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
