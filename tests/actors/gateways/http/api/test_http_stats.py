"""Tests of the broker's statistics with NSQ's names, and of the health that /ping reports."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from support.http_api import CHANNEL, TOPIC, FakeBroker, Site

from zsq.actors.gateways.http.api.broker import SharedStats
from zsq.actors.gateways.http.api.stats import NsqStats, as_nsq, as_text, health
from zsq.storage.errors import REFUSED_TEXT
from zsq.transport.errors import E_TIMEOUT, NotFound, from_wire

LATENCY = {
    "count": 2,
    "percentiles": [
        {"quantile": 0.5, "value": 1_500_000},
        {"quantile": 1.0, "value": 61_000_000_000},
    ],
}
CLIENT = {
    "client_id": "vm/8525", "ready_count": 2500, "in_flight_count": 3, "message_count": 9, "message_bytes": 90, "finish_count": 5,
    "requeue_count": 1, "timeout_count": 0, "connect_ts": 1_700_000_100, "sample_rate": 0, "rates": {},
}  # fmt: skip
NSQ_CLIENT = {
    **CLIENT, "client_id": "me", "hostname": "there", "remote_address": "10.0.0.9:5000", "user_agent": "pynsq/0.9.1", "tls": True,
    "tls_version": "TLS1.3", "snappy": True, "authed": True, "auth_identity": "joe", "sample_rate": 10,
}  # fmt: skip


def broker_stats(**topic: Any) -> Any:
    channel = {
        **CHANNEL, "channel_name": "c", "depth": 4, "backend_depth": 4, "in_flight_count": 3, "deferred_count": 2, "message_count": 9,
        "delivery_count": 11, "requeue_count": 1, "timeout_count": 6, "client_count": 2, "clients": [CLIENT, NSQ_CLIENT],
        "e2e_processing_latency": LATENCY,
    }  # fmt: skip
    row = {
        **TOPIC,
        "topic_name": "t",
        "depth": 0,
        "message_count": 9,
        "message_bytes": 900,
        "delayed_count": 7,
        "channels": [channel],
    }
    other = {**TOPIC, "topic_name": "u", "depth": 1, "delayed_count": 5, "channels": []}
    return {
        "version": "1.0.0", "health": "OK", "start_time": 1_700_000_000, "topics": [row | topic, other],
        "processes": [{"kind": "topic", "private_bytes": 5}, {"kind": "storage", "private_bytes": 7}],
        "producers": [{
            "client_id": "p", "hostname": "there", "remote_address": "[::1]:1", "user_agent": "go-nsq/1.1.0", "state": 0,
            "connect_ts": 1_700_003_718, "pub_counts": [{"topic": "t", "count": 3}, {"topic": "u", "count": 4}],
        }],
    }  # fmt: skip


def shown(
    topic: str = "", channel: str = "", *, clients: bool = True, memory: bool = True
) -> NsqStats:
    return as_nsq(broker_stats(), "OK", topic, channel, clients=clients, memory=memory)


def test_names_and_kinds_are_nsqds() -> None:
    found = shown()
    assert list(found) == ["version", "health", "start_time", "topics", "memory", "producers"]
    rows: list[Any] = [*found["topics"]]
    (row, other) = rows
    (channel,) = row.pop("channels")
    assert row == {
        "topic_name": "t", "depth": 0, "backend_depth": 0, "message_count": 9 + 7, "message_bytes": 900, "paused": False,
        "e2e_processing_latency": {"count": 0, "percentiles": None},
    }  # fmt: skip
    assert other["depth"] == other["backend_depth"] == 1 + 5, (
        "delayed ones wait in the topic while there is no channel"
    )
    clients = channel.pop("clients")
    assert channel == {
        "channel_name": "c", "depth": 4, "backend_depth": 4, "in_flight_count": 3, "deferred_count": 2 + 7, "message_count": 9 + 7,
        "requeue_count": 1, "timeout_count": 6,
        "client_count": 2, "paused": False, "e2e_processing_latency": LATENCY,
    }  # fmt: skip
    own, nsq = clients
    assert {name: own[name] for name in ("client_id", "hostname", "version", "state", "ready_count", "in_flight_count")} == {
        "client_id": "vm/8525", "hostname": "vm", "version": "V2", "state": 3, "ready_count": 2500, "in_flight_count": 3,
    }  # fmt: skip
    assert "authed" not in own
    assert (nsq["hostname"], nsq["remote_address"], nsq["tls"], nsq["tls_version"]) == (
        "there",
        "10.0.0.9:5000",
        True,
        "TLS1.3",
    )
    assert (nsq["authed"], nsq["auth_identity"], nsq["snappy"], nsq["sample_rate"]) == (
        True,
        "joe",
        True,
        10,
    )
    assert "message_bytes" not in own, "no names that nsqd does not have"
    assert found["memory"]["heap_in_use_bytes"] == 12
    assert len(found["memory"]) == 9
    assert found["producers"][0]["pub_counts"] == [
        {"topic": "t", "count": 3},
        {"topic": "u", "count": 4},
    ]


def test_the_statistics_of_a_topic_with_parts_are_those_of_all_parts() -> None:
    stats = broker_stats(topic_name="u#0")
    stats["topics"].append({**stats["topics"][0], "topic_name": "u#1"})
    stats["topics"][1] |= {"topic_name": "v"}

    def names(topic: str) -> list[str]:
        found = as_nsq(stats, "OK", topic, "", clients=True, memory=True)
        return [row["topic_name"] for row in found["topics"]]

    assert names("u") == ["u#0", "u#1"]
    assert names("u#1") == ["u#1"]
    assert names("v") == ["v"]


def test_statistics_are_filtered_by_topic_channel_clients_and_memory() -> None:
    assert [row["topic_name"] for row in shown("u")["topics"]] == ["u"]
    assert shown("no")["topics"] == []
    assert [row["channel_name"] for row in shown("t", "c")["topics"][0]["channels"]] == ["c"]
    assert shown("t", "no")["topics"] == []
    found = shown(clients=False, memory=False)
    assert "memory" not in found
    assert found["producers"] == []
    assert (
        found["topics"][0]["channels"][0]["clients"],
        found["topics"][0]["channels"][0]["client_count"],
    ) == ([], 2)
    assert shown("u")["producers"][0]["pub_counts"] == [{"topic": "u", "count": 4}]
    (other,) = shown("no")["producers"]
    assert "pub_counts" not in other, (
        "as nsqd: every producer is shown, and no count where it has none of this topic"
    )


def test_the_text_form_reads_as_that_of_nsqd() -> None:
    said = as_text(shown(), 3_723.5, "1.0.0")
    assert said.startswith(
        "zsq v1.0.0 (as nsqd v1.0.0)\nstart_time 2023-11-14T22:13:20Z\nuptime 1h2m3.5s\n\n"
        "Health: OK\n\nMemory:\n   heap_objects  "
    )
    assert (
        "\nTopics:\n   [t              ] depth: 0     be-depth: 0     msgs: 16       e2e%: \n"
        in said
    )
    line = (
        "      [c                        ] depth: 4     be-depth: 4     inflt: 3    def: 9    "
        "re-q: 1     timeout: 6     msgs: 16 "
    )
    assert f"{line}      e2e%: 50%: 1.5ms, 100%: 1m1s\n" in said
    assert (
        "        [V2 there:5000 pynsq/0.9.1] state: 3 inflt: 3    rdy: 2500 fin: 5        re-q: "
        "1        msgs: 9        connected: 1h0m23s\n"
    ) in said
    assert "        [V2 vm/8525              ] state: 3 inflt: 3    rdy: 2500" in said
    assert (
        "\n\nProducers:\n   [V2 there:1 go-nsq/1.1.0 ] msgs: 7        topics: t=3,u=4 "
        "connected: 5s\n"
    ) in said
    without = as_text(shown("no"), 3_723.5, "1.0.0")
    assert "\n   [V2 there:1 go-nsq/1.1.0 ] state: 0 inflt: 0    rdy: 0 " in without, "as nsqd"
    empty = as_text(
        as_nsq(
            broker_stats() | {"topics": [], "producers": []},
            "OK",
            "",
            "",
            clients=True,
            memory=False,
        ),
        1,
        "1.0.0",
    )
    assert empty.endswith("Health: OK\n\nTopics: None\n\nProducers: None\n")
    paused = as_text(
        as_nsq(broker_stats(paused=True), "OK", "", "", clients=True, memory=False), 1, "1.0.0"
    )
    assert "\n*P [t " in paused


def test_health_names_each_topic_whose_writes_fail() -> None:
    assert health(broker_stats()) == "OK"
    assert (
        health(broker_stats(health="failed x; alarm: y", write_trouble="failed x"))
        == "NOK - topic t: failed x"
    )
    assert (
        health(
            broker_stats(health="a damaged block that has no space to lie in; failed to be short")
        )
        == "OK"
    ), "only what is no write"
    assert health(broker_stats() | {"health": "failed topics: t"}) == "NOK - failed topics: t"


def test_stats_are_filtered_and_formatted_over_http(site: Site) -> None:
    site.broker.there = {"t": {"c", "d"}, "u": set()}
    found = site.get("/stats?format=json&topic=t&channel=d&include_mem=false").json()
    assert [row["channel_name"] for row in found["topics"][0]["channels"]] == ["d"]
    assert ("memory" in found, found["version"], found["health"]) == (False, "1.3.0", "OK")
    for target in (
        "/stats?format=json&topic=no",
        "/stats?format=json&topic=$",
        "/stats?format=json&topic=u&channel=c",
    ):
        assert site.get(target).json()["topics"] == []
    answer = site.get("/stats")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.text.startswith("zsq v1.0.0 (as nsqd v1.3.0)\n")


# Statistics are shared by requests at the same time


def test_many_requests_share_one_fresh_gathering_of_statistics() -> None:
    async def run() -> None:
        broker = FakeBroker()
        stats = SharedStats(cast("Any", broker))
        broker.hold = asyncio.Event()
        first = asyncio.ensure_future(stats.fresh())
        await broker.asked.wait()
        # The first request is already in progress. Requests from now on must see this change.
        broker.there["t"] = set()
        others = [asyncio.ensure_future(stats.fresh()) for _ in range(20)]
        of_topic = asyncio.ensure_future(stats.fresh("t"))
        broker.hold.set()
        assert (await first)["topics"] == []
        assert [len((await other)["topics"]) for other in others] == [1] * 20
        assert len((await of_topic)["topics"]) == 1
        assert stats.asked == 3
        assert not stats._now
        assert not stats._next
        assert (await stats.recent(60.0))["topics"]
        assert stats.asked == 3
        await stats.recent(0.0)
        assert stats.asked == 4

    asyncio.run(run())


def test_errors_are_shared_too_and_the_next_question_is_a_new_one() -> None:
    async def run() -> None:
        broker = FakeBroker()
        stats = SharedStats(cast("Any", broker))
        broker.hold = asyncio.Event()
        first = asyncio.ensure_future(stats.fresh())
        await broker.asked.wait()
        second = asyncio.ensure_future(stats.fresh())
        left = asyncio.ensure_future(stats.fresh())
        await asyncio.wait((left,), timeout=0)
        left.cancel()
        broker.fails = from_wire(E_TIMEOUT, "late")
        broker.hold.set()
        with pytest.raises(Exception, match="late"):
            await first
        assert (await second)["topics"] == [], "who left took nobody along"
        with pytest.raises(NotFound):
            await stats.fresh("no")

    asyncio.run(run())


def test_health_says_once_that_the_disk_is_full() -> None:
    full = {
        "health": "the disk is full: publishes to topic t are refused: /data",
        "disk": {"full": "the disk is full"},
    }
    assert health(broker_stats(write_trouble=REFUSED_TEXT) | full) == f"NOK - {full['health']}"
    assert health(broker_stats(write_trouble="failed x") | full) == (
        f"NOK - {full['health']}; topic t: failed x"
    )
    assert health(broker_stats(write_trouble=REFUSED_TEXT)) == f"NOK - topic t: {REFUSED_TEXT}", (
        "where nothing else says it"
    )
