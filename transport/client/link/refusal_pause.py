"""Refusal pause: pauses before a request is sent again that the broker has refused."""

from __future__ import annotations

import random
from typing import Final

MS: Final = 1_000_000
REFUSED_MS: Final = 10  # the pause after a refusal; each further refusal doubles it
REFUSED_MS_MAX: Final = 1_000
REFUSED_FORGOTTEN_MS: Final = 10_000  # a refusal so long after the last pause counts as the first


class RefusalPause:
    """Pause after refusals: 10 ms, doubled by each refusal up to 1 s, with jitter.

    Without it, a caller that tries again at once sends thousands of requests a second to a broker
    in trouble.
    """

    __slots__ = ("_count", "until_ns")

    def __init__(self) -> None:
        self.until_ns = 0  # no request is sent before this time
        self._count = 0

    def refused(self, now_ns: int) -> None:
        """Note a refusal.

        Replies to requests that were sent before the pause began do not lengthen it.
        """
        if now_ns < self.until_ns:
            return
        if now_ns > self.until_ns + REFUSED_FORGOTTEN_MS * MS:
            self._count = 0
        pause_ms = min(REFUSED_MS_MAX, REFUSED_MS << min(self._count, 7)) * random.uniform(0.5, 1.0)
        self._count += 1
        self.until_ns = now_ns + int(pause_ms * MS)

    def ended(self) -> None:
        """Note a success."""
        self.until_ns = self._count = 0
