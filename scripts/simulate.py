#!/usr/bin/env python3
"""Run ZSQ in a simulated world, one seed after the other.

    ./scripts/simulate.py [--seeds N] [--first S] [--seed S -v] [--minutes M] [--jobs J]

The real supervisor, actors and client library run in one process, with a simulated clock, network
and disk. Faults come at random times, and a checker compares what the clients saw with the promises
of ZSQ. If a seed fails, the script prints it with the command that replays it. The replay repeats
the run exactly. Like the other scripts, this one uses or creates the Python environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    found = subprocess.run(
        ["bash", "-c", '. "$0/scripts/environment" test && printf %s "$PYTHON"', str(ROOT)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if found.returncode:
        return found.returncode
    path = os.pathsep.join(filter(None, (str(ROOT / "tests"), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": "0"}
    return subprocess.call([found.stdout, "-P", "-m", "simulation", *sys.argv[1:]], env=environment)


if __name__ == "__main__":
    sys.exit(main())
