#!/usr/bin/env python3
"""List the tests that failed beside the others and passed alone: ./scripts/unstable.py FIRST SECOND. Exit code 1 where they are too many.

FIRST and SECOND are pytest's own lists of failed tests (`.pytest_cache/v/cache/lastfailed`), saved after the whole run and after a run of
only those that failed. `.ci/run` calls it last, so that what is unstable is seen and not forgotten.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

UNSTABLE_MAX: Final = 2


def failed(path: Path) -> set[str]:
    """Return the node ids in pytest's list of failed tests. Pytest writes no list where no test has ever failed."""
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
