"""Tests of ./scripts/evidence: what a command printed comes into the table, also if it fails."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import zsq
from releasing import evidence
from releasing.evidence import ROWS, Row, carried_out, is_other_code, lacking, with_row

PAGE = f"# Evidence\n\n{evidence.BEGIN}{evidence.END}\nmore\n"


def line_of(command: str, result: str = r"lost (\d+)") -> tuple[str, bool]:
    return carried_out(Row(ROWS[1].name, "a test", command, result))


def test_a_row_has_what_the_command_printed() -> None:
    line, held = line_of("echo acknowledged 5, lost 0")
    assert held
    assert line.startswith(f"| {ROWS[1].name} | a test | 0 | `echo acknowledged 5, lost 0` | 20")


@pytest.mark.parametrize("command", ["ls /nothing-lost", "echo nothing of it"])
def test_a_command_that_fails_or_says_nothing_has_fallen(command: str) -> None:
    line, held = line_of(command)
    assert not held
    assert "**fallen**: exit code" in line


def test_a_row_replaces_the_one_of_an_earlier_run_and_keeps_the_order() -> None:
    page = with_row(PAGE, ROWS[2].name, f"| {ROWS[2].name} | old |")
    page = with_row(page, ROWS[0].name, f"| {ROWS[0].name} | first |")
    page = with_row(page, ROWS[2].name, f"| {ROWS[2].name} | new |")
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert rows[2:] == [f"| {ROWS[0].name} | first |", f"| {ROWS[2].name} | new |"]
    assert page.startswith("# Evidence\n\n")
    assert page.endswith(f"{evidence.END}\nmore\n")


def test_the_page_has_a_place_for_the_table() -> None:
    text = (Path(zsq.__file__).parent / "docs" / "evidence.md").read_text()
    assert text.count(evidence.BEGIN) == text.count(evidence.END) == 1


def test_each_row_has_its_own_name_and_a_result_that_can_be_found() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert all(re.compile(row.result).groups for row in ROWS)


def test_rows_that_are_no_evidence_for_this_commit_are_named() -> None:
    page = PAGE
    for row, result, commit in (
        (ROWS[0], "lost 0", "aaaaaaaaaa"),
        (ROWS[1], "lost 0", "bbbbbbbbbb"),
        (ROWS[2], "**fallen**: exit code 1, lost 3", "aaaaaaaaaa"),
    ):
        line = f"| {row.name} | a test | {result} | `a, b` | 2026-11-30, {commit}, 1.0 min |"
        page = with_row(page, row.name, line)
    assert lacking(page, list(ROWS[:4]), lambda commit: commit == "bbbbbbbbbb") == [
        f"{ROWS[1].name}: run at bbbbbbbbbb, whose code differs from this commit's",
        f"{ROWS[2].name}: has fallen",
        f"{ROWS[3].name}: not run",
    ]


def test_a_commit_that_is_not_known_is_other_code() -> None:
    assert is_other_code("0123456789")
