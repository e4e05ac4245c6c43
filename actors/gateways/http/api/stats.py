"""Statistics in nsqd's form: /stats as JSON and as text, and the health for /ping.

Names, types and units are nsqd's, so that nsqadmin and nsq_stat can show them. Other statistics are
in /metrics.

Some statistics differ from nsqd's (docs/http-reference.md has them). `message_bytes` counts blocks,
not only bodies. A delayed message waits in its topic and belongs to every channel when it is due.
But nsqd counts it in each channel's `deferred_count` and `message_count` from the start, so this
module does too. `backend_depth` leaves out what a channel has in memory, although everything is on
disk. `memory` has the fields of a Go runtime. Only the memory of the processes is known. The rest
is 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NotRequired, TypedDict

from .....storage.errors import REFUSED_TEXT
from .....transport.names import base_of
from .....transport.reports import (
    BrokerStats,
    ChannelStats,
    ConsumerStats,
    Latency,
    NsqClientFacts,
    ProcessStats,
    ProducerStats,
    PubCount,
    TopicStats,
)
from ....statistics.schema import LATENCY, rows_of

_APART: Final = {"authed", "auth_identity", "auth_identity_url", "pub_counts", LATENCY}


class NsqPercentile(TypedDict):
    quantile: float
    value: float


class NsqLatency(TypedDict):
    count: int
    percentiles: list[NsqPercentile] | None


class NsqClient(NsqClientFacts):
    """A consumer or producer in nsqd's form."""

    client_id: str
    ready_count: int
    in_flight_count: int
    message_count: int
    finish_count: int
    requeue_count: int
    connect_ts: int
    sample_rate: int
    pub_counts: NotRequired[list[PubCount]]


class NsqChannel(TypedDict):
    channel_name: str
    depth: int
    backend_depth: int
    in_flight_count: int
    deferred_count: int
    message_count: int
    requeue_count: int
    timeout_count: int
    client_count: int
    clients: list[NsqClient]
    paused: bool
    e2e_processing_latency: NsqLatency


class NsqTopic(TypedDict):
    topic_name: str
    channels: list[NsqChannel]
    depth: int
    backend_depth: int
    message_count: int
    message_bytes: int
    paused: bool
    e2e_processing_latency: NsqLatency


class NsqMemory(TypedDict, total=False):
    memory: dict[str, int]


class NsqStats(NsqMemory):
    """The reply to /stats?format=json."""

    version: str
    health: str
    start_time: int
    topics: list[NsqTopic]
    producers: list[NsqClient]


def _fields(level: str) -> dict[str, Any]:
    """Return nsqd's statistics of a level in nsqd's order, as names with defaults."""
    rows = sorted((row for row in rows_of(level) if row.nsq), key=lambda row: row.nsq)
    return {row.name: row.default for row in rows if row.name not in _APART}


_TOPIC: Final = _fields("topic")
_CHANNEL: Final = _fields("channel")
_CLIENT: Final = _fields("consumer")
_MEMORY: Final = (
    "heap_objects", "heap_idle_bytes", "heap_in_use_bytes", "heap_released_bytes", "gc_pause_usec_100", "gc_pause_usec_99",
    "gc_pause_usec_95", "next_gc_bytes", "gc_total_runs",
)  # fmt: skip


def health(stats: BrokerStats) -> str:
    """Return "OK", or "NOK - " and what is wrong now, by the broker's own look.

    It does not remember failed publishes, as nsqd does. If clients that follow /ping stopped
    publishing, no publish could end such a memory.
    """
    reasons = [stats["health"]] if stats.get("health", "OK") != "OK" else []
    # `stats["health"]` already reports a full disk and names the topics that fail because of it.
    disk_full = stats.get("disk", {}).get("full", "")
    for row in stats["topics"]:
        name = row["topic_name"]
        why = str(row.get("write_trouble", ""))
        if why and not (disk_full and why == REFUSED_TEXT):
            reasons.append(f"topic {name}: {why}")
    return f"NOK - {'; '.join(reasons)}" if reasons else "OK"


def as_nsq(
    stats: BrokerStats, health_text: str, topic: str, channel: str, *, clients: bool, memory: bool
) -> NsqStats:
    """Return the reply to /stats?format=json.

    `said` is the result of `health`. `topic` and `channel` select rows, and "" selects all. A topic
    with parts has a row for each part. Topics without the channel are left out.
    """
    rows = []
    for row in stats["topics"]:
        channels = [
            channel_row
            for channel_row in row["channels"]
            if channel in ("", channel_row["channel_name"])
        ]
        name = row["topic_name"]
        if topic in ("", name, base_of(name)) and (channels or not channel):
            rows.append(_topic(row, channels, clients))
    used: NsqMemory = {"memory": _memory(stats.get("processes", ()))} if memory else {}
    return {
        "version": str(stats["version"]),
        "health": health_text,
        "start_time": int(stats["start_time"]),
        "topics": rows,
        **used,
        "producers": [_producer(row, topic) for row in stats.get("producers", ())]
        if clients
        else [],
    }


def _topic(row: TopicStats, channels: Sequence[ChannelStats], clients: bool) -> NsqTopic:
    delayed = row.get("delayed_count", 0)
    shown: NsqTopic = _told(row, _TOPIC)
    shown["depth"] += 0 if row["channels"] else delayed
    shown["message_count"] += delayed
    return {
        "topic_name": row["topic_name"],
        "channels": [_channel(channel, delayed, clients) for channel in channels],
        **shown,
        "backend_depth": shown["depth"],
        "e2e_processing_latency": _latency(row),
    }


def _channel(row: ChannelStats, delayed: int, clients: bool) -> NsqChannel:
    shown: NsqChannel = _told(row, _CHANNEL)
    shown["deferred_count"] += delayed
    shown["message_count"] += delayed
    shown["clients"] = [_client(client) for client in row.get("clients", ())] if clients else []
    shown["e2e_processing_latency"] = _latency(row)
    return shown


def _told(row: Mapping[str, object], fields: Mapping[str, Any]) -> Any:
    """Return the statistics of a row that `fields` names.

    A process that has just started has not reported any statistics. Statistics that are missing get
    their defaults.
    """
    return {name: type(default)(row.get(name, default)) for name, default in fields.items()}


def _client(row: ConsumerStats | ProducerStats) -> NsqClient:
    """Return a client in nsqd's form.

    Clients of ZSQ report less than clients of the NSQ gateway. Their name is host/process.
    """
    shown: NsqClient = _told(row, _CLIENT)
    host, slash, _ = shown["client_id"].partition("/")
    shown["hostname"] = shown.get("hostname") or (host if slash else "")
    if row.get("authed"):
        shown["authed"] = True
    if identity := row.get("auth_identity"):
        shown["auth_identity"] = identity
    if url := row.get("auth_identity_url"):
        shown["auth_identity_url"] = url
    return shown


def _producer(row: ProducerStats, topic: str) -> NsqClient:
    """Return a producer in nsqd's form.

    As in nsqd, `topic` leaves out no producers, only their counts for other topics.
    """
    shown = _client(row)
    if counts := [
        pub_count for pub_count in row.get("pub_counts", ()) if topic in ("", pub_count["topic"])
    ]:
        shown["pub_counts"] = counts
    return shown


def _latency(row: TopicStats | ChannelStats) -> NsqLatency:
    latency: Latency = row.get("e2e_processing_latency") or {"count": 0, "percentiles": ()}
    return {
        "count": latency["count"],
        "percentiles": [
            {"quantile": percentile["quantile"], "value": float(percentile["value"])}
            for percentile in latency["percentiles"]
        ]
        or None,
    }


def _memory(processes: Iterable[ProcessStats]) -> dict[str, int]:
    return dict.fromkeys(_MEMORY, 0) | {
        "heap_in_use_bytes": sum(row.get("private_bytes", 0) for row in processes)
    }


# As text


def as_text(stats: NsqStats, uptime_s: float, own_version: str) -> str:
    """Return the result of `as_nsq` as text, in nsqd's layout."""
    began = datetime.fromtimestamp(stats["start_time"], UTC)
    now_s = stats["start_time"] + uptime_s
    out = [
        f"zsq v{own_version} (as nsqd v{stats['version']})",
        f"start_time {began:%Y-%m-%dT%H:%M:%SZ}",
        f"uptime {_span(uptime_s)}",
        "",
    ]
    out += [f"Health: {stats['health']}"]
    if "memory" in stats:
        out += [
            "",
            "Memory:",
            *(f"   {name:<25}\t{value}" for name, value in stats["memory"].items()),
        ]
    out += ["", "Topics:" if stats["topics"] else "Topics: None"]
    for number, row in enumerate(stats["topics"]):
        out += [*([""] * bool(number)), _topic_line(row)]
        for channel in row["channels"]:
            out.append(_channel_line(channel))
            out += [f"        {_client_line(client, now_s)}" for client in channel["clients"]]
    out += ["", "Producers:" if stats["producers"] else "Producers: None"]
    out += [f"   {_client_line(client, now_s)}" for client in stats["producers"]]
    return "\n".join(out) + "\n"


def _topic_line(row: NsqTopic) -> str:
    return (
        f"{'*P ' if row['paused'] else '   '}[{row['topic_name']:<15}] depth: {row['depth']:<5} "
        f"be-depth: {row['backend_depth']:<5}"
        f" msgs: {row['message_count']:<8} e2e%: {_quantiles(row)}"
    )


def _channel_line(row: NsqChannel) -> str:
    return (
        f"   {'*P ' if row['paused'] else '   '}[{row['channel_name']:<25}] depth: "
        f"{row['depth']:<5} be-depth: {row['backend_depth']:<5}"
        f" inflt: {row['in_flight_count']:<4} def: {row['deferred_count']:<4} re-q: "
        f"{row['requeue_count']:<5}"
        f" timeout: {row['timeout_count']:<5} msgs: {row['message_count']:<8} e2e%: "
        f"{_quantiles(row)}"
    )


def _client_line(row: NsqClient, now_s: float) -> str:
    """Return the line of a client, with its counts of publishes if the reply has any of it."""
    counts = row.get("pub_counts", ())
    if counts:
        topics = ",".join(f"{pub_count['topic']}={pub_count['count']}" for pub_count in counts)
        facts = f"msgs: {sum(pub_count['count'] for pub_count in counts):<8} topics: {topics}"
    else:
        facts = (
            f"state: {row.get('state')} inflt: {row['in_flight_count']:<4} rdy: "
            f"{row['ready_count']:<4} fin: {row['finish_count']:<8} re-q: "
            f"{row['requeue_count']:<8} msgs: {row['message_count']:<8}"
        )
    name = f"{_client_name(row)} {row.get('user_agent', '')}"
    connected = _span(max(0, int(now_s) - row["connect_ts"]))
    return f"[{row.get('version')} {name:<21}] {facts} connected: {connected}"


def _client_name(row: NsqClient) -> str:
    """Return the name by which the text form shows a client.

    As in nsqd, it is the host that the client reports, with the port that it connects from. A
    client of ZSQ has no such port, so it keeps its name.
    """
    remote = row.get("remote_address", "")
    port = remote.rpartition(":")[2] if ":" in remote else ""
    return f"{row.get('hostname')}:{port}" if remote else row["client_id"]


def _quantiles(row: NsqTopic | NsqChannel) -> str:
    percentiles = row["e2e_processing_latency"]["percentiles"] or ()
    return ", ".join(
        f"{percentile['quantile'] * 100:g}%: {_span(percentile['value'] / 1e9)}"
        for percentile in percentiles
    )


def _span(seconds: float) -> str:
    """Return a duration in Go's form, to the millisecond."""
    if 0 < seconds < 1:
        return f"{seconds * 1e3:.3g}ms"
    hours, rest = divmod(seconds, 3600)
    minutes, rest = divmod(rest, 60)
    front = f"{hours:.0f}h" if hours else ""
    front += f"{minutes:.0f}m" if hours or minutes else ""
    return f"{front}{rest:.3f}".rstrip("0").rstrip(".") + "s"
