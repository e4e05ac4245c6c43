"""Options that select dead letters: for `zsq redrive` and `zsq errors`."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..quantities import TopicPosition

if TYPE_CHECKING:
    from ....transport.block.block import Block

Command = TypeVar("Command", bound=Callable[..., Any])
Select = Callable[["Block"], list[int]]

_OPTIONS = (
    click.option("--text", metavar="TEXT", help="Only dead letters whose body contains TEXT."),
    click.option(
        "--error", metavar="TEXT", help="Only those whose error (zsq-dead-error) contains TEXT."
    ),
    click.option(
        "--reason",
        metavar="REASON",
        help="Only those with this reason (zsq-dead-reason): max_attempts, rejected or expired.",
    ),
    click.option(
        "--since",
        type=TopicPosition(),
        metavar="TIME",
        help="Only those that died at this time or later: a time, or an age such as 2h.",
    ),
    click.option("--key", metavar="KEY", help="Only those with this key."),
    click.option("--tag", metavar="TAG", help="Only those with this tag."),
    click.option("--header", metavar="NAME[=VALUE]", help="Only those with this header."),
    click.option(
        "--field",
        metavar="PATH[=VALUE]",
        help="Only those whose body, as JSON or msgpack, has this field, such as user.id=7.",
    ),
)


def with_selection(command: Command) -> Command:
    """Add the options to a command. It passes their values to `selection`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def selection(
    *,
    text: str | None, error: str | None, reason: str | None, since: object, key: str | None,
    tag: str | None, header: str | None, field: str | None,
) -> Select | None:  # fmt: skip
    """Return a function that returns the indexes of the selected messages of a block.

    Return None if there is no condition. The conditions are those of the console's search, and
    those of dead letters.
    """
    if all(option is None for option in (text, error, reason, since, key, tag, header, field)):
        return None
    from ....transport.client.core.letter_groups import LetterConditions
    from ....transport.client.core.message_search import (
        PAUSE,
        SearchConditions,
        Undecoded,
        matches,
        named,
    )
    from ....transport.units import NS_PER_S
    from ....transport.wire.codec import user_headers

    for name, value in (("--text", text), ("--header", header), ("--field", field)):
        if value is not None and not value.isprintable():
            raise click.UsageError(f"{name} must be printable text, not {value[:40]!r}")
    if since is not None and not isinstance(since, datetime):
        raise click.UsageError("--since must be a time or an age, such as 2026-11-20T10:30 or 2h")
    try:
        wanted = SearchConditions(
            text=text,
            key=None if key is None else os.fsencode(key),
            tag=None if tag is None else os.fsencode(tag),
            header=None if header is None else named(header, "--header"),
            field=None if field is None else named(field, "--field", "PATH"),
        )
    except ValueError as wrong:
        raise click.UsageError(str(wrong)) from None
    since_ns = None if since is None else int(since.timestamp() * NS_PER_S)
    conditions = LetterConditions(error, reason, since_ns)

    def select(block: Block) -> list[int]:
        found = matches(block, 0, block.count, wanted, Undecoded())
        return [
            index
            for index in found
            if index != PAUSE
            and conditions.fit(
                {} if block.headers is None else user_headers(block.headers.value(index)),
                block.time_of(index),
            )
        ]

    return select
