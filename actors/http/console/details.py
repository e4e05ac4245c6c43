"""Statistics that were asked for, as the pages of a topic and of a channel show them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ....transport.draining import remaining

_MS: Final = 1_000_000
_NO_LATENCY: Final[Mapping[str, Any]] = {"count": 0, "percentiles": ()}
_QUANTILES: Final = {0.5: "p50_ms", 0.9: "p90_ms", 0.95: "p95_ms", 0.99: "p99_ms", 1.0: "max_ms"}
_OF_TOPIC: Final = ("uuid", "retention", "finished_bytes", "removed_bytes", "recovery", "delayed_lost", "transactions")


def topic_details(stats: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """`stats` of the topic, freshly asked; `known`: its row on the board."""
    row = stats["topics"][0]
    left = remaining(row)
    topic = {**known, **{name: row.get(name) for name in _OF_TOPIC}, "closed": row["closed"], "rates": row["rates"]}
    topic["latency"] = latency(row.get("e2e_processing_latency"))
    return {
        "topic": topic,
        "producers": [*map(_publisher, row.get("publishers", ())), *(_nsq_producer(one, row["topic_name"]) for one in stats["producers"])],
        "retire": {"state": row["closed"], "left": left, "drained": not left},
    }


def _publisher(one: Mapping[str, Any]) -> dict[str, Any]:
    told = {name: one[name] for name in ("via", "blocks", "unanswered_bytes", "silent_ms")}
    return {"name": one["producer"], "kind": "zmq", "address": "", "count": None, "version": "", **told}


def _nsq_producer(one: Mapping[str, Any], topic: str) -> dict[str, Any]:
    count = sum(int(row["count"]) for row in one["pub_counts"] if row["topic"] == topic)
    told: dict[str, Any] = {"name": one.get("client_id", ""), "kind": "nsq", "address": one.get("remote_address", ""), "count": count}
    return told | {"version": one.get("user_agent", ""), "via": "nsq", "blocks": None, "unanswered_bytes": None, "silent_ms": None}


def channel_details(row: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    counters = {name: value for name, value in row.items() if name.endswith(("_count", "_bytes")) and name != "client_count"}
    channel = {**known, "settings": row.get("settings", {}), "counters": counters, "rates": row["rates"], "drain_s": row["drain_s"]}
    channel["latency"] = latency(row.get("e2e_processing_latency"))
    return {"channel": channel, "clients": [_client(one) for one in row["clients"]]}


_OF_CLIENT: Final[Mapping[str, tuple[str, Any]]] = {
    "name": ("client_id", ""), "address": ("remote_address", ""), "agent": ("user_agent", ""), "ready": ("ready_count", 0),
    "in_flight": ("in_flight_count", 0), "delivered": ("message_count", 0), "finished": ("finish_count", 0),
    "requeued": ("requeue_count", 0), "timed_out": ("timeout_count", 0), "sample_rate": ("sample_rate", 0),
}  # fmt: skip


def _client(one: Mapping[str, Any]) -> dict[str, Any]:
    percentiles = latency(one.get("e2e_processing_latency"))
    told = {name: one.get(theirs, otherwise) for name, (theirs, otherwise) in _OF_CLIENT.items()}
    return told | {
        "connected_ms": int(one.get("connect_ts", 0)) * 1000,
        "out": one.get("rates", {}).get("finish_count", 0.0),
        "p50_ms": percentiles["p50_ms"],
        "p99_ms": percentiles["p99_ms"],
        "tls": bool(one.get("tls")),
        "nsq": "remote_address" in one,
    }


def latency(found: Mapping[str, Any] | None) -> dict[str, Any]:
    """Of the last ten minutes, in ms; null where nothing was finished."""
    found = found or _NO_LATENCY
    told: dict[str, Any] = {"count": found["count"], **dict.fromkeys(_QUANTILES.values())}
    for one in found["percentiles"]:
        told[_QUANTILES[one["quantile"]]] = round(one["value"] / _MS, 3)
    return told


def chunk_rows(found: Mapping[str, Any]) -> dict[str, Any]:
    """Times as JavaScript takes them."""
    told: dict[str, Any] = {"chunks": [_chunk(row) for row in found["chunks"]], "total": dict(found["total"])}
    if "older" in found:
        told["older"] = dict(found["older"])
    return told


def _chunk(row: Mapping[str, Any]) -> dict[str, Any]:
    told = {name: value for name, value in row.items() if not name.endswith("_time_ns")}
    for name in ("first", "last"):
        time_ns = row[f"{name}_time_ns"]
        told[f"{name}_time_ms"] = None if time_ns is None else time_ns // _MS
    return told
