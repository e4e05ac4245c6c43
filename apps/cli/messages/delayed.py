"""zsq delayed: list, count and cancel messages that are delayed and not due yet."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import TYPE_CHECKING, Final

import click

from ....transport.wire.answers import DelayedRow
from ..options import with_admin
from ..output import json_option, tell

if TYPE_CHECKING:
    from ....transport.client.blocking.client import Admin

LIST_MAX: Final = 1_000  # messages in one request to the broker; longer lists take several requests
BODY_CHARACTERS: Final = 60


@click.group()
def delayed() -> None:
    """List, count or cancel delayed messages that are not due yet."""


@delayed.command("list")
@click.argument("topic")
@click.option(
    "-n",
    "--count",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Print at most N messages.",
)
@click.option("--after", default="", metavar="KEY", help="Start after the message with this key.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object per line, with the body in hexadecimal.",
)
@with_admin
def delayed_list(topic: str, count: int, after: str, as_json: bool, admin: Admin) -> None:
    """List the delayed messages of TOPIC in the order of their due times: key, due time, size,
    start of the body.
    """
    left = count
    while left:
        limit = min(left, LIST_MAX)
        rows = admin.delayed_list(topic, after=after, count=limit)
        for row in rows:
            click.echo(_json(row) if as_json else _line(row))
        if len(rows) < limit:
            return
        left -= len(rows)
        after = rows[-1]["delayed_key"]


@delayed.command("count")
@click.argument("topic")
@json_option
@with_admin
def delayed_count(topic: str, as_json: bool, admin: Admin) -> None:
    """Count the delayed messages of TOPIC, and show when the next one is due."""
    counts = admin.delayed_count(topic)
    if as_json:
        tell(counts)
        return
    due = f", the next one is due {_when(counts['next_due_ns'])}" if counts["next_due_ns"] else ""
    lost = f"; {counts['lost']:,} were lost to damage" if counts["lost"] else ""
    count = f"{counts['messages']:,} message{'s' * (counts['messages'] != 1)}"
    click.echo(f"{count}, {counts['bytes']:,} bytes{due}{lost}")


@delayed.command("cancel")
@click.argument("topic")
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option("--all", "everything", is_flag=True, help="Cancel all delayed messages of TOPIC.")
@json_option
@with_admin
def delayed_cancel(
    topic: str, keys: tuple[str, ...], everything: bool, as_json: bool, admin: Admin
) -> int:
    """Cancel delayed messages of TOPIC. Exit code 1 if one of them is no longer delayed (it became
    due, or was cancelled before).
    """
    if bool(keys) == everything:
        raise click.UsageError("give either the keys to cancel or --all")
    missing, cancelled = [], 0
    if everything:
        cancelled = admin.delayed_cancel_all(topic)
    for first in range(0, len(keys), LIST_MAX):
        part = keys[first : first + LIST_MAX]
        missing += [
            key
            for key, done in zip(part, admin.delayed_cancel(topic, part), strict=True)
            if not done
        ]
    if not everything:
        cancelled = len(keys) - len(missing)
    for key in missing:
        click.echo(f"zsq: {key} is not a delayed message (it may be due or cancelled)", err=True)
    if as_json:
        tell({"topic": topic, "cancelled": cancelled, "not_waiting": missing})
    else:
        click.echo(f"{cancelled:,} cancelled")
    return 1 if missing else 0


def _line(row: DelayedRow) -> str:
    body = row["body"].decode(errors="backslashreplace")
    shown = "".join(
        letter if letter.isprintable() else "\N{MIDDLE DOT}" for letter in body[:BODY_CHARACTERS]
    )
    more = "..." if row["size"] > len(row["body"]) or len(body) > BODY_CHARACTERS else ""
    return f"{row['delayed_key']}  {_when(row['due_ns'])}  {row['size']:>9,}  {shown}{more}"


def _json(row: DelayedRow) -> str:
    return json.dumps(
        {name: value.hex() if isinstance(value, bytes) else value for name, value in row.items()}
    )


def _when(due_ns: int) -> str:
    """Return the time in the user's time zone."""
    seconds = due_ns / 1e9
    text = datetime.fromtimestamp(seconds).astimezone().isoformat(sep=" ", timespec="milliseconds")
    return f"{text} (in {max(0.0, seconds - time.time()):,.0f} s)"
