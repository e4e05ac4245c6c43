"""Options for settings of channels and topics, made from `transport/settings.py`, and texts that
show settings to users.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ....transport.durations import spelled
from ....transport.names import base_of
from ....transport.settings import CHANNEL, NONE, TOPIC, Kind, Setting, rows_in_effect
from ..message_ids import topic_of_id
from ..options import Value
from ..quantities import (
    NO_BOUND,
    Count,
    Rate,
    Seconds,
    SizeType,
    TopicPosition,
    spelled_rate,
)

if TYPE_CHECKING:
    from ....transport.client.blocking.client import Admin

Command = TypeVar("Command", bound=Callable[..., Any])

CHANGEABLE: Final = tuple(row for row in CHANNEL if not row.fixed)
SUBSCRIBING: Final = tuple(row for row in CHANNEL if row.shared)
KEEPING: Final = tuple(row for row in TOPIC if row.shared)
_NUMBERS: Final = {
    Kind.COUNT: Count,
    Kind.SECONDS: Seconds,
    Kind.BYTES: SizeType,
    Kind.RATE: Rate,
}
_START: Final = (
    "Start of a new channel: earliest, latest, an offset, an id, a time or an age. See zsq "
    "seek --help."
)


def with_start(command: Command) -> Command:
    """Add `--start` to a command that creates a channel."""
    return click.option("--start", type=TopicPosition(), metavar="WHERE", help=_START)(command)


def with_settings(
    rows: Iterable[Setting], *, default: bool = False
) -> Callable[[Command], Command]:
    """Add the options of these settings. With `default`, the value `default` resets a setting."""

    def wrap(command: Command) -> Command:
        for row in reversed([*rows]):
            more = (
                {"is_flag": True, "default": None}
                if row.kind is Kind.FLAG
                else value_of(row, default=default)._asdict()
            )
            command = click.option(row.flag, help=row.help, **more)(command)
        return command

    return wrap


def value_of(row: Setting, *, default: bool = False) -> Value:
    """Return the value of a setting's option, unless it is a flag.

    With `default`, the value `default` is accepted too.
    """
    if row.choices:
        return Value(type=click.Choice((*row.choices, "default") if default else (*row.choices,)))
    metavar = row.option.split()[1]
    if row.kind not in _NUMBERS:
        return Value(metavar)
    # If 0 means no bound, -1 is not a valid value.
    none = ("none",) if row.no_bound == 0 else NO_BOUND
    return Value(metavar, _NUMBERS[row.kind](default=default, no_bound=none))


def given_settings(rows: Iterable[Setting], options: Mapping[str, object]) -> dict[str, Any]:
    """Return the given settings by name. `default` becomes None, which resets a setting."""
    values = ((row, options.get(row.parameter)) for row in rows)
    return {row.name: _as_sent(row, value) for row, value in values if value is not None}


def _as_sent(row: Setting, value: object) -> object:
    if value == "default" or (value == "" and row.kind is Kind.TOPIC):
        return None
    return row.no_bound if value == NONE and row.no_bound is not None else value


def say_what_to_change(rows: Iterable[Setting], *more: str) -> click.UsageError:
    """Return the error of a command that got no setting. `more` are other flags."""
    *flags, last = (*more, *(row.flag for row in rows))
    return click.UsageError(f"give at least one setting: {', '.join(flags)} or {last}")


def describe(rows: Iterable[Setting], settings: Mapping[str, object]) -> str:
    """Return some lines for users that describe settings in the terms of their options."""
    lines: dict[str, list[str]] = {}
    for row in rows:
        lines.setdefault(row.line, []).append(_shown(row, settings.get(row.name, row.default)))
    return "\n".join(
        f"{line:<10} {', '.join(filter(None, parts))}" for line, parts in lines.items()
    )


def _shown(row: Setting, value: Any) -> str:
    if value is False or (not value and (row.shows_none or row.no_bound == 0)):
        return row.shows_none
    if value is None or value == NONE:
        text = "as set for the broker" if value is None else "none"
    else:
        text = (
            spelled(value)
            if row.kind is Kind.SECONDS
            else spelled_rate(value)
            if row.kind is Kind.RATE
            else f"{value:,}"
            if row.kind in _NUMBERS
            else str(value)
        )
    return row.shows.format(text) if text else ""


def describe_channel(topic: str, channel: str, settings: Mapping[str, object]) -> str:
    """Return some lines for users.

    The dead-letter topic is shown only if attempts are limited, and the first and the longest
    backoff only if the curve is no list of delays.
    """
    rows = rows_in_effect(settings)
    dead = settings["dead_letter_topic"] or f"{base_of(topic)}.{channel}.dead".replace(
        "#ephemeral", ""
    )
    return describe(
        rows, {**settings, "dead_letter_topic": dead if settings["max_attempts"] else ""}
    )


def resolved(admin: Admin, topic: str, where: Any) -> Any:
    """Return a position in a topic for the client.

    Raises `NotFound` for an id of another broker or part.
    """
    text = getattr(where, "text", None)
    if text is None:
        return where
    topic_of_id(topic, text, admin.stats(topic))
    return int(where)
