#!/usr/bin/env python3
"""Play ZSQ in a simulated world, seed by seed.

    ./scripts/simulate.py [--seeds N] [--first S] [--seed S -v] [--minutes M] [--jobs J]

The real supervisor, actors and client library run in one process on a simulated clock, network and disk; faults come at random times, and
a checker holds what clients saw against the promises. It finds or makes its environment like the other scripts; a failing seed is
printed with the command that replays it, and the replay goes the same way bit for bit.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    found = subprocess.run(
        ["bash", "-c", '. "$0/scripts/environment" test && printf %s "$PYTHON"', str(ROOT)], stdout=subprocess.PIPE, text=True, check=False
    )
    if found.returncode:
        return found.returncode
    path = os.pathsep.join(filter(None, (str(ROOT / "tests"), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": "0"}
    return subprocess.call([found.stdout, "-P", "-m", "simulation", *sys.argv[1:]], env=environment)


if __name__ == "__main__":
    sys.exit(main())
