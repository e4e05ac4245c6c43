"""Retry policies: how often a message that failed is tried again, and after which delays. Pure.

The delay depends only on the number of attempts, so a policy needs no state: it is the same after a
restart, at a standby, and for each consumer.

| curve | delay after attempt n |
|---|---|
| `exponential` | `first * 2 ** (n - 1)`, at most `maximum` |
| `linear` | `first * n`, at most `maximum` |
| `constant` | `first`, at most `maximum` |
| a list, such as `5s,1m,10m,1h` | the nth delay of the list, and the last one from then on |

Jitter makes a delay shorter, by a random share of up to `jitter` percent. Rejected: jitter that
makes delays longer. The longest delay would not be the longest, and messages that have reached it
would come again at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Final

from .durations import parse_seconds
from .errors import E_BAD_ARGUMENT, UsageError
from .records import Record, record

EXPONENTIAL: Final = "exponential"
CURVES: Final = (EXPONENTIAL, "linear", "constant")
DELAY_S_MAX: Final = 366 * 86_400.0  # the longest delay of a requeue
DELAYS_MAX: Final = 64  # the most delays of a list
JITTER_MAX: Final = 100
ATTEMPTS_MAX: Final = 65_535  # NSQ's protocol has 16 bits for the number


@lru_cache(256)
def delays_of(curve: str) -> tuple[float, ...]:
    """Return the delays of a list such as `5s,1m,10m,1h` in seconds, or () for a named curve.

    Raises `UsageError` (E_BAD_ARGUMENT).
    """
    if curve in CURVES:
        return ()
    try:
        return check_delays([parse_seconds(text) for text in curve.split(",")])
    except ValueError:
        text = f"a curve is {', '.join(CURVES)}, or delays such as 5s,1m,10m,1h, not {curve!r:.60}"
        raise UsageError(E_BAD_ARGUMENT, text) from None


def check_delays(delays: Sequence[float]) -> tuple[float, ...]:
    if not 0 < len(delays) <= DELAYS_MAX:
        text = f"a curve has 1 to {DELAYS_MAX} delays, not {len(delays)}"
        raise UsageError(E_BAD_ARGUMENT, text)
    for delay in delays:
        _check("a delay", delay, 0, DELAY_S_MAX)
    return tuple(delays)


def _check(name: str, value: object, low: float, high: float, *, whole: bool = False) -> None:
    good = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not good or not low <= value <= high:  # type: ignore[operator]
        kind = "a whole number" if whole else "a number of seconds"
        text = f"{name} must be {kind} from {low:g} to {high:.10g}, not {value!r:.40}"
        raise UsageError(E_BAD_ARGUMENT, text)


def retry_delay_s(
    curve: str | Sequence[float],
    first: float,
    maximum: float,
    jitter: int,
    attempts: int,
    draw: Callable[[], float],
) -> float:
    """Return the delay after so many attempts. `draw` returns random numbers below 1."""
    steps = max(attempts, 1) - 1
    delays = delays_of(curve) if isinstance(curve, str) else curve
    if delays:
        delay_s = delays[min(steps, len(delays) - 1)]
    elif curve == EXPONENTIAL:
        delay_s = min(maximum, first * 2.0 ** min(steps, 60))
    else:
        delay_s = min(maximum, first * (steps + 1) if curve == "linear" else first)
    return delay_s * (1 - jitter / 100 * draw()) if jitter else delay_s


@record(kw_only=True)
class Retries(Record):
    """A retry policy of one consumer, for `run(retries=...)`: it replaces the channel's backoff.

    - `max_attempts`: The message is rejected when its handler has failed so often. 0: no limit.
      The channel's own `max_attempts` applies too, so the smaller number decides.
    - `curve`: "exponential", "linear", "constant", a text such as "5s,1m,10m,1h", or a list of
      seconds and timedeltas. Of a list, the last delay is repeated.
    - `first`, `maximum`: The first and the longest delay of a named curve, in seconds.
    - `jitter`: Each delay is shortened by a random share of up to so many percent.
    """

    max_attempts: int = 0
    curve: str | Sequence[float | timedelta] = EXPONENTIAL
    first: float = 1.0
    maximum: float = 120.0
    jitter: int = 0

    def __post_init__(self) -> None:
        _check("max_attempts", self.max_attempts, 0, ATTEMPTS_MAX, whole=True)
        _check("first", self.first, 0, DELAY_S_MAX)
        _check("maximum", self.maximum, self.first, DELAY_S_MAX)
        _check("jitter", self.jitter, 0, JITTER_MAX, whole=True)
        if isinstance(self.curve, str):
            delays_of(self.curve)
            return
        if not isinstance(self.curve, list | tuple):
            text = f"curve must be a text, or a list of delays, not {self.curve!r:.60}"
            raise UsageError(E_BAD_ARGUMENT, text)
        delays = [
            each.total_seconds() if isinstance(each, timedelta) else each for each in self.curve
        ]
        object.__setattr__(self, "curve", check_delays(delays))

    def delay_s(self, attempts: int, draw: Callable[[], float]) -> float:
        """Return the seconds until the next attempt, after so many attempts have failed."""
        curve: str | Sequence[float] = self.curve  # type: ignore[assignment]
        return retry_delay_s(curve, self.first, self.maximum, self.jitter, attempts, draw)

    def is_over(self, attempts: int) -> bool:
        """Return True if a message that has failed so often is not tried again."""
        return 0 < self.max_attempts <= attempts
