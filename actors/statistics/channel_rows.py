"""What `stats` shows of a topic's channels: their pulses, with what the topic and its storage know better. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, cast

from ...transport.reports import ChannelStats
from ..primitives.ranges import unread
from ..runtime.pulses import ChannelDetails, ChannelPulse, TopicPulse
from ..settings import options
from .broker_view import channel_pulse, storage_pulse, topic_pulse
from .schema import ENDS, defaults

if TYPE_CHECKING:
    from .broker_view import TopicView
    from .gathering import Details

DEFERRED_FULL: Final = (
    f"takes no new messages: {options.DEFERRED_ROWS_MAX:,} requeues with a delay wait, the most that a channel holds"
    f" ({options.EPHEMERAL_DEFERRED_ROWS_MAX:,} an ephemeral one, {options.ORDERED_DEFERRED_ROWS_MAX:,} an ordered one)"
)
# What stands in until its process reports for the first time. Views may read each of these without asking whether it is there.
NOT_REPORTED: Final = {name: value for name, value in defaults("channel").items() if name not in ("channel_name", "health")}


# What the supervisor alone reads of them.
_NOT_SHOWN: Final = {*ChannelPulse.__annotations__, *ChannelDetails.__annotations__} - {*ChannelStats.__annotations__}


def channel_rows(group: TopicView, end: int, wall_ns: int, details: Details | None = None) -> list[ChannelStats]:
    """`end`: as far as their depth counts. `details`: what channels said who were asked just now, by key."""
    topic, oldest = topic_pulse(group), storage_pulse(group).get("oldest_ns", {})
    coming = 0.0 if topic.get("paused") else float(topic.get("rates", {}).get("message_count", 0.0))
    rows = []
    for name, child in group.channels.items():
        stats = channel_pulse(child)
        asked = details.get(child.spec.key, {}) if child is not None and details else {}
        row = _row(name, stats, asked, end, coming, coming_recent(topic))
        row["oldest_message_age_s"] = age_s(row["depth"] + held(stats), oldest.get(name, 0), wall_ns)
        up = child is not None and child.state == "up" and "next_offset" in stats  # before its first report nobody knows what it holds
        row["health"] = said_of(stats) or "OK" if up else "failed" if name in group.failed_channels() else "starting"
        rows.append(row)
    return rows


def _row(name: str, stats: ChannelPulse, asked: Mapping[str, object], end: int, coming: float, recent: float) -> ChannelStats:
    """`coming`: messages a second that come into the topic, over the last minute; `recent`: over the last ten seconds."""
    found = {**NOT_REPORTED, "channel_name": name, **stats, **asked}
    row = cast("ChannelStats", {name: value for name, value in found.items() if name not in _NOT_SHOWN})
    # The channel may not have heard of the newest messages: the topic knows the end.
    if "next_offset" in stats:
        row["depth"] = depth(stats, end)
        row["backend_depth"] = unread(stats.get("window_end", end), end, stats.get("emptied", ()))
        row["message_count"] = max(0, end - stats.get("begin", end))
    row["rates"] = {"message_count": coming, **row["rates"]}
    row["drain_s"] = drain_s(row["depth"] + row["in_flight_count"], stats.get("rates_recent", row["rates"]), recent)
    return row


def said_of(stats: ChannelPulse) -> str:
    """What of a channel's pulse belongs into health, "" for nothing."""
    found = [DEFERRED_FULL if stats.get("deferred_full") else "", stats.get("dead_letter_alarm", "")]
    return "; ".join(filter(None, found))


def held(stats: ChannelPulse) -> int:
    """Messages that do not wait and are not finished."""
    return stats.get("in_flight_count", 0) + stats.get("deferred_count", 0) + stats.get("dying_count", 0)


def visible_end(group: TopicView) -> int:
    """Where what channels may see ends: at a pause, or with the log. Storage may know of a commit that the topic has not heard of."""
    topic = topic_pulse(group)
    end = topic.get("end", 0)
    return end if topic.get("paused") else max(end, storage_pulse(group).get("head", 0))


def depth(stats: ChannelPulse, end: int) -> int:
    """What waits, of a channel that has pulsed."""
    return unread(stats["next_offset"], end, stats.get("emptied", ())) + stats.get("requeued_waiting", 0)


def backlog(group: TopicView, channel: str, stats: ChannelPulse, wall_ns: int) -> dict[str, float | None]:
    """What alarms look at, of a channel that has pulsed, without the work for a whole row."""
    oldest_ns = storage_pulse(group).get("oldest_ns", {}).get(channel, 0)
    waits = depth(stats, visible_end(group))
    return {"depth": waits, "age_s": age_s(waits + held(stats), oldest_ns, wall_ns)}


def age_s(unfinished: int, oldest_ns: int, wall_ns: int) -> float | None:
    """How old the oldest of so many messages is, stored at `oldest_ns` (0: that is not known)."""
    if not unfinished:
        return 0.0
    return round(max(0, wall_ns - oldest_ns) / 1e9, 3) if oldest_ns else None


def coming_recent(topic: TopicPulse) -> float:
    """Messages a second that came into the topic's channels within the last ten seconds."""
    return 0.0 if topic.get("paused") else float(topic.get("rates_recent", topic.get("rates", {})).get("message_count", 0.0))


def drain_s(backlog: int, rates: Mapping[str, float], coming: float) -> float | None:
    """How long so many messages take, while others come at that rate."""
    if not backlog:
        return 0.0
    gain = sum(rates.get(name, 0.0) for name in ENDS) - coming
    return round(backlog / gain, 1) if gain > 0 else None
