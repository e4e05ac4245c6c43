"""Tests of the Prometheus rules, the alerts and the Grafana dashboard in docs/examples: every query
parses, and uses metrics and labels that exist.

Where promtool is on PATH (Debian's package prometheus has it), Prometheus itself checks the files,
and evaluates alerts. No registry has Grafana. Its model of dashboards, which Grafana publishes,
reads the dashboard here.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import promql_parser
import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
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


def lost(before: Any, after: Any, place: str = "") -> Iterator[str]:
    """Yield the place of each value that is not the same any more."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            yield from lost(value, after.get(key), f"{place}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for one, other in zip(before, after, strict=True):
            yield from lost(one, other, place)
    elif before != after:
        yield place


def read_by_grafana(dashboard: dict[str, Any]) -> Any:
    return json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard)))


def test_grafana_knows_each_key_of_the_dashboard() -> None:
    # Grafana writes `definition` beside `query`. Its model does not have it.
    found = {*lost(DASHBOARD, read_by_grafana(DASHBOARD))}
    assert found == {".templating.list.definition"}
    wrong = DASHBOARD | {"reload": "30s"}
    assert ".reload" in {*lost(wrong, read_by_grafana(wrong))}


RULE_TESTS: Final = """
rule_files: [RULES, ALERTS]
evaluation_interval: 30s
tests:
  - interval: 30s
    input_series:
      - series: 'up{job="zsq", instance="a"}'
        values: "1x10 0x10"
      - series: 'zsq_channel_depth{instance="a", topic="t", channel="c"}'
        values: "200000x40"
      - series: 'zsq_channel_in_flight{instance="a", topic="t", channel="c"}'
        values: "0x40"
      - series: 'zsq_channel_finished_total{instance="a", topic="t", channel="c"}'
        values: "0+3000x40"
    alert_rule_test:
      - alertname: ZsqDown
        eval_time: 4m
      - alertname: ZsqDown
        eval_time: 8m
        exp_alerts:
          - exp_labels: {severity: critical, job: zsq, instance: a}
            exp_annotations:
              summary: "a: the broker does not answer"
              runbook: docs/runbooks.md#the-broker-does-not-answer
      - alertname: ZsqBacklog
        eval_time: 6m
        exp_alerts:
          - exp_labels: {severity: warning, instance: a, topic: t, channel: c}
            exp_annotations:
              summary: "t/c: 200000 messages wait"
              runbook: docs/runbooks.md#depth-a-backlog-grows
    promql_expr_test:
      - expr: channel:zsq_channel_drain:seconds
        eval_time: 10m
        exp_samples:
          - labels: 'channel:zsq_channel_drain:seconds{instance="a", topic="t", channel="c"}'
            value: 2000
"""


def test_prometheus_itself_reads_the_files_and_raises_the_alerts(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not on PATH")
    tests = RULE_TESTS.replace("RULES", str(EXAMPLES / "prometheus-rules.yml"))
    tests = tests.replace("ALERTS", str(EXAMPLES / "prometheus-alerts.yml"))
    (tmp_path / "tests.yml").write_text(tests)
    for words in (
        ["check", "config", str(EXAMPLES / "prometheus.yml")],  # with its rules and alerts
        ["test", "rules", str(tmp_path / "tests.yml")],
    ):
        ended = subprocess.run([promtool, *words], capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
