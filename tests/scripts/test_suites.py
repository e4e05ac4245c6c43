"""Tests of the suites of `scripts/test`: `tests/conftest.py` gives each test the mark of its
function, its file or its folder, and leaves out the files of other suites.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
FILES: Final = {
    "test_mixed.py": """
import pytest
def test_plain(): pass
@pytest.mark.slow
def test_slow(): pass
@pytest.mark.long
def test_long(): pass
""",
    "test_file.py": """
import pytest

pytestmark = pytest.mark.slow

def test_of_slow_file(): pass
""",
    "folder/conftest.py": "import pytest\n\npytestmark = pytest.mark.slow\n",
    "folder/test_smoke.py": """
import pytest
@pytest.mark.smoke
def test_smoke(): pass
def test_of_slow_folder(): pass
@pytest.mark.long
def test_long_of_slow_folder(): pass
""",
    "folder/test_plain.py": "def test_beside(): pass",
    "lengthy/conftest.py": "import pytest\n\npytestmark = pytest.mark.long\n",
    "lengthy/test_it.py": """
import pytest
def test_of_long_folder(): pass
@pytest.mark.smoke
def test_smoke_of_long_folder(): pass
""",
}
SUITES: Final = {
    "fast": {"plain", "smoke"},
    "change": {"plain", "slow", "of_slow_file", "smoke", "of_slow_folder", "beside"},
    "long": {"long", "long_of_slow_folder", "of_long_folder", "smoke_of_long_folder"},
}


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_has_the_tests_of_its_marks(suite: str, tmp_path: Path) -> None:
    script = (ROOT / "scripts/test").read_text()
    marks = re.search(rf'^    {suite}\) marks="([^"]+)"', script, re.MULTILINE)
    assert marks is not None
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow\n    long\n    smoke\n")
    line = [sys.executable, "-m", "pytest", "-q", "--collect-only", "--import-mode=importlib"]
    done = subprocess.run(
        [*line, "-p", "no:cacheprovider", "-m", marks[1], str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "ZSQ_TEST_SUITE": suite},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert set(re.findall(r"::test_(\w+)", done.stdout)) == SUITES[suite], done.stdout + done.stderr


def test_the_exit_code_tells_a_suite_that_could_not_start_from_failed_tests() -> None:
    done = subprocess.run(
        [ROOT / "scripts/test", "--fast"],
        env={**os.environ, "ZSQ_VENV": "/dev/null/venv"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "the environment could not be created" in done.stderr
    assert done.returncode == 3
