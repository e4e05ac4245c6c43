"""Watch: decides when a link that is up sends a heartbeat, and when it is silent. No I/O.

A heartbeat is due when one side was silent for an interval, and when an answer is late. A link is
dead when nothing arrived for two intervals, and less than `MOVED_BYTES_MIN` of a large frame moved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .timeouts import FAR_NS, MS

MOVED_BYTES_MIN: Final = 4_096
# When an answer is so late, the link sends a heartbeat, which each broker answers at once. While
# these are answered, and something else is not, there is one in so long a time.
ASK_NS: Final = 500 * MS
ASK_AGAIN_NS: Final = 5_000 * MS
# A broker that answers heartbeats may need long for one request. This is logged later.
BUSY_NS: Final = 10_000 * MS
# How long a heartbeat has had no answer, and nothing else came, until a second try begins.
SILENT_NS: Final = 1_000 * MS


class Watch:
    """Times at which a link that is up has sent and received.

    - `sent_ns`: When something was sent last before the link was up. That was the greeting, if the
      link has one. The peer has heard nothing since.
    - `bytes_moved`: A function that returns the bytes that its connection has moved so far, or 0
      if that is not known.
    """

    __slots__ = (
        "_alive_ns",
        "_asked_ns",
        "_beat_ns",
        "_bytes_moved",
        "_expected_ns",
        "_moved",
        "_moved_ns",
        "_sent_ns",
        "heard_ns",
        "is_silent",
    )

    def __init__(self, now_ns: int, sent_ns: int, bytes_moved: Callable[[], int]) -> None:
        self._bytes_moved = bytes_moved
        self._sent_ns = sent_ns
        self.heard_ns = now_ns  # the last sign of life
        self._asked_ns = sent_ns  # when something was sent first, since the last message arrived
        self._beat_ns = 0  # when the last heartbeat was sent
        self._expected_ns = 0  # since when an answer is due that has not come, else 0
        self._alive_ns = 0  # when something arrived last after a heartbeat was sent
        # The bytes that had moved at the first heartbeat of the present silence, and its time.
        self._moved = self._moved_ns = 0
        self.is_silent = False  # True if a heartbeat has had no answer for `ASK_NS`

    def sent(self, now_ns: int) -> None:
        """Note that something is sent."""
        self._sent_ns = now_ns
        if self._asked_ns <= self.heard_ns:
            self._asked_ns = now_ns

    def heard(self, now_ns: int) -> None:
        """Note that a message has arrived."""
        if self._moved_ns > self.heard_ns:
            self._alive_ns = now_ns
        self.heard_ns = now_ns
        self.is_silent = False

    def beat(self, now_ns: int) -> None:
        """Note that a heartbeat is being sent, of which `sent` is told as well."""
        if self._moved_ns <= self.heard_ns:
            self._moved, self._moved_ns = self._bytes_moved(), now_ns
        self._beat_ns = now_ns

    def is_dead(self, now_ns: int, interval_ns: int) -> bool:
        """Return True if nothing arrived for two intervals, and no large frame moves."""
        return now_ns - self.heard_ns > 2 * interval_ns and not self._moves(now_ns)

    def beat_due_ns(self, interval_ns: int) -> int:
        """Return when a heartbeat is due because one side is silent."""
        return max(min(self._sent_ns, self.heard_ns), self._beat_ns) + interval_ns

    def ask_due_ns(self, now_ns: int, answered_ns: int, *, expects: bool) -> int:
        """Return when a heartbeat is due because an answer is late, or when to look again.

        - `answered_ns`: When the last message arrived that is not a heartbeat.
        - `expects`: True if something that was sent has no answer.
        """
        if not expects:
            self._expected_ns = 0
        elif not self._expected_ns or answered_ns > self._expected_ns:
            self._expected_ns = max(self._asked_ns, self.heard_ns, now_ns - ASK_NS)
        if self._moved_ns > self.heard_ns:
            self.is_silent = now_ns >= self._moved_ns + ASK_NS
            look_ns = self._moved_ns + (SILENT_NS if self.is_silent else ASK_NS)
            return look_ns if look_ns > now_ns else FAR_NS
        if not self._expected_ns:
            return FAR_NS
        if self._beat_ns < self._asked_ns:
            return max(self.heard_ns, self._asked_ns) + ASK_NS
        return max(self.heard_ns, self._beat_ns) + ASK_AGAIN_NS

    def silent_since(self, now_ns: int) -> int:
        """Return when the first heartbeat was sent that has no answer, or 0.

        It is 0, too, if the system does not say how many bytes move.
        """
        is_known = self.is_silent and self._moved
        return self._moved_ns if is_known and not self._moves(now_ns) else 0

    def late_since(self, now_ns: int, needed: Callable[[], bool]) -> int:
        """Return since when an answer is so late that the log must say so, or `FAR_NS`."""
        if self.is_silent:
            return self._expected_ns or (self._moved_ns if needed() else FAR_NS)
        is_late = 0 < self._expected_ns <= now_ns - BUSY_NS
        return self._expected_ns if is_late else FAR_NS

    def why(self) -> str:
        """Return why an answer is late, or "" if none is."""
        if self.is_silent:
            return "nothing arrives, not even the answer to a heartbeat"
        if not self._expected_ns:
            return ""
        if self._alive_ns > self._expected_ns:
            return "it answers heartbeats; it may be busy, or wait for its disk or its bucket"
        return "no answer yet"

    def _moves(self, now_ns: int) -> bool:
        """Return True if many bytes have moved since the first heartbeat of this silence.

        On a slow link, a large frame may take longer than two heartbeats, and a heartbeat waits
        behind it. The system of a peer that hangs still acknowledges heartbeats, so few bytes are
        no sign of life.
        """
        if self._moved_ns <= self.heard_ns:
            return False
        if self._bytes_moved() - self._moved < MOVED_BYTES_MIN:
            return False
        self.heard_ns = now_ns
        self.is_silent = False
        return True
