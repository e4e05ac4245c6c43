"""Deferral: a handler puts its message off, because it cannot be handled yet. No I/O.

That is no failure: it uses no attempt, is no error in the statistics, and does not let the consumer
back off. So a rate limit of another service (HTTP 429) does not send messages to the dead letters.
"""

from __future__ import annotations

import math
import numbers
import time
from datetime import datetime, timedelta
from typing import Any, Final, cast

from ...errors import E_BAD_ARGUMENT, UsageError
from ...wire.protocol import DELAY_MS_MAX

Delay = float | timedelta
_DAYS: Final = DELAY_MS_MAX // 86_400_000


def as_seconds(delay: Any) -> float:
    """Return a delay in seconds. Raises `UsageError` if it is neither a number nor a timedelta."""
    if isinstance(delay, timedelta):
        return delay.total_seconds()
    if isinstance(delay, bool) or not isinstance(delay, numbers.Real):
        raise UsageError(
            E_BAD_ARGUMENT, f"a delay must be a number of seconds or a timedelta, not {delay!r:.60}"
        )
    try:
        return float(delay)
    except OverflowError:  # an integer with hundreds of digits
        return math.inf if cast("int", delay) > 0 else -math.inf


def delay_ms_of(delay: Delay, what: str = "requeue") -> int:
    """Return the milliseconds of a delay. Raises `UsageError`."""
    seconds = as_seconds(delay)
    if not 0 <= seconds * 1000 <= DELAY_MS_MAX:
        text = (
            f"the delay of a {what} must be 0 to {DELAY_MS_MAX // 1000} s ({_DAYS} days), not "
            f"{seconds} s"
        )
        raise UsageError(E_BAD_ARGUMENT, text)
    return int(seconds * 1000)


def deferral_ms(delay: Delay, until: datetime | None) -> int:
    """Return the milliseconds of a deferral. A time that has passed means at once."""
    if until is None:
        return delay_ms_of(delay, "deferral")
    if not isinstance(until, datetime):
        kind = type(until).__name__
        raise UsageError(E_BAD_ARGUMENT, f"until must be a datetime, not {kind} {until!r:.60}")
    if as_seconds(delay):
        raise UsageError(E_BAD_ARGUMENT, "give a delay or until to defer, not both")
    try:
        until_s = until.timestamp()
    except (OverflowError, ValueError):  # at either end of the calendar, in this time zone
        until_s = math.inf if until.year > 1970 else 0.0
    # Rounded up: a message never comes before the time that was asked for.
    left_s = min(DELAY_MS_MAX, max(0.0, until_s - time.time()))
    return delay_ms_of(math.ceil(left_s * 1000) / 1000, "deferral")


class RetryAfter(Exception):
    """Raised by a handler of `run` to put its message off, see `Message.defer`.

    `delay` (seconds or a timedelta) or `until` (a datetime) says when the message comes again. The
    message uses no attempt, `on_error` is not called, and the consumer does not back off.
    """

    def __init__(self, delay: Delay = 0.0, *, until: datetime | None = None) -> None:
        deferral_ms(delay, until)  # a wrong argument is an error of the handler's line
        super().__init__(delay, until)
        self.delay = delay
        self.until = until

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the keyword, so that a process of a pool can raise it."""
        return _retry_after, (self.delay, self.until)


def _retry_after(delay: Delay, until: datetime | None) -> RetryAfter:
    return RetryAfter(delay, until=until)


def deferral_in(error: object) -> int | None:
    """Return the milliseconds for which this error defers its message, or None if it is a failure.

    A group of exceptions, as a `TaskGroup` raises it, defers if all of them do. The longest counts.
    """
    if isinstance(error, RetryAfter):
        return deferral_ms(error.delay, error.until)
    if not isinstance(error, BaseExceptionGroup):
        return None
    delays_ms = [deferral_in(each) for each in error.exceptions]
    known_ms = [delay_ms for delay_ms in delays_ms if delay_ms is not None]
    return max(known_ms) if len(known_ms) == len(delays_ms) else None
