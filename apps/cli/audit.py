"""zsq audit: who changed what, as the broker's audit log has it."""

from __future__ import annotations

import json
from typing import Any, Final

import click

from .options import with_broker
from .output import json_lines_option, tell_line

ENTRIES_MAX: Final = 1_000  # what the broker remembers; older ones stand in the files
LAST: Final = 100


@click.command()
@click.option("--last", type=click.IntRange(1, ENTRIES_MAX), default=LAST, show_default=True, metavar="N", help="At most so many.")
@click.option("--topic", default="", help="Of this topic only: who manages it needs no more permission than that.")
@click.option("--user", help='What this user did; "" for where nobody had to say.')
@json_lines_option
@with_broker
def audit(last: int, topic: str, user: str | None, as_json: bool, url: str, timeout: float) -> None:
    """Show who changed what, the newest last: time, who, from where, what, of what, and how it ended.

    The broker tells its newest 1,000 entries; older ones are in DATA_DIR/audit.log and audit.log.1 to .4, a line of JSON each.
    """
    from ...transport.client import Admin

    with Admin(url, timeout=timeout) as admin:
        found = admin.audit(last if user is None else ENTRIES_MAX, topic)
    shown = [row for row in found if user in (None, row.get("user"))][:last]
    for row in reversed(shown):
        if as_json:
            tell_line(row)
        else:
            click.echo(described(row))


def described(row: dict[str, Any]) -> str:
    """A line for people; what came from outside cannot break it, or colour it."""
    if "via" not in row:
        return _plain(f"{row.get('time', '')}  {row.get('action', '')}  {row.get('count', '')}")
    who = "@".join(one for one in (row["user"], row["from"]) if one) or "-"
    what = "/".join(one for one in (row["topic"], row["channel"]) if one)
    options = "".join(f" {name}={json.dumps(value, default=str)}" for name, value in row["options"].items())
    end = "" if row["result"] == "done" else f": {row['result']}"
    return _plain(f"{row['time']}  {who} ({row['via']})  {row['action']} {what}{options}{end}")


def _plain(text: str) -> str:
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)
