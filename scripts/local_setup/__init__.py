"""Local broker and Spark session for the benchmarks, the demo and the tests."""

import os
from pathlib import Path


def environment(**more: str) -> dict[str, str]:
    """Return the environment for a process that imports packages of `scripts/`. `more` is added."""
    places = (str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", ""))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places)), **more}
