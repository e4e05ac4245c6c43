"""Tests of the limit on the number of processes by the memory of the machine."""

from __future__ import annotations

import pytest

from zsq.actors.runtime import process_table as module
from zsq.actors.runtime.process_table import processes_by_memory
from zsq.actors.settings import options


@pytest.mark.parametrize(("memory", "processes"), [
    (1, options.PROCESSES_MAX_LEAST), (1_000 * options.PROCESS_MEMORY_BYTES, 1_000), (1 << 50, options.PROCESSES_MAX),
])  # fmt: skip
def test_the_number_of_processes_follows_the_memory_within_limits(
    memory: int, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "memory_bytes", lambda: memory)
    assert processes_by_memory() == processes
