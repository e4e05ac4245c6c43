"""Channels' rows in `stats`: pulses, corrected by reports of topic and storage. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, cast

from ...transport.reports import ChannelStats
from ..primitives.ranges import unread
from ..runtime.pulses import ChannelDetails, ChannelPulse, TopicPulse
from ..settings import options
from .broker_view import channel_pulse, is_known, storage_pulse, topic_pulse
from .schema import ENDS, defaults

if TYPE_CHECKING:
    from .broker_view import TopicProcesses
    from .gathering import Details

DEFERRED_FULL: Final = (
    f"takes no new messages: it has reached the limit of {options.DEFERRED_ROWS_MAX:,} deferred "
    "messages"
    f" (an ephemeral channel: {options.EPHEMERAL_DEFERRED_ROWS_MAX:,}, an ordered one: "
    f"{options.ORDERED_DEFERRED_ROWS_MAX:,})"
)
# Values until the process reports for the first time. Views may read each of them without a check.
NOT_REPORTED: Final = {
    name: value
    for name, value in defaults("channel").items()
    if name not in ("channel_name", "health")
}


# An active actor sends a pulse each second. This is that time with the delays of a busy machine.
ACTIVE_NS: Final = options.PULSE_MS * 1_500_000

# Fields that only the supervisor reads.
# `Actor.pulse` adds the processor time, which the rows of processes have.
_NOT_SHOWN: Final = {"cpu_ns", *ChannelPulse.__annotations__, *ChannelDetails.__annotations__} - {
    *ChannelStats.__annotations__
}


def channel_rows(
    group: TopicProcesses, end: int, wall_ns: int, details: Details | None = None
) -> list[ChannelStats]:
    """Return the rows of a topic's channels.

    `end` is the offset up to which their depth counts. `details` are the answers of channels
    that were just asked for details, by key.
    """
    topic, oldest = topic_pulse(group), storage_pulse(group).get("oldest_ns", {})
    coming = 0.0 if topic.get("paused") else float(topic.get("rates", {}).get("message_count", 0.0))
    rows = []
    for name, channel in group.channels.items():
        child = channel.child
        stats = channel_pulse(group, name)
        reply = details.get(child.spec.key, {}) if child is not None and details else {}
        row = _row(name, stats, reply, waiting(group, name, end), end, coming, coming_recent(topic))
        row["oldest_message_age_s"] = age_s(
            row["depth"] + held(stats), oldest.get(name, 0), wall_ns
        )
        # Until the channel has reported, its row has what is known of the time before.
        row["health"] = (
            said_of(stats) or "OK"
            if is_known(group, name)
            else "failed"
            if channel.has_failed
            else "starting"
        )
        rows.append(row)
    return rows


def _row(
    name: str,
    stats: ChannelPulse,
    details: Mapping[str, object],
    waits: int,
    end: int,
    coming: float,
    recent: float,
) -> ChannelStats:
    """Return a channel's row.

    `coming` is the rate of messages a second into the topic over the last minute, `recent` over
    the last ten seconds.
    """
    known = {**NOT_REPORTED, "channel_name": name, **stats, **details}
    row = cast(
        "ChannelStats", {name: value for name, value in known.items() if name not in _NOT_SHOWN}
    )
    # The channel may not know of the newest messages; the topic knows the end.
    if "next_offset" in stats:
        row["depth"] = waits
        row["backend_depth"] = unread(stats.get("window_end", end), end, stats.get("absent", ()))
        row["message_count"] = max(0, end - stats.get("begin", end))
    row["rates"] = {"message_count": coming, **row["rates"]}
    row["drain_s"] = drain_s(
        row["depth"] + row["in_flight_count"], stats.get("rates_recent", row["rates"]), recent
    )
    return row


def said_of(stats: ChannelPulse) -> str:
    """Return the text of a channel's pulse that belongs in the channel's health, or ""."""
    texts = [
        DEFERRED_FULL if stats.get("deferred_full") else "",
        stats.get("dead_letter_alarm", ""),
    ]
    return "; ".join(filter(None, texts))


def held(stats: ChannelPulse) -> int:
    """Return the number of messages that do not wait and are not finished."""
    return (
        stats.get("in_flight_count", 0)
        + stats.get("deferred_count", 0)
        + stats.get("dying_count", 0)
    )


def visible_end(group: TopicProcesses) -> int:
    """Return the end of the messages that channels may see: the pause, or the end of the log.

    The storage's end may be ahead of the topic's for a moment. Then the storage's end counts.
    """
    topic = topic_pulse(group)
    end = topic.get("end", 0)
    return end if topic.get("paused") else max(end, storage_pulse(group).get("head", 0))


def depth(stats: ChannelPulse, end: int) -> int:
    """Return the number of messages that wait in a channel that has sent a pulse."""
    return unread(stats["next_offset"], end, stats.get("absent", ())) + stats.get(
        "requeued_waiting", 0
    )


def waiting(group: TopicProcesses, channel: str, end: int) -> int:
    """Return the number of messages up to `end` that wait in a channel, or 0 if it is not known.

    All views get this number from here. It is never below what the channel itself has reported.
    """
    stats = channel_pulse(group, channel)
    if "next_offset" not in stats:
        return 0
    return max(stats.get("depth", 0), depth(stats, end))


def settled_end(group: TopicProcesses, channel: str, now_ns: int) -> int:
    """Return the offset up to which the last pulse of a channel counts its messages.

    A channel that has consumers moves between its own pulse and that of its topic. Messages that
    came between the two would count as a backlog of a channel that keeps up. So it counts up to the
    end that was known when its own pulse came. A channel that is silent for longer than an active
    one has not moved. It counts up to the newest end, like a channel without consumers.
    """
    end = visible_end(group)
    child = group.reporter(channel)
    if child is None or not channel_pulse(group, channel).get("client_count"):
        return end
    return min(end, child.topic_end) if now_ns - child.pulsed_ns < ACTIVE_NS else end


def backlog(
    group: TopicProcesses, channel: str, now_ns: int, wall_ns: int
) -> dict[str, float | None]:
    """Return the values that alarms watch, for a channel that has sent a pulse.

    This is cheaper than a whole row.
    """
    oldest_ns = storage_pulse(group).get("oldest_ns", {}).get(channel, 0)
    waits = waiting(group, channel, settled_end(group, channel, now_ns))
    stats = channel_pulse(group, channel)
    return {"depth": waits, "age_s": age_s(waits + held(stats), oldest_ns, wall_ns)}


def age_s(unfinished: int, oldest_ns: int, wall_ns: int) -> float | None:
    """Return the age of the oldest of `unfinished` messages, which was stored at `oldest_ns`.

    It is None if `oldest_ns` is 0, which means not known.
    """
    if not unfinished:
        return 0.0
    return round(max(0, wall_ns - oldest_ns) / 1e9, 3) if oldest_ns else None


def coming_recent(topic: TopicPulse) -> float:
    """Return the rate of messages a second into the topic's channels over the last ten seconds."""
    return (
        0.0
        if topic.get("paused")
        else float(topic.get("rates_recent", topic.get("rates", {})).get("message_count", 0.0))
    )


def drain_s(backlog: int, rates: Mapping[str, float], coming: float) -> float | None:
    """Return the time to finish the backlog at these rates, or None if it does not shrink."""
    if not backlog:
        return 0.0
    gain = sum(rates.get(name, 0.0) for name in ENDS) - coming
    return round(backlog / gain, 1) if gain > 0 else None
