"""zsq alarms: show the raised alarms, the last notifications and the receivers.

`zsq audit` shows who changed what, from the broker's audit log.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypedDict

import click

from ....actors.runtime.logs import escaped
from ....transport.reports import AlarmEvent, AlarmReceiver, RaisedAlarm
from ....transport.wire.answers import AuditEntry
from ..options import with_admin, with_broker
from ..output import json_lines_option, json_option, say, say_prose, tell, tell_line
from ..quantities import Seconds

if TYPE_CHECKING:
    from ....transport.client.blocking.client import Admin

RECENT_SHOWN: Final = 20


class ShownAlarms(TypedDict):
    raised: Sequence[RaisedAlarm]
    recent: Sequence[AlarmEvent]
    receivers: Sequence[AlarmReceiver]


@click.group(invoke_without_command=True)
@click.pass_context
@json_option
@with_broker
def alarms(context: click.Context, as_json: bool, url: str, timeout: float) -> None:
    """Show the alarms that are raised now, the last notifications, and their receivers. The
    commands acknowledge alarms, or silence them for some time.

    Alarms are about backlogs, the health of topics, the disk, the bucket and the settings.
    Thresholds are set by zsq serve --alarm-depth and similar options, and for one channel by zsq
    channel set --alarm-depth and --alarm-age.
    """
    if context.invoked_subcommand is not None:
        return  # it has options of its own, such as --url
    from ....transport.client.blocking.client import Admin

    with Admin(url, timeout=timeout) as admin:
        stats = admin.stats()
    shown: ShownAlarms = {
        "raised": stats["alarms"],
        "recent": stats["recent_alarms"],
        "receivers": stats["alarm_receivers"],
    }
    if as_json:
        tell(shown)
    else:
        say_prose(describe_alarms(shown))
        if "disk" not in stats:
            say('zsq: other alarms need the permission view = ["*"]', err=True)


@alarms.command("ack")
@click.argument("topic", required=False, default="")
@click.argument("channel", required=False, default="")
@click.option("--kind", default="", help="Only this alarm, such as depth; see zsq alarms --json.")
@click.option(
    "--for", "seconds", type=Seconds(), default=0.0, metavar="TIME",
    help="Silence all alarms of TOPIC or CHANNEL for this time, also later ones.",
)  # fmt: skip
@with_admin
def alarms_ack(topic: str, channel: str, kind: str, seconds: float, admin: Admin) -> None:
    """Acknowledge the raised alarms of TOPIC or its CHANNEL, until they are cleared. Without TOPIC:
    those of the broker.

    Receivers are not told of a silenced alarm, and the console does not count it. This survives a
    restart of the broker.
    """
    raised = admin.alarm_ack(topic, channel, kind=kind, seconds=seconds)["count"]
    if not raised:
        say("no such alarm is raised now; one that is raised within this time is silenced")


@alarms.command("unack")
@click.argument("topic", required=False, default="")
@click.argument("channel", required=False, default="")
@click.option("--kind", default="", help="Only this alarm, such as depth; see zsq alarms --json.")
@with_admin
def alarms_unack(topic: str, channel: str, kind: str, admin: Admin) -> None:
    """End the silence of the alarms of TOPIC or its CHANNEL. Without TOPIC: those of the broker."""
    admin.alarm_unack(topic, channel, kind=kind)


def describe_alarms(shown: ShownAlarms) -> str:
    """Return the lines for users."""
    lines = [
        f"raised since {_time(row['raised_ns'])}  {row['text']}{_silence(row)}"
        for row in shown["raised"]
    ] or ["no alarm is raised"]
    recent = shown["recent"][-RECENT_SHOWN:]
    if recent:
        lines += ["", "recent"] + [
            f"{_time(event['time_ns'])}  {event['text']}" for event in recent
        ]
    if shown["receivers"]:
        lines += ["", "receivers"]
    for row in shown["receivers"]:
        state = f"sent {row['sent_count']}"
        state += f", {row['waiting']} waiting" if row["waiting"] else ""
        state += f", {row['failed_count']} given up" if row["failed_count"] else ""
        lines.append(
            f"{row['name']}: {state}"
            + (f"; last error: {row['trouble']}" if row["trouble"] else "")
        )
    return "\n".join(lines)


def _silence(row: RaisedAlarm) -> str:
    silence = row.get("silence")
    if silence is None:
        return ""
    if silence["until_ns"]:
        return f"  (silenced by {silence['by']} until {_time(silence['until_ns'])})"
    return f"  (acknowledged by {silence['by']}, {_time(silence['at_ns'])})"


def _time(time_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_ns / 1e9))


ENTRIES_MAX: Final = 1_000  # the broker keeps this many in memory; older entries are in the files
LAST: Final = 100


@click.command()
@click.option(
    "--last",
    type=click.IntRange(1, ENTRIES_MAX),
    default=LAST,
    show_default=True,
    metavar="N",
    help="Print at most N messages.",
)
@click.option(
    "--topic",
    default="",
    help="Show changes of this topic only. This needs only the permission to manage the topic.",
)
@click.option("--user", help='Show changes by this user only; "" for unauthenticated changes.')
@json_lines_option
@with_admin
def audit(last: int, topic: str, user: str | None, as_json: bool, admin: Admin) -> None:
    """Show the audit log, newest entry last: time, user, address, action, topic and channel, and
    result.

    The broker returns its newest 1,000 entries. Older ones are in DATA_DIR/audit.log and
    audit.log.1 to .4, one JSON object per line.
    """
    rows = admin.audit(count=last if user is None else ENTRIES_MAX, topic=topic)
    shown = [row for row in rows if user in (None, row.get("user"))][:last]
    for row in reversed(shown):
        if as_json:
            tell_line(row)
        else:
            click.echo(describe_entry(row))


def describe_entry(row: AuditEntry) -> str:
    """Return a line for users, with control characters escaped: some texts come from clients."""
    if "via" not in row:
        return escaped(f"{row.get('time', '')}  {row.get('action', '')}  {row.get('count', '')}")
    who = "@".join(word for word in (row["user"], row["from"]) if word) or "-"
    place = "/".join(word for word in (row["topic"], row["channel"]) if word)
    options = "".join(
        f" {name}={json.dumps(value, default=str)}" for name, value in row["options"].items()
    )
    end = "" if row["result"] == "done" else f": {row['result']}"
    return escaped(f"{row['time']}  {who} ({row['via']})  {row['action']} {place}{options}{end}")
