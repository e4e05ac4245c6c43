"""Tests of the experiment that compares LMDB with SQLite: it still runs, and both engines keep all
messages that they get.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

pytestmark = pytest.mark.slow

SCRIPT: Final = Path(__file__).resolve().parents[3] / "scripts" / "spikes" / "sqlite_delayed.py"
TINY: Final = (
    "--rows",
    "1000",
    "--rounds",
    "1",
    "--scale",
    "0.1",
    "--flips",
    "2",
    "--flip-rows",
    "100",
)


def test_the_spike_runs_with_tiny_sizes(tmp_path: Path) -> None:
    parts = ("--parts", "rates", "checks", "flips", "power")
    done = subprocess.run(
        [sys.executable, SCRIPT, *TINY, *parts, "--folder", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    for heading in (
        "1,000 delayed messages",
        "1,000 deferred rows",
        "Checks of",
        "One flipped bit",
        "Power cuts",
    ):
        assert heading in done.stdout
    assert not list(tmp_path.iterdir()), "it removes what it wrote"
