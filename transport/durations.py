"""Durations as people write them: 90, 15m, 1h30m, 7d. Pure."""

from __future__ import annotations

import re
from typing import Final

UNITS_S: Final = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
SECONDS_MAX: Final = 100 * 366 * 86_400

_PART: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.ASCII)


def parse_seconds(text: str) -> float:
    """Return the seconds of 90, 90s, 15m, 1h30m, 7d, 2w or 500ms.

    Raises `ValueError`, which says what is wrong.
    """
    spelling = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", spelling, re.ASCII):
        spelling += "s"
    total, at = 0.0, 0
    while at < len(spelling):
        match = _PART.match(spelling, at)
        if match is None or match[2] not in UNITS_S:
            break
        total, at = total + float(match[1]) * UNITS_S[match[2]], match.end()
    if not spelling or at < len(spelling):
        raise ValueError(
            f"{text!r} is not a time; use seconds, or numbers with s, m, h, d, w, as in 90, "
            "15m, 1h30m, 7d"
        )
    if total > SECONDS_MAX:
        raise ValueError(f"{text!r} is longer than the limit of 100 years")
    return total


def spelled(seconds: float) -> str:
    """Return seconds in the form that `parse_seconds` accepts: 90061.5 as 1d1h1m1.5s."""
    left = round(seconds, 3)
    text = ""
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        count = int(left // size)
        text += f"{count}{unit}" if count else ""
        left = round(left - count * size, 3)
    return text + (f"{left:.3f}".rstrip("0").rstrip(".") + "s" if left or not text else "")
