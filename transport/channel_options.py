"""What a client says about a channel: its settings as keywords, and the form in which they travel. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, TypedDict

from .errors import E_BAD_ARGUMENT, UsageError

SETTING_MAX: Final = 1 << 62  # fits into a word; the broker says what makes sense


class ChannelOptions(TypedDict, total=False):
    """Settings of a channel; None takes one back to its default.

    `tags`: only messages with one of these tags, `"a"` or `"a||b"`, compared whole; the others are finished for this channel and counted.
    `ordered`: of each key one message at a time, in order, whoever takes it. Both are chosen when the channel is made.
    `max_attempts`: after so many deliveries a message goes to the dead letters (0: never), to topic `dead_letter_topic` (default
    TOPIC.CHANNEL.dead). `backoff_s`, `backoff_max_s`: the broker's own requeue delay, doubled by each attempt (1 to 120 s).
    `max_age_s`: what is older is skipped and counted. `max_consumers`: at a time (0: any number). `alarm_depth`, `alarm_age_s`: from where
    on its backlog is an alarm (-1: never; default: as the broker was started).
    """

    tags: str | None
    ordered: bool | None
    max_attempts: int | None
    dead_letter_topic: str | None
    backoff_s: float | None
    backoff_max_s: float | None
    max_age_s: float | None
    max_consumers: int | None
    alarm_depth: int | None
    alarm_age_s: float | None


class NewChannelOptions(ChannelOptions, total=False):
    """`start`: where a channel begins that is made now: "earliest", "latest", an offset, a time (datetime, or seconds since 1970 as float).

    Default: the first channel of a topic gets all that waits there, a later one what comes after it.
    """

    start: str | int | float | datetime | None


def on_wire(options: Mapping[str, Any]) -> dict[str, Any]:
    """As a word carries them. `UsageError` for what cannot be carried."""
    found = {name: value for name, value in options.items() if name != "start"}
    for name, value in found.items():
        if not isinstance(value, (int, float, str, type(None))) or (isinstance(value, int) and abs(value) > SETTING_MAX):
            raise UsageError(E_BAD_ARGUMENT, f"{name} is a number up to 2**62, a word or None, not {repr(value)[:40]}")
    start = options.get("start")
    if start is not None:
        found["start"] = place(start)
    return found


Place = str | int | float | datetime
END: Final = 1 << 62  # an offset that no topic reaches


def moved_to(where: Place) -> dict[str, int]:
    """A place as seek takes it; the broker keeps it within what is there."""
    found = place(where)
    if isinstance(found, str):
        return {"offset": 0 if found == "earliest" else END}
    return found if isinstance(found, dict) else {"offset": found}


def place(where: str | float | datetime) -> str | int | dict[str, int]:
    """A place in a topic: "earliest", "latest", an offset, or a time."""
    if isinstance(where, datetime):
        where = where.timestamp()
    if isinstance(where, float) and abs(where) < SETTING_MAX / 1e9:
        return {"time_ns": round(where * 1_000_000) * 1_000}
    if where in ("earliest", "latest") or (type(where) is int and 0 <= where <= SETTING_MAX):
        return where
    raise UsageError(
        E_BAD_ARGUMENT, f"a place is 'earliest', 'latest', an offset, or a time (datetime, or seconds as float), not {where!r:.60}"
    )
