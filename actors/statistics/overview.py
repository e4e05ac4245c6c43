"""Overview of the whole broker, from pulses that the supervisor already has; no actor is asked.

Clients request it once a second. A row is built again only when one of its sources has changed.
An answer has the rows that changed since the `version` that the client names. So an idle broker of
a thousand channels costs its supervisor almost nothing. Rows are lists of numbers, and an answer
names the fields once. The overview has the time of the oldest message instead of its age: that time
does not change while nothing happens.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final, cast

from ...transport.names import part_of
from ...transport.units import NS_PER_MS
from ...transport.wire import answers
from ...transport.wire.admin_requests import OverviewRequest
from .broker_view import (
    BrokerView,
    DiskView,
    TopicProcesses,
    channel_pulse,
    is_known,
    storage_pulse,
    topic_pulse,
)
from .channel_rows import coming_recent, drain_s, held, said_of, settled_end, waiting
from .dead_letters import letter_count, senders
from .schema import ENDS, SECTIONS, rows_of
from .statistics import (
    behind_pause,
    broker_health,
    log_head,
    process_rows,
    said_of_topic,
    section_rows,
    waiting_count,
)

REFRESH_NS: Final = 200_000_000  # several clients share the rows of one refresh
NOT_KNOWN: Final = -1

# Fields that are copied from reports of storage and channels, with the statistics of each.
_OF_STORAGE: Final = {
    row.view: row.name for row in rows_of("topic") if row.view and row.is_of_storage
}
_COUNTED: Final[dict[str, tuple[str, ...]]] = {
    row.view: tuple(one.name for one in rows_of("channel") if one.view == row.view)
    for row in rows_of("channel") if row.view and row.counter
}  # fmt: skip
TOPIC_FIELDS: Final = (
    "state", "health", "sync", "closed", "paused", "head", "messages", "bytes", "in_rate", "in_bytes_rate", "waiting", "backlog",
    "oldest_ns", *_OF_STORAGE, "restarts", "dead_letters", "pulsed_ms",
)  # fmt: skip
CHANNEL_FIELDS: Final = (
    "health", "paused", "depth", "in_flight", "deferred", "dying", "next_offset", "oldest_ns", "consumers", "came", *_COUNTED, "in_rate",
    "out_rate", "drain_s", "p50_ns", "p95_ns", "p99_ns", "ordered", "pulsed_ms",
)  # fmt: skip
Row = tuple[Any, ...]


class _Known:
    """A row, its sources, and the version in which it last changed."""

    __slots__ = ("end", "health", "made_of", "row", "stats", "topic", "version")

    def __init__(self) -> None:
        self.stats = self.topic = object()  # a value that differs from every pulse
        self.health = ""
        self.end = 0  # the end up to which a channel's row counts
        self.made_of: tuple[Any, ...] = ()  # the sources of a topic's row
        self.row: Row = ()
        self.version = 0


class Overview:
    def __init__(self, view: BrokerView) -> None:
        self._view = view
        self._topics: dict[str, _Known] = {}
        self._channels: dict[str, dict[str, _Known]] = {}
        # It is higher after each start of the broker, so that clients then get all rows again.
        self._version = time.time_ns() // NS_PER_MS
        self._whole = self._version  # the version since which the topics and channels are the same
        self._refreshed_ns = 0

    def answer(self, request: OverviewRequest) -> answers.OverviewAnswer:
        """Return an overview. `since` is the version that the client has."""
        since = request.since
        self._refresh(time.monotonic_ns())
        is_whole = not self._whole <= since <= self._version
        topics: dict[str, tuple[Row, dict[str, Row]]] = {}
        for name, known in self._topics.items():
            channels = {
                channel: known_channel.row
                for channel, known_channel in self._channels[name].items()
                if is_whole or known_channel.version > since
            }
            if is_whole or channels or known.version > since:
                topics[name] = (known.row if is_whole or known.version > since else (), channels)
        overview: answers.OverviewAnswer = {
            "version": self._version,
            "whole": is_whole,
            "topics": topics,
            "broker": self._broker(),
        }
        if is_whole:
            overview["topic_fields"], overview["channel_fields"] = TOPIC_FIELDS, CHANNEL_FIELDS
        if request.processes:
            # The rows have no memory sizes. To read the sizes of a thousand processes would take as
            # long as everything else here.
            overview["processes"] = [
                {"state": "up", **row} for row in process_rows(self._view, memory=False)
            ]
            overview.update(cast("Any", self._sections()))
        if request.alarms:
            alarms = self._view.alarms
            overview["alarms"] = {
                "now": alarms.rows(),
                "recent": alarms.recent(),
                "receivers": alarms.receivers(),
            }
        return overview

    def _sections(self) -> dict[str, Mapping[str, Any]]:
        """Return the rows of the sections that the overview has."""
        rows = section_rows(self._view)
        shown = [section.level for section in SECTIONS if section.in_overview]
        return {level: rows[level] for level in shown if level in rows}

    def rows(self) -> dict[str, tuple[Row, dict[str, Row]]]:
        """Return all rows."""
        self._refresh(time.monotonic_ns())
        return {
            name: (
                known.row,
                {
                    channel: known_channel.row
                    for channel, known_channel in self._channels[name].items()
                },
            )
            for name, known in self._topics.items()
        }

    # Rows

    def _refresh(self, now_ns: int) -> None:
        if now_ns - self._refreshed_ns < REFRESH_NS:
            return
        self._refreshed_ns = now_ns
        self._version += 1
        groups = self._view.groups
        same = self._topics.keys() == groups.keys()
        with_letters = senders(groups)
        for name in self._topics.keys() - groups.keys():
            del self._topics[name], self._channels[name]
        for name, group in groups.items():
            channels = self._channels.setdefault(name, {})
            same = same and channels.keys() == group.channels.keys()
            for gone in channels.keys() - group.channels.keys():
                del channels[gone]
            spoke = self._of_channels(group, channels, now_ns)
            known = self._topics.setdefault(name, _Known())
            self._of_topic(group, known, spoke, name in with_letters)
        if not same:
            self._whole = self._version

    def _of_channels(self, group: TopicProcesses, rows: dict[str, _Known], now_ns: int) -> bool:
        """Refresh the rows of channels. Return True if any has changed."""
        topic = topic_pulse(group)
        changed = False
        for name, channel in group.channels.items():
            known = rows.get(name) or rows.setdefault(name, _Known())
            unknown = "failed" if channel.has_failed else "starting"
            health = "" if is_known(group, name) else unknown
            stats = channel_pulse(group, name)
            end = settled_end(group, name, now_ns)
            is_same = known.stats is stats and known.topic is topic and known.health == health
            if is_same and known.end == end:
                continue
            known.stats, known.topic, known.health, known.end = stats, topic, health, end
            row = _channel_row(group, name, health, end)
            if row != known.row:
                known.row, known.version, changed = row, self._version, True
        return changed

    def _of_topic(
        self, group: TopicProcesses, known: _Known, changed: bool, has_letters: bool
    ) -> None:
        made_of = (
            topic_pulse(group),
            group.state,
            group.failure,
            group.row.closed,
            group.row.sync,
            group.restart_sum,
            group.unsteady,
            has_letters,
        )
        if (
            not changed
            and len(known.made_of) == len(made_of)
            and all(map(_is, known.made_of, made_of))
        ):
            return
        known.made_of = made_of
        letters = letter_count(group) if has_letters else None
        row = _topic_row(group, self._channels[group.name], self._view.disk, letters)
        if row != known.row:
            known.row, known.version = row, self._version

    # The broker

    def _broker(self) -> answers.BrokerSummary:
        from ... import __version__

        view = self._view
        recent = view.alarms.recent()
        return {
            "version": __version__,
            "node": view.node,
            "uuid": view.uuid,
            "start_ms": int(view.started * 1000),
            "health": broker_health(view),
            "disk_full": view.disk.health,
            "alarms": sum("silence" not in row for row in view.alarms.rows()),
            "alarmed_ns": recent[-1]["time_ns"] if recent else 0,
            "processes": len(view.processes.table.hosts) + 2,
            "restarts": sum(group.restart_sum for group in view.groups.values()),
            "clustered": _is_clustered(view),
        }


def _is_clustered(view: BrokerView) -> bool:
    """Return True if other brokers belong to this one, or if it has topics with parts."""
    rows = section_rows(view)
    return any("#" in name and part_of(name) is not None for name in view.groups) or any(
        section.shows_cluster(rows[section.level]) for section in SECTIONS if section.level in rows
    )


def _is(value: object, other: object) -> bool:
    return value is other or (type(value) is not dict and value == other)


_NOTHING: Final[Mapping[str, Any]] = {}


def _oldest(unfinished: int, oldest_ns: int) -> int:
    """Return the time when the oldest of `unfinished` messages was stored, or 0 for no message."""
    return (oldest_ns or NOT_KNOWN) if unfinished else 0


def _channel_row(group: TopicProcesses, name: str, health: str, counted_to: int) -> Row:
    stats, topic, storage = channel_pulse(group, name), topic_pulse(group), storage_pulse(group)
    channel_ns = _pulsed_ns(group, name)
    rates = stats.get("rates", _NOTHING)
    coming = (
        0.0
        if topic.get("paused")
        else float(topic.get("rates", _NOTHING).get("message_count", 0.0))
    )
    end = topic.get("end", 0)
    waits = waiting(group, name, counted_to)
    by_name: Mapping[str, Any] = stats
    get = by_name.get
    return (
        health or said_of(stats) or "OK",
        bool(get("paused")),
        waits,
        get("in_flight_count", 0),
        get("deferred_count", 0),
        get("dying_count", 0),
        get("next_offset", 0),
        _oldest(waits + held(stats), storage.get("oldest_ns", _NOTHING).get(name, 0)),
        get("client_count", 0),
        max(0, end - get("begin", end)),
        *[
            get(names[0], 0) if len(names) == 1 else sum([get(name, 0) for name in names])
            for names in _COUNTED.values()
        ],
        coming,
        round(sum(rates.get(end_name, 0.0) for end_name in ENDS), 3),
        _known_or(
            drain_s(
                waits + get("in_flight_count", 0), get("rates_recent", rates), coming_recent(topic)
            )
        ),
        *(get("latency_recent") or (0, 0, 0)),
        bool(get("settings", _NOTHING).get("ordered")),
        channel_ns // NS_PER_MS,
    )


def _pulsed_ns(group: TopicProcesses, channel: str = "") -> int:
    reporter = group.reporter(channel)
    return reporter.pulsed_ns if reporter is not None else 0


def _known_or(value: float | None) -> float:
    return NOT_KNOWN if value is None else value


_DEPTH, _HELD = (
    CHANNEL_FIELDS.index("depth"),
    slice(CHANNEL_FIELDS.index("in_flight"), CHANNEL_FIELDS.index("dying") + 1),
)


def _topic_row(
    group: TopicProcesses, channels: dict[str, _Known], disk: DiskView, letters: int | None
) -> Row:
    topic, storage = topic_pulse(group), storage_pulse(group)
    rates = topic.get("rates", _NOTHING)
    waiting = behind_pause(group) if group.channels else waiting_count(group)
    rows = [known.row for known in channels.values()]
    delayed = storage.get("delayed_count", 0)
    backlog = max([row[_DEPTH] + sum(row[_HELD]) for row in rows], default=0)
    by_name: Mapping[str, Any] = storage
    get = by_name.get
    return (
        group.state.value,
        "; ".join(said_of_topic(group, disk)) or "OK",
        group.row.sync,
        group.row.closed,
        bool(topic.get("paused")),
        log_head(group),
        topic.get("message_count", 0),
        topic.get("message_bytes", 0) + get("entered_bytes", 0),
        rates.get("message_count", 0.0),
        rates.get("message_bytes", 0.0) + get("rates", _NOTHING).get("entered_bytes", 0.0),
        waiting,
        max(backlog, waiting),
        _oldest(max(backlog, waiting) + delayed, get("oldest_ns", _NOTHING).get("", 0)),
        *[get(name, 0) for name in _OF_STORAGE.values()],
        group.restart_sum,
        NOT_KNOWN if letters is None else letters,
        _pulsed_ns(group) // NS_PER_MS,
    )
