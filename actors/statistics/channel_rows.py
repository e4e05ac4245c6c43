"""What `stats` shows of a topic's channels: their pulses, with what the topic and its storage know better. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ..primitives.ranges import unread
from ..settings import options
from .schema import ENDS, Report, Row, defaults

if TYPE_CHECKING:
    from .broker_view import TopicView

DEFERRED_FULL: Final = (
    f"takes no new messages: {options.DEFERRED_ROWS_MAX:,} requeues with a delay wait, the most that a channel holds"
    f" ({options.EPHEMERAL_DEFERRED_ROWS_MAX:,} an ephemeral one, {options.ORDERED_DEFERRED_ROWS_MAX:,} an ordered one)"
)
# What stands in until its process reports for the first time. Views may read each of these without asking whether it is there.
NOT_REPORTED: Final = {name: value for name, value in defaults("channel").items() if name not in ("channel_name", "health")}


def channel_rows(group: TopicView, end: int, wall_ns: int, details: Mapping[int, Row] | None = None) -> list[Row]:
    """`end`: as far as their depth counts. `details`: what channels said who were asked just now, by key.

    `latency_bins` are for the topic's sum, and to be taken out of what is shown.
    """
    topic = group.topic.stats if group.topic is not None else {}
    oldest: Mapping[str, int] = group.storage.stats.get("oldest_ns", {}) if group.storage is not None else {}
    coming = 0.0 if topic.get("paused") else float(topic.get("rates", {}).get("message_count", 0.0))
    rows = []
    for name, child in group.channels.items():
        stats = child.stats if child is not None else {}
        if child is not None and details:
            stats = stats | details.get(child.spec.key, {})
        row = _row(name, stats, end, coming, coming_recent(topic))
        row["oldest_message_age_s"] = age_s(row["depth"] + held(row), oldest.get(name, 0), wall_ns)
        said = said_of(row)
        for told_elsewhere in ("deferred_full", "dead_letter_alarm", "latency_recent"):
            row.pop(told_elsewhere, None)
        up = child is not None and child.state == "up" and "next_offset" in stats  # before its first report nobody knows what it holds
        row["health"] = said or "OK" if up else "failed" if name in group.failed_channels() else "starting"
        rows.append(row)
    return rows


def _row(name: str, stats: Report, end: int, coming: float, recent: float) -> Row:
    """`coming`: messages a second that come into the topic, over the last minute; `recent`: over the last ten seconds."""
    row: Row = {**NOT_REPORTED, "channel_name": name, **stats}
    # The channel may not have heard of the newest messages: the topic knows the end.
    if "next_offset" in stats:
        row["depth"] = depth(row, end)
        row.pop("requeued_waiting", 0)
        row["backend_depth"] = unread(row.pop("window_end", end), end, row.pop("emptied", ()))
        row["message_count"] = max(0, end - row.pop("begin", end))
    row["rates"] = {"message_count": coming, **row["rates"]}
    row["drain_s"] = drain_s(row["depth"] + row["in_flight_count"], row.pop("rates_recent", row["rates"]), recent)
    return row


def said_of(stats: Report) -> str:
    """What of a channel's pulse belongs into health, "" for nothing."""
    found = [DEFERRED_FULL if stats.get("deferred_full") else "", str(stats.get("dead_letter_alarm", ""))]
    return "; ".join(filter(None, found))


def held(stats: Report) -> int:
    """Messages that do not wait and are not finished."""
    return int(stats.get("in_flight_count", 0) + stats.get("deferred_count", 0) + stats.get("dying_count", 0))


def visible_end(group: TopicView) -> int:
    """Where what channels may see ends: at a pause, or with the log. Storage may know of a commit that the topic has not heard of."""
    topic = group.topic.stats if group.topic is not None else {}
    end = int(topic.get("end", 0))
    if topic.get("paused") or group.storage is None:
        return end
    return max(end, int(group.storage.stats.get("head", 0)))


def depth(stats: Report, end: int) -> int:
    """What waits, of a channel that has pulsed."""
    return int(unread(stats["next_offset"], end, stats.get("emptied", ())) + stats.get("requeued_waiting", 0))


def backlog(group: TopicView, channel: str, stats: Report, wall_ns: int) -> dict[str, float | None]:
    """What alarms look at, of a channel that has pulsed, without the work for a whole row."""
    oldest_ns = group.storage.stats.get("oldest_ns", {}).get(channel, 0) if group.storage is not None else 0
    waits = depth(stats, visible_end(group))
    return {"depth": waits, "age_s": age_s(waits + held(stats), oldest_ns, wall_ns)}


def age_s(unfinished: int, oldest_ns: int, wall_ns: int) -> float | None:
    """How old the oldest of so many messages is, stored at `oldest_ns` (0: that is not known)."""
    if not unfinished:
        return 0.0
    return round(max(0, wall_ns - oldest_ns) / 1e9, 3) if oldest_ns else None


def coming_recent(topic: Report) -> float:
    """Messages a second that came into the topic's channels within the last ten seconds."""
    return 0.0 if topic.get("paused") else float(topic.get("rates_recent", topic.get("rates", {})).get("message_count", 0.0))


def drain_s(backlog: int, rates: Mapping[str, float], coming: float) -> float | None:
    """How long so many messages take, while others come at that rate."""
    if not backlog:
        return 0.0
    gain = sum(rates.get(name, 0.0) for name in ENDS) - coming
    return round(backlog / gain, 1) if gain > 0 else None
