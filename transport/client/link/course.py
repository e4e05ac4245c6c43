"""Course: where a link goes next, and how long it pauses before. No I/O.

A link tries its addresses in turn, and pauses when it has tried all of them. The pauses double. A
broker may send the link to the one that has the part (`wire/spread.py`).
"""

from __future__ import annotations

import random
from typing import Final

from ...wire.address import Address, Space
from ...wire.addresses import Rotation
from ...wire.protocol import Spread
from ...wire.spread import named_for, way_to
from .refusal_pause import RefusalPause
from .timeouts import MS

BACKOFF_MS: Final = 50
BACKOFF_MS_MAX: Final = 1_000
# A broker that requires a key closes the connection, and ZeroMQ often reports this before it has
# read the reason. So the client tries again soon after each of the first times.
HANG_UPS_MAX: Final = 30
HANG_UP_MS: Final = 10
_SILENT: Final = "which does not answer"
STRANGER: Final = "where a broker answers that does not have it"


class Course:
    """The addresses of one link, and its failures since it last reached a broker."""

    def __init__(self, rotation: Rotation) -> None:
        self.rotation = self._home = rotation
        self.refusal_pause = RefusalPause()  # of refusals
        self._failed = 0  # the number of addresses that failed since the last pause
        self._rounds = 0
        self._hang_ups = 0  # how often the peer hung up during the handshake, at any time
        self._sent_on = 0  # how often a broker has sent this link to another one
        # The addresses of the part's broker, as another broker has named them.
        self._named: frozenset[str] = frozenset()
        self._at_named = _SILENT  # what the link has found at them

    def arrived(self) -> None:
        """Note that the link has reached a broker that serves it."""
        self._rounds = self._failed = self._sent_on = 0
        self._at_named = _SILENT

    def pause_ns(self, now_ns: int, *, failed: bool) -> int:
        """Return the pause before the next attempt: 0 if the next address is not tried yet.

        `failed`: True if the last attempt has failed at its address.
        """
        self._failed += failed
        if failed and self._failed < len(self.rotation.each):
            return 0
        self._failed = 0
        pause_ms = min(BACKOFF_MS_MAX, BACKOFF_MS << min(self._rounds, 8))
        self._rounds += 1
        return max(
            int(pause_ms * random.uniform(0.5, 1.0) * MS), self.refusal_pause.until_ns - now_ns
        )

    def hang_up_pause_ns(self) -> int | None:
        """Return the pause after a handshake that was ended without a reason, if it is short."""
        if self._hang_ups >= HANG_UPS_MAX:
            return None
        self._hang_ups += 1
        return HANG_UP_MS * MS

    # Parts

    def way_to(self, part: str, spread: Spread, space: Space) -> Rotation | None:
        """Return the addresses of the part's broker, or None if they are not known."""
        return way_to(self._home.given, part, spread, space)

    def send_on(self, part: str, spread: Spread, way: Rotation | None) -> tuple[str, bool]:
        """Note that a broker sends the link on. Return where to, and True for the first time.

        The link goes there with `go`, when it has ended its attempt.
        """
        self._sent_on += 1
        self._named = frozenset(named_for(part, spread))
        where = f"at {way.each[0].url}" if way is not None else "at no broker that is known"
        is_first = self._sent_on == 1
        if way is not None and not is_first:
            where += f", {self._at_named}"
        return where, is_first

    def go(self, way: Rotation | None) -> None:
        """Try these addresses next, or without any, the addresses that the user gave."""
        self.rotation = way or self._home

    @property
    def is_astray(self) -> bool:
        """True if the broker of the part did not answer: another one has named it again."""
        return self._sent_on > 1

    def meet_stranger(self, address: Address) -> bool:
        """Return True if a broker that does not have the part may be the wrong one at its address.

        If the broker that another one has named is away, a third one may have its address by now.
        So a part that does not exist there is asked for at the other addresses, and what is said
        there counts.
        """
        if address.url not in self._named or all(
            other.url in self._named for other in self.rotation.each
        ):
            return False
        self._at_named = STRANGER
        return True
