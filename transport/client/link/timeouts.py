"""Time-outs of a client's calls: check them, format them, and convert them to deadlines."""

from __future__ import annotations

import math
import numbers
import time
from typing import Any, Final

from ...errors import E_BAD_ARGUMENT, UsageError, option

S: Final = 1_000_000_000
MS: Final = 1_000_000
FAR_NS: Final = 1 << 62  # a deadline that never comes
LONGEST_S: Final = 1e9  # 31 years; longer waits are cut to this


def check_timeout(timeout: Any) -> float | None:
    """Check a time-out in seconds and return it; None for a time-out that never ends.

    Raises `UsageError` if it is not a number, or if it is NaN.
    """
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, numbers.Real) or math.isnan(timeout):
        raise UsageError(
            E_BAD_ARGUMENT,
            (
                f"{option('timeout')} must be a number of seconds, or None to wait without limit, "
                f"not {timeout!r}"
            ),
        )
    return None if timeout == math.inf else max(0.0, float(timeout))


def deadline_of(timeout: Any) -> int:
    """Return the end of a wait that begins now and lasts for this time-out.

    Return `FAR_NS` for None and infinity. A time-out below 0 has ended already.
    """
    seconds = (
        timeout
        if type(timeout) is float and 0.0 <= timeout <= LONGEST_S
        else check_timeout(timeout)
    )
    return FAR_NS if seconds is None else time.monotonic_ns() + int(min(seconds, LONGEST_S) * S)


def format_timeout(timeout: float | None) -> str:
    """Format a time-out for an error message."""
    return "any time" if timeout is None or math.isinf(timeout) else f"{timeout:g} s"
