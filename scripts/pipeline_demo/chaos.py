"""Option `--chaos`: one of the Python workers that push rows for Spark is killed while it works."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from zsq.transport.client.blocking.client import Admin

from . import work

POLL_S: Final = 0.005
WORKING_S: Final = 0.03  # long enough, because the kernel counts processor time in steps of 10 ms


class Chaos(threading.Thread):
    """Waits until rows are staged but not committed, then kills a worker.

    `killed` is the worker's pid, or 0 if the job ended first.
    """

    def __init__(self, url: str, jvm: int) -> None:
        super().__init__(name="chaos", daemon=True)
        self.killed = 0
        self._url = url
        self._jvm = jvm
        self._over = threading.Event()

    def run(self) -> None:
        with Admin(self._url) as admin:
            while not self._over.wait(POLL_S):
                if staged_bytes(admin, work.TOPIC) > 0 and (workers := pushing_workers(self._jvm)):
                    os.kill(workers[0], signal.SIGKILL)
                    self.killed = workers[0]
                    return

    def stop(self) -> None:
        self._over.set()
        self.join()


def staged_bytes(admin: Admin, topic: str) -> int:
    return sum(int(found.get("staged_bytes", 0)) for found in admin.stats(topic)["topics"])


def pushing_workers(jvm: int) -> list[int]:
    """Return the Python workers below this JVM that use ZeroMQ and processor time now.

    In a job that only writes to ZSQ, these are its PUSH producers. The processes in which Spark
    planned the job have loaded ZeroMQ too. But they have no ZeroMQ context and therefore only one
    thread.
    """
    candidates = [
        pid for pid in below(jvm) if "libzmq" in _said(pid, "maps") and len(_threads(pid)) > 1
    ]
    before = {pid: _ticks(pid) for pid in candidates}
    time.sleep(WORKING_S)
    return [pid for pid in candidates if _ticks(pid) > before[pid]]


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def _ticks(pid: int) -> int:
    """Return the processor time so far, or 0 for a process that has ended."""
    fields = _said(pid, "stat").rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12]) if fields else 0


def below(root: int, parents: Callable[[], dict[int, int]] | None = None) -> list[int]:
    """Return all descendants of a process."""
    table = (parents or _parents)()
    found = {root}
    grown = True
    while grown:
        fresh = {pid for pid, parent in table.items() if parent in found} - found
        grown = bool(fresh)
        found |= fresh
    return sorted(found - {root})


def _parents() -> dict[int, int]:
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (status := _said(int(name), "stat")):
            found[int(name)] = int(status.rpartition(")")[2].split()[1])
    return found


def _said(pid: int, what: str) -> str:
    """Return the content of a file in /proc, or "" for a process that has ended."""
    try:
        return Path(f"/proc/{pid}/{what}").read_text(errors="replace")
    except OSError:
        return ""


def state_of(pid: int) -> str:
    """Return the state of a process, such as R or Z, or "" for a process that has ended."""
    fields = _said(pid, "stat").rpartition(")")[2].split()
    return fields[0] if fields else ""


def jvm_of(spark: Any) -> int:
    """Return the process id of Spark's JVM."""
    return int(spark.sparkContext._gateway.proc.pid)


def failed_tasks(spark: Any, stages_max: int = 100) -> int:
    """Return how many task attempts have failed so far, by Spark's count."""
    tracker = spark.sparkContext.statusTracker()
    found = [tracker.getStageInfo(number) for number in range(stages_max)]
    return sum(info.numFailedTasks for info in found if info is not None)
