#!/usr/bin/env python3
"""List the tests that failed in a whole run and passed alone: ./scripts/unstable.py FIRST SECOND.

FIRST and SECOND are pytest's own lists of failed tests (`.pytest_cache/v/cache/lastfailed`). FIRST
was saved after the whole run, and SECOND after a run of only the tests that had failed. The exit
code is 1 if there are too many such tests. `.ci/run` calls this script last, so that unstable tests
are noticed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

# About 500 tests (those of tests/process) start real processes, on two cores that are always busy.
UNSTABLE_MAX: Final = 4


def failed(path: Path) -> set[str]:
    """Return the names in pytest's list of failed tests.

    Pytest writes no list if no test ever failed.
    """
    return set(json.loads(path.read_text())) if path.exists() else set()


def main(first: str, second: str) -> int:
    unstable = sorted(failed(Path(first)) - failed(Path(second)))
    for test in unstable:
        print(f"unstable: {test} failed once and passed alone")
    if len(unstable) > UNSTABLE_MAX:
        print(f"unstable: {len(unstable)} tests; the limit is {UNSTABLE_MAX}")
    return len(unstable) > UNSTABLE_MAX


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
