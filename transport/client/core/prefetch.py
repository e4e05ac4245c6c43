"""Prefetch: the messages that a consumer holds and that its program has not taken. No I/O.

A message is *held* until the program takes it: `receive` returns it, a loop yields it, or `run`
gives it to the handler. From then on it is *begun*. The engine reports what was begun
(`ConsumerSession.report`), and the lease of a message runs from that report on. Held messages have
no lease. They can be given back at any time, because the program has not seen them (`give_back`).

Taking a message costs one `popleft` and one test of a flag. What was begun is not counted for each
message. It follows from how many messages of a delivery still wait here.

The window is the number of messages that a consumer asks for. It is what the handlers need for
BUFFER_S, so a fast loop has thousands of messages at hand, and a slow handler keeps none from other
consumers. A handler that becomes slow makes the window small at once. One that becomes fast makes
it large within a few messages.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from ...wire.protocol import READY_MAX
from .consumer_session import ConsumerSession, LeasedBlock

READY_MOST: Final = 2500
"""The largest window. A larger one makes nothing faster, as measured with blocks of 1,000."""

BUFFER_S: Final = 1.0
LEASE_SHARE: Final = 10
"""No message waits in a window longer than this share of its lease."""

_KEPT: Final = 0.8  # how much of the old estimate stays when a handler was faster


class Window:
    """The number of messages that a consumer asks for.

    With a `fixed` number, it is always that. Otherwise it follows the handlers: `_width` of them
    work at a time, and each takes `_message_s` for a message. Until that is measured, the window is
    the width. Before the program asks for the first message, it is 0.
    """

    def __init__(self, fixed: int | None) -> None:
        self.fixed = fixed
        self._width = 0
        self._message_s = 0.0
        self._takes_batches = False

    def open(self, width: int) -> None:
        """Begin to ask for messages. Up to `width` are handled at a time."""
        self._width = max(self._width, width)

    def open_for_batches(self) -> None:
        """Ask for as much as is useful, because the program takes whole deliveries."""
        self._width = max(self._width, 1)
        self._takes_batches = True

    def handled(self, seconds: float, messages: int = 1) -> None:
        """Note that a handler has taken so long for so many messages."""
        one_s = max(seconds / messages, 1e-9)
        self._message_s = max(one_s, self._message_s * _KEPT + one_s * (1 - _KEPT))

    def credit(self, in_hand: int, lease_s: float, buffer_s: float = 0.0) -> int:
        """Return how many messages to ask for.

        `in_hand` is how many messages the program has taken and not answered. They take nothing
        away from the window. `buffer_s` is the time that a channel asks for instead of BUFFER_S, or
        0: a fair one asks for less, because what a consumer holds goes before a new key.
        """
        if self.fixed is not None:
            return self.fixed
        if not self._width:
            return 0
        ahead = 0
        if self._takes_batches:
            ahead = READY_MOST
        elif self._message_s:
            buffer_s = min(buffer_s or BUFFER_S, lease_s / LEASE_SHARE)
            ahead = int(min(buffer_s * self._width / self._message_s, READY_MOST))
        most = min(max(READY_MOST, self._width), READY_MAX)
        return min(most, max(self._width, in_hand) + ahead)


class Prefetch:
    """The messages that wait in a consumer, in the order in which they were delivered.

    Any thread may take `messages` from the left, and may call `fill`. The other methods are called
    under the lock of the engine. What they find may be older than what other threads do meanwhile.
    Then a message counts as held that was just taken, and never the other way round.
    """

    def __init__(self, messages: deque[Any] | None = None) -> None:
        self.messages: deque[Any] = deque() if messages is None else messages
        # True while messages may have been taken since the last report, and a report is planned.
        self.is_due = False
        self._filled: deque[LeasedBlock] = deque()  # deliveries with messages here
        self._lock = threading.Lock()

    def fill(self, delivery: LeasedBlock, messages: Sequence[Any]) -> None:
        """Add the messages of a delivery."""
        # The order matters: a delivery whose messages were not there yet would look taken.
        with self._lock:
            self.messages.extend(messages)
            self._filled.append(delivery)

    def clear(self) -> None:
        with self._lock:
            self.messages.clear()
            self._filled.clear()

    def note_taken(self) -> None:
        """Note for each delivery how many of its messages were taken."""
        self.is_due = False
        # The deliveries come first. Otherwise one that is filled in between would look taken.
        filled = tuple(self._filled)
        waiting = len(self.messages)
        for delivery in reversed(filled):
            kept = min(waiting, delivery.kept)
            waiting -= kept
            delivery.take(delivery.kept - kept)
        while self._filled and self._filled[0].taken >= self._filled[0].kept:
            self._filled.popleft()

    def give_back(
        self, session: ConsumerSession, count: int
    ) -> list[tuple[LeasedBlock, list[int]]]:
        """Remove up to `count` messages of this session, the last ones first, and return them."""
        returned: dict[int, tuple[LeasedBlock, list[int]]] = {}
        others: list[Any] = []
        with self._lock:
            while count > 0:
                try:
                    message = self.messages.pop()
                except IndexError:
                    break
                delivery: LeasedBlock = message._batch.delivery
                if delivery.session is not session:
                    others.append(message)
                    continue
                delivery.kept -= 1
                returned.setdefault(delivery.token, (delivery, []))[1].append(message._index)
                count -= 1
            self.messages.extend(reversed(others))
        return list(returned.values())
