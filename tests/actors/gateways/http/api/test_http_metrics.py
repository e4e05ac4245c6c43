"""Tests of the Prometheus metrics: their names, their values and their limits."""

from __future__ import annotations

from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as parsed
from support.http_api import CHANNEL, TOPIC, Site

from zsq.actors.gateways.http.api.metrics import RequestMetrics, render
from zsq.actors.statistics.schema import METRICS
from zsq.transport.errors import E_TIMEOUT, from_wire

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def stats() -> Any:
    channel = {
        **CHANNEL, "channel_name": "c#ephemeral", "depth": 4, "finish_count": 5, "oldest_message_age_s": None, "health": "channel failed",
        "e2e_processing_latency": {"count": 1, "percentiles": [{"quantile": 0.99, "value": 1_500_000}]},
    }  # fmt: skip
    row = {
        **TOPIC,
        "topic_name": "t",
        "message_count": 9,
        "closed": "publishers",
        "oldest_message_age_s": 1.5,
        "channels": [channel],
    }
    return {
        "version": "1.0.0", "uuid": "u", "start_time": 1_700_000_000, "health": "OK", "alarms": [{}, {}], "topics": [row],
        "gateways": [{"kind": "nsq_gateway", "connections": 3, "connections_accepted": 8, "connections_refused": 1,
             "held_bytes": 70, "connections_evicted": 2}],
        "processes": [{"kind": "topic", "private_bytes": 5, "restarts": 1}, {"kind": "topic", "private_bytes": 7}],
    }  # fmt: skip


def samples(body: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (one.name, tuple(sorted(one.labels.items()))): one.value
        for family in parsed(body.decode())
        for one in family.samples
    }


def test_metrics_have_the_values_of_the_statistics() -> None:
    body, kind = render(stats(), True, 0.25, RequestMetrics(), "")
    assert kind.startswith("text/plain; version=")
    found = samples(body)
    topic, channel = ("topic", "t"), ("channel", "c#ephemeral")
    expected = {
        ("zsq_up", ()): 1, ("zsq_info", (("uuid", "u"), ("version", "1.0.0"))): 1, ("zsq_start_time_seconds", ()): 1_700_000_000,
        ("zsq_healthy", ()): 1, ("zsq_alarms", ()): 2, ("zsq_topics", ()): 1, ("zsq_scrape_duration_seconds", ()): 0.25,
        ("zsq_nsq_connections", ()): 3, ("zsq_nsq_connections_accepted_total", ()): 8, ("zsq_nsq_connections_refused_total", ()): 1,
        ("zsq_nsq_held_bytes", ()): 70, ("zsq_nsq_connections_evicted_total", ()): 2,
        ("zsq_topic_messages_total", (topic,)): 9, ("zsq_topic_oldest_message_age_seconds", (topic,)): 1.5,
        ("zsq_topic_closed", (topic,)): 1, ("zsq_topic_paused", (topic,)): 0, ("zsq_topic_healthy", (topic,)): 1,
        ("zsq_channel_depth", (channel, topic)): 4, ("zsq_channel_finished_total", (channel, topic)): 5,
        ("zsq_channel_healthy", (channel, topic)): 0,
        ("zsq_channel_processing_latency_seconds", (channel, ("quantile", "0.99"), topic)): 0.0015,
        ("zsq_processes", (("kind", "topic"),)): 2, ("zsq_process_private_bytes", (("kind", "topic"),)): 12,
        ("zsq_process_restarts_total", (("kind", "topic"),)): 1,
    }  # fmt: skip
    assert {key: found[key] for key in expected} == expected
    assert ("zsq_channel_oldest_message_age_seconds", (channel, topic)) not in found, (
        "what is not known has no sample"
    )


def test_every_family_is_exposed_and_has_the_form_that_prometheus_wants() -> None:
    own = RequestMetrics()
    own.answered("/pub", 200, 0)
    body, kind = render(stats(), True, 0.25, own, OPENMETRICS)
    assert kind.startswith("application/openmetrics-text")
    by_name = {family.name: family for family in openmetrics(body.decode())}  # type: ignore[no-untyped-call]
    assert set(by_name) == {family.metric.removesuffix("_total") for family in METRICS}
    for family in METRICS:
        found = by_name[family.metric.removesuffix("_total")]
        assert (found.type, found.documentation) == (family.kind, family.help)
        assert family.metric.endswith("_total") == (family.kind == "counter")
        for sample in found.samples:
            assert set(sample.labels) - {"le"} == set(family.labels), family.metric
        if "_age_" in family.metric or "duration" in family.metric or "latency" in family.metric:
            assert family.metric.endswith("_seconds")


def test_a_broker_that_does_not_answer_is_down(site: Site) -> None:
    site.broker.fails = from_wire(E_TIMEOUT, "no answer")
    answer = site.get("/metrics")
    assert answer.status_code == 200
    found = samples(answer.content)
    assert found[("zsq_up", ())] == 0
    assert not [name for name, _ in found if not name.startswith(("zsq_up", "zsq_http"))]


def test_requests_are_counted_by_path_and_nothing_that_clients_choose(site: Site) -> None:
    for target in (
        "/ping",
        "/ping?a=b",
        "/nothing/x",
        "/nothing/y",
        "/config/a",
        "/config/b",
        "/config/a/b",
        "/config/",
        "//",
        "/pub",
    ):
        site.get(target)
    found = samples(site.get("/metrics").content)
    counts = {key[1]: value for key, value in found.items() if key[0] == "zsq_http_requests_total"}
    assert counts == {
        (("path", "/ping"), ("status", "200")): 2,
        (("path", "other"), ("status", "404")): 5,
        (("path", "/config/{option}"), ("status", "400")): 2,
        (("path", "/pub"), ("status", "405")): 1,
    }
    assert found[("zsq_http_requests_active", ())] == 1
    assert found[("zsq_http_request_duration_seconds_count", (("path", "/ping"),))] == 2
    assert site.get("/metrics", headers={"accept": OPENMETRICS}).text.endswith("# EOF\n")
