"""Option `--chaos`: one of the Python workers that push rows for Spark is killed while it works."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any, Final

from local_setup.processes import cpu_s, descendants, read_file, stat_fields
from zsq.transport.client.blocking.client import Admin

from . import work

POLL_S: Final = 0.005
NUM_THREADS: Final = 17  # the index of this field of /proc/PID/stat
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
    candidates = [pid for pid in descendants(jvm) if _has_context(pid)]
    before = {pid: cpu_s([pid]) for pid in candidates}
    time.sleep(WORKING_S)
    return [pid for pid in candidates if cpu_s([pid]) > before[pid]]


def _has_context(pid: int) -> bool:
    """Return True if the process has loaded ZeroMQ, and more than one thread."""
    stat = stat_fields(pid)
    return bool(stat) and int(stat[NUM_THREADS]) > 1 and "libzmq" in read_file(pid, "maps")


def jvm_of(spark: Any) -> int:
    """Return the process id of Spark's JVM."""
    return int(spark.sparkContext._gateway.proc.pid)


def failed_tasks(spark: Any, stages_max: int = 100) -> int:
    """Return how many task attempts have failed so far, by Spark's count."""
    tracker = spark.sparkContext.statusTracker()
    found = [tracker.getStageInfo(number) for number in range(stages_max)]
    return sum(info.numFailedTasks for info in found if info is not None)
