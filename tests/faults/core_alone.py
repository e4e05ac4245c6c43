"""`scripts/prove core-alone`: the core's tests against a wheel without the extensions' rooms.

It also takes out each extension alone, and tests the others in a broker (`support/alone.py`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from support.alone import EXTENSIONS, ROOT, WOVEN_IN, installed_without, rooms_of_all

# Tests of publish, consume, kill, recovery, seek and delays, in brokers without a door for others.
CORE: Final = (
    "tests/process/test_kill.py",
    "tests/process/test_seek.py",
    "tests/process/test_delayed.py",
    "tests/storage/log/test_log.py",
    "tests/actors/channel/test_core_peeks.py",
)
EACH: Final = "tests/process/test_core_alone.py"


def main(arguments: list[str]) -> int:
    rooms = rooms_of_all()
    print(f"left out: {', '.join(rooms)}")
    print("still woven in:")
    for room, why in WOVEN_IN.items():
        print(f"  {room}: imported by {why}")
    with tempfile.TemporaryDirectory(prefix="zsq-alone-") as folder:
        site = installed_without(rooms, Path(folder))
        print(f"the core: {_product_lines(site):,} lines of {_product_lines(ROOT):,}", flush=True)
        environment = {**os.environ, "PYTHONPATH": f"{site}:{ROOT / 'tests'}"}
        program = "import zsq, sys; sys.exit(not zsq.__file__.startswith(sys.argv[1]))"
        subprocess.run(
            [sys.executable, "-P", "-c", program, str(site)], env=environment, check=True
        )
        failed = _pytest(arguments, CORE, environment)
    print(f"without one of {', '.join(EXTENSIONS)}, and without all:", flush=True)
    return _pytest(arguments, (EACH,), dict(os.environ)) or failed


def _pytest(arguments: list[str], tests: tuple[str, ...], environment: dict[str, str]) -> int:
    command = [sys.executable, "-P", "-m", "pytest", "-q", *arguments, *tests]
    return subprocess.run(command, env=environment, check=False, cwd=ROOT).returncode


def _product_lines(package: Path) -> int:
    root = package / "zsq" if (package / "zsq").is_dir() else package
    files = (
        one
        for layer in ("actors", "apps", "storage", "transport")
        for one in (root / layer).rglob("*.py")
    )
    return sum(len(file.read_bytes().splitlines()) for file in files)
