"""zsq message: show one message, by its offset or its id.

`zsq seek` moves a channel. `zsq peek` shows messages without receiving them.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from ....transport.message_object import MessageObject, as_object
from ..manage.settings import resolved
from ..message_ids import topic_of_id
from ..options import with_admin, with_broker
from ..output import body_for, json_option, say, say_prose, tell
from ..quantities import TopicPosition

if TYPE_CHECKING:
    from ....transport.client.blocking.client import Admin
    from ....transport.client.core.peeking import Peek, Peeked


@click.command()
@click.argument("topic", required=False)
@click.argument("which", metavar="OFFSET|ID", required=False)
@json_option
@with_broker
def message(topic: str | None, which: str | None, as_json: bool, url: str, timeout: float) -> None:
    """Write the body of one message of TOPIC to standard output. Nothing is finished.

    Name the message by its offset or its id. An id has 16 hexadecimal digits: 10 bits for the
    broker's number, 54 for the offset. If TOPIC has parts, the first 2 digits are the number of the
    part.

    With an ID alone, the topic that has the message is found. If several topics have one with this
    id, the command names them.
    """
    if topic is None:
        raise click.UsageError("Missing argument 'OFFSET|ID'.")
    if which is None:
        which, topic = topic, None
    from ....transport.client.blocking.client import Admin, Reader
    from ....transport.client.core.message import parse_id
    from ....transport.names import check_name

    node, offset = parse_id(which)
    if topic is None:
        topic = _topic_with(which, url, timeout)
    check_name(topic)
    if node is not None:
        with Admin(url, timeout=timeout) as admin:
            topic = topic_of_id(topic, which, admin.stats(topic))
    with Reader(topic, url=url, timeout=timeout) as reader:
        stored = reader.message(offset)
    if as_json:
        tell(as_object(stored, stored.only_channel))
        return
    out = sys.stdout.buffer
    out.write(body_for(out)(stored.body) + b"\n")
    out.flush()


def _topic_with(id: str, url: str, timeout: float) -> str:
    """Return the only topic or part that has a message with this id."""
    from ....transport.client.blocking.client import Admin
    from ....transport.errors import E_BAD_ARGUMENT, E_NOT_FOUND, NotFound, UsageError

    with Admin(url, timeout=timeout) as admin:
        names = admin.find_message(id)
    if not names:
        text = f"no topic keeps a message with the id {id}: name the topic to learn more"
        raise NotFound(E_NOT_FOUND, text)
    if len(names) > 1:
        more = f" and {len(names) - TOPICS_NAMED} more" if len(names) > TOPICS_NAMED else ""
        text = f"messages of {len(names)} topics have the id {id}, so name the topic"
        raise UsageError(E_BAD_ARGUMENT, f"{text}: {', '.join(names[:TOPICS_NAMED])}{more}")
    return names[0]


TOPICS_NAMED: Final = 10
PEEK_MAX: Final = 1_000  # repeats a constant of transport, whose import would delay help
BODY_CHARACTERS: Final = 60
NAME_CHARACTERS: Final = 30


@click.command()
@click.argument("topic")
@click.argument("channel")
@click.argument("where", type=TopicPosition())
@click.option("--forward", is_flag=True, help="Move the channel forward only, never back.")
@click.option(
    "--clamp",
    is_flag=True,
    help=(
        "Treat an offset beyond the end, or a time in the future, as the end. Otherwise that "
        "is refused."
    ),
)
@json_option
@with_admin
def seek(
    topic: str,
    channel: str,
    where: Any,
    forward: bool,
    clamp: bool,
    as_json: bool,
    admin: Admin,
) -> None:
    """Move CHANNEL of TOPIC back, to replay messages, or forward, to skip them.

    \b
    WHERE  earliest, latest
           an offset (12345), or a message's id (16 hex digits)
           a time: 2026-11-20, 2026-11-20T10:30 (local, or with Z or +01:00), @1795000000 (seconds
           since 1970) an age: 15m, 2h30m, 7d

    A time or an age means the first message that was stored then or later. All messages before the
    new position count as finished, and all from there on are delivered, also those that were
    finished before. Answers to messages that consumers hold now come too late and change nothing.
    """
    where = resolved(admin, topic, where)
    moved = admin.seek(topic, channel, where, forward=forward, clamp=clamp)
    if as_json:
        tell({"topic": topic, "channel": channel, **moved})
        return
    parts = moved.get("parts", {topic: moved["offset"]})
    for name, offset in parts.items():
        say(f"{name}/{channel} continues at offset {offset}")


@click.command()
@click.argument("topic")
@click.argument("channel", required=False)
@click.option(
    "-n",
    "--count",
    type=click.IntRange(1, PEEK_MAX),
    default=10,
    show_default=True,
    help="Show at most N messages of each kind.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object per line, with the whole message.",
)
@with_admin
def peek(topic: str, channel: str | None, count: int, as_json: bool, admin: Admin) -> None:
    """Show messages of a topic or channel without consuming: nothing is delivered or finished.

    TOPIC alone: its newest messages. With CHANNEL: the messages that it delivers next (requeued
    ones, then new ones), and those that it holds: in flight (with consumer and time left), deferred
    (until when), parked behind another message of the same key, or dying (on the way to the dead
    letters). Messages that have failed, and that an ordered channel must finish before others of
    their key, come first.
    """
    from ....transport.errors import ZsqError
    from ....transport.names import check_name

    check_name(topic)
    topic_paused = False
    peek = admin.peek(topic, channel, count=count)
    with contextlib.suppress(ZsqError):  # the user may peek, but not see the statistics
        topic_paused = not as_json and bool(admin.stats(topic)["topics"][0].get("paused"))
    for peeked in peek.messages:
        if as_json:
            say(json.dumps(_object(peeked)))
        else:
            say_prose(_line(peeked), 14)
    if not as_json:
        say(_summary(topic, channel, peek, topic_paused), err=True)


def _line(peeked: Peeked) -> str:
    """Return a line with the offset, the state and its details, and the message."""
    facts = ""
    if peeked.state == "in flight":
        facts = (
            f"attempt {peeked.attempts} with {_short(peeked.consumer)} for {peeked.held_s:,.1f} s, "
            f"{peeked.left_s:,.1f} s left"
        )
    elif peeked.state == "held":
        facts = (
            f"attempt {peeked.attempts} with {_short(peeked.consumer)} for {peeked.held_s:,.1f} s"
        )
    elif peeked.state == "deferred":
        facts = (
            f"attempts {peeked.attempts}, due {_when(peeked.due_ns / 1e9)} (in "
            f"{max(0.0, peeked.due_ns / 1e9 - time.time()):,.0f} s)"
        )
    elif peeked.attempts:
        facts = f"attempts {peeked.attempts}"
    if peeked.blocks:
        facts += f", blocks {peeked.blocks:,}"
    if peeked.error:
        facts += f", error {_short(peeked.error, BODY_CHARACTERS)}"
    message = peeked.message
    if message is None:
        return f"{peeked.offset:>12}  {peeked.state:<9}  {facts}  (lost or removed)"
    named = (
        ("key", None if message.key is None else message.key.decode(errors="backslashreplace")),
        ("tag", message.tag),
    )
    words = [f"{name} {_short(value)}" for name, value in named if value is not None]
    text = ", ".join([_when(message.timestamp_ns / 1e9), *([facts] if facts else []), *words])
    size = f"{len(message.body):,} B"
    return (
        f"{peeked.offset:>12}  {peeked.state:<9}  {text}, {size}: "
        f"{_short(message.body.decode(errors='backslashreplace'), BODY_CHARACTERS)}"
    )


def _summary(topic: str, channel: str | None, peek: Peek, topic_paused: bool) -> str:
    missing = f"; {peek.missing:,} messages cannot be read" if peek.missing else ""
    if channel is None:
        ends = f"zsq: topic {topic} ends at offset {peek.head}"
        return (f"{ends}, paused" if topic_paused else ends) + missing
    held = (
        ", ".join(f"{count:,} {state}" for state, count in peek.counts.items() if count)
        or "no messages held"
    )
    paused = (", paused" if peek.paused else "") + (", topic paused" if topic_paused else "")
    text = f"zsq: {topic}/{channel} is at offset {peek.next_offset} of {peek.head}{paused}; {held}"
    if not any(peeked.state == "new" for peeked in peek.messages) and peek.looked_to < peek.head:
        text += (
            f"; no message for it up to offset {peek.looked_to}; later messages were not checked"
        )
    return text + missing


class PeekedObject(MessageObject, total=False):
    state: str
    consumer: str
    held_s: float
    left_s: float
    due_ns: int
    blocks: int
    error: str
    lost: bool


def _object(peeked: Peeked) -> PeekedObject:
    shown: PeekedObject = {
        "offset": peeked.offset,
        "state": peeked.state,
        "attempts": peeked.attempts,
    }
    if peeked.state == "in flight":
        shown |= {"consumer": peeked.consumer, "held_s": peeked.held_s, "left_s": peeked.left_s}
    elif peeked.state == "held":
        shown |= {"consumer": peeked.consumer, "held_s": peeked.held_s}
    if peeked.due_ns:
        shown["due_ns"] = peeked.due_ns
    if peeked.blocks:
        shown["blocks"] = peeked.blocks
    if peeked.error:
        shown["error"] = peeked.error
    message = peeked.message
    if message is None:
        return {**shown, "lost": True}
    return {**shown, **as_object(message, message.only_channel)}


def _short(text: str, characters: int = NAME_CHARACTERS) -> str:
    shown = "".join(
        letter if letter.isprintable() else "\N{MIDDLE DOT}" for letter in text[:characters]
    )
    return shown + ("..." if len(text) > characters else "")


def _when(seconds: float) -> str:
    """Return the time in the user's time zone."""
    try:
        return (
            datetime.fromtimestamp(seconds, UTC)
            .astimezone()
            .isoformat(sep=" ", timespec="milliseconds")
        )
    except (ValueError, OverflowError, OSError):
        return f"@{seconds:g}"
