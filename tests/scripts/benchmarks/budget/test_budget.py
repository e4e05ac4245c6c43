"""Tests of the table of budgets: which budgets are met, how ratios of rounds are computed, and what
is written to the documentation.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.budget import command, costs
from benchmarks.budget.lines import (
    Goal,
    Line,
    Lines,
    Verdict,
    by_round,
    markdown,
    number,
    ratios,
    tally,
)
from benchmarks.budget.work import Work, found
from benchmarks.harness import marked
from benchmarks.harness.crew import MemberFailed
from benchmarks.harness.report import Report
from benchmarks.harness.turns import command_line
from benchmarks.main import bench

LEAST, MOST = Goal(4.0), Goal(1.5, at_least=False)


@pytest.mark.parametrize(
    ("values", "goal", "verdict"),
    [
        ((4.0,), LEAST, Verdict.MET),
        ((3.99,), LEAST, Verdict.UNMET),
        ((1.0, 4.0, 9.0), LEAST, Verdict.MET),
        ((1.0, 3.0, 9.0), LEAST, Verdict.UNMET),
        ((1.5,), MOST, Verdict.MET),
        ((1.51,), MOST, Verdict.UNMET),
        ((), LEAST, Verdict.NOT_COMPARED),
        ((), None, Verdict.NOT_COMPARED),
        ((4.0,), None, Verdict.NO_BUDGET),
    ],
)
def test_the_median_is_held_against_the_budget(
    values: tuple[float, ...], goal: Goal | None, verdict: Verdict
) -> None:
    assert Line("group", "what", "times", values, goal).verdict is verdict


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.1234, "0.123"),
        (12.34, "12.3"),
        (999.4, "999"),
        (1234.5, "1,230"),
        (1_234_567, "1,230,000"),
        (1015.6, "1,020"),
    ],
)
def test_a_number_has_three_digits_that_count(value: float, text: str) -> None:
    assert number(value) == text


def test_a_line_shows_median_range_and_budget() -> None:
    assert Line("g", "w", "ms", (3.0, 1.0, 2.0), MOST).measured == "2 ms (1 to 3)"
    assert Line("g", "w", "ms", (3.0,), MOST).measured == "3 ms"
    assert Line("g", "w", "ms", (3.0,), MOST).budget == "at most 1.5 ms"
    assert Line("g", "w", "times", (), LEAST, "it is not here").measured == "it is not here"
    assert Line("g", "w", "times", (), LEAST).as_dict()["verdict"] == "not compared"


def test_ratios_are_taken_within_each_round() -> None:
    assert ratios([10.0, 100.0], [1.0, 20.0]) == (10.0, 5.0)
    assert ratios([10.0, 100.0], [1.0, 3.0, 20.0, 30.0]) == (5.0, 4.0)
    assert by_round([1.0, 2.0, 9.0, 4.0], 2) == [1.5, 6.5]
    for count in (2, 5):
        with pytest.raises(ValueError, match="rounds"):
            by_round([1.0, 2.0, 3.0], count)


def test_a_report_gives_rates_ratios_and_what_is_not_compared() -> None:
    report = Report("e2e", {}, {})
    report.add("ours", "messages/s", 10.0, 30.0)
    report.add("peer", "messages/s", 5.0, 10.0, limit=True)
    lines = Lines("group")
    lines.of(report, "rate", "ours")
    lines.ratio(report, "by a peer", "ours", "peer", Goal(2.5))
    lines.ratio(report, "by another", "ours", "another", Goal(2.5), "not on PATH")
    rate, ratio, missing = lines.found
    assert (rate.values, rate.unit, rate.verdict) == ((10.0, 30.0), "messages/s", Verdict.NO_BUDGET)
    assert (ratio.values, ratio.verdict) == ((2.0, 3.0), Verdict.MET)
    assert (missing.verdict, missing.measured) == (Verdict.NOT_COMPARED, "not on PATH")
    assert tally(lines.found) == "2 budgets: 1 met, 0 unmet, 1 not compared."


def test_the_table_for_the_documentation_shows_each_line_and_verdict() -> None:
    lines = [
        Line("rates", "a|b", "times", (2.0,), LEAST),
        Line("rates", "c", "ms", (1.0,), MOST),
        Line("costs", "d", "MB", (1.0,)),
    ]
    text = markdown(lines, {"cpu": "one\nand two"}, ["a note"])
    assert "- cpu: one and two\n" in text
    assert "| a\\|b | 2 times | at least 4 times | **unmet** |" in text
    assert "| c | 1 ms | at most 1.5 ms | met |" in text
    assert "| d | 1 MB |  |  |" in text
    assert [text.count(f"**{group}**") for group in ("rates", "costs")] == [1, 1]
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in table} == {5}
    assert text.endswith("2 budgets: 1 met, 1 unmet, 0 not compared.\n\n- a note\n")


def test_the_text_between_the_marks_is_replaced() -> None:
    document = "# Title\n\n<!-- bench all: begin -->\nold\n<!-- bench all: end -->\n\nbehind\n"
    written = marked.replaced(document, "all", "new\n")
    assert (
        written == "# Title\n\n<!-- bench all: begin -->\nnew\n<!-- bench all: end -->\n\nbehind\n"
    )
    assert marked.between(written, "all") == "new"
    assert marked.replaced(written, "all", "new") == written


@pytest.mark.parametrize(
    "document",
    [
        "",
        "<!-- bench all: begin -->",
        "<!-- bench all: end --><!-- bench all: begin -->",
        "<!-- bench all: begin --><!-- bench all: begin --><!-- bench all: end -->",
        "<!-- bench other: begin --><!-- bench other: end -->",
    ],
)
def test_a_document_without_its_marks_is_refused(document: str) -> None:
    with pytest.raises(marked.NoMarks):
        marked.replaced(document, "all", "new")


def test_loads_are_scaled() -> None:
    assert Work(None, 3, 0.001).count(1_000_000) == 1000
    assert Work(None, 3, 0.0151).count(100_000) == 1000
    assert Work(None, 3, 2.0).count(1_500) == 3000
    assert (Work(None, 3, 0.001).seconds(5.0), Work(None, 3, 2.0).seconds(5.0)) == (0.3, 10.0)


@pytest.mark.parametrize(
    ("only", "options", "line"),
    [
        ((), command.DEFAULTS, "scripts/bench all"),
        (
            ("e2e", "nsq"),
            {"rounds": 1, "scale": 0.5, "waiting": 100_000_000},
            "scripts/bench all --only e2e --only nsq --rounds 1 --scale 0.5 --waiting 100000000",
        ),
    ],
)
def test_the_command_that_does_it_again(
    only: tuple[str, ...], options: dict[str, Any], line: str
) -> None:
    assert command_line("all", only, options, command.DEFAULTS) == line


def quick(work: Work) -> object:
    result = found("quick")
    result.report.add("time", "s", *[2.0] * work.rounds)
    result.lines.of(result.report, "time", "time", Goal(1.0, at_least=False))
    return result


def broken(work: Work) -> object:
    raise MemberFailed("in the middle")


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "GROUPS", {"quick": quick, "broken": broken})
    option = next(parameter for parameter in command.every.params if parameter.name == "only")
    monkeypatch.setattr(option.type, "choices", ["quick", "broken"])


@pytest.mark.usefixtures("groups")
def test_an_unmet_budget_is_a_report_and_no_error(tmp_path: Path) -> None:
    docs, table = tmp_path / "docs.md", tmp_path / "table.md"
    docs.write_text("".join(marked.marks("all")))
    options = [
        "--only",
        "quick",
        "--rounds",
        "2",
        "--docs",
        str(docs),
        "--markdown",
        str(table),
        "--folder",
        str(tmp_path),
    ]
    ended = CliRunner().invoke(bench, ["all", *options, "--json"])
    assert ended.exit_code == 0, ended.output
    answer = json.loads(ended.stdout)
    assert [(row["values"], row["verdict"]) for row in answer["rows"]] == [([2.0, 2.0], "unmet")]
    assert answer["about"]["command"] == "`scripts/bench all --only quick --rounds 2`"
    assert set(answer["groups"]) == {"quick"}
    assert "**unmet**" in table.read_text()
    assert marked.between(docs.read_text(), "all") == table.read_text().strip()
    assert str(tmp_path) not in table.read_text()


@pytest.mark.usefixtures("groups")
def test_a_part_that_fails_is_reported_and_the_others_are_measured() -> None:
    ended = CliRunner().invoke(bench, ["all", "--json"])
    assert ended.exit_code == 1
    assert "not measured: broken: in the middle" in ended.stderr
    answer = json.loads(ended.stdout)
    assert ([row["group"] for row in answer["rows"]], answer["failed"]) == (
        ["quick"],
        ["broken: in the middle"],
    )


@pytest.mark.usefixtures("groups")
def test_nothing_begins_when_the_time_is_over() -> None:
    outcome = command.measured(["quick"], Work(None, 1), -1.0, {})
    assert (outcome.lines, outcome.notes) == ([], ["quick: left out; the time limit was reached"])


@pytest.mark.parametrize(
    "options",
    [
        ("--only", "nothing"),
        ("--rounds", "0"),
        ("--scale", "0"),
        ("--waiting", "1"),
        ("--docs", "/nowhere"),
    ],
)
def test_each_senseless_option_is_refused(options: tuple[str, str]) -> None:
    assert CliRunner().invoke(bench, ["all", *options]).exit_code == 2


def test_a_document_without_marks_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    docs = tmp_path / "docs.md"
    docs.write_text("nothing")
    ended = CliRunner().invoke(bench, ["all", "--docs", str(docs)])
    assert (ended.exit_code, docs.read_text()) == (2, "nothing")
    assert "bench all: begin" in ended.stderr


def test_without_java_spark_is_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    lines = costs.spark(Work(None, 1)).lines.found
    assert [line.verdict for line in lines] == [Verdict.NOT_COMPARED] * 3
    assert all("Java" in line.measured for line in lines)
