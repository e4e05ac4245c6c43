"""Prometheus metrics: the broker's statistics at each scrape, and the gateway's own counters.

Each family is a row of actors/statistics/schema.py with its help text and labels. Names of counters
end in _total. Times are in seconds, sizes in bytes.

Cardinality is limited. Labels are the broker's topics and channels, quantiles, and kinds of
processes. The labels of requests are the known path and the status. Clients, addresses and messages
are never labels. A counter restarts at 0 with its process.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from .....transport.reports import BrokerStats, ChannelStats
from ....statistics.schema import METRICS, SECTIONS
from ....statistics.statistic import Statistic

Labels = tuple[str, ...]
Samples = Iterable[tuple[Labels, float | None]]

_BY_NAME: Final = {one.metric: one for one in METRICS}
_BUCKETS_S: Final = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)


class RequestMetrics:
    """The gateway's own counters."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        requests, durations = (
            _BY_NAME["zsq_http_requests_total"],
            _BY_NAME["zsq_http_request_duration_seconds"],
        )
        self._requests = Counter(
            requests.metric.removesuffix("_total"),
            requests.help,
            requests.labels,
            registry=self.registry,
        )
        self._durations = Histogram(
            durations.metric,
            durations.help,
            durations.labels,
            registry=self.registry,
            buckets=_BUCKETS_S,
        )
        self.active, self.connections, self.bodies = (
            Gauge(name, _BY_NAME[name].help, registry=self.registry)
            for name in ("zsq_http_requests_active", "zsq_http_connections", "zsq_http_body_bytes")
        )

    def answered(self, path: str, status: int, begun_ns: int) -> None:
        self._requests.labels(path, str(status)).inc()
        self._durations.labels(path).observe((time.monotonic_ns() - begun_ns) / 1e9)


class _Broker(Collector):
    """The families of one scrape. `stats` is None if the broker did not answer."""

    def __init__(self, stats: BrokerStats | None, healthy: bool, took_s: float) -> None:
        self._stats = stats
        self._healthy = healthy
        self._took_s = took_s

    def collect(self) -> Iterator[Metric]:
        stats = self._stats
        if stats is None:
            yield _filled(_BY_NAME["zsq_up"], [((), 0.0)])
            return
        topics = [((row["topic_name"],), row) for row in stats["topics"]]
        channels = [
            ((*labels, row["channel_name"]), row)
            for labels, topic in topics
            for row in topic["channels"]
        ]
        special: dict[str, Samples] = {
            "zsq_up": [((), 1.0)],
            "zsq_info": [((str(stats.get("version", "")), str(stats.get("uuid", ""))), 1.0)],
            "zsq_healthy": [((), float(self._healthy))],
            "zsq_scrape_duration_seconds": [((), self._took_s)],
            "zsq_channel_processing_latency_seconds": _latencies(channels),
            "zsq_channel_limited": [
                (labels, float(bool(row.get("limited_since_s")))) for labels, row in channels
            ],
            "zsq_channel_healthy": [
                (labels, 1.0 if row.get("health", "OK") == "OK" else 0.0)
                for labels, row in channels
            ],
        }
        rows: dict[str, Sequence[tuple[Labels, Mapping[str, object]]]] = {
            **_rows(stats),
            "topic": topics,
            "channel": channels,
        }
        for statistic in METRICS:
            if statistic.metric in special:
                yield _filled(statistic, special[statistic.metric])
            elif statistic.level != "request":
                yield _filled(
                    statistic,
                    ((labels, _value(statistic, row)) for labels, row in rows[statistic.level]),
                )


def _rows(stats: BrokerStats) -> dict[str, Sequence[tuple[Labels, Mapping[str, object]]]]:
    """Return the rows that belong to no topic, with their labels, by level.

    The gateway's row is empty if there is no NSQ gateway. Callers without the permission see
    neither gateways nor the disk.
    """
    gateways: list[Mapping[str, Any]] = [
        row for row in stats.get("gateways", ()) if row["kind"] == "nsq_gateway"
    ]
    sections: Mapping[str, Any] = {**stats}
    counted = (
        [statistic.name for statistic in METRICS if statistic.level == "gateway"]
        if gateways
        else []
    )
    # The sums of each kind of process. The key "" counts its processes, for zsq_processes.
    kinds: dict[str, dict[str, float]] = {}
    for row in stats.get("processes", ()):
        sums = kinds.setdefault(str(row["kind"]), {"": 0, "private_bytes": 0, "restarts": 0})
        sums[""] += 1
        sums["private_bytes"] += row.get("private_bytes", 0)
        sums["restarts"] += row.get("restarts", 0)
    return {
        "broker": [((), stats)],
        "disk": [((), stats.get("disk") or {})],
        **{level: [((), sections.get(level) or {})] for level, *_ in SECTIONS},
        "gateway": [((), {name: sum(row[name] for row in gateways) for name in counted})],
        "process": [((kind,), sums) for kind, sums in sorted(kinds.items())],
    }


def _value(statistic: Statistic, row: Mapping[str, Any]) -> float | None:
    """Return a statistic as a number, or None if it is not known.

    A list becomes its length. A text becomes 1 if it is not empty, else 0. For a trouble it is the
    other way round.
    """
    value = row.get(statistic.name)
    if statistic.is_trouble:
        return float(not value) if row else None
    if isinstance(value, str | list | tuple):
        return float(bool(value) if isinstance(value, str) else len(value))
    return None if value is None else float(value)


def _filled(statistic: Statistic, samples: Samples) -> Metric:
    make = CounterMetricFamily if statistic.kind == "counter" else GaugeMetricFamily
    family = make(statistic.metric, statistic.help, labels=statistic.labels)
    for labels, value in samples:
        if value is not None:
            family.add_metric(labels, value)
    return family


def _latencies(channels: Iterable[tuple[Labels, ChannelStats]]) -> Iterator[tuple[Labels, float]]:
    for labels, row in channels:
        for percentile in (
            row["e2e_processing_latency"]["percentiles"] if "e2e_processing_latency" in row else ()
        ):
            yield (*labels, f"{percentile['quantile']:g}"), percentile["value"] / 1e9


def render(
    stats: BrokerStats | None,
    healthy: bool,
    took_s: float,
    request_metrics: RequestMetrics,
    accept: str,
) -> tuple[bytes, str]:
    """Return the metrics and their content type: text, or OpenMetrics if `accept` asks for it."""
    encoder, content_type = choose_encoder(accept)
    registry = CollectorRegistry()
    registry.register(_Broker(stats, healthy, took_s))
    registry.register(_Own(request_metrics.registry))
    return encoder(registry), content_type


class _Own(Collector):
    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        return self._registry.collect()
