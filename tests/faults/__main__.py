"""`scripts/prove KIND`: each kind is a module in this folder that has `main(arguments) -> exit
code`.

The modules of this folder use these terms:

- Promise: a statement that must be true after a failure, for example that an acknowledged message
  can be read. A promise that is broken is a violation.
- Life: a test run of a store, a queue, or a registry, from its creation through failures and
  restarts. The class `Life` also records the promises.
- Disk: the files below one folder, with what is known to be synced. A test can make calls on it
  fail, or cut its power.
- Fate: for each change that was not synced at a power cut: it is lost, on disk, or on disk in part.
- Specimen: the directory of a topic, made from a number, that a test damages.
- Rig: a part of the broker with fakes around it.
- Target: code that a fuzz test calls with nearly correct inputs.
"""

from __future__ import annotations

import importlib
import sys
from typing import Final

KINDS: Final = {
    "crash-states": "crash_states",
    "calls": "calls",
    "damage": "damage",
    "fuzz": "fuzz",
    "core-alone": "core_alone",
}


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] not in KINDS:
        print(
            f"usage: scripts/prove {'|'.join(KINDS)} [--count N] [--seed S] [--jobs J]",
            file=sys.stderr,
        )
        return 0 if arguments in (["-h"], ["--help"]) else 2
    found: int = importlib.import_module(f"faults.{KINDS[arguments[0]]}").main(arguments[1:])
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
