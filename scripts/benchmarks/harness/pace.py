"""Timetable of an open-loop load, and the times at which its messages were sent and arrived. The
module does no I/O, except that it reads the clock.

A publisher that waits for each answer sends less while the broker stalls. It then never measures
the messages that it would have sent (coordinated omission). Here a message is due at a time that is
fixed before the run. It is sent at that time, even if earlier messages are unanswered, and its
latency counts from that time.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

OUTSTANDING: Final = 4_000  # the most unanswered messages of a closed loop
LEAD_S: Final = 0.3  # seconds from the common start of the processes to the first message
# Seconds after the last message is due. Until then it must be answered and must have arrived.
GRACE_S: Final = 30.0
CLOSED_S_MAX: Final = 60.0  # the time limit for sending all messages of a closed loop
BURST: Final = 500  # messages sent in a row before answers are read
NUMBER: Final = 16  # digits at the beginning of each body
SHARES: Final = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "p99.99": 0.9999}
BEYOND: Final = 10  # messages that must lie beyond a percentile for it to be known

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Load:
    """The messages of one run. They are numbered from 0.

    With a `rate`, message n is due n / `rate` seconds after the start. A `rate` of 0 means a closed
    loop: a message is sent as soon as fewer than `OUTSTANDING` messages are unanswered.
    """

    count: int
    size: int
    rate: float = 0.0

    def due_s(self, number: int) -> float:
        """Return the seconds from the start until this message is due, or 0 in a closed loop."""
        return number / self.rate if self.rate else 0.0

    def allowed(self, passed_s: float, answered: int) -> int:
        """Return how many messages the publisher may send in the first `passed_s` seconds."""
        if passed_s < 0:
            return 0
        return min(
            self.count, int(passed_s * self.rate) + 1 if self.rate else answered + OUTSTANDING
        )

    @property
    def end_s(self) -> float:
        """Seconds from the start until all messages must have arrived."""
        return (self.due_s(self.count) or CLOSED_S_MAX) + GRACE_S

    def body(self, number: int) -> bytes:
        return b"%0*d" % (NUMBER, number) + bytes(self.size - NUMBER)


class Arrivals:
    """The time at which the handler got each message for the first time."""

    def __init__(self, load: Load, begin: float, clock: Clock = time.monotonic) -> None:
        self.load = load
        self.count = 0
        # By the number of the message. The time is 0 if the message has not arrived.
        self.times = array("d", bytes(8 * load.count))
        self._begin = begin
        self._clock = clock

    def add(self, body: bytes) -> None:
        """Handle one message. A message that comes again is not counted."""
        number = int(body[:NUMBER])
        if not self.times[number]:
            self.times[number] = self._clock()
            self.count += 1

    @property
    def over(self) -> bool:
        """True when all messages have arrived, or when it is too late for the others."""
        return self.count == self.load.count or self._clock() - self._begin > self.load.end_s


@dataclass(frozen=True, slots=True)
class Sent:
    """The result of a publisher.

    `lags` are the seconds by which each message was sent too late. `answered` is True if every
    message was acknowledged before the end of the run.
    """

    lags: array[float]
    answered: bool


def latencies(load: Load, begin: float, times: array[float]) -> list[float]:
    """Return the seconds from the time at which each message was due, in ascending order."""
    return sorted(at - begin - load.due_s(number) for number, at in enumerate(times))


def known(count: int) -> dict[str, float]:
    """Return the percentiles that can be known from `count` messages.

    At least `BEYOND` messages must lie beyond a percentile. With fewer, it would depend on a few
    single messages.
    """
    return {name: share for name, share in SHARES.items() if count >= round(BEYOND / (1 - share))}
