"""Parsing of sizes (10GiB, 1.5MB), times (7d, 1h30m), texts, and positions in a topic. Pure.

A position is earliest, latest, an offset, a message's id, or a time. An environment variable may
hold several texts, one per line.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Final

import click

from ...transport.durations import parse_seconds, spelled

UNITS_BYTES: Final = {
    "": 1, "b": 1,
    "k": 1024, "kib": 1024, "kb": 1000,
    "m": 1024**2, "mib": 1024**2, "mb": 1000**2,
    "g": 1024**3, "gib": 1024**3, "gb": 1000**3,
    "t": 1024**4, "tib": 1024**4, "tb": 1000**4,
}  # fmt: skip
NO_BOUND: Final = ("none", "-1")
BYTES_MAX: Final = 1 << 62
COUNT_DIGITS_MAX: Final = 18  # keeps numbers below 2**62, as for all settings

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII)


def parse_bytes(text: str) -> int:
    """Return the bytes of 1GiB, 500MB (powers of 1000), 64k (powers of 1024, as in dd), or 4096.

    Raises `ValueError`, which says what is wrong.
    """
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None or match[2] not in UNITS_BYTES:
        raise ValueError(
            f"{text!r} is not a size; use a number of bytes, or a number with KiB, MiB, GiB, "
            "TiB (or kB, MB, GB, TB)"
        )
    size = (
        float(match[1]) * UNITS_BYTES[match[2]]
        if "." in match[1]
        else int(match[1]) * UNITS_BYTES[match[2]]
    )
    if size > BYTES_MAX:
        raise ValueError(f"{text!r} is larger than the limit of 4 EiB (2**62 bytes)")
    return round(size)


UNITS_RATE: Final = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400}
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(?:/\s*([a-z]+))?", re.ASCII)


def parse_rate(text: str) -> float:
    """Return the messages a second of 100, 100/s, 30/m, 5/h or 1/d.

    Raises `ValueError`, which says what is wrong.
    """
    match = _RATE.fullmatch(text.strip().lower())
    if match is None or (match[2] or "s") not in UNITS_RATE:
        raise ValueError(
            f"{text!r} is not a rate; use a number with /s, /m, /h or /d, as in 100/s or 30/m"
        )
    return float(match[1]) / UNITS_RATE[match[2] or "s"]


def spelled_rate(rate: float) -> str:
    """Return messages a second in the form that `parse_rate` accepts: 0.5 as 30/m."""
    for unit in ("s", "m", "h"):
        count = round(rate * UNITS_RATE[unit], 6)
        if count >= 1 and (count == int(count) or unit == "h"):
            return f"{count:.6f}".rstrip("0").rstrip(".") + f"/{unit}"
    return f"{rate * UNITS_RATE['d']:.6f}".rstrip("0").rstrip(".") + "/d"


def parse_count(text: str) -> int:
    """Return a number of 0 or more. Raises `ValueError`, which says what is wrong."""
    if not (text.isascii() and text.strip().isdecimal()):
        raise ValueError(f"{text!r} is not a whole number of 0 or more")
    if len(text.strip()) > COUNT_DIGITS_MAX:
        raise ValueError(
            f"{text.strip()[:COUNT_DIGITS_MAX]}... is too large; use at most {COUNT_DIGITS_MAX} "
            "digits"
        )
    return int(text)


class _Quantity(click.ParamType):  # type: ignore[type-arg]  # generic to the checker only
    """A number with a unit. `none` becomes -1 (no bound). `default`, if allowed, stays a text."""

    parse: Callable[[str], float]
    """Parses the text. Raises `ValueError`, which says what is wrong. Each subclass sets it."""

    def __init__(self, *, default: bool = False, no_bound: tuple[str, ...] = NO_BOUND) -> None:
        self.takes_default = default
        self.no_bound = no_bound

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        if not isinstance(value, str):
            return value
        word = value.strip().lower()
        if word in self.no_bound:
            return -1
        if word == "default" and self.takes_default:
            return word
        try:
            return self.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class SizeType(_Quantity):
    name = "size"
    parse = staticmethod(parse_bytes)


def spelled_bytes(count: int) -> str:
    """Return a number of bytes with the largest unit that divides it: 65536 as 64 KiB."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count and count % size == 0:
            return f"{count // size} {unit}"
    return "1 byte" if count == 1 else f"{count} bytes"


class BoundedSize(SizeType):
    """A size that has bounds, so `none` is not allowed."""

    def __init__(self, least: int, most: int = BYTES_MAX) -> None:
        super().__init__(no_bound=())
        self.least, self.most = least, most

    @property
    def bounds(self) -> str:
        least = spelled_bytes(self.least)
        return (
            f"{least} to {spelled_bytes(self.most)}"
            if self.most < BYTES_MAX
            else f"at least {least}"
        )

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        size = super().convert(value, param, ctx)
        if isinstance(size, int) and not self.least <= size <= self.most:
            self.fail(f"{value} is not allowed: it must be {self.bounds}", param, ctx)
        return size


class Seconds(_Quantity):
    name = "time"
    parse = staticmethod(parse_seconds)


class Rate(_Quantity):
    name = "rate"
    parse = staticmethod(parse_rate)


class PositiveRate(Rate):
    """A rate that must be above 0."""

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        rate = super().convert(value, param, ctx)
        if not rate:
            self.fail(f"{value!r} is not allowed: it must be above 0, as 50/s", param, ctx)
        return rate


class BoundedSeconds(Seconds):
    """A time that has bounds. `none` is allowed."""

    def __init__(self, least: float, most: float) -> None:
        super().__init__()
        self.least, self.most = least, most

    @property
    def bounds(self) -> str:
        return f"{spelled(self.least)} to {spelled(self.most)}"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        seconds = super().convert(value, param, ctx)
        if (
            isinstance(seconds, int | float)
            and seconds != -1
            and not self.least <= seconds <= self.most
        ):
            self.fail(f"{value} is not allowed: it must be {self.bounds}, or none", param, ctx)
        return seconds


class Costs(click.ParamType):  # type: ignore[type-arg]  # generic to the checker only
    """Two numbers of 0 or more with a comma between them."""

    name = "costs"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        if not isinstance(value, str):
            return value
        try:
            writes, reads = map(float, value.split(","))
        except ValueError:
            writes = reads = -1.0
        if not (isfinite(writes) and isfinite(reads) and min(writes, reads) >= 0):
            self.fail(
                f"{value!r} is not two numbers of 0 or more with a comma between them, such as "
                "0.005,0.0004",
                param,
                ctx,
            )
        return writes, reads


class Count(_Quantity):
    name = "count"
    parse = staticmethod(parse_count)


class Lines(click.ParamType):  # type: ignore[type-arg]  # generic to the checker only
    """A text that may contain spaces.

    In an environment variable, line ends separate several texts.
    """

    name = "text"
    envvar_list_splitter = "\n"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        return str(value).strip()


class Number(click.FloatRange):
    """A finite number: NaN and infinity are refused."""

    name = "number"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        low = (
            ""
            if self.min is None
            else f" from {self.min:g}"
            if self.max is not None
            else f" of at least {self.min:g}"
        )
        high = "" if self.max is None else f" to {self.max:g}"
        try:
            number = float(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a number{low}{high}", param, ctx)
        if (
            not isfinite(number)
            or (self.min is not None and number < self.min)
            or (self.max is not None and number > self.max)
        ):
            self.fail(f"{value!r} is not a number{low}{high}", param, ctx)
        return number


# These repeat constants of transport (a test compares them), whose import would delay help.
ID_BITS: Final = 54
ID_DIGITS: Final = 16
OFFSET_MAX: Final = 10**15 - 1
WORDS: Final = ("earliest", "latest")
PLACES: Final = (
    "earliest, latest, an offset, a message's id (16 hex digits), a time (2026-11-20T10:30, "
    "local or with Z or +01:00; @SECONDS), "
    "or an age (15m, 7d)"
)

_ID: Final = re.compile(r"[0-9a-f]{16}", re.ASCII | re.IGNORECASE)
_OFFSET: Final = re.compile(r"\d{1,15}", re.ASCII)
_AGE: Final = re.compile(r"(.*[a-z])\s*", re.ASCII | re.IGNORECASE)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d.*", re.ASCII)
_EPOCH: Final = re.compile(r"@(\d{1,11}(?:\.\d{1,9})?)", re.ASCII)


class MessageId(int):
    """An offset that the user gave as a message's id, which is `text`."""

    text: str


def parse_place(text: str, now: Callable[[], float] = time.time) -> str | int | datetime:
    """Return the position in a form that `Admin.seek` accepts. An id becomes a `MessageId`.

    Raises `ValueError`, which says what is wrong.
    """
    spelling = text.strip()
    if spelling.lower() in WORDS:
        return spelling.lower()
    if _OFFSET.fullmatch(spelling):
        return int(spelling)
    if _ID.fullmatch(spelling):
        message_id = MessageId(int(spelling, 16) & ((1 << ID_BITS) - 1))
        message_id.text = spelling
        return message_id
    epoch = _EPOCH.fullmatch(spelling)
    if epoch is not None:
        return datetime.fromtimestamp(float(epoch[1]), UTC)
    with contextlib.suppress(ValueError, OverflowError, OSError):
        if _DATE.fullmatch(spelling):
            return datetime.fromisoformat(spelling).astimezone()
        if _AGE.fullmatch(spelling):
            return datetime.fromtimestamp(now(), UTC) - timedelta(seconds=parse_seconds(spelling))
    raise ValueError(f"{text!r:.60} is not a position; use {PLACES}")


class TopicPosition(click.ParamType):  # type: ignore[type-arg]  # generic to the checker only
    name = "where"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        if not isinstance(value, str):
            return value
        try:
            return parse_place(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
