"""Options that say how long a topic keeps what, for `zsq topic` and `zsq serve`, and how that is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click

from .quantities import Count, Seconds, Size, spelled

Command = TypeVar("Command", bound=Callable[..., Any])

POLICIES: Final = ("reject", "drop-oldest")
_NAMES: Final = {"keep_time": "keep_s", "max_age": "max_s"}  # an option's name -> that of the setting, where they differ


def with_keep(*, default: bool) -> Callable[[Command], Command]:
    """What bounds finished messages. `default`: the word default is taken too, for what the broker was started with."""

    def wrap(command: Command) -> Command:
        text = "Keep only so {0} that all channels have finished, to be read again{1}; none: no such bound."
        for name, kind, unit, more in (
            ("--keep-chunks", Count(default=default), "many log files", ""),
            ("--keep-time", Seconds(default=default), "long (as 12h, 7d)", " (by each file's newest message)"),
            ("--keep-bytes", Size(default=default), "many bytes (as 500MB, 10GiB; 1GiB if nothing is set)", ""),
        ):
            command = click.option(name, type=kind, metavar=kind.name.upper(), help=text.format(unit, more))(command)
        return command

    return wrap


def with_retention(*, default: bool) -> Callable[[Command], Command]:
    """All of a topic's settings."""

    def wrap(command: Command) -> Command:
        command = click.option(
            "--when-full",
            type=click.Choice((*POLICIES, "default") if default else POLICIES),
            help="Beyond --max-bytes: refuse publishes (reject, the default) or lose the oldest.",
        )(command)
        command = click.option(
            "--max-age", type=Seconds(default=default), metavar="TIME", help="With drop-oldest: lose what is unfinished and older."
        )(command)
        command = click.option(
            "--max-bytes", type=Size(default=default), metavar="SIZE", help="At most so many bytes of unfinished messages (8MiB or more)."
        )(command)
        return with_keep(default=default)(command)

    return wrap


def given_retention(options: Mapping[str, Any]) -> dict[str, Any]:
    """What was said, by the names of the settings; `default` becomes None: as the broker was started."""
    return {_NAMES.get(name, name): None if value == "default" else value for name, value in options.items() if value is not None}


def described(settings: Mapping[str, Any]) -> str:
    """Two lines for people, in the words of the options."""

    def bound(name: str) -> str:
        value = settings.get(name, -1)
        return "none" if value == -1 else spelled(value) if name.endswith("_s") else f"{value:,}"

    keep = f"{bound('keep_bytes')}, time {bound('keep_s')}, chunks {bound('keep_chunks')}"
    most = f"{bound('max_bytes')}, age {bound('max_s')}, when full {settings.get('when_full', POLICIES[0])}"
    return f"finished   kept up to: bytes {keep}\nunfinished at most: bytes {most}"
