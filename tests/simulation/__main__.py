"""`scripts/simulate.py`: plays many seeds, each in a separate process (see cli.py)."""

from __future__ import annotations

import importlib
import os
import sys

from . import broken, patches

if __name__ == "__main__":
    # Without this, each process would iterate over sets of strings in another order.
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
