"""zsq cluster: the brokers of a cluster, and where the parts of topics are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from ....transport.errors import ZsqError
from ....transport.names import part_name
from ..options import with_broker
from ..output import json_option, say, tell

if TYPE_CHECKING:
    from ....transport.client.blocking.client import Admin as Asked
    from ....transport.wire.answers import ClusterAnswer, ClusterBroker, ClusterTopic

ASK_S: Final = 3.0  # a broker that does not answer within this time is shown as away

# What a broker says of its topics, by their names, or why it does not answer.
Found = Mapping[str, Any] | str


@click.command()
@json_option
@with_broker
def cluster(as_json: bool, url: str, timeout: float) -> None:
    """Show the brokers of the cluster, and which of them has which part of a topic.

    Each broker is asked what its parts hold: messages so far, the largest backlog of a channel, and
    how far the bucket is behind. A broker that does not answer within 3 s is shown as away.
    """
    from ....transport.client.blocking.client import Admin

    with Admin(url, timeout=timeout) as admin:
        told = admin.cluster(fresh=True)
        said = {one["number"]: _ask(admin, one) for one in told["brokers"]}
    if as_json:
        brokers = [{**one, **_state(said[one["number"]])} for one in told["brokers"]]
        topics = [{**one, "parts": rows} for one, rows in _parts(told, said)]
        tell({**told, "brokers": brokers, "topics": topics})
        return
    _show(told, said)


def _ask(admin: Asked, broker: ClusterBroker) -> Found:
    """Return the statistics of a broker, or why they do not come."""
    from ....transport.client.blocking.client import Admin

    if broker["me"]:
        return dict(admin.stats())
    try:
        with Admin(",".join(broker["addresses"]), timeout=ASK_S) as other:
            return dict(other.stats())
    except ZsqError as error:
        return error.text


def _state(found: Found) -> dict[str, object]:
    if isinstance(found, str):
        return {"state": "away", "why": found}
    bucket = found.get("bucket") or {}
    return {
        "state": "up",
        "health": found.get("health", "OK"),
        "standbys": bucket.get("standbys", 0),
        "lag_s": bucket.get("lag_s", 0.0),
    }


def _parts(
    told: ClusterAnswer, said: Mapping[int, Found]
) -> list[tuple[ClusterTopic, list[dict[str, Any]]]]:
    """Return each topic with a row for each of its parts."""
    found = []
    for topic in told["topics"]:
        rows: list[dict[str, Any]] = []
        for number, broker in enumerate(topic["parts"]):
            name = part_name(topic["topic"], number)
            stats = said[broker]
            there = {} if isinstance(stats, str) else {t["topic_name"]: t for t in stats["topics"]}
            row: dict[str, Any] = {"part": number, "broker": broker, "state": "away"}
            if (one := there.get(name)) is not None:
                depths = [channel["depth"] for channel in one["channels"]]
                row |= {
                    "state": "up",
                    "messages": one["head"] - one["start"],
                    "backlog": max(depths, default=0),
                    "lag_s": one.get("ship_lag_s", 0.0),
                }
            elif not isinstance(stats, str):
                row["state"] = "not open yet"
            if number in topic["closed"]:
                row["state"] = f"{row['state']}, closed"
            rows.append(row)
        found.append((topic, rows))
    return found


def _show(told: ClusterAnswer, said: Mapping[int, Found]) -> None:
    rows: list[Sequence[str]] = [("broker", "addresses", "state", "standbys", "lag")]
    for one in told["brokers"]:
        state = _state(said[one["number"]])
        up = state["state"] == "up"
        shown = "away" if not up else "up" if state["health"] == "OK" else str(state["health"])
        counts = [f"{state['standbys']}", f"{state['lag_s']:.1f} s"] if up else ["", ""]
        mine = " (this one)" if one["me"] else ""
        rows.append((f"{one['number']}{mine}", ",".join(one["addresses"]), shown, *counts))
    _table(rows)
    for topic, parts in _parts(told, said):
        say("")
        say(f"topic {topic['topic']}, {len(parts)} parts")
        rows = [("part", "broker", "messages", "backlog", "lag", "state")]
        for part in parts:
            counts = ["", "", ""]
            if "messages" in part:
                counts = [f"{part['messages']:,}", f"{part['backlog']:,}", f"{part['lag_s']:.1f} s"]
            rows.append((f"{part['part']}", f"{part['broker']}", *counts, part["state"]))
        _table(rows)
    for number, why in sorted(said.items()):
        if isinstance(why, str):
            say(f"broker {number} is away: {why}", err=True)
    if told["trouble"]:
        say(f"trouble: {told['trouble']}", err=True)


def _table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        say("  ".join(cells).rstrip())
