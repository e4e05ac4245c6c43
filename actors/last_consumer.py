"""When an `#ephemeral` channel is over: its last consumer has left, or none came in time. Pure.

It stays over, whoever comes then: the supervisor may be taking it away already, and gives them a new one. The word that says so is
repeated, for it may meet a topic that is on its way up or down.
"""

from __future__ import annotations

from . import options

_NS = 1_000_000_000


class LastConsumer:
    """`over`: no consumer is taken any more."""

    def __init__(self, now_ns: int) -> None:
        self.over = False
        self._had_one = False
        self._until_ns = now_ns + int(options.EPHEMERAL_UNUSED_S * _NS)
        self._say_ns = 0

    def look(self, consumers: int, now_ns: int) -> bool:
        """Once a turn, after all that came in it. True: tell the supervisor now."""
        if consumers and not self.over:
            self._had_one = True
        elif self._had_one or now_ns >= self._until_ns:
            self.over = True
        if not self.over or now_ns < self._say_ns:
            return False
        self._say_ns = now_ns + _NS
        return True
