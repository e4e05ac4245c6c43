"""Tests of how far a query is behind: what the source reports, and what `behind` makes of it."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from support.spark_logs import MESSAGE_BYTES, MadeUp

import zsq
from zsq.apps.spark import Behind, behind
from zsq.apps.spark.admission import AdmittingReader
from zsq.apps.spark.options import source_options
from zsq.apps.spark.planning import StreamPlan, StreamPosition


def plan(logs: MadeUp, topics: str = "a,b") -> StreamPlan:
    return StreamPlan(source_options({"subscribe": topics}, "tcp://h:1", streaming=True), logs)


def at(**offsets: int) -> StreamPosition:
    return StreamPosition(offsets, {topic: f"u-{topic}" for topic in offsets})


def each(report: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {name: (one["rows"], one["bytes"]) for name, one in report["behind"]["topics"].items()}


def progress(*latest: object) -> dict[str, Any]:
    return {"sources": [{"description": "one", "latestOffset": one} for one in latest]}


@pytest.mark.parametrize(
    ("planned", "waits"),
    [
        (at(a=50, b=20), {}),
        (at(a=20, b=20), {"a": 30}),
        (at(a=20, b=5), {"a": 30, "b": 15}),
        (at(a=0, b=20), {"a": 40}),  # the messages before offset 10 do not exist any more
        (StreamPosition({"a": 45, "b": 20}, {"a": "another", "b": "u-b"}), {"a": 40}),
        (at(a=50), {"b": 20}),
    ],
)
def test_what_waits_behind_the_planned_batch_is_reported(
    planned: StreamPosition, waits: dict[str, int]
) -> None:
    report: Any = plan(MadeUp(a=(10, 50), b=(0, 20))).report(planned)
    assert each(report) == {name: (rows, rows * MESSAGE_BYTES) for name, rows in waits.items()}
    rows = sum(waits.values())
    assert behind(progress(report)) == Behind(rows, rows * MESSAGE_BYTES)
    assert StreamPosition.from_json(report) == at(a=50, b=20), "a position takes no notice of it"


def test_parts_are_reported_as_one_topic() -> None:
    logs = MadeUp()
    logs.set("a#0", 0, 10)
    logs.set("a#1", 0, 20)
    report: Any = plan(logs, "a").report(at(**{"a#0": 4, "a#1": 19}))
    assert each(report) == {"a": (7, 7 * MESSAGE_BYTES)}


def test_several_sources_are_added_and_others_left_out() -> None:
    one, two = ({"behind": {"rows": rows, "bytes": 10 * rows}} for rows in (3, 4))
    found = progress(one, json.dumps(two), '{"clicks": {"0": 9}}', "no JSON", None, 7, [])
    assert behind(found) == Behind(7, 70)


@pytest.mark.parametrize(
    "said",
    [
        None,
        {},
        progress(),
        progress("0"),
        progress({"behind": 3}),
        progress({"behind": {"rows": 1}}),
    ],
)
def test_a_progress_that_does_not_say_it_is_none(said: dict[str, Any] | None) -> None:
    assert behind(said) is None


def reader(monkeypatch: pytest.MonkeyPatch, logs: MadeUp, **given: str) -> AdmittingReader:
    monkeypatch.setattr("zsq.apps.spark.stream.TopicLogs", lambda *_: logs)
    return AdmittingReader(source_options({"subscribe": "a", **given}, "tcp://h:1", streaming=True))


def test_the_reader_reports_what_the_limit_left(monkeypatch: pytest.MonkeyPatch) -> None:
    one = reader(monkeypatch, MadeUp(a=(0, 100)), maxoffsetspertrigger="40")
    assert one.reportLatestOffset() == at(a=100).as_json(), "no batch is planned yet"
    one.latestOffset(at(a=0).as_json(), one.getDefaultReadLimit())
    assert behind(progress(one.reportLatestOffset())) == Behind(60, 60 * MESSAGE_BYTES)


def test_a_report_fails_no_query(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logs = MadeUp(a=(0, 100))
    one = reader(monkeypatch, logs, maxoffsetspertrigger="40")
    one.latestOffset(at(a=0).as_json(), one.getDefaultReadLimit())

    def nobody(*_: object) -> Any:
        raise zsq.BrokerUnreachable("E_TIMEOUT", "nobody there")

    for request in ("measure", "extent"):
        monkeypatch.setattr(logs, request, nobody)
        with caplog.at_level(logging.WARNING, "zsq.spark"):
            said = one.reportLatestOffset()
        assert said == at(a=40).as_json()
        assert behind(progress(said)) is None
    assert caplog.text.count("not known how far the query is behind") == 2
