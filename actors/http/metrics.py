"""Prometheus metrics: the broker's statistics, asked for at each scrape, and what the gateway counts itself.

Every family stands in one of the tables below with its help text and labels; docs/http.md shows the same table, and a test holds the two
together. Names: counters end in _total, times are in seconds, sizes in bytes.

Cardinality is bounded: labels are topics and channels (as many as the broker has), quantiles, kinds of processes, and of requests the path
as this file knows it and the status. No client, no address and no message is a label. A counter begins anew when its process does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

Row = Mapping[str, Any]


class Family(NamedTuple):
    """`read`: its value in a row, None where it is not known (then there is no sample)."""

    name: str
    kind: str  # counter, gauge, histogram
    labels: tuple[str, ...]
    help: str
    read: Callable[[Row], float | None] = lambda row: None


def _number(name: str) -> Callable[[Row], float | None]:
    def read(row: Row) -> float | None:
        value = row.get(name)
        return None if value is None else float(value)

    return read


def _flag(name: str) -> Callable[[Row], float | None]:
    return lambda row: 1.0 if row.get(name) else 0.0


def _writes(row: Row) -> float:
    return 0.0 if row.get("write_trouble") else 1.0


def _well(row: Row) -> float:
    return 1.0 if row.get("health", "OK") == "OK" else 0.0


_T: Final = ("topic",)
_C: Final = ("topic", "channel")
BROKER: Final = (
    Family("zsq_up", "gauge", (), "1: the broker answers; else 0, and there is no other family of the broker's"),
    Family("zsq_info", "gauge", ("version", "uuid"), "1; the labels say which broker this is"),
    Family("zsq_start_time_seconds", "gauge", (), "when the broker started, since 1970", _number("start_time")),
    Family("zsq_healthy", "gauge", (), "1: OK; 0: a topic failed, or cannot write (see /ping)"),
    Family("zsq_alarms", "gauge", (), "alarms that are raised now", lambda stats: len(stats.get("alarms", ()))),
    Family("zsq_topics", "gauge", (), "topics there are", lambda stats: len(stats["topics"])),
    Family("zsq_scrape_duration_seconds", "gauge", (), "how long the broker took to answer this scrape"),
)
TOPICS: Final = (
    Family("zsq_topic_healthy", "gauge", _T, "1: what is published is kept; 0: it failed, or cannot write", _writes),
    Family("zsq_topic_messages_total", "counter", _T, "messages published", _number("message_count")),
    Family("zsq_topic_message_bytes_total", "counter", _T, "bytes of blocks published", _number("message_bytes")),
    Family("zsq_topic_depth", "gauge", _T, "messages that wait for a first channel, or for the topic to be unpaused", _number("depth")),
    Family("zsq_topic_oldest_message_age_seconds", "gauge", _T, "age of the oldest not finished by all", _number("oldest_message_age_s")),
    Family("zsq_topic_paused", "gauge", _T, "1: paused", _number("paused")),
    Family("zsq_topic_closed", "gauge", _T, "1: closed to publishers", _flag("closed")),
    Family("zsq_topic_log_bytes", "gauge", _T, "size of the log on disk", _number("log_bytes")),
    Family("zsq_topic_log_chunks", "gauge", _T, "files of the log", _number("chunks")),
    Family("zsq_topic_removed_bytes_total", "counter", _T, "bytes of the log that retention removed", _number("removed_bytes")),
    Family("zsq_topic_dropped_messages_total", "counter", _T, "unfinished messages that retention dropped", _number("dropped_count")),
    Family("zsq_topic_refused_publishes_total", "counter", _T, "publishes refused because the topic was full", _number("refused_count")),
    Family("zsq_topic_lost_messages", "gauge", _T, "messages lost to damage on disk", _number("lost_messages")),
    Family("zsq_topic_damaged_blocks", "gauge", _T, "blocks found damaged", _number("damaged_blocks")),
    Family("zsq_topic_delayed_messages", "gauge", _T, "messages published with a delay that are not due", _number("delayed_count")),
    Family("zsq_topic_delayed_bytes", "gauge", _T, "their size", _number("delayed_bytes")),
    Family("zsq_topic_stages", "gauge", _T, "stages of Spark writers that are open or sealed", _number("stages")),
    Family("zsq_topic_staged_bytes", "gauge", _T, "their size", _number("staged_bytes")),
)  # fmt: skip
CHANNELS: Final = (
    Family("zsq_channel_healthy", "gauge", _C, "1: OK; 0: its health says what is wrong", _well),
    Family("zsq_channel_depth", "gauge", _C, "messages that wait to be delivered", _number("depth")),
    Family("zsq_channel_in_flight", "gauge", _C, "messages delivered and not finished", _number("in_flight_count")),
    Family("zsq_channel_deferred", "gauge", _C, "messages requeued for later", _number("deferred_count")),
    Family("zsq_channel_oldest_message_age_seconds", "gauge", _C, "age of the oldest one not finished", _number("oldest_message_age_s")),
    Family("zsq_channel_clients", "gauge", _C, "consumers connected", _number("client_count")),
    Family("zsq_channel_paused", "gauge", _C, "1: paused", _number("paused")),
    Family("zsq_channel_messages_total", "counter", _C, "messages that came to the channel", _number("message_count")),
    Family("zsq_channel_deliveries_total", "counter", _C, "deliveries, repeated ones too", _number("delivery_count")),
    Family("zsq_channel_delivery_bytes_total", "counter", _C, "their size", _number("delivery_bytes")),
    Family("zsq_channel_finished_total", "counter", _C, "messages finished", _number("finish_count")),
    Family("zsq_channel_requeued_total", "counter", _C, "deliveries given back", _number("requeue_count")),
    Family("zsq_channel_timeouts_total", "counter", _C, "deliveries not finished in time", _number("timeout_count")),
    Family("zsq_channel_dead_letters_total", "counter", _C, "messages moved to the dead-letter topic", _number("dead_letter_count")),
    Family("zsq_channel_expired_total", "counter", _C, "messages that passed their maximal age", _number("expired_count")),
    Family("zsq_channel_dropped_total", "counter", _C, "messages that retention dropped unfinished", _number("dropped_count")),
    Family("zsq_channel_lost_total", "counter", _C, "messages lost to damage on disk unfinished", _number("lost_count")),
)  # fmt: skip
LATENCY: Final = Family(
    "zsq_channel_processing_latency_seconds", "gauge", (*_C, "quantile"),
    "from storing to finishing, of the messages finished in the last ten minutes",
)  # fmt: skip
PROCESSES: Final = (
    Family("zsq_processes", "gauge", ("kind",), "processes of the broker"),
    Family("zsq_process_private_bytes", "gauge", ("kind",), "memory that is theirs alone, of all of a kind together"),
    Family("zsq_process_restarts_total", "counter", ("kind",), "times that processes of topics were started again"),
)
REQUESTS: Final = Family("zsq_http_requests_total", "counter", ("path", "status"), "requests answered")
DURATIONS: Final = Family(
    "zsq_http_request_duration_seconds", "histogram", ("path",), "from the head of a request to the end of its answer"
)
ACTIVE: Final = Family("zsq_http_requests_active", "gauge", (), "requests under way")
CONNECTIONS: Final = Family("zsq_http_connections", "gauge", (), "open connections")
BODIES: Final = Family("zsq_http_body_bytes", "gauge", (), "bodies of requests in memory")
FAMILIES: Final = (*BROKER, *TOPICS, *CHANNELS, LATENCY, *PROCESSES, REQUESTS, DURATIONS, ACTIVE, CONNECTIONS, BODIES)
_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class RequestMetrics:
    """What the gateway counts itself."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        name = REQUESTS.name.removesuffix("_total")
        self._requests = Counter(name, REQUESTS.help, REQUESTS.labels, registry=self.registry)
        self._durations = Histogram(DURATIONS.name, DURATIONS.help, DURATIONS.labels, registry=self.registry, buckets=_BUCKETS_S)
        self.active = Gauge(ACTIVE.name, ACTIVE.help, registry=self.registry)
        self.connections = Gauge(CONNECTIONS.name, CONNECTIONS.help, registry=self.registry)
        self.bodies = Gauge(BODIES.name, BODIES.help, registry=self.registry)

    def answered(self, path: str, status: int, begun_ns: int) -> None:
        self._requests.labels(path, str(status)).inc()
        self._durations.labels(path).observe((time.monotonic_ns() - begun_ns) / 1e9)


class _Broker(Collector):
    """One scrape's families. `stats` None: the broker did not answer."""

    def __init__(self, stats: Row | None, healthy: bool, took_s: float) -> None:
        self._stats = stats
        self._healthy = healthy
        self._took_s = took_s

    def collect(self) -> Iterator[Metric]:
        stats = self._stats
        by_name = {family.name: family for family in BROKER}
        if stats is None:
            yield _filled(by_name["zsq_up"], [((), 0.0)])
            return
        special = {"zsq_up": 1.0, "zsq_healthy": float(self._healthy), "zsq_scrape_duration_seconds": self._took_s}
        for family in BROKER:
            if family.labels:
                yield _filled(family, [((str(stats.get("version", "")), str(stats.get("uuid", ""))), 1.0)])
            else:
                yield _filled(family, [((), special.get(family.name, family.read(stats)))])
        topics = [((row["topic_name"],), row) for row in stats["topics"]]
        channels = [((topic, row["channel_name"]), row) for (topic,), rows in topics for row in rows["channels"]]
        for families, rows in ((TOPICS, topics), (CHANNELS, channels)):
            for family in families:
                yield _filled(family, ((labels, family.read(row)) for labels, row in rows))
        yield _filled(LATENCY, _latencies(channels))
        yield from _processes(stats.get("processes", ()))


def _filled(family: Family, samples: Iterable[tuple[tuple[str, ...], float | None]]) -> Metric:
    make = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    found = make(family.name, family.help, labels=family.labels)
    for labels, value in samples:
        if value is not None:
            found.add_metric(labels, value)
    return found


def _latencies(channels: Iterable[tuple[tuple[str, str], Row]]) -> Iterator[tuple[tuple[str, ...], float]]:
    for labels, row in channels:
        for one in (row.get("e2e_processing_latency") or {}).get("percentiles", ()):
            yield (*labels, f"{one['quantile']:g}"), one["value"] / 1e9


def _processes(rows: Iterable[Row]) -> Iterator[Metric]:
    sums: dict[str, list[float]] = {}
    for row in rows:
        own = sums.setdefault(str(row["kind"]), [0.0, 0.0, 0.0])
        for at, value in enumerate((1, row.get("private_bytes", 0), row.get("restarts", 0))):
            own[at] += value
    for at, family in enumerate(PROCESSES):
        yield _filled(family, [((kind,), own[at]) for kind, own in sorted(sums.items())])


def render(stats: Row | None, healthy: bool, took_s: float, own: RequestMetrics, accept: str) -> tuple[bytes, str]:
    """The exposition, and its content type: as text, or as OpenMetrics for who asks for it."""
    encoder, content_type = choose_encoder(accept)
    registry = CollectorRegistry()
    registry.register(_Broker(stats, healthy, took_s))
    registry.register(_Own(own.registry))
    return encoder(registry), content_type


class _Own(Collector):
    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        return self._registry.collect()
