"""Fixtures of data that a released version has written: their names, and how a test opens them."""

from __future__ import annotations

import json
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

FIXTURES: Final = Path(__file__).parent / "fixtures"
WALL_CLOCK: Final = Path(__file__).parents[1] / "support" / "wall_clock"
EXPECTED: Final = "expected.json"
LATER_S: Final = 60  # what has passed, by the clock of the broker, since the fixture was made

VERSIONS: Final = sorted(path.name for path in FIXTURES.glob("zsq-*"))


def expected_of(version: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((FIXTURES / version / EXPECTED).read_text())
    return facts


def unpack(version: str, name: str, folder: Path) -> Path:
    """Unpack a fixture below the folder, and return the folder."""
    with tarfile.open(FIXTURES / version / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    for path in folder.iterdir():
        if path.is_dir():
            path.chmod(0o700)
    return folder


def clock_of(version: str, folder: Path) -> Mapping[str, str]:
    """Return the environment of a broker whose clock is set to the time of the fixture."""
    made_s = int(expected_of(version)["made_s"])
    file = folder / "clock"
    file.write_text(f"{made_s + LATER_S - int(time.time())}")
    return {"PYTHONPATH": str(WALL_CLOCK), "ZSQ_WALL_CLOCK": str(file)}
