"""Where in a topic, as people write it: earliest, latest, an offset, a message's id, or a time. Pure."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import click

from .quantities import parse_seconds

ID_BITS: Final = 54  # these repeat transport's (a test compares them): help should come at once
ID_DIGITS: Final = 16
OFFSET_MAX: Final = 10**15 - 1
WORDS: Final = ("earliest", "latest")
PLACES: Final = (
    "earliest, latest, an offset, a message's id (16 hex digits), a time (2026-11-20T10:30, local or with Z or +01:00; @SECONDS), "
    "or an age (15m, 7d)"
)

_ID: Final = re.compile(r"[0-9a-f]{16}", re.ASCII | re.IGNORECASE)
_OFFSET: Final = re.compile(r"\d{1,15}", re.ASCII)
_AGE: Final = re.compile(r"(.*[a-z])\s*", re.ASCII | re.IGNORECASE)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d.*", re.ASCII)
_EPOCH: Final = re.compile(r"@(\d{1,11}(?:\.\d{1,9})?)", re.ASCII)


class MessageId(int):
    """An offset that was given as an id; `node`: of which broker."""

    node: int


def parse_place(text: str, now: Callable[[], float] = time.time) -> str | int | datetime:
    """As `Admin.seek` takes it; the offset of an id as `MessageId`. `ValueError` says what is wrong."""
    given = text.strip()
    if given.lower() in WORDS:
        return given.lower()
    if _OFFSET.fullmatch(given):
        return int(given)
    if _ID.fullmatch(given):
        number = int(given, 16)
        found = MessageId(number & ((1 << ID_BITS) - 1))
        found.node = number >> ID_BITS
        return found
    epoch = _EPOCH.fullmatch(given)
    if epoch is not None:
        return datetime.fromtimestamp(float(epoch[1]), UTC)
    with contextlib.suppress(ValueError, OverflowError, OSError):
        if _DATE.fullmatch(given):
            return datetime.fromisoformat(given).astimezone()
        if _AGE.fullmatch(given):
            return datetime.fromtimestamp(now(), UTC) - timedelta(seconds=parse_seconds(given))
    raise ValueError(f"{text!r:.60} is no place: write {PLACES}")


class Place(click.ParamType):  # type: ignore[type-arg]  # generic to the checker only
    name = "where"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        if not isinstance(value, str):
            return value
        try:
            return parse_place(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
