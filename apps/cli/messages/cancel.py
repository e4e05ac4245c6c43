"""`zsq cancel`: cancel messages by offset, by id, by the key of a delayed one, or by revoke key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from ..manage.channel import messages_at
from ..options import confirm, with_admin, yes_option
from ..output import json_option, say, tell

if TYPE_CHECKING:
    from ....transport.client.blocking.client import Admin


DELAYED_KEY_DIGITS: Final = 32


@click.command()
@click.argument("topic")
@click.argument("messages", metavar="[MESSAGE]...", nargs=-1)
@click.option(
    "--revoke-key",
    "keys",
    metavar="KEY",
    multiple=True,
    help="Cancel the messages that were published with this revoke key. Repeatable.",
)
@click.option("--channel", metavar="CHANNEL", help="Cancel for this channel only.")
@yes_option
@json_option
@with_admin
def cancel(
    topic: str,
    messages: tuple[str, ...],
    keys: tuple[str, ...],
    channel: str | None,
    yes: bool,
    as_json: bool,
    admin: Admin,
) -> int:
    """Cancel messages of TOPIC that wait: its channels do not deliver them any more.

    \b
    MESSAGE  an offset (12345), or a message's id (16 hex digits)
             the key of a delayed message (32 hex digits): see zsq delayed list

    A consumer that holds such a message drops it, and a handler that has begun it is told. The
    messages stay in the log. If the topic has parts, name the part for offsets: clicks#3. Exit code
    1 if a message was not cancelled, because all channels had finished it or it does not wait.
    """
    offsets, delayed = _places(messages)
    if bool(keys) == bool(messages):
        raise click.UsageError("give messages, or --revoke-key, and not both")
    if channel is not None and (keys or delayed):
        raise click.UsageError("--channel is only for offsets and ids")
    if keys:
        confirm(f"cancel the messages of {topic} with {_many(len(keys), 'revoke key')}", yes)
        answer = admin.revoke(topic, keys)
        if as_json:
            tell({"topic": topic, "revoked": [*keys], **answer})
        else:
            removed = _many(answer["delayed"], "delayed message")
            say(f"{topic}: {_many(len(keys), 'key')} revoked, {removed} removed")
        return 0
    confirm(f"cancel {_many(len(messages), 'message')} of {topic}", yes)
    by_channel = admin.cancel(topic, offsets, channel=channel) if offsets else {}
    gone = (
        [key for key, was in zip(delayed, admin.delayed_cancel(topic, delayed), strict=True) if was]
        if delayed
        else []
    )
    left = sorted({*offsets}.difference(*by_channel.values()))
    others = [*map(str, left), *(key for key in delayed if key not in gone)]
    if as_json:
        tell({"topic": topic, "cancelled": by_channel, "delayed": gone, "not_cancelled": others})
        return 1 if others else 0
    for name, cancelled in by_channel.items():
        if cancelled:
            say(f"{topic}/{name} has cancelled {messages_at(cancelled)}")
    if gone:
        say(f"{topic}: {_many(len(gone), 'delayed message')} removed")
    if others:
        say(f"zsq: not cancelled, because nothing waits: {', '.join(others)}", err=True)
    return 1 if others else 0


def _places(messages: Sequence[str]) -> tuple[list[int], list[str]]:
    """Return the offsets, and the keys of delayed messages."""
    from ....transport.client.core.message import parse_id
    from ....transport.errors import UsageError

    offsets: list[int] = []
    delayed: list[str] = []
    for text in messages:
        if len(text) == DELAYED_KEY_DIGITS:
            delayed.append(text)
            continue
        try:
            offsets.append(parse_id(text)[1])
        except UsageError as error:
            raise click.UsageError(error.text) from None
    return offsets, delayed


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"
