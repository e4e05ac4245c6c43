"""The parts of a word's tuples, and numbers that things hang on: the codec sees only that there is a tuple, or a number. Pure."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

from ..errors import E_BAD_COMMAND, UsageError
from .protocol_client import HEARTBEAT_MS_MAX, HEARTBEAT_MS_MIN

NUMBER_MAX: Final = 1 << 62  # the sum of two of them can still be said


def check_rows(rows: Sequence[Any], width: int, what: str) -> None:
    """`UsageError` E_BAD_COMMAND if these are not tuples of so many whole numbers, at most 2^62 and not below -1."""
    try:
        numbers = [*chain.from_iterable(rows)]
        good = not rows or ({*map(len, rows)} == {width} and {*map(type, numbers)} == {int} and min(numbers) >= -1)
        good = good and max(numbers, default=0) <= NUMBER_MAX
    except TypeError:
        good = False
    if not good:
        raise UsageError(E_BAD_COMMAND, f"{what} are rows of {width} numbers, not {reprlib.repr(rows)[:80]}")


def heartbeat(told_ms: int) -> int:
    """As it may be: with 0 a link would do nothing but say that it lives."""
    return min(HEARTBEAT_MS_MAX, max(HEARTBEAT_MS_MIN, told_ms))
