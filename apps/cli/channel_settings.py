"""Options that say what a channel gives to whom, for `zsq channel` and `zsq sub`, and how that is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click

from .places import Place
from .quantities import Count, Seconds, spelled

Command = TypeVar("Command", bound=Callable[..., Any])

_NAMES: Final = {"backoff": "backoff_s", "backoff_max": "backoff_max_s", "max_age": "max_age_s", "alarm_age": "alarm_age_s"}
_NO_LIMIT: Final = ("max_attempts", "max_consumers")  # 0 says so, and -1 is none of their numbers
_START: Final = "Where it begins if it is made now: earliest, latest, an offset, an id, a time or an age; see zsq seek --help."
_TAGS: Final = "Only messages with one of these tags: a, or 'a||b'; stays as it was made."
_ORDERED: Final = "Of each key one message at a time, in order; stays as it was made."


def with_birth(command: Command) -> Command:
    """What is chosen when a channel is made."""
    command = click.option("--ordered", is_flag=True, default=None, help=_ORDERED)(command)
    command = click.option("--tags", metavar="TAGS", help=_TAGS)(command)
    return click.option("--start", type=Place(), metavar="WHERE", help=_START)(command)


def with_attempts(*, default: bool) -> Callable[[Command], Command]:
    def wrap(command: Command) -> Command:
        command = click.option(
            "--max-age", type=Seconds(default=default), metavar="TIME", help="Skip and count what is older (as 15m, 7d); none: never."
        )(command)
        command = click.option(
            "--dead-letter-topic", metavar="TOPIC", help="Where dead letters go; '' or nothing said: TOPIC.CHANNEL.dead."
        )(command)
        return click.option(
            "--max-attempts", type=Count(default=default, no_bound=("none",)), metavar="N",
            help="Deliveries of a message until it goes to the dead letters; none: it is delivered until it is finished.",
        )(command)  # fmt: skip

    return wrap


def with_settings(*, default: bool) -> Callable[[Command], Command]:
    """All that can be changed. `default`: that word is taken too, to take a setting back."""

    def wrap(command: Command) -> Command:
        for name, kind, text in (
            ("--alarm-age", Seconds(default=default), "Alarm when its oldest message is older; none: never; else as zsq serve says."),
            ("--alarm-depth", Count(default=default), "Alarm when more messages wait; none: never; else as zsq serve says."),
            ("--max-consumers", Count(default=default, no_bound=("none",)), "Consumers at a time; none: any number."),
            ("--backoff-max", Seconds(default=default), "... up to this (2m)."),
            ("--backoff", Seconds(default=default), "The broker's delay after the first attempt, doubled by each further one (1s)."),
        ):
            command = click.option(name, type=kind, metavar="TIME" if isinstance(kind, Seconds) else "N", help=text)(command)
        return with_attempts(default=default)(command)

    return wrap


def given_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """What was said, by the names of the settings; `default` becomes None."""
    found = {_NAMES.get(name, name): None if value == "default" else value for name, value in options.items() if value is not None}
    if found.get("dead_letter_topic") == "":
        found["dead_letter_topic"] = None
    return found | {name: 0 for name in _NO_LIMIT if found.get(name) == -1}


def described(topic: str, channel: str, settings: Mapping[str, Any]) -> str:
    """Some lines for people."""

    def limit(name: str) -> str:
        value = settings[name]
        return "as the broker's" if value is None else "none" if value == -1 else spelled(value) if name.endswith("_s") else f"{value:,}"

    dead = settings["dead_letter_topic"] or f"{topic}.{channel}.dead".replace("#ephemeral", "")
    attempts = f"at most {settings['max_attempts']:,}, then to topic {dead}" if settings["max_attempts"] else "until it is finished"
    lines = (
        ("takes", f"{'tags ' + settings['tags'] if settings['tags'] else 'all tags'}, max age {limit('max_age_s')}"),
        ("order", "of each key one message at a time" if settings["ordered"] else "none"),
        ("attempts", attempts),
        ("backoff", f"{spelled(settings['backoff_s'])}, doubled up to {spelled(settings['backoff_max_s'])}"),
        ("consumers", f"at most {settings['max_consumers']:,}" if settings["max_consumers"] else "any number"),
        ("alarm", f"depth {limit('alarm_depth')}, age {limit('alarm_age_s')}"),
    )
    return "\n".join(f"{name:<10} {text}" for name, text in lines)


def resolved(url: str, timeout: float, where: Any) -> Any:
    """A place for the client; an id must be of the broker that is asked."""
    node = getattr(where, "node", None)
    if node is None:
        return where
    from ...transport.client import Admin
    from ...transport.errors import E_NOT_FOUND, NotFound

    with Admin(url, timeout=timeout) as admin:
        here = int(admin.stats()["node"])
    if here != node:
        raise NotFound(E_NOT_FOUND, f"that id is of node {node}; this broker is node {here}")
    return int(where)
