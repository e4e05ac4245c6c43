"""Tests of the limits on the number of processes: by the memory of the machine, and by free file
descriptors.
"""

from __future__ import annotations

import os
import resource
from types import SimpleNamespace
from typing import Any

import pytest

from zsq.actors.runtime import process_table as module
from zsq.actors.runtime.process_table import START_FILES, ProcessTable, processes_by_memory
from zsq.actors.settings import options


@pytest.mark.parametrize(("memory", "processes"), [
    (1, options.PROCESSES_MAX_LEAST), (1_000 * options.PROCESS_MEMORY_BYTES, 1_000), (1 << 50, options.PROCESSES_MAX),
])  # fmt: skip
def test_the_number_of_processes_follows_the_memory_within_limits(
    memory: int, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "memory_bytes", lambda: memory)
    assert processes_by_memory() == processes


def test_no_process_is_started_when_the_forkserver_has_too_few_descriptors_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the check, the forkserver would end in the middle of the request, and the broker with
    it.
    """
    # The check itself holds START_FILES descriptors while it counts.
    used = len(os.listdir("/proc/self/fd")) + START_FILES
    table: Any = SimpleNamespace(forkserver_pid=os.getpid())
    for limit, enough in ((used + START_FILES, True), (used + START_FILES - 1, False)):
        monkeypatch.setattr(resource, "prlimit", lambda *_, limit=limit: (limit, limit))
        if enough:
            ProcessTable._check_files(table)
        else:
            with pytest.raises(OSError, match="in the forkserver"):
                ProcessTable._check_files(table)
