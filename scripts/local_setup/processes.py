"""Processes of a broker or of Spark, as /proc shows them: processor time, descendants, and ends."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

END_WAIT_S: Final = 20.0
POLL_S: Final = 0.02
ENDED: Final = ("Z", "X")
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


def read_file(pid: int, name: str) -> str:
    """Return the content of a file of a process, or "" if the process has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""


def stat_fields(pid: int) -> list[str]:
    """Return the fields after the name: state, parent, group ... An ended process has none."""
    # The name, in brackets, may have spaces.
    return read_file(pid, "stat").rpartition(")")[2].split()


def cpu_s(pids: Iterable[int]) -> float:
    """Return the seconds that all threads of these processes used. An ended process counts as 0."""
    fields = [stat for pid in pids if (stat := stat_fields(pid))]
    return sum(int(stat[11]) + int(stat[12]) for stat in fields) / _TICKS_PER_S


def descendants(root: int) -> list[int]:
    """Return all processes that this one started, and that those started."""
    parents = {pid: int(stat[1]) for pid, stat in _all_fields().items()}
    family = {root}
    while fresh := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= fresh
    return sorted(family - {root})


def kill_group(process: subprocess.Popen[bytes]) -> int:
    """Kill all processes of a broker at once. Return their number when they have ended."""
    count = len(_members(process.pid))
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(END_WAIT_S)
    deadline = time.monotonic() + END_WAIT_S
    while left := _members(process.pid):
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {left} still ran {END_WAIT_S:g} s after kill -9")
        time.sleep(POLL_S)
    return count


def _members(group: int) -> list[int]:
    """Return the processes of a process group that have not ended."""
    return [
        pid for pid, stat in _all_fields().items() if int(stat[2]) == group and stat[0] not in ENDED
    ]


def _all_fields() -> dict[int, list[str]]:
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return {pid: stat for pid in pids if (stat := stat_fields(pid))}
