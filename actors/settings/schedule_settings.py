"""Schedules of topics: their settings, limits, and checks. Pure.

A schedule is part of the topic's row in the registry. So it is shipped, restored, and moved with
the topic, and ends with it. In the registry, a schedule is a JSON object:

    {"uuid": "...", "cron": "0 3 * * *", "timezone": "UTC", "missed": "one", "since": 1790000000,
     "paused": false, "body": "aGVsbG8=", "key": "...", "tag": "...", "headers": {...},
     "unique": "while-working"}

`body` and `key` are base64. `key`, `tag`, `headers` and `unique` are left out if they are empty. A
schedule that this version cannot read stays in the registry as it is, and is listed with the
reason.

The cron expression and the time zone are checked in `actors/schedules/cron.py`, which needs a
library.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, Final

from ...transport.block.block_format import HEADERS_BYTES_MAX, KEY_BYTES_MAX, TAG_BYTES_MAX
from ...transport.errors import E_BAD_ARGUMENT, E_BAD_NAME, E_TOO_BIG, UsageError
from ...transport.names import check_name
from ...transport.wire.codec import (
    UNIQUE_HEADER,
    UNIQUE_KEY_HEADER,
    HeaderValue,
    pack_headers,
)
from ...transport.wire.unique import MODES, WHILE_WORKING, UniqueKey

ONE: Final = "one"
ALL: Final = "all"
SKIP: Final = "skip"
# What is published of the due times that were missed: the latest, all, or none.
MISSED: Final = (ONE, ALL, SKIP)
NEVER: Final = "never"
# While which messages of the schedule its due times are left out.
UNIQUE: Final = (NEVER, *MODES)
UTC: Final = "UTC"
SCHEDULES_MAX: Final = 1_000  # the schedules of all topics of a broker
# The whole registry is written at each change. A command has at most 64 KiB.
SCHEDULE_BODY_BYTES_MAX: Final = 32 * 1024
SCHEDULES_BYTES_MAX: Final = 4 * 1024 * 1024  # the bodies of all schedules of a broker
# The headers that each message of a schedule has: the schedule's name, and the due time.
NAME_HEADER: Final = "zsq-schedule"
DUE_HEADER: Final = "zsq-due"
OWN_HEADERS: Final = (NAME_HEADER, DUE_HEADER, UNIQUE_HEADER, UNIQUE_KEY_HEADER)
_TEXT_CHARS_MAX: Final = 200  # of a cron expression, and of a time zone
_CHANGEABLE: Final = ("cron", "timezone", "missed", "body", "tag", "headers", "unique")
# The headers of the user. The name and the due time come in addition.
HEADERS_ROOM: Final = HEADERS_BYTES_MAX - 512


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as a user has added it.

    `uuid` names its transactions in the topic. `since` is the second after which its due times
    count: that of `add` or of the last `resume`.
    """

    uuid: str
    cron: str
    body: bytes
    timezone: str = UTC
    missed: str = ONE
    since: int = 0
    paused: bool = False
    key: bytes | None = None
    tag: str | None = None
    headers: Mapping[str, HeaderValue] = field(default_factory=dict)
    unique: str = NEVER

    def unique_key(self, name: str) -> UniqueKey | None:
        """Return the key that each message of the schedule holds. It is the schedule's name."""
        if self.unique == NEVER:
            return None
        return UniqueKey(name.encode(), self.unique == WHILE_WORKING)

    @property
    def app(self) -> str:
        """The application name of its transactions."""
        return f"schedule-{self.uuid}"


def check_schedule_name(name: object) -> str:
    """Return the name. Raises `UsageError` (E_BAD_NAME) if it is not legal as a topic's name."""
    text = check_name(name, "schedule")  # type: ignore[arg-type] # it checks the type
    if "#" in text:
        raise UsageError(E_BAD_NAME, f"the name of a schedule cannot contain #: {text!r}")
    return text


def asked_schedule(asked: Mapping[str, object], uuid: str, since: int) -> Schedule:
    """Return the schedule of a request. Raises `UsageError` if an option is wrong."""
    known = {"name", "cron", "body", "timezone", "missed", "key", "tag", "headers", "unique"}
    if unknown := asked.keys() - known:
        raise _wrong(f"a schedule has no option {', '.join(sorted(map(str, unknown)))[:80]}")
    body, key = asked.get("body"), asked.get("key")
    if not isinstance(body, bytes):
        raise _wrong(f"body must be bytes, not {type(body).__name__}")
    _check_size("body", body, SCHEDULE_BODY_BYTES_MAX)
    if not isinstance(key, bytes | None):
        raise _wrong(f"key must be bytes, not {type(key).__name__}")
    _check_size("key", key or b"", KEY_BYTES_MAX)
    return Schedule(
        uuid,
        _text(asked, "cron", ""),
        body,
        _text(asked, "timezone", UTC),
        _missed(asked.get("missed", ONE)),
        since,
        key=key,
        tag=_tag(asked.get("tag")),
        headers=_headers(asked.get("headers", {})),
        unique=_unique(asked.get("unique", NEVER)),
    )


def changed_schedule(before: Schedule, asked: Mapping[str, object], since: int) -> Schedule:
    """Return the schedule with the changes of a request. Raises `UsageError` if one is wrong.

    The key stays: it decides to which part of a topic the schedule belongs.
    """
    changes = {name: value for name, value in asked.items() if name != "name"}
    if not changes:
        raise _wrong("give at least one change: cron, timezone, missed, body, tag, headers, unique")
    now = {name: getattr(before, name) for name in _CHANGEABLE}
    schedule = asked_schedule({**now, **changes}, before.uuid, since)
    return replace(schedule, key=before.key, paused=before.paused)


def as_row(schedule: Schedule) -> dict[str, object]:
    """Return the schedule as the registry has it."""
    row: dict[str, object] = {
        "uuid": schedule.uuid,
        "cron": schedule.cron,
        "timezone": schedule.timezone,
        "missed": schedule.missed,
        "since": schedule.since,
        "paused": schedule.paused,
        "body": base64.b64encode(schedule.body).decode(),
    }
    if schedule.key is not None:
        row["key"] = base64.b64encode(schedule.key).decode()
    if schedule.tag is not None:
        row["tag"] = schedule.tag
    if schedule.unique != NEVER:
        row["unique"] = schedule.unique
    if schedule.headers:
        row["headers"] = dict(schedule.headers)
    return row


def from_row(row: object) -> Schedule:
    """Return the schedule in a row of the registry. Raises `UsageError` if it is not readable."""
    if not isinstance(row, dict):
        raise _wrong(f"a schedule must be an object, not {repr(row)[:40]}")
    uuid, since, paused = row.get("uuid"), row.get("since"), row.get("paused")
    if not isinstance(uuid, str) or not 1 <= len(uuid) <= 64:
        raise _wrong(f"uuid must be text, not {repr(uuid)[:80]}")
    if type(since) is not int or not 0 <= since < 1 << 53:
        raise _wrong(f"since must be a time in seconds, not {repr(since)[:80]}")
    if type(paused) is not bool:
        raise _wrong(f"paused must be true or false, not {repr(paused)[:80]}")
    values: dict[str, Any] = {
        name: row[name] for name in row.keys() - {"uuid", "since", "paused", "body", "key"}
    }
    values["body"] = _bytes(row, "body")
    if "key" in row:
        values["key"] = _bytes(row, "key")
    return replace(asked_schedule(values, uuid, since), paused=paused)


def _wrong(text: str) -> UsageError:
    return UsageError(E_BAD_ARGUMENT, text)


def _text(asked: Mapping[str, object], name: str, default: str) -> str:
    value = asked.get(name, default)
    if not isinstance(value, str) or not 1 <= len(value) <= _TEXT_CHARS_MAX:
        shown = repr(value)[:80]
        raise _wrong(f"{name} must be text of 1 to {_TEXT_CHARS_MAX} characters, not {shown}")
    return value


def _tag(value: object) -> str | None:
    if not isinstance(value, str | None):
        raise _wrong(f"tag must be text, not {type(value).__name__}")
    _check_size("tag", (value or "").encode(errors="replace"), TAG_BYTES_MAX)
    return value


def _missed(value: object) -> str:
    if not isinstance(value, str) or value not in MISSED:
        raise _wrong(f"missed must be one of {', '.join(MISSED)}, not {repr(value)[:80]}")
    return value


def _unique(value: object) -> str:
    if not isinstance(value, str) or value not in UNIQUE:
        raise _wrong(f"unique must be one of {', '.join(UNIQUE)}, not {repr(value)[:80]}")
    return value


def _headers(found: object) -> Mapping[str, HeaderValue]:
    """Return the headers. They must be possible in JSON and in a message.

    The registry is JSON, which has neither bytes nor infinite numbers. One of them would make the
    whole registry unreadable.
    """
    if not isinstance(found, Mapping):
        raise _wrong(f"headers must be a map, not {type(found).__name__}")
    for name, value in found.items():
        is_possible = isinstance(value, str | int | None) or (
            isinstance(value, float) and isfinite(value)
        )
        if not isinstance(name, str) or not is_possible:
            raise _wrong(f"header {repr(name)[:80]} of a schedule must be text, a number or a flag")
        if name in OWN_HEADERS:
            raise _wrong(f"header {name} is set by the schedule; use another name")
    _check_size("headers", pack_headers({**found, NAME_HEADER: "", DUE_HEADER: ""}), HEADERS_ROOM)
    return dict(found)


def _check_size(what: str, data: bytes, size_max: int) -> None:
    if len(data) > size_max:
        text = f"{what} of {len(data):,} bytes: the limit of a schedule is {size_max:,} bytes"
        raise UsageError(E_TOO_BIG, text)


def _bytes(row: Mapping[str, object], name: str) -> bytes:
    value = row.get(name)
    try:
        if isinstance(value, str):
            return base64.b64decode(value, validate=True)
    except (ValueError, binascii.Error):
        pass
    raise _wrong(f"{name} must be base64, not {repr(value)[:80]}")
