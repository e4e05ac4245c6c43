"""`scripts/simulate.py`: many seeds, each in a process of its own; see cli.py."""

from __future__ import annotations

import importlib
import os
import sys

from . import broken, patches

if __name__ == "__main__":
    # Sets of strings would be walked in another order in each process.
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(
            sys.executable,
            [sys.executable, "-P", "-m", "simulation", *sys.argv[1:]],
            os.environ | {"PYTHONHASHSEED": "0"},
        )
    patches.before_import()
    if "--broken" in sys.argv:
        broken.put_in(sys.argv[sys.argv.index("--broken") + 1])
    sys.exit(importlib.import_module("simulation.cli").main(sys.argv[1:]))
