"""Processor time, memory and wake-ups of a server: of its process and of all that it started."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from local_setup.processes import descendants, read_file

from .report import Report

CORE: Final = "% of a core"
OTHERS: Final = "others"
BESIDE: Final = ("supervisor", "forkserver", "scan_loop", "scan_worker")  # no message passes them
CLOCK_OF_ALL_THREADS: Final = 2  # CPUCLOCK_SCHED, in the lowest bits of a process's clock
WAKE_UPS: Final = "voluntary_ctxt_switches:"


class Usage:
    """The processor time that a server has used since this object was made.

    `root` is the first process of the server. Processes that start later count too.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._before = cpu_of_family(root)

    def seconds(self) -> dict[int, float]:
        """Return the seconds of each process that has not ended, by its pid."""
        after = cpu_of_family(self._root)
        return {pid: used - self._before.get(pid, 0.0) for pid, used in after.items()}

    def by_kind(self, kinds: Mapping[int, str]) -> dict[str, float]:
        """Return the seconds of each kind of `kinds`, a table by pid, and of OTHERS."""
        sums: dict[str, float] = {}
        for pid, seconds in self.seconds().items():
            kind = kinds.get(pid, OTHERS)
            sums[kind] = sums.get(kind, 0.0) + seconds
        return sums


def kinds_on_the_way(rows: Iterable[Mapping[str, Any]]) -> dict[int, str]:
    """Return the kinds of the processes in `stats` that a message may pass, by their pids."""
    return {int(row["pid"]): str(row["kind"]) for row in rows if row["kind"] not in BESIDE}


def family(root: int) -> list[int]:
    return [root, *descendants(root)]


def cpu_of_family(root: int) -> dict[int, float]:
    """Return the seconds that each process has used, of all its threads, also ended ones.

    The kernel's clock of a process counts nanoseconds. /proc/PID/stat counts hundredths of a
    second, which is too coarse for hundreds of processes that do nearly nothing.
    """
    used: dict[int, float] = {}
    for pid in family(root):
        with contextlib.suppress(OSError):  # the process has ended
            used[pid] = time.clock_gettime(~pid << 3 | CLOCK_OF_ALL_THREADS)
    return used


def used_s(root: int) -> float:
    """Return the seconds that all processes of a server have used until now."""
    return sum(cpu_of_family(root).values())


def footprint(report: Report, name: str, root: int, seconds: float) -> None:
    """Report what a server costs for `seconds` in which nothing happens."""
    usage, before, begin = Usage(root), _wake_ups(root), time.perf_counter()
    time.sleep(seconds)
    passed, used = time.perf_counter() - begin, usage.seconds()
    after = _wake_ups(root)
    awoken = sum(count - before.get(pid, 0) for pid, count in after.items())
    report.add(f"{name}: processor time", CORE, 100 * sum(used.values()) / passed)
    report.add(f"{name}: memory (PSS)", "MiB", memory_mib(root))
    report.add(f"{name}: wake-ups", "a second", awoken / passed)
    report.add(f"{name}: processes", "", len(used))


def memory_mib(root: int) -> float:
    """Return the proportional set size. It divides a shared page by the processes that share it."""
    rollups = [read_file(pid, "smaps_rollup") for pid in family(root)]
    kib = sum(int(rollup.partition("\nPss:")[2].split()[0]) for rollup in rollups if rollup)
    return kib / 1024


def _wake_ups(root: int) -> dict[int, int]:
    """Return how often the threads of each process have waited, and so were woken."""
    counts: dict[int, int] = {}
    for pid in family(root):
        tasks = [task.name for task in Path(f"/proc/{pid}/task").glob("*")]
        statuses = [read_file(pid, f"task/{task}/status") for task in tasks]
        counts[pid] = sum(
            int(status.partition(f"\n{WAKE_UPS}")[2].split()[0]) for status in statuses if status
        )
    return counts
