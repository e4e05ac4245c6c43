"""Tests of docs/performance.md: it has a place for each measurement, its pictures exist, and so
does each benchmark that the documentation names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest

from benchmarks.budget.command import MARK
from benchmarks.cost import command
from benchmarks.harness import marked
from benchmarks.main import bench

from .walking import ROOT

PAGE = ROOT / "docs/performance.md"
# The change log also tells of benchmarks that an earlier version had.
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
_SHOWN = re.compile(r"scripts/bench ((?:[a-z][a-z0-9-]*|--[a-z]+)(?: [^`\n]*)?)")


def shown(text: str) -> Iterator[list[str]]:
    for line in _SHOWN.findall(text):
        yield re.split(r"[;,)|#]|\.(?: |$)", line)[0].split()


def missing(words: list[str]) -> str:
    """Return the words of the command that do not exist, or "" if all exist."""
    name, *rest = words
    if name.startswith("--"):
        return "" if name == "--help" else f"no option {name}"
    found = bench.get_command(click.Context(bench), name)
    if found is None:
        return f"no benchmark {name}"
    options = {option for parameter in found.params for option in parameter.opts} | {"--help"}
    return ", ".join(
        f"{name} has no option {word}"
        for word in rest
        if word.startswith("-") and word not in options
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_benchmarks_that_are_shown_are_there(page: Path) -> None:
    assert {
        " ".join(words): why for words in shown(page.read_text()) if (why := missing(words))
    } == {}


def test_the_check_finds_what_is_not_there() -> None:
    assert missing(["all", "--docs", "docs/performance.md"]) == ""
    assert missing(["all", "--nothing"]) == "all has no option --nothing"
    assert missing(["everything"]) == "no benchmark everything"
    assert list(shown("`./scripts/bench hops`, and `scripts/bench all --only e2e`.")) == [
        ["hops"],
        ["all", "--only", "e2e"],
    ]
    assert sum(len(list(shown(page.read_text()))) for page in PAGES) >= 8


@pytest.mark.parametrize("name", [MARK, command.MARK, *map(command.mark, command.SWEEPS)])
def test_the_page_has_a_place_for_it(name: str) -> None:
    text = PAGE.read_text()
    assert marked.replaced(text, name, marked.between(text, name)).count(marked.marks(name)[0]) == 1


def table_rows(table: str) -> list[list[str]]:
    """Return the cells of each row of the table of budgets, without its head and its groups."""
    lines = [line for line in table.splitlines() if line.startswith("| ")][1:]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [row for row in cells if not row[0].startswith("**")]


def test_the_table_is_that_of_one_run_of_all_groups() -> None:
    table = marked.between(PAGE.read_text(), MARK)
    about = dict(line[2:].split(": ", 1) for line in table.splitlines() if line.startswith("- "))
    assert about["command"] == "`scripts/bench all`"
    assert {"date", "cpu", "cores", "python", "nsqd", "redis-server", "durability"} <= set(about)
    rows = table_rows(table)
    assert {len(row) for row in rows} == {4}
    verdicts = [row[3].strip("*") for row in rows if row[2]]
    met, unmet, missing = (verdicts.count(word) for word in ("met", "unmet", "not compared"))
    assert met + unmet + missing == len(verdicts)
    assert f"{len(verdicts)} budgets: {met} met, {unmet} unmet, {missing} not compared." in table


def test_the_figures_of_the_readme_are_those_of_the_table() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    [row] = [line for line in lines if "| `scripts/bench all` |" in line]
    figures = re.findall(r"[\d,.]+ (?:messages/s|times)", row)
    measured = [cells[1] for cells in table_rows(marked.between(PAGE.read_text(), MARK))]
    assert len(figures) == 2
    assert [any(cell.startswith(figure) for cell in measured) for figure in figures] == [True, True]


def test_each_picture_is_an_svg_drawing() -> None:
    for picture in re.findall(r"\]\((pictures/[^)]+)\)", PAGE.read_text()):
        assert ElementTree.parse(PAGE.parent / picture).getroot().tag.endswith("svg")
