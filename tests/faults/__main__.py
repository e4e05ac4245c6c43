"""`scripts/prove KIND`: each kind is a module in this folder that has `main(arguments) -> exit
code`.
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
