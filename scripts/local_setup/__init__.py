"""Local broker and Spark session for the benchmarks, the demo and the tests."""

import os
from pathlib import Path


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a process that imports the packages of `scripts/`, with the variables in `more`."""
    places = (str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", ""))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places)), **more}
