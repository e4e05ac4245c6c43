"""Whole topic: what the statistics say about a topic as a user knows it, with or without parts.

The answer of `stats` has a row for each part. A figure about the topic is the sum of its parts, and
the figure of one part stands for nothing else. So every command, page and confirmation that is
about a topic takes its figures from here. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from .names import base_of, part_of, parts_text
from .reports import ChannelStats, ConsumerStats, Latency, TopicStats


class WholeTopic(NamedTuple):
    """A topic with the sums of its parts.

    `row` is the only row of a topic without parts, or the combined one of all parts that have
    answered. `parts` has the rows of the parts, by number. It is empty for a topic without parts,
    and for a part that was asked for by its name. `unanswered` has the names of the parts that are
    missing in the sums, each with the reason.
    """

    row: TopicStats
    parts: Sequence[TopicStats] = ()
    unanswered: Mapping[str, str] = {}

    @property
    def missing(self) -> str:
        """A sentence about the parts that are not counted, or ""."""
        if not self.unanswered:
            return ""
        why = next(iter(self.unanswered.values()))
        return f"{parts_text(self.unanswered)} did not answer and are left out: {why}"

    def channel(self, name: str) -> ChannelStats | None:
        """Return the combined row of a channel."""
        return next(
            (channel for channel in self.row["channels"] if channel["channel_name"] == name), None
        )

    def in_parts(self, channel: str) -> list[tuple[TopicStats, ChannelStats]]:
        """Return the rows of a channel in each part that has it, with those of the parts."""
        return [
            (part, row)
            for part in self.parts
            for row in part["channels"]
            if row["channel_name"] == channel
        ]


class TopicName(NamedTuple):
    """A topic with the channels that are known, and the numbers of its parts, if it has any."""

    channels: Sequence[str]
    parts: Sequence[int] = ()


def whole_names(
    topics: Mapping[str, Iterable[str]], parts: Mapping[str, Sequence[int]]
) -> dict[str, TopicName]:
    """Return the topics of a broker and of its cluster, by name. A topic with parts is one topic.

    `topics` has the topics and parts of the broker, each with its channels. `parts` has the numbers
    of the parts of each topic in the directory of the cluster.
    """
    channels: dict[str, set[str]] = {}
    for name, of_topic in topics.items():
        channels.setdefault(base_of(name), set()).update(of_topic)
    return {
        name: TopicName(sorted(channels.get(name, ())), parts.get(name, ()))
        for name in sorted(channels.keys() | parts.keys())
    }


def whole_topic(stats: Mapping[str, object], topic: str) -> WholeTopic:
    """Return the topic of an answer to `stats` about this topic, which has at least one row.

    The client adds `unanswered` to a partial answer.
    """
    rows = cast("Sequence[TopicStats]", stats["topics"])
    unanswered = cast("Mapping[str, str]", stats.get("unanswered", {}))
    if rows[0]["topic_name"] == topic:
        return WholeTopic(rows[0])
    rows = sorted(rows, key=lambda row: part_of(row["topic_name"]) or ("", 0))
    combined = _combined(rows, [row["topic_name"] for row in rows])
    names = dict.fromkeys(channel["channel_name"] for row in rows for channel in row["channels"])
    combined["channels"] = [_channel(rows, name) for name in names]
    combined["topic_name"] = base_of(topic)
    return WholeTopic(cast("TopicStats", combined), rows, unanswered)


def consumers(channel: ChannelStats) -> list[ConsumerStats]:
    """Return one row for each consumer of a combined channel, which has a row of each part."""
    rows: dict[str, list[ConsumerStats]] = {}
    for client in channel["clients"]:
        rows.setdefault(client["client_id"], []).append(client)
    return [
        cast("ConsumerStats", _combined(of_one, [""] * len(of_one))) for of_one in rows.values()
    ]


def _channel(rows: Sequence[TopicStats], name: str) -> dict[str, Any]:
    """Return the combined row of a channel. A consumer of several parts counts once."""
    rows_of_parts = [
        (row["topic_name"], channel)
        for row in rows
        for channel in row["channels"]
        if channel["channel_name"] == name
    ]
    combined = _combined(
        [channel for _, channel in rows_of_parts], [part for part, _ in rows_of_parts]
    )
    clients = {client["client_id"] for _, channel in rows_of_parts for client in channel["clients"]}
    most = max(channel["client_count"] for _, channel in rows_of_parts)
    return combined | {"client_count": max(most, len(clients))}


def _combined(rows: Sequence[Any], parts: Sequence[str]) -> dict[str, Any]:
    """Return one row for rows of the same level. `parts` has the name of each row's part.

    Numbers are added, lists are joined, and a flag is set if one part has it. Texts that differ
    name their parts. Of maps, such as the settings, the first one is taken. The health is OK or
    that of the first part with a trouble.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    combined: dict[str, Any] = {}
    for name in names:
        values = [row[name] for row in rows if name in row]
        if (combine := _SPECIAL.get(name)) is not None:
            combined[name] = combine(values)
        elif all(isinstance(value, bool) for value in values):
            combined[name] = any(values)
        elif all(isinstance(value, int | float) for value in values):
            combined[name] = sum(values)
        elif all(isinstance(value, list | tuple) for value in values):
            combined[name] = [item for value in values for item in value]
        elif all(isinstance(value, str) for value in values):
            combined[name] = _text([row.get(name, "") for row in rows], parts)
        else:
            combined[name] = values[0]
    return combined


def _text(texts: Sequence[str], parts: Sequence[str]) -> str:
    if len(set(texts)) == 1:
        return texts[0]
    by_text: dict[str, list[str]] = {}
    for part, text in zip(parts, texts, strict=True):
        by_text.setdefault(text, []).append(part)
    return "; ".join(f"{parts_text(by_text[text])}: {text}" for text in by_text if text)


def _trouble(values: Iterable[str]) -> str:
    return next((health for health in values if health != "OK"), "OK")


def _largest(values: Iterable[float | None]) -> float | None:
    """Return the largest value, or None if one of them is not known."""
    known = list(values)
    return None if None in known else max(value for value in known if value is not None)


def _soonest(values: Iterable[int]) -> int:
    """Return the earliest time. 0 means that there is none."""
    return min(filter(None, values), default=0)


def _earliest(values: Iterable[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _rates(values: Iterable[Mapping[str, float]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for rates in values:
        for name, rate in rates.items():
            sums[name] = sums.get(name, 0.0) + rate
    return sums


def _slowest(values: Sequence[Latency]) -> Latency:
    """Return the count of all, and each percentile of the part where it is largest."""
    worst: dict[float, int] = {}
    for latency in values:
        for row in latency["percentiles"]:
            worst[row["quantile"]] = max(worst.get(row["quantile"], 0), row["value"])
    percentiles = [{"quantile": quantile, "value": value} for quantile, value in worst.items()]
    combined = {"count": sum(latency["count"] for latency in values), "percentiles": percentiles}
    return cast("Latency", combined)


# The fields that are not combined by their type.
_SPECIAL: Final[dict[str, Callable[[Any], Any]]] = {
    "health": _trouble,
    "oldest_message_age_s": _largest,
    "drain_s": _largest,
    "held_offset": min,
    "backing_off_count": max,
    "limited_since_s": _earliest,
    "ship_lag_s": _largest,
    "delayed_next_due_ns": _soonest,
    "rates": _rates,
    "e2e_processing_latency": _slowest,
}
