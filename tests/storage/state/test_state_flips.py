"""Tests of flipped bits in LMDB's file: they are detected or harmless. A process that uses the file
may crash. Then it is started again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TESTS = Path(__file__).resolve().parents[2]


def flip(folder: Path, first: int, step: int) -> dict[str, int]:
    env = {**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", "support.state_flips", str(folder), str(first), str(step)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, int] = json.loads(done.stdout)
    return found


def test_some_flipped_bits_are_detected_or_harmless(tmp_path: Path) -> None:
    assert flip(tmp_path, 12_345, 29_989)["bits"] > 12


def test_many_flipped_bits_are_detected_or_harmless(tmp_path: Path) -> None:
    found = flip(tmp_path, 3, 1_409)
    assert found["bits"] > 300
    assert found["aside"] > 20, "nothing was ever noticed"
