"""Tests of the program `scripts/mutate`: which tests it runs, which answers it keeps, and one
removal from start to end.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mutate.__main__ import _answers, _ordered, main
from mutate.equivalents import EQUIVALENT
from mutate.sites import Site, sources, switched
from mutate.tree import ROOT

SITE = Site("key", "storage/log/log_reader.py", 3, "read", "bound", "false", "a > B_MAX")


def row(test: str, s: float) -> dict[str, Any]:
    return {"test": test, "s": s, "passed": True, "seen": []}


def test_near_and_fast_tests_are_asked_first() -> None:
    rows = [
        row("a/test_z.py::slow", 9),
        row("a/test_z.py::fast", 0.1),
        row("a/test_log.py::near", 0.4),
        row("a/test_log.py::far", 1.0),
    ]
    asked, left = _ordered(SITE, rows, 100)
    assert [test for test, _ in asked] == [
        "a/test_log.py::near",
        "a/test_z.py::fast",
        "a/test_log.py::far",
        "a/test_z.py::slow",
    ]
    assert left == 0


def test_what_a_site_may_cost_is_bounded_and_one_test_is_always_asked() -> None:
    rows = [row("a/test_z.py::one", 3), row("a/test_z.py::two", 4)]
    assert _ordered(SITE, rows, 6) == ([("a/test_z.py::one", 3)], 1)
    assert _ordered(SITE, rows, 1) == ([("a/test_z.py::one", 3)], 1)
    assert _ordered(SITE, [], 1) == ([], 0)


def test_a_caught_site_stays_caught(tmp_path: Path) -> None:
    rows = [
        {"key": "a", "caught": ""},
        {"key": "a", "caught": "test"},
        {"key": "a", "caught": ""},
        {"key": "b", "caught": ""},
    ]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    assert {key: one["caught"] for key, one in _answers(tmp_path).items()} == {"a": "test", "b": ""}


def test_each_equivalent_names_a_site_that_is_there_and_says_why() -> None:
    keys = {
        site.key
        for path in sources(ROOT)
        for site in switched(path.read_text(), path.relative_to(ROOT).as_posix(), 0, "")[1]
    }
    assert set(EQUIVALENT) <= keys
    assert all(len(why) > 20 for why in EQUIVALENT.values())


@pytest.mark.slow
def test_a_removal_is_caught_and_one_that_no_test_asked_sees_survives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`storage/test_files.py` notices the removal of a sync in `storage/files.py`. It runs no code
    of `storage/space.py`, so a removal there survives.
    """
    common = ["--folder", str(tmp_path), "--tests", "storage/test_files.py", "--jobs", "1"]
    assert main([*common, "--only", "os.fdatasync(fd)"]) == 0
    said = capsys.readouterr().out
    assert "caught by tests/storage/test_files.py::test_" in said
    assert "1 of 1 removals caught by a test" in said
    assert (
        main([*common, "--resume", "--only", "storage/space.py", "--only", "os.fdatasync(fd)"]) == 1
    )
    said = capsys.readouterr().out
    assert "SURVIVOR" in said
    assert "0 tests run over it" in said
