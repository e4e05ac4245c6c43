"""zsq cluster: the brokers of a cluster, and where the parts of topics are.

`balance.py` adds the subcommands that move them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from ..options import with_broker
from ..output import json_option, say, tell, wide_console

if TYPE_CHECKING:
    from ....actors.gateways.cluster_survey import Look
    from ....actors.statistics.cluster import BrokerRow, PartRow, Report, Seen
    from ....transport.client.asyncio.aio import Admin

NO_VALUE: Final = ""


@click.group(invoke_without_command=True)
@json_option
@with_broker
@click.pass_context
def cluster(context: click.Context, as_json: bool, url: str, timeout: float) -> None:
    """Show the brokers of the cluster, and which of them has which part of a topic.

    Each broker is asked for its role, its epoch, how far the bucket is behind, and what its parts
    hold: messages so far, and the largest backlog of a channel. A broker that does not answer
    within 2 s is shown as away. If a standby follows a broker, the command that hands over is
    shown.
    """
    if context.invoked_subcommand is not None:
        return
    from ....actors.statistics.cluster import seen_in_stats

    restricted = False

    async def look(admin: Admin) -> Seen:
        nonlocal restricted
        stats = await admin.stats()
        restricted = restricted or "disk" not in stats
        return seen_in_stats(stats)

    report = ask_cluster(url, timeout, look)
    if as_json:
        tell(
            {
                **report,
                "topics": [{**topic, "parts": _told(topic["parts"])} for topic in report["topics"]],
            }
        )
    else:
        _show(report)
    if restricted:
        text = "zsq: epoch, lag, standbys, and other users' topics are not shown without the"
        say(f'{text} permission view = ["*"]', err=True)


async def ask_with_stats(admin: Admin) -> Seen:
    """Ask a broker also for the bytes of its parts and of its disk."""
    from ....actors.statistics.cluster import seen_in_stats

    return seen_in_stats(await admin.stats())


def ask_cluster(url: str, timeout: float, look: Look) -> Report:
    """Ask the broker at `url` for the cluster, and each of its brokers with `look`."""
    # This is the default loop of Linux and macOS. That of Windows cannot watch sockets.
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        return runner.run(_ask_cluster(url, timeout, look))


async def _ask_cluster(url: str, timeout: float, look: Look) -> Report:
    from ....actors.gateways.cluster_survey import ClusterSurvey, open_other
    from ....transport.client.asyncio.aio import Admin

    async with Admin(url, timeout=timeout) as admin:
        asking = ClusterSurvey(admin, partial(open_other, admin), look, fresh=True)
        try:
            return await asking.report()
        finally:
            await asking.close()


def _state(part: PartRow) -> str:
    closed = ", closed" if part["closed"] else ""
    moves = f", moves to {part['to']}" if part["to"] is not None else ""
    return f"{part['state']}{closed}{moves}"


def _told(parts: Sequence[PartRow]) -> list[dict[str, Any]]:
    """Return the parts for --json. Values that are not known are left out."""
    return [
        {
            name: value
            for name, value in {**part, "state": _state(part)}.items()
            if value is not None
        }
        for part in parts
    ]


def _show(report: Report) -> None:
    rows: list[Sequence[str]] = [
        ("broker", "role", "epoch", "lag", "standbys", "parts", "addresses")
    ]
    rows += [(*_broker(broker), ",".join(_addresses(broker))) for broker in report["brokers"]]
    lines = lines_of(rows)
    has_room = max(map(len, lines)) <= wide_console().width
    for line in lines if has_room else lines_of([row[:-1] for row in rows]):
        say(line)
    if not has_room:  # the addresses are long, so they stand below, one in a line
        for broker in report["brokers"]:
            say(f"addresses of broker {broker['number']}:")
            for address in _addresses(broker):
                say(f"  {address}")
    if not report["is_cluster"]:
        say("This broker belongs to no cluster. `zsq serve --cluster URL` lets it join one.")
    for topic in report["topics"]:
        say("")
        count = len(topic["parts"])
        say(f"topic {topic['topic']}, {count} part{'s' * (count != 1)}")
        rows = [("part", "broker", "messages", "backlog", "lag", "state")]
        for part in topic["parts"]:
            counts = [_number(part["messages"]), _number(part["backlog"]), _lag(part["lag_s"])]
            rows.append((f"{part['part']}", f"{part['broker']}", *counts, _state(part)))
        for line in lines_of(rows):
            say(line)
    for broker in report["brokers"]:
        if broker["handover"]:
            say("")
            say(f"a standby follows broker {broker['number']}; to let it take over:")
            say(f"  {broker['handover']}")
    for broker in report["brokers"]:
        if broker["gone"]:
            continue  # it is not asked
        if broker["state"] != "up":
            say(f"broker {broker['number']} is {broker['role']}: {broker['why']}", err=True)
        elif broker["health"] != "OK":
            say(f"broker {broker['number']} is not well: {broker['health']}", err=True)
    moving, planned = report["moving"], report["planned"]
    if moving or planned:
        say("")
        say(f"balancing: {moving} of {moving + planned} parts move")
    if report["auto"]["is_on"]:
        say("auto is on: the brokers balance their parts by themselves (zsq cluster auto)")
    if report["trouble"]:
        say(f"trouble: {report['trouble']}", err=True)


def _broker(broker: BrokerRow) -> Sequence[str]:
    """Return the cells of a broker, without its addresses."""
    mine = " (this one)" if broker["me"] else ""
    role = f"{broker['role']}, draining" if broker["draining"] else broker["role"]
    epoch, standbys = _number(broker["epoch"]), _number(broker["standbys"])
    return (
        f"{broker['number']}{mine}", role, epoch, _lag(broker["lag_s"]), standbys,
        f"{broker['parts']}",
    )  # fmt: skip


def _addresses(broker: BrokerRow) -> list[str]:
    """Return the addresses of a broker. Those that do not lead to the primary show their role."""
    roles = {place["url"]: place["role"] for place in broker["places"]}
    urls = list(dict.fromkeys([*broker["addresses"], *roles]))
    usual = "primary" if broker["state"] == "up" else broker["role"]
    return [url if roles.get(url, usual) == usual else f"{url} ({roles[url]})" for url in urls]


def _number(value: int | None) -> str:
    return NO_VALUE if value is None else f"{value:,}"


def _lag(value: float | None) -> str:
    return NO_VALUE if value is None else f"{value:.1f} s"


def lines_of(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
