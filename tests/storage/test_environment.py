"""Tests of the base of the stores: what an open environment takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# As for a new topic, each environment is made, closed, and opened again.
OPENS = """
import sys
from zsq.actors.runtime.process import private_bytes
from zsq.storage.environment import Environment
from zsq.transport.memory import keep_memory

keep_memory()
folder = sys.argv[1]
before = private_bytes()
environments = []
for number in range(10):
    Environment(f"{folder}/{number}", create=True).close()
    environments.append(Environment(f"{folder}/{number}"))
print(private_bytes() - before)
"""


def test_an_environment_takes_little_memory_until_it_has_much_to_commit(tmp_path: Path) -> None:
    """LMDB has tables of 3 MB for each of them, which are hardly used."""
    line = [sys.executable, "-c", OPENS, str(tmp_path)]
    grown = int(subprocess.run(line, capture_output=True, check=True, timeout=60).stdout)
    assert grown < 10 * 300_000
