"""Statistics of `stats`: the actors' last pulses combined, with NSQ's field names where they match.

`add_clients` combines what channels know of NSQ's clients with what the clients sent to the
gateway.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

from ...storage.errors import REFUSED_TEXT
from ...transport.names import base_of
from ...transport.reports import (
    BrokerLists,
    BrokerStats,
    ConsumerStats,
    GatewayStats,
    LeftOut,
    ProcessStats,
    ProducerStats,
    PublisherStats,
    StorageFacts,
    TopicStats,
)
from ...transport.wire.codec import first_rows
from ..primitives.latency import merged
from ..primitives.ranges import unread
from ..runtime.process import private_bytes
from ..runtime.process_table import Child
from ..runtime.pulses import ChannelDetails, GatewayDetails, NsqClientReport, TopicDetails
from ..settings import options
from ..settings.starts import channel_of
from .broker_view import (
    REPORTED,
    BrokerView,
    DiskView,
    GroupState,
    TopicProcesses,
    channel_pulse,
    is_known,
    storage_pulse,
    topic_pulse,
)
from .channel_rows import age_s, channel_rows, depth, held, said_of, visible_end, waiting
from .gathering import Details
from .schema import NSQ_CLIENT, SECTIONS, defaults, rows_of

# The fields that are added from the gateway's report. The channel's values stay as they are.
OF_GATEWAY: Final = tuple(row.name for row in rows_of("consumer") if row.counted == NSQ_CLIENT)
# Fields that are copied unchanged from storage's report.
_OF_STORAGE: Final = {
    row.name: row.default for row in rows_of("topic") if row.name and row.is_of_storage
}


def label_of(client_id: str, remote: str) -> str:
    """Return the name by which a channel knows a gateway's client, unique to the connection."""
    return f"{client_id[:64]} {remote}"


def add_clients(
    topics: Iterable[TopicStats], clients: Iterable[NsqClientReport]
) -> list[ProducerStats]:
    """Complete the rows of consumers in `topics`, and return the clients that publish.

    nsqd calls these `producers`. A client of a topic with parts is a consumer of each part here.
    """
    # A gateway's bad report must not end another process.
    rows = [row for row in clients if {"topic", "channel", "label", *OF_GATEWAY} <= row.keys()]
    known = {(row["topic"], row["channel"], row["label"]): row for row in rows}
    for topic in topics if known else ():
        names = dict.fromkeys([topic["topic_name"], base_of(topic["topic_name"])])
        for channel in topic["channels"]:
            channel_name = channel["channel_name"]
            channel["clients"] = tuple(
                _merged(
                    consumer,
                    [known.get((name, channel_name, consumer["client_id"])) for name in names],
                )
                for consumer in channel["clients"]
            )
    apart = {"topic", "channel", "label"}
    return [
        cast("ProducerStats", {name: value for name, value in row.items() if name not in apart})
        for row in rows
        if row["pub_counts"]
    ]


def _merged(client: ConsumerStats, rows: Sequence[Mapping[str, object] | None]) -> ConsumerStats:
    row = next((report for report in rows if report is not None), None)
    return (
        cast("ConsumerStats", {**client, **{name: row[name] for name in OF_GATEWAY}})
        if row is not None
        else client
    )


FAILED_NAMED: Final = 20


def unfinished(group: TopicProcesses, channel: str = "", end: int = 0) -> int | None:
    """Return the number of unfinished messages of a channel.

    Without `channel` it is that of the channel with the most. Without channels it is the number of
    messages that wait for a first channel. The result is None if the number is not known. Messages
    behind a topic's pause count up to the end of the log: they are acknowledged, and no channel has
    finished them. Delayed messages that are not due yet count too, unless one channel is named.
    `end` is the end of a sealed topic's log. Pulses do not count messages that wait for their sync,
    but they are below this end, and they count here.
    """
    names = [name for name in group.channels if not channel or name == channel]
    known = [channel_pulse(group, name) for name in names if is_known(group, name)]
    if len(known) < len(names):
        return None
    delayed = 0 if channel else storage_pulse(group).get("delayed_count", 0)
    if known:
        head = max(log_head(group), end)
        return delayed + max(depth(stats, head) + held(stats) for stats in known)
    return delayed + waiting_count(group, end)


def reach(group: TopicProcesses) -> dict[str, int]:
    """Return the offsets between which a channel of this topic can be."""
    return {"start": storage_pulse(group).get("start", 0), "head": visible_end(group)}


def waiting_count(group: TopicProcesses, end: int = 0) -> int:
    """Return the number of messages that wait for a first channel.

    For `end`, see `unfinished`.
    """
    stats = storage_pulse(group)
    head = max(stats.get("head", 0), end)
    return unread(stats.get("waiting", 0), head, stats.get("gaps", ()))


def log_head(group: TopicProcesses) -> int:
    """Return the log's end as in the newest pulses, even if channels may not read up to it."""
    return max(topic_pulse(group).get("head", 0), storage_pulse(group).get("head", 0))


def behind_pause(group: TopicProcesses) -> int:
    """Return the number of messages that wait for the topic to be unpaused.

    They belong to the topic and not to a channel yet, as in NSQ.
    """
    topic = topic_pulse(group)
    if not topic.get("paused"):
        return 0
    storage = storage_pulse(group)
    first = max(topic.get("end", 0), storage.get("start", 0))
    return unread(first, log_head(group), storage.get("gaps", ()))


def total_depth(group: TopicProcesses) -> int:
    """Return how many messages wait in all channels together, and for a channel or an unpause.

    It counts what is known: a channel that has never reported counts as empty.
    """
    end = visible_end(group)
    in_channels = sum(waiting(group, name, end) for name in group.channels)
    return in_channels + (behind_pause(group) if group.channels else waiting_count(group))


def said_of_topic(group: TopicProcesses, disk: DiskView, alarms: Iterable[str] = ()) -> list[str]:
    """Return a text for each problem of a topic. `alarms` are the alarms about its numbers."""
    return troubles_of_topic(group, disk) + [f"alarm: {text}" for text in alarms]


def _state_text(group: TopicProcesses) -> str:
    return ": ".join(filter(None, (group.state.value, group.failure)))


def troubles_of_topic(group: TopicProcesses, disk: DiskView) -> list[str]:
    """Return a text for each problem of a topic that somebody has to look at."""
    if group.state not in REPORTED:
        return [_state_text(group)]
    storage = storage_pulse(group)
    troubles = (
        list(storage.get("alarms") or group.topic.data.get("alarms", ()))
        if group.topic is not None
        else []
    )
    troubles += [
        text for text in (storage.get("state_alarm"), storage.get("delayed_alarm")) if text
    ]
    full = _disk_full(group)
    if full and not any(full in trouble for trouble in troubles):
        troubles.append(_refused_text(group, disk, full))
    if storage.get("topic_full"):
        troubles.append(f"publishes are refused: {storage['topic_full']}")
    troubles += [f"channel {name} failed too often" for name in group.failed_channels()]
    of_channels = {name: said_of(channel_pulse(group, name)) for name in group.channels}
    troubles += [f"channel {name} {text}" for name, text in sorted(of_channels.items()) if text]
    return [*troubles, *group.unsteady]


def write_trouble(group: TopicProcesses, disk: DiskView) -> str:
    """Return the reason why published messages might not be stored now, or "".

    Alarms about backlogs, old damage and a first start do not count.
    """
    if group.state not in REPORTED:
        again = group.failure and group.state is GroupState.STARTING
        down = again or group.state in (GroupState.CLEARING, GroupState.FAILED)
        return _state_text(group) if down else ""
    stats = storage_pulse(group)
    causes = (stats.get("state_alarm"), stats.get("delayed_full"), stats.get("extension_refusal"))
    troubles = [text for text in causes if text]
    if not troubles and (full := _disk_full(group)):
        troubles = [_refused_text(group, disk, full)]
    return "; ".join(troubles)


def _disk_full(group: TopicProcesses) -> str:
    return storage_pulse(group).get("disk_full", "")


def _refused_text(group: TopicProcesses, disk: DiskView, full: str) -> str:
    """Return why publishes are refused on a full disk.

    The text is short if the broker's health has the details.
    """
    return REFUSED_TEXT if disk.says_why(group.name) else f"publishes are refused: {full}"


def _topic(
    view: BrokerView, group: TopicProcesses, channel: str, wall_ns: int, details: Details
) -> TopicStats:
    topic, storage = topic_pulse(group), storage_pulse(group)
    of_topic = cast(
        "TopicDetails", details.get(group.topic.spec.key, {}) if group.topic is not None else {}
    )
    of_channels = [
        cast("ChannelDetails", details.get(child.spec.key, {}))
        for channel in group.channels.values()
        if (child := channel.child) is not None
    ]
    waiting = behind_pause(group) if group.channels else waiting_count(group)
    rows = channel_rows(group, visible_end(group), wall_ns, details)
    rates = dict(topic.get("rates", {}))
    rates["message_bytes"] = rates.get("message_bytes", 0.0) + storage.get("rates", {}).get(
        "entered_bytes", 0.0
    )
    return {
        "topic_name": group.name,
        "uuid": group.row.uuid,
        "sync": group.row.sync,
        "closed": group.row.closed,
        "health": "; ".join(said_of_topic(group, view.disk, view.alarms.texts(group.name))) or "OK",
        "full": "disk" if _disk_full(group) else "topic" if storage.get("topic_full") else "",
        "write_trouble": write_trouble(group, view.disk),
        "depth": waiting,
        "backend_depth": waiting,
        "message_count": topic.get("message_count", 0),
        "message_bytes": topic.get("message_bytes", 0) + storage.get("entered_bytes", 0),
        "rates": {"message_count": 0.0, **rates},
        "oldest_message_age_s": age_s(
            unfinished(group) or waiting, storage.get("oldest_ns", {}).get("", 0), wall_ns
        ),
        "e2e_processing_latency": merged(
            channel_details["latency_bins"]
            for channel_details in of_channels
            if "latency_bins" in channel_details
        ),
        "paused": topic.get("paused", False),
        "asleep": group.state is GroupState.ASLEEP,
        "head": log_head(group),
        **cast(
            "StorageFacts",
            {name: storage.get(name, default) for name, default in _OF_STORAGE.items()},
        ),
        "publishers": of_topic.get("publishers", ()),
        "channels": [row for row in rows if not channel or row["channel_name"] == channel],
    }


def broker_health(view: BrokerView) -> str:
    """Return what is wrong with the broker as a whole, or "OK".

    Reasons are a full disk, topics that failed, a gateway with old settings, and a bucket that
    cannot be used.
    """
    failed = sorted(
        group.name
        for group in view.groups.values()
        if group.state is GroupState.FAILED or group.failed_channels()
    )
    more = f" and {len(failed) - FAILED_NAMED} more" if len(failed) > FAILED_NAMED else ""
    troubles = [view.disk.health] if view.disk.health else []
    troubles += [f"failed topics: {', '.join(failed[:FAILED_NAMED])}{more}"] if failed else []
    troubles += [text] if (text := view.settings_trouble()) else []
    return "; ".join(troubles) or "OK"


def broker_statistics(view: BrokerView, topic: str, channel: str, details: Details) -> BrokerStats:
    """Return the statistics of the whole broker, or of one topic, or of one of its channels.

    `details` are the fresh answers of the actors that were asked for details.
    """
    from ... import __version__

    groups = [group for name, group in sorted(view.groups.items()) if not topic or name == topic]
    wall_ns = time.time_ns()
    rows = [_topic(view, group, channel, wall_ns, details) for group in groups]
    gateways = [child for child in view.singles.values() if child.spec.kind == "nsq_gateway"]
    of_gateways = [cast("GatewayDetails", details.get(child.spec.key, {})) for child in gateways]
    producers = add_clients(rows, [row for one in of_gateways for row in one.get("clients", ())])
    shown, left_out = _cut(
        rows,
        [
            row
            for row in producers
            if not topic or any(one["topic"] == topic for one in row["pub_counts"])
        ],
    )
    left_out += sum(one.get("clients_left_out", 0) for one in of_gateways)
    lists = cast("BrokerLists", {} if topic else section_rows(view))
    if not topic:
        lists["gateways"] = [_gateway(child) for child in gateways if child.state == "up"]
        lists["recent_alarms"], lists["alarm_receivers"] = (
            view.alarms.recent(),
            view.alarms.receivers(),
        )
    left: LeftOut = {"clients_left_out": left_out} if left_out else {}
    return {
        "version": __version__,
        "node": view.node,
        "uuid": view.uuid,
        "pid": os.getpid(),
        "start_time": int(view.started),
        "health": broker_health(view),
        "disk": view.disk.statistics(),
        "alarms": view.alarms.rows(topic, channel),
        **lists,
        "topics": rows,
        "producers": shown,
        "processes": process_rows(view, memory=True),
        **left,
    }


class SharedStatistics:
    """Statistics that are computed once for all requests that one gathering answers.

    Requests that come together share a gathering, and so the same `details`.
    """

    def __init__(self, view: BrokerView) -> None:
        self._view = view
        self._details: Details = {}
        self._known: dict[tuple[str, str], BrokerStats] = {}

    def statistics(self, topic: str, channel: str, details: Details) -> BrokerStats:
        if details is not self._details:
            self._details, self._known = details, {}
        key = topic, channel
        if key not in self._known:
            self._known[key] = broker_statistics(self._view, topic, channel, details)
        return self._known[key]

    def forget(self) -> None:
        """Free the memory. Called regularly."""
        self._details, self._known = {}, {}


def process_rows(view: BrokerView, *, memory: bool) -> list[ProcessStats]:
    """Return a row for each process, with its private memory if `memory` is set."""
    now, uptime_s = time.monotonic_ns(), round(time.time() - view.started, 1)
    rows: list[ProcessStats] = []
    for name, pid in (
        ("supervisor", os.getpid()),
        ("forkserver", view.processes.table.forkserver_pid),
    ):
        row: ProcessStats = {
            "name": name,
            "pid": pid,
            "kind": name,
            "restarts": 0,
            "uptime_s": uptime_s,
        }
        if memory:
            row["private_bytes"] = private_bytes(pid)
        rows.append(row)
    for host in sorted(view.processes.table.hosts, key=lambda host: host.number):
        if host.is_shared:
            row = {"name": host.title, "pid": host.pid, "kind": "host", "restarts": 0}
            row["uptime_s"] = round((now - host.started_ns) / 1e9, 1)
            if memory:
                row["private_bytes"] = private_bytes(host.pid)
            rows.append(row)
    for child in sorted(view.processes.children.values(), key=lambda child: child.spec.key):
        owner = child.owner
        restarts = owner.restart_count(channel_of(child.spec.start)) if owner is not None else 0
        row = {
            "name": child.spec.title,
            "pid": child.pid,
            "kind": child.spec.kind,
            "state": child.state,
            "restarts": restarts,
        }
        row["uptime_s"] = round((now - child.started_ns) / 1e9, 1)
        row["cpu_s"] = round(child.stats.get("cpu_ns", 0) / 1e9, 2)
        if child.shared_host is not None:
            row["host"] = child.shared_host.title
        elif memory:
            row["private_bytes"] = child.stats.get("private_bytes", 0)
        rows.append(row)
    return rows


def section_rows(view: BrokerView) -> dict[str, Mapping[str, Any]]:
    """Return the row of each section whose process the broker has, by its level."""
    rows: dict[str, Mapping[str, Any]] = {}
    for section in SECTIONS:
        for child in view.singles.values():
            if child.spec.kind == section.kind:
                missing = {**defaults(section.level), **section.before(child.spec.start)}
                rows[section.level] = {
                    name: child.stats.get(name, value) for name, value in missing.items()
                }
                break
    return rows


def _gateway(child: Child) -> GatewayStats:
    """Return the row of an NSQ gateway; values are 0 before its first report."""
    counted = defaults("gateway")
    stats = {name: child.stats.get(name, 0) for name in counted} | {
        "name": child.spec.title,
        "kind": child.spec.kind,
    }
    return cast("GatewayStats", stats)


_RowT = TypeVar("_RowT", ConsumerStats, ProducerStats, PublisherStats)


def _cut(
    topics: Iterable[TopicStats], producers: list[ProducerStats]
) -> tuple[Sequence[ProducerStats], int]:
    """Cut the rows of clients in `topics`, and the producers, to what one answer may carry.

    Return the producers and the number of rows left out. Counts stay as they are.
    """
    left, left_out = options.STATS_DETAILS_BYTES_MAX, 0

    def cut(rows: Sequence[_RowT]) -> Sequence[_RowT]:
        nonlocal left, left_out
        shown, left = first_rows(rows, left)
        left_out += len(rows) - len(shown)
        return shown

    for topic in topics:
        topic["publishers"] = cut(topic["publishers"])
        for channel in topic["channels"]:
            channel["clients"] = cut(channel["clients"])
            left_out += channel.get("clients_left_out", 0)
    return cut(producers), left_out
