"""`scripts/simulate.py`: play many seeds, each in a separate process (see `cli.py`). A simulation
runs a broker and its clients in one process, with a simulated clock, network and disk.

The modules of this folder use these terms:

- Seed: a number from which a run derives everything random. Two runs of one seed do exactly the
  same.
- World: the simulated clock, and the processes and events of one run (`world.py`).
- Scenario: the topics, channels, clients and faults of a seed (`scenario.py`).
- Nemesis: the part that makes things fail. Each fault that it makes is a strike (`nemesis.py`).
- Ledger: the record of what the clients did and saw. A promise is a rule of the ledger, and a
  violation is a promise that was broken (`ledger.py`).
- Disk: the simulated disk of the machine, which can lose what was not synced (`disk.py`).
- Life: the time from the start of a process or client to its end. A client that was killed is
  started again, and this is its next life.
- Defect: a change of the product that breaks a promise on purpose, to test that the simulation
  finds it (`broken.py`).
"""

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
