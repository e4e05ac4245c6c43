"""Tests of how `.ci/run` finds unstable tests: it uses pytest's list of failed tests, in the format
of this version of pytest.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
import unstable

ROOT: Final = Path(__file__).resolve().parents[2]
FAILED: Final = ".pytest_cache/v/cache/lastfailed"

TESTS: Final = """
import pathlib, pytest

@pytest.mark.parametrize("number", range({flaky}))
def test_flaky(number):
    first = pathlib.Path(f"passed-{{number}}")
    if not first.exists():
        first.touch()
        assert False

def test_broken():
    assert {good}

def test_good():
    pass
"""


def run_pytest(folder: Path, *arguments: str) -> int:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    line = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:hypothesispytest",
        "--rootdir",
        str(folder),
        *arguments,
    ]
    return subprocess.run(
        line, cwd=folder, capture_output=True, timeout=60, check=False, env=environment
    ).returncode


@pytest.mark.parametrize(("flaky", "good", "code"), [(4, False, 0), (5, True, 1)])
def test_more_than_four_unstable_tests_are_too_many(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flaky: int, good: bool, code: int
) -> None:
    (tmp_path / "test_a.py").write_text(TESTS.format(flaky=flaky, good=good))
    assert run_pytest(tmp_path) == 1
    first = (tmp_path / FAILED).rename(tmp_path / "first")
    (tmp_path / FAILED).write_text(first.read_text())
    assert run_pytest(tmp_path, "--last-failed", "--last-failed-no-failures", "none") == (
        0 if good else 1
    )
    assert unstable.main(str(first), str(tmp_path / FAILED)) == code
    said = capsys.readouterr().out.splitlines()
    assert said[:flaky] == [
        f"unstable: test_a.py::test_flaky[{number}] failed once and passed alone"
        for number in range(flaky)
    ]
    assert said[flaky:] == (["unstable: 5 tests; the limit is 4"] if code else [])


def test_without_a_failure_nothing_is_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert unstable.main(str(tmp_path / "first"), str(tmp_path / "second")) == 0
    assert capsys.readouterr().out == ""


def test_continuous_integration_reads_the_list_that_pytest_writes() -> None:
    text = (ROOT / ".ci/run").read_text()
    assert FAILED in text
    assert "scripts/unstable.py" in text
