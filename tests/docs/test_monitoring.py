"""Tests of the Prometheus rules, the alerts and the Grafana dashboard in docs/examples: every query
parses, and uses metrics and labels that exist.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import promql_parser
import pytest
import yaml
from support.http_api import Site

from zsq.actors.gateways.http.web.origins import Origins
from zsq.actors.statistics.schema import METRICS

from .walking import ROOT

EXAMPLES: Final = ROOT / "docs" / "examples"
FAMILIES: Final = {row.metric: row for row in METRICS}
# Labels that Prometheus adds to a scrape or to a histogram.
BY_PROMETHEUS: Final = {"instance", "job", "le"}
DASHBOARD: Final[dict[str, Any]] = json.loads((EXAMPLES / "grafana-dashboard.json").read_text())
_NAME: Final = re.compile(r"\bzsq_\w+")
_MATCHER: Final = re.compile(r"(\w+)\s*(?:=~|!=|!~|=)\s*\"")
_BY: Final = re.compile(r"\bby \(([^)]*)\)")


def expressions() -> Iterator[tuple[str, str]]:
    """Yield the place of each query, and the query with a value for Grafana's interval variable."""
    for file in ("prometheus-rules.yml", "prometheus-alerts.yml"):
        for group in yaml.safe_load((EXAMPLES / file).read_text())["groups"]:
            for rule in group["rules"]:
                yield f"{file}: {rule.get('record') or rule['alert']}", rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield f"dashboard: {panel['title']}", target["expr"].replace("$__rate_interval", "5m")


def family(name: str) -> str:
    """Return the metric of a series. The series of a histogram have names of their own."""
    return re.sub(r"_(bucket|sum|count)$", "", name) if name not in FAMILIES else name


def wrong(query: str) -> list[str]:
    """Return the metrics and labels of the query that do not exist."""
    names = {family(name) for name in _NAME.findall(query)}
    unknown = sorted(names - FAMILIES.keys())
    known = [FAMILIES[name] for name in names & FAMILIES.keys()]
    labels = {label for row in known for label in row.labels} | BY_PROMETHEUS
    asked = set(_MATCHER.findall(query)) | {
        one.strip() for found in _BY.findall(query) for one in found.split(",")
    }
    counters = {family(name) for name in re.findall(r"\b(?:rate|increase)\((zsq_\w+)", query)}
    gauges = sorted(
        name for name in counters if name in FAMILIES and FAMILIES[name].kind == "gauge"
    )
    return [*unknown, *sorted(asked - labels), *(f"{name} is a gauge" for name in gauges)]


@pytest.mark.parametrize(("place", "query"), [*expressions()])
def test_a_query_parses_and_asks_for_what_exists(place: str, query: str) -> None:
    promql_parser.parse(query)
    assert _NAME.findall(query)
    assert wrong(query) == []


def test_the_check_finds_what_does_not_exist() -> None:
    assert wrong("rate(zsq_channel_finished_total[5m])") == []
    assert wrong("zsq_no_such_metric") == ["zsq_no_such_metric"]
    assert wrong('zsq_up{topic="a"}') == ["topic"]
    assert wrong("rate(zsq_channel_depth[5m])") == ["zsq_channel_depth is a gauge"]
    with pytest.raises(ValueError, match="unclosed left parenthesis"):
        promql_parser.parse("sum by (topic (zsq_up)")


def test_the_metrics_of_the_gateway_are_those_of_the_table() -> None:
    site = Site()
    try:
        families = set(re.findall(r"^# TYPE (zsq_\w+) ", site.get("/metrics").text, re.MULTILINE))
    finally:
        site.close()
    assert len(families) > 30
    assert {
        name for name in families if name not in FAMILIES and f"{name}_total" not in FAMILIES
    } == set()


def test_recording_rules_are_named_by_level_metric_and_operation() -> None:
    for group in yaml.safe_load((EXAMPLES / "prometheus-rules.yml").read_text())["groups"]:
        for rule in group["rules"]:
            assert set(rule) == {"record", "expr"}
            assert re.fullmatch(r"[a-z_]+:zsq_\w+:\w+", rule["record"])


def test_the_dashboard_is_whole() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    variables = {one["name"] for one in DASHBOARD["templating"]["list"]}
    text = json.dumps(DASHBOARD)
    assert set(re.findall(r"\$\{?([a-z]+)\b", text)) == variables
    for panel in panels:
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24
    taken = [(x, y) for panel in panels for x, y in cells(panel["gridPos"])]
    assert len(set(taken)) == len(taken), "two panels overlap"


def cells(place: dict[str, int]) -> Iterator[tuple[int, int]]:
    for x in range(place["x"], place["x"] + place["w"]):
        for y in range(place["y"], place["y"] + place["h"]):
            yield x, y


def test_prometheus_reads_the_files_that_exist_and_calls_the_broker_by_its_name() -> None:
    settings = yaml.safe_load((EXAMPLES / "prometheus.yml").read_text())
    assert all((EXAMPLES / name).is_file() for name in settings["rule_files"])
    [job] = settings["scrape_configs"]
    assert job["job_name"] == "zsq", "the alert ZsqDown asks for it"
    [target] = job["static_configs"][0]["targets"]
    compose = yaml.safe_load((EXAMPLES / "compose.yaml").read_text())
    host, port = target.split(":")
    broker = compose["services"][host]
    assert f"127.0.0.1:{port}:{port}" in broker["ports"]
    site = Site(origins=Origins())
    try:
        assert site.get("/metrics", headers={"host": target}).status_code == 200
    finally:
        site.close()
