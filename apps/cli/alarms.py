"""zsq alarms: which backlogs are alarms now, what was told lately, and who could be told."""

from __future__ import annotations

import time
from typing import Any, Final

import click

from .options import with_broker
from .output import json_option, tell

RECENT_SHOWN: Final = 20


@click.command()
@json_option
@with_broker
def alarms(as_json: bool, url: str, timeout: float) -> None:
    """Show the backlog alarms that are raised now, the last that were told, and the receivers.

    Thresholds are set by zsq serve --alarm-depth, --alarm-age, and for one channel by zsq channel set --alarm-depth, --alarm-age.
    """
    from ...transport.client import Admin

    with Admin(url, timeout=timeout) as admin:
        found = admin.stats()
    shown = {"raised": found["alarms"], "recent": found["recent_alarms"], "receivers": found["alarm_receivers"]}
    if as_json:
        tell(shown)
    else:
        click.echo(described(shown))


def described(found: dict[str, list[dict[str, Any]]]) -> str:
    """Lines for people."""
    lines = [f"raised since {_time(row['raised_ns'])}  {_figure(row)}" for row in found["raised"]] or ["no alarm is raised"]
    recent = found["recent"][-RECENT_SHOWN:]
    if recent:
        lines += ["", "lately"] + [f"{_time(event['time_ns'])}  {event['text']}" for event in recent]
    if found["receivers"]:
        lines += ["", "receivers"]
    for row in found["receivers"]:
        state = f"told {row['told_count']}"
        state += f", {row['waiting']} waiting" if row["waiting"] else ""
        state += f", {row['given_up_count']} given up" if row["given_up_count"] else ""
        lines.append(f"{row['name']}: {state}" + (f"; last try: {row['trouble']}" if row["trouble"] else ""))
    return "\n".join(lines)


def _figure(row: dict[str, Any]) -> str:
    where = f"{row['topic']}/{row['channel']}"
    if row["figure"] == "depth":
        return f"{where}: depth {row['value']:,} (alarm above {row['threshold']:,})"
    return f"{where}: oldest message {row['value']:,.0f} s old (alarm above {row['threshold']:,g} s)"


def _time(time_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_ns / 1e9))
