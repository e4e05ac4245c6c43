"""zsq schedule: publish a message at each due time of a cron expression."""

from __future__ import annotations

import os
import time
from datetime import datetime
from typing import IO, TYPE_CHECKING, Final

import click

from ....actors.settings.schedule_settings import (
    MISSED,
    ONE,
    SCHEDULE_BODY_BYTES_MAX,
    UNIQUE,
    UTC,
)
from ....transport.errors import E_TOO_BIG, UsageError
from ....transport.units import NS_PER_S
from ..options import with_admin
from ..output import Grid, Heading, json_lines_option, json_option, tell, tell_line, wide_console
from .publish import given_headers

if TYPE_CHECKING:
    from ....transport.client.blocking.client import Admin
    from ....transport.wire.answers import ScheduleRow


unique_option: Final = click.option(
    "--unique",
    type=click.Choice(UNIQUE),
    help="Leave out due times while the last message waits, or is worked on.  [default: never]",
)


@click.group()
def schedule() -> None:
    """Publish a message again and again, at the times of a cron expression.

    The broker publishes, so no client has to run. Each due time is published at most once.
    """


@schedule.command("add")
@click.argument("name")
@click.argument("cron")
@click.argument("topic")
@click.argument("body", required=False)
@click.option(
    "--file",
    "source",
    type=click.File("rb"),
    default="-",
    metavar="FILE",
    help="Read the body from this file. Default: standard input, if no BODY is given.",
)
@click.option(
    "--timezone",
    default=UTC,
    show_default=True,
    metavar="ZONE",
    help="Time zone of CRON, such as Europe/Berlin.",
)
@click.option(
    "--missed",
    type=click.Choice(MISSED),
    default=ONE,
    show_default=True,
    help="Publish the latest, all (the last 1,000) or none of the due times that were missed.",
)
@click.option("--key", metavar="KEY", help="Key of the messages.")
@click.option("--tag", metavar="TAG", help="Tag of the messages.")
@click.option(
    "--header",
    "pairs",
    metavar="NAME=VALUE",
    multiple=True,
    help="Header of the messages. Repeatable.",
)
@unique_option
@json_option
@with_admin
def schedule_add(
    name: str, cron: str, topic: str, body: str | None, source: IO[bytes], timezone: str, missed: str, key: str | None,
    tag: str | None, pairs: tuple[str, ...], unique: str | None, as_json: bool, admin: Admin,
) -> None:  # fmt: skip
    """Publish BODY to TOPIC at each due time of CRON. NAME is the name of the schedule.

    CRON has five fields, as in crontab: minute, hour, day of month, month, day of week. For
    example, '0 3 * * *' is due each day at 03:00. TOPIC must exist.
    """
    parameter_source = click.get_current_context().get_parameter_source("source")
    if body is not None and parameter_source is not click.core.ParameterSource.DEFAULT:
        raise click.UsageError("BODY cannot be combined with --file; give one of them")
    payload = os.fsencode(body) if body is not None else source.read(SCHEDULE_BODY_BYTES_MAX + 1)
    if len(payload) > SCHEDULE_BODY_BYTES_MAX:
        text = f"the body is over the limit of a schedule, {SCHEDULE_BODY_BYTES_MAX:,} bytes"
        raise UsageError(E_TOO_BIG, text)
    headers = given_headers(pairs)
    reply = admin.schedule_add(
        topic, name, cron, payload, timezone=timezone, missed=missed, key=key, tag=tag,
        headers=headers, unique=unique,
    )  # fmt: skip
    if as_json:
        tell({"topic": topic, "name": name, **reply})
    else:
        click.echo(f"schedule {name} is added; the first due time is {_when(reply['next_due_ns'])}")


@schedule.command("list")
@click.argument("topic", required=False)
@json_lines_option
@with_admin
def schedule_list(topic: str | None, as_json: bool, admin: Admin) -> None:
    """List the schedules of this broker, or those of TOPIC: when each is due next, and what it has
    done. Counts begin with the broker's process.
    """
    rows = admin.schedule_list(topic)
    if as_json:
        for row in rows:
            tell_line(row)
        return
    if not rows:
        where = "at this broker" if topic is None else f"of {topic}"
        text = f"no schedules {where}; add one with zsq schedule add"
        click.echo(text, err=True)
        return
    others = (
        Heading("cron", True), Heading("zone", True), Heading("state", True), Heading("next due", True),
        Heading("last due", True), "published", "missed", Heading("trouble", True),
    )  # fmt: skip
    grid = Grid("Schedules", ("schedule", "topic"), others)
    for row in rows:
        grid.add(*_cells(row))
    console = wide_console()
    for table in grid.tables(console.width):
        console.print(table)


def _cells(row: ScheduleRow) -> tuple[str, ...]:
    return (
        row["name"], row["topic"], row["cron"], row["timezone"], row["state"],
        _when(row["next_due_ns"]), _day(row["last_due_ns"]), f"{row['published_count']:,}",
        f"{row['missed_count']:,}", row["trouble"],
    )  # fmt: skip


@schedule.command("set")
@click.argument("name")
@click.argument("topic")
@click.option("--cron", metavar="CRON", help="New times.")
@click.option("--timezone", metavar="ZONE", help="New time zone.")
@click.option("--missed", type=click.Choice(MISSED), help="What is published of missed due times.")
@click.option("--body", metavar="BODY", help="New body.")
@click.option(
    "--file", "source", type=click.File("rb"), metavar="FILE", help="Read the new body from FILE."
)
@click.option("--tag", metavar="TAG", help="New tag of the messages.")
@click.option(
    "--header", "pairs", metavar="NAME=VALUE", multiple=True, help="New headers. Repeatable."
)
@click.option(
    "--unique",
    type=click.Choice(UNIQUE),
    help="Leave out due times while the last message waits, or is worked on.",
)
@json_option
@with_admin
def schedule_set(
    name: str, topic: str, cron: str | None, timezone: str | None, missed: str | None, body: str | None,
    source: IO[bytes] | None, tag: str | None, pairs: tuple[str, ...], unique: str | None, as_json: bool,
    admin: Admin,
) -> None:  # fmt: skip
    """Change the schedule NAME of TOPIC. What you do not give stays, and so does its key.

    Due times count from now on.
    """
    if body is not None and source is not None:
        raise click.UsageError("--body cannot be combined with --file; give one of them")
    payload = os.fsencode(body) if body is not None else None
    if source is not None:
        payload = source.read(SCHEDULE_BODY_BYTES_MAX + 1)
    reply = admin.schedule_set(
        topic, name, cron=cron, body=payload, timezone=timezone, missed=missed, tag=tag,
        headers=given_headers(pairs) or None, unique=unique,
    )  # fmt: skip
    if as_json:
        tell({"topic": topic, "name": name, **reply})
    else:
        click.echo(
            f"schedule {name} is changed; the next due time is {_when(reply['next_due_ns'])}"
        )


@schedule.command("run")
@click.argument("name")
@click.argument("topic")
@with_admin
def schedule_run(name: str, topic: str, admin: Admin) -> None:
    """Publish the message of the schedule NAME of TOPIC once, now. Its due times do not change."""
    admin.schedule_run(topic, name)


@schedule.command("remove")
@click.argument("name")
@click.argument("topic")
@with_admin
def schedule_remove(name: str, topic: str, admin: Admin) -> None:
    """Remove the schedule NAME of TOPIC. Messages that it has published stay."""
    admin.schedule_remove(topic, name)


@schedule.command("pause")
@click.argument("name")
@click.argument("topic")
@with_admin
def schedule_pause(name: str, topic: str, admin: Admin) -> None:
    """Pause the schedule NAME of TOPIC. Nothing is published until it is resumed."""
    admin.schedule_pause(topic, name)


@schedule.command("resume")
@click.argument("name")
@click.argument("topic")
@with_admin
def schedule_resume(name: str, topic: str, admin: Admin) -> None:
    """Resume the schedule NAME of TOPIC. Due times of the pause are left out."""
    admin.schedule_resume(topic, name)


def _day(due_ns: int) -> str:
    """Return a due time in the user's time zone. Due times are whole minutes."""
    if not due_ns:
        return "-"
    return datetime.fromtimestamp(due_ns / NS_PER_S).astimezone().isoformat(" ", "minutes")


def _when(due_ns: int) -> str:
    left_s = due_ns / NS_PER_S - time.time()
    return f"{_day(due_ns)} (in {left_s:,.0f} s)" if due_ns and left_s > 0 else _day(due_ns)
