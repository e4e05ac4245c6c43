"""Cron expressions in a time zone: the due times of a schedule. Pure.

The library cronsim (extra `schedules`) reads the expressions. It does what Debian's cron does, also
when the clocks change. So it was chosen before croniter, which is four times as large and has
extensions of the syntax that other programs do not know.

| the clocks change | minute or hour begins with `*` | any other expression |
|---|---|---|
| forward: an hour is missing | the missing hour has no due times | a due time in it is at its end |
| back: an hour comes twice | both hours have due times | only the first hour has due times |

Due times are seconds since 1970. The due times of an expression do not depend on the moment at
which a search begins: `first_after` searches forward only, and leaves out what is not later. The
library may return a time again that lies in the hour that comes twice, and a search backward has
other results in the missing hour.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from ...transport.errors import E_BAD_ARGUMENT, UsageError

FIELDS: Final = ("minute", "hour", "day of month", "month", "day of week")
# Any time. The 30th of February has no due time, whenever the search begins.
_ANY: Final = datetime(2024, 1, 1, tzinfo=UTC)


class Cron:
    """A cron expression with five fields, in a time zone.

    Raises `UsageError` (E_BAD_ARGUMENT), which names what is wrong.
    """

    def __init__(self, expression: str, timezone: str = "UTC") -> None:
        self.expression = expression
        self._zone = _zone(timezone)
        _check(expression)

    def after(self, moment_s: int) -> Iterator[int]:
        """Yield the due times that are later than `moment_s`, in order."""
        last = moment_s
        for moment in CronSim(self.expression, datetime.fromtimestamp(moment_s, self._zone)):
            due = int(moment.timestamp())
            if due > last:
                last = due
                yield due

    def first_after(self, moment_s: int) -> int | None:
        """Return the first due time that is later, or None if there is none in 50 years."""
        return next(self.after(moment_s), None)


def _check(expression: str) -> None:
    fields = expression.split()
    if len(fields) != len(FIELDS):
        text = f"cron expression {expression!r} has {len(fields)} fields, not {len(FIELDS)}"
        raise _wrong(f"{text}: {', '.join(FIELDS)}")
    for at, (name, field) in enumerate(zip(FIELDS, fields, strict=True)):
        alone = ["*"] * len(FIELDS)
        alone[at] = field
        if not _is_readable(alone):
            text = f"cron expression {expression!r} has a {name} that is not valid: {field!r}"
            raise _wrong(text)
    if not _is_readable(fields):
        raise _wrong(f"cron expression {expression!r} is never due: no month has such a day")


def _is_readable(fields: list[str]) -> bool:
    try:
        next(CronSim(" ".join(fields), _ANY))
    except (CronSimError, StopIteration, ValueError, AssertionError):
        return False
    return True


def _zone(name: str) -> tzinfo:
    """Return the time zone. UTC needs no data of time zones on the machine."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        text = f"time zone {name!r} is not known; use a name such as Europe/Berlin or UTC"
        raise _wrong(text) from None


def _wrong(text: str) -> UsageError:
    return UsageError(E_BAD_ARGUMENT, text)
