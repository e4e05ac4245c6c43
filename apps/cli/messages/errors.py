"""zsq errors: show why messages became dead letters. It reads by offset and finishes nothing."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from ....transport.message_object import as_object
from ..options import with_broker
from ..output import FILE_COLUMNS, json_lines_option, say, tell_line
from .letter_selection import Select, selection, with_selection

if TYPE_CHECKING:
    from ....transport.client.blocking.client import Reader
    from ....transport.client.core.letter_groups import ShownGroup
    from ....transport.client.core.message import StoredMessage

LAST: Final = 10_000  # repeats a constant of transport, whose import would delay help
SHOWN: Final = 20
SORTS: Final = ("time", "attempts", "reason", "error")
BODY_CHARACTERS: Final = 400


@click.command()
@click.argument("dead_topic", metavar="DEAD_TOPIC")
@click.option("--list", "as_list", is_flag=True, help="Show single dead letters, the newest first.")
@click.option(
    "--sort", type=click.Choice(SORTS), default="time", help="Sort --list by this (time)."
)
@click.option(
    "--offset",
    type=click.IntRange(min=0),
    metavar="OFFSET",
    help="Show the dead letter with this offset in DEAD_TOPIC, with its traceback.",
)
@click.option(
    "-n", "count", type=click.IntRange(1, LAST), default=SHOWN, metavar="N",
    help=f"Show at most N lines ({SHOWN}).",
)  # fmt: skip
@click.option(
    "--last",
    type=click.IntRange(1, LAST),
    default=LAST,
    metavar="N",
    help=f"Look at the newest N dead letters ({LAST:,}).",
)
@with_selection
@json_lines_option
@with_broker
def errors(
    dead_topic: str,
    as_list: bool,
    sort: str,
    offset: int | None,
    count: int,
    last: int,
    as_json: bool,
    url: str,
    timeout: float,
    **conditions: Any,
) -> None:
    """Show why messages became dead letters: the errors of DEAD_TOPIC, the most frequent first.

    Numbers in errors are ignored, so that "user 17 is missing" and "user 18 is missing" are one
    error. All dead letters that the topic keeps count, also those that were sent back. zsq redrive
    takes the same conditions.
    """
    from ....transport.client.blocking.client import Reader
    from ....transport.client.core.letter_groups import letter_groups
    from ....transport.names import check_name

    check_name(dead_topic)
    select = selection(**conditions)
    with Reader(dead_topic, url=url, timeout=timeout) as reader:
        if offset is not None:
            letter = reader.message(offset)
            tell_line(as_object(letter)) if as_json else say(described(letter))
            return
        letters = list(read_letters(reader, last, select))
    if as_list or sort != "time":
        for letter in sorted_letters(letters, sort)[:count]:
            tell_line(as_object(letter)) if as_json else say(_line(letter))
    else:
        groups = letter_groups((letter.headers, letter.timestamp_ns) for letter in letters)
        for group in groups[:count]:
            tell_line(group) if as_json else say(_group_line(group))
    if not as_json and not letters:
        say("no dead letters")


def read_letters(reader: Reader, last: int, select: Select | None) -> Iterator[StoredMessage]:
    """Yield the selected ones of the newest messages of a topic, the oldest first."""
    from ....transport.client.core.message import message_at

    start, head = reader.bounds()
    offset = max(start, reader.newest(last))
    while offset < head:
        fetched = reader.read(offset)
        for block in fetched.blocks:
            chosen = range(block.count) if select is None else select(block)
            for index in chosen:
                if offset <= block.first_offset + index < head:
                    yield message_at(reader.topic, block, index)
        if fetched.next_offset <= offset:
            return
        offset = fetched.next_offset


def sorted_letters(letters: list[StoredMessage], sort: str) -> list[StoredMessage]:
    """Return the letters, the newest first, or first by another property. Pure."""
    from ....transport.client.core.letter_groups import died_ns, kind_of
    from ....transport.wire.dead_letter import ATTEMPTS_MADE

    newest = sorted(letters, key=lambda one: -died_ns(one.headers, one.timestamp_ns))
    if sort == "attempts":
        return sorted(newest, key=lambda one: -_number(one.headers.get(ATTEMPTS_MADE)))
    if sort == "reason":
        return sorted(newest, key=lambda one: kind_of(one.headers).reason)
    if sort == "error":
        return sorted(newest, key=lambda one: kind_of(one.headers).error)
    return newest


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _group_line(group: ShownGroup) -> str:
    when = _when(group["newest_ms"] / 1000)
    return _fitting(f"{group['count']:>8,}  {when}  {group['reason']:<12}  {group['error']}")


def _line(letter: StoredMessage) -> str:
    from ....transport.client.core.letter_groups import died_ns
    from ....transport.wire import dead_letter as d

    headers = letter.headers
    when = _when(died_ns(headers, letter.timestamp_ns) / 1e9)
    attempts = _number(headers.get(d.ATTEMPTS_MADE))
    key = "" if letter.key is None else letter.key.decode(errors="backslashreplace") + ": "
    error = _text(headers.get(d.ERROR)).strip().rpartition("\n")[2]
    reason = _text(headers.get(d.REASON))
    return _fitting(f"{letter.offset:>8}  {when}  {attempts:>3}  {reason:<12}  {key}{error}")


def described(letter: StoredMessage) -> str:
    """Return the lines that show one dead letter. Pure, apart from the time zone."""
    from ....transport.client.core.letter_groups import died_ns
    from ....transport.wire import dead_letter as d

    headers = letter.headers
    body = letter.body.decode(errors="backslashreplace")
    cut = "..." if len(body) > BODY_CHARACTERS else ""
    key = None if letter.key is None else letter.key.decode(errors="backslashreplace")
    place = f"{_text(headers.get(d.TOPIC))}/{_text(headers.get(d.CHANNEL))}"
    rows = (
        ("offset", letter.offset),
        ("died", _when(died_ns(headers, letter.timestamp_ns) / 1e9)),
        ("attempts", _number(headers.get(d.ATTEMPTS_MADE))),
        ("reason", _text(headers.get(d.REASON))),
        ("from", f"{place}, offset {_number(headers.get(d.OFFSET))}"),
        ("consumer", _text(headers.get(d.CONSUMER))),
        ("key", key),
        ("tag", letter.tag),
        ("error", _text(headers.get(d.ERROR))),
        ("body", f"{len(letter.body):,} B: {body[:BODY_CHARACTERS]}{cut}"),
    )
    lines = [f"{name:<10} {value}" for name, value in rows if value not in (None, "")]
    return "\n".join([*lines, *filter(None, [_text(headers.get(d.TRACEBACK))])])


def _fitting(line: str) -> str:
    width = shutil.get_terminal_size((FILE_COLUMNS, 24)).columns
    return line if len(line) <= width else line[: width - 3] + "..."


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
