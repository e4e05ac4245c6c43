"""Draining: the messages that are left in a topic before it is deleted or emptied. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def remaining(stats: Mapping[str, Any]) -> list[str]:
    """Return texts about the messages left in a topic, or [] if it is drained.

    `stats`: the topic's row of the statistics.
    """
    left = []
    for row in stats["channels"]:
        counts = [
            f"{row[name]:,} {state}"
            for name, state in (
                ("depth", "waiting"),
                ("in_flight_count", "in flight"),
                ("deferred_count", "deferred"),
                ("dying_count", "dying"),
            )
            if row.get(name)
        ]
        if row["health"] in ("starting", "failed"):
            left.append(
                f"channel {row['channel_name']} (it is {row['health']}, so its messages cannot "
                "be counted)"
            )
        elif counts:
            nobody = "" if row.get("client_count") else ", no consumer"
            paused = ", paused" if row.get("paused") else ""
            left.append(f"channel {row['channel_name']} ({', '.join(counts)}{nobody}{paused})")
    if not stats["channels"] and stats["depth"]:
        left.append(
            f"{stats['depth']:,} messages that wait for a first channel (create one and consume "
            "them, or run `zsq topic empty`)"
        )
    elif stats["depth"]:
        left.append(
            f"{stats['depth']:,} messages that wait because the topic is paused (run `zsq topic "
            "unpause`)"
        )
    if stats["delayed_count"]:
        left.append(
            f"{stats['delayed_count']:,} delayed messages that are not due yet (or run `zsq "
            "delayed cancel`)"
        )
    return left


def cancelled_delayed(rows: Iterable[Mapping[str, Any]], channel: str | None) -> int:
    """Return how many delayed messages are cancelled when a topic or a channel is emptied.

    `rows` are the rows of the topic, or of each of its parts. The delayed messages of a topic
    without channels are cancelled with it, and those of a topic with one channel with this channel.
    Otherwise they stay, because they will be due for all channels.
    """
    only = [] if channel is None else [channel]
    return sum(
        row.get("delayed_count") or 0
        for row in rows
        if [each["channel_name"] for each in row["channels"]] == only
    )
