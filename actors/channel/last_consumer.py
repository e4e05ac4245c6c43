"""End of an `#ephemeral` channel, which its last consumer causes. No I/O."""

from __future__ import annotations

from ...transport.units import NS_PER_S
from ..settings import options


class LastConsumer:
    """Detects when an `#ephemeral` channel ends.

    The channel ends when its last consumer has left, or when no consumer subscribed in time.

    `over` is True once the channel takes no more consumers. It never becomes False again, because
    the supervisor may already be removing the channel. A later consumer gets a new channel. The
    supervisor is notified repeatedly, because it ignores the notice while the topic is not up.
    """

    def __init__(self, now_ns: int) -> None:
        self.over = False
        self._had_one = False
        self._until_ns = now_ns + int(options.EPHEMERAL_UNUSED_S * NS_PER_S)
        self._say_ns = 0

    def look(self, consumers: int, now_ns: int) -> bool:
        """Return True if the supervisor must be notified now.

        Call it once at the end of each turn.
        """
        if consumers and not self.over:
            self._had_one = True
        elif self._had_one or now_ns >= self._until_ns:
            self.over = True
        if not self.over or now_ns < self._say_ns:
            return False
        self._say_ns = now_ns + NS_PER_S
        return True
