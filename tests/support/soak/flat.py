"""Growth check of the soak (see `run.py`): after a warm-up, the broker's processes must not use
more and more descriptors, threads or memory, and the files on disk must not grow.
"""

from __future__ import annotations

import contextlib
import os
import re
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from support.memory import private_bytes
from support.torture.processes import Process, is_shared

MIB: Final = 1 << 20
# The fewest samples of a process in each third of the run. With fewer samples, its growth is not
# judged.
SAMPLES_MIN: Final = 3


class Allowance(NamedTuple):
    """The growth that is allowed: the last third of the run may exceed the second one by this share
    and this amount.
    """

    share: float
    amount: float


# A short-lived topic or channel has up to eight descriptors in the supervisor and in the gateway,
# and about ten files. When a process sends its first large buffer without copying it, pyzmq starts
# its garbage collector: one thread, and the two threads of a separate context. That may happen at
# any time, but only once. So these threads do not count as growth.
COLLECTOR_THREADS: Final = 3
REAPER: Final = "ZMQbg/Reaper"  # libzmq has one such thread for each context
OF_A_PROCESS: Final = {
    "descriptors": Allowance(0.0, 20),
    "threads": Allowance(0.0, 1),
    "memory": Allowance(0.1, 6 * MIB),
}
# Short-lived topics and channels come and go in a process that several actors share, and each has
# threads of its own.
OF_A_SHARED_PROCESS: Final = {
    "descriptors": Allowance(0.1, 60),
    "threads": Allowance(0.1, 8),
    "memory": Allowance(0.1, 12 * MIB),
}
OF_ALL: Final = {
    "descriptors": Allowance(0.05, 60),
    "threads": Allowance(0.05, 8),
    "memory": Allowance(0.05, 24 * MIB),
    "files": Allowance(0.1, 40),
    "bytes": Allowance(0.1, 12 * MIB),
}


@dataclass
class Sample:
    """One measurement. `processes`: title of a process -> name of a value -> value. `all`: name of
    a value -> value for the whole broker.
    """

    at_s: float
    processes: dict[str, dict[str, float]]
    all: dict[str, float]
    # Title of a process -> the names of its threads. They are shown if the number of threads grew.
    threads: dict[str, tuple[str, ...]] = field(default_factory=dict)


def look(at_s: float, processes: Sequence[Process], folder: Path) -> Sample:
    """Take a sample of these processes, and of the files below `folder`."""
    found: dict[str, dict[str, float]] = {}
    names: dict[str, tuple[str, ...]] = {}
    for process in processes:
        with contextlib.suppress(OSError):  # the process has just ended
            threads = tuple(
                sorted(
                    path.read_text().strip()
                    for path in Path(f"/proc/{process.pid}/task").glob("*/comm")
                )
            )
            figures = {
                "descriptors": float(len(os.listdir(f"/proc/{process.pid}/fd"))),
                "threads": float(
                    len(threads) - (COLLECTOR_THREADS if threads.count(REAPER) > 1 else 0)
                ),
                "memory": float(private_bytes(process.pid)),
            }
            title = re.sub(r"\d{5,}", "N", process.title)
            found[title] = figures
            names[title] = threads
    total = {figure: sum(row[figure] for row in found.values()) for figure in OF_A_PROCESS}
    total["files"] = total["bytes"] = 0.0
    for where, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total["bytes"] += os.stat(os.path.join(where, name)).st_blocks * 512
                total["files"] += 1
    return Sample(at_s, found, total, names)


def growths(samples: Sequence[Sample], warm_s: float, end_s: float) -> list[str]:
    """Return a text for each value that grew: its median in the last third of [`warm_s`, `end_s`]
    is above that in the second third by more than is allowed.

    The first third is left out, because some things grow only at the start: caches, pools, and the
    log until retention removes its oldest chunks.
    """
    third = (end_s - warm_s) / 3
    series: tuple[dict[tuple[str, str], list[float]], ...] = (defaultdict(list), defaultdict(list))
    for sample in samples:
        part = int((sample.at_s - warm_s) / third) if third > 0 else 0
        if part not in (1, 2):
            continue
        for who, figures in [("all", sample.all), *sample.processes.items()]:
            for figure, value in figures.items():
                series[part - 1][(who, figure)].append(value)
    return [
        text + _threads(who, figure, samples)
        for (who, figure), after in sorted(series[1].items())
        if len(after) >= SAMPLES_MIN and len(series[0].get((who, figure), ())) >= SAMPLES_MIN
        if (text := _growth(who, figure, series[0][(who, figure)], after))
    ]


def _threads(who: str, figure: str, samples: Sequence[Sample]) -> str:
    """Return a text with the threads of a process in its first and its last sample. If `figure` is
    not the number of threads, return "".
    """
    seen = [sample.threads[who] for sample in samples if who in sample.threads]
    return (
        f": first {', '.join(seen[0])}; last {', '.join(seen[-1])}"
        if figure == "threads" and seen
        else ""
    )


def _growth(who: str, figure: str, before: list[float], after: list[float]) -> str:
    allowances = OF_A_SHARED_PROCESS if is_shared(who) else OF_A_PROCESS
    share, amount = (OF_ALL if who == "all" else allowances)[figure]
    was, now = statistics.median(before), statistics.median(after)
    if now <= was * (1 + share) + amount:
        return ""
    return (
        f"{figure} of {who} grew from {was:,.0f} to {now:,.0f} (medians of {len(before)} and "
        f"{len(after)} looks)"
    )


def table(samples: Sequence[Sample]) -> str:
    """Return a table for people: the totals of ten samples, evenly spaced."""
    lines = ["      at s  descriptors  threads  memory MiB  files  MiB on disk"]
    step = max(1, len(samples) // 10)
    for sample in samples[::step]:
        row = sample.all
        lines.append(
            f"{sample.at_s:10.0f}  {row['descriptors']:11.0f}  {row['threads']:7.0f}  "
            f"{row['memory'] / MIB:10.1f}  {row['files']:5.0f}"
            f"  {row['bytes'] / MIB:11.1f}"
        )
    return "\n".join(lines) + "\n"
