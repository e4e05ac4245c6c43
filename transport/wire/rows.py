"""Checks of the rows and numbers in protocol messages.

They are necessary because the codec checks only the type of a field.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

from ..errors import E_BAD_COMMAND, UsageError
from .protocol_client import HEARTBEAT_MS_MAX, HEARTBEAT_MS_MIN

NUMBER_MAX: Final = 1 << 62  # the sum of two such numbers can still be sent


def check_rows(rows: Sequence[Any], width: int, what: str) -> None:
    """Raise `UsageError` (E_BAD_COMMAND) unless these are tuples of `width` integers.

    Each integer must be from -1 to 2^62.
    """
    try:
        numbers = [*chain.from_iterable(rows)]
        good = not rows or (
            {*map(len, rows)} == {width} and {*map(type, numbers)} == {int} and min(numbers) >= -1
        )
        good = good and max(numbers, default=0) <= NUMBER_MAX
    except TypeError:
        good = False
    if not good:
        raise UsageError(
            E_BAD_COMMAND,
            (
                f"{what} must be rows of {width} numbers from -1 to 2**62, not "
                f"{reprlib.repr(rows)[:80]}"
            ),
        )


def heartbeat(told_ms: int) -> int:
    """Return a peer's heartbeat interval, moved into the allowed range.

    An interval of 0 would make a link send heartbeats without a pause.
    """
    return min(HEARTBEAT_MS_MAX, max(HEARTBEAT_MS_MIN, told_ms))
