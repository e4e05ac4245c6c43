"""Statistics for the pages of a topic, of a channel, and of a topic's chunks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypedDict, cast

from .....transport.draining import remaining
from .....transport.reports import (
    BrokerStats,
    ChannelStats,
    ConsumerStats,
    Latency,
    ProducerStats,
    PublisherStats,
)
from .....transport.units import NS_PER_MS
from .....transport.whole_topic import whole_topic
from .....transport.wire.answers import ChunkRow, Chunks
from ....statistics.schema import rows_of

_NO_LATENCY: Final[Latency] = {"count": 0, "percentiles": ()}
_QUANTILES: Final = {0.5: "p50_ms", 0.9: "p90_ms", 0.95: "p95_ms", 0.99: "p99_ms", 1.0: "max_ms"}
_OF_TOPIC: Final = (
    "uuid",
    "settings",
    "finished_bytes",
    "held_bytes",
    "held_by",
    "held_offset",
    "removed_bytes",
    "recovery",
    "delayed_lost",
    "transactions",
    "shipping",
    "shipped_end",
    "ship_lag_s",
)


class ShownLatency(TypedDict):
    """The latency of the last ten minutes in ms. Values are None if no message was finished."""

    count: int
    p50_ms: float | None
    p90_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    max_ms: float | None


class ShownPublisher(TypedDict):
    """A producer whose `kind` is "zmq" (ZSQ's protocol) or "nsq".

    A value is None if only the other kind has it.
    """

    name: str
    kind: str
    address: str
    count: int | None
    version: str
    via: str
    blocks: int | None
    unanswered_bytes: int | None
    silent_ms: int | None


class Retirement(TypedDict):
    """The side to which a topic is closed, and the work until it is drained."""

    state: str
    left: list[str]
    drained: bool


class TopicPage(TypedDict):
    """The page of a topic. `topic` is its row on the board, with further statistics from the
    broker.
    """

    topic: Mapping[str, object]
    producers: list[ShownPublisher]
    retire: Retirement


class ShownClient(TypedDict):
    """A consumer. Its statistics have the names that the overview uses."""

    name: str
    address: str
    agent: str
    ready: int
    backoff_s: float | None
    in_flight: int
    delivered: int
    finished: int
    requeued: int
    timed_out: int
    sample_rate: int
    connected_ms: int
    out: float
    p50_ms: float | None
    p99_ms: float | None
    tls: bool
    nsq: bool


class ChannelPage(TypedDict):
    """The page of a channel. `channel` is its row on the board, with further statistics from the
    broker.
    """

    channel: Mapping[str, object]
    clients: list[ShownClient]


def topic_details(stats: BrokerStats, topic: str, known: Mapping[str, object]) -> TopicPage:
    """Return the page of a topic from its current statistics and its row on the board."""
    row = whole_topic(stats, topic).row
    left, values = remaining(row), cast("Mapping[str, object]", row)
    more = {
        "closed": row["closed"],
        "rates": row["rates"],
        "latency": latency(row.get("e2e_processing_latency")),
    }
    return {
        "topic": {**known, **{name: values.get(name) for name in _OF_TOPIC}, **more},
        "producers": [
            *map(_publisher, row.get("publishers", ())),
            *(_nsq_producer(producer, row["topic_name"]) for producer in stats["producers"]),
        ],
        "retire": {"state": row["closed"], "left": left, "drained": not left},
    }


def _publisher(publisher: PublisherStats) -> ShownPublisher:
    return {
        "name": publisher["producer"], "kind": "zmq", "address": "", "count": None, "version": "",
        "via": publisher["via"], "blocks": publisher["blocks"],
        "unanswered_bytes": publisher["unanswered_bytes"], "silent_ms": publisher["silent_ms"],
    }  # fmt: skip


def _nsq_producer(producer: ProducerStats, topic: str) -> ShownPublisher:
    count = sum(row["count"] for row in producer["pub_counts"] if row["topic"] == topic)
    return {
        "name": producer.get("client_id", ""), "kind": "nsq", "address": producer.get("remote_address", ""), "count": count,
        "version": producer.get("user_agent", ""), "via": "nsq", "blocks": None, "unanswered_bytes": None, "silent_ms": None,
    }  # fmt: skip


def channel_details(row: ChannelStats, known: Mapping[str, object]) -> ChannelPage:
    counters = {
        name: value
        for name, value in row.items()
        if name.endswith(("_count", "_bytes"))
        and name not in ("client_count", "backing_off_count", "tenant_count")
    }
    more = {
        "settings": row.get("settings", {}),
        "counters": counters,
        "rates": row["rates"],
        "drain_s": row["drain_s"],
        "blocked_by": row.get("blocked_by", ()),
        "limited_since_s": row.get("limited_since_s"),
        "tenants": row.get("tenants", ()),
    }
    latencies = {"latency": latency(row.get("e2e_processing_latency"))}
    return {
        "channel": {**known, **more, **latencies},
        "clients": [_client(client) for client in row["clients"]],
    }


_OF_CLIENT: Final = {row.view: (row.name, row.default) for row in rows_of("consumer") if row.view}


def _client(client: ConsumerStats) -> ShownClient:
    percentiles, values = (
        latency(client.get("e2e_processing_latency")),
        cast("Mapping[str, object]", client),
    )
    shown = {
        name: values.get(theirs, otherwise) for name, (theirs, otherwise) in _OF_CLIENT.items()
    }
    more = {
        "connected_ms": client.get("connect_ts", 0) * 1000,
        "out": client.get("rates", {}).get("finish_count", 0.0),
        "p50_ms": percentiles["p50_ms"],
        "p99_ms": percentiles["p99_ms"],
        "tls": bool(client.get("tls")),
        "nsq": "remote_address" in client,
    }
    return cast("ShownClient", shown | more)


def latency(measured: Latency | None) -> ShownLatency:
    measured = measured or _NO_LATENCY
    quantiles = {
        _QUANTILES[percentile["quantile"]]: round(percentile["value"] / NS_PER_MS, 3)
        for percentile in measured["percentiles"]
    }
    return cast(
        "ShownLatency",
        {"count": measured["count"], **dict.fromkeys(_QUANTILES.values()), **quantiles},
    )


def chunk_rows(chunks: Chunks) -> dict[str, object]:
    """Return a topic's chunks with times in ms, for JavaScript."""
    return {**chunks, "chunks": [_chunk(row) for row in chunks["chunks"]]}


def _chunk(row: ChunkRow) -> dict[str, object]:
    times = {"first_time_ms": _ms(row["first_time_ns"]), "last_time_ms": _ms(row["last_time_ns"])}
    return {name: value for name, value in row.items() if not name.endswith("_time_ns")} | times


def _ms(time_ns: int | None) -> int | None:
    return None if time_ns is None else time_ns // NS_PER_MS
