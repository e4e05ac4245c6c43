"""Log of Celery tasks that workers wrote until they were killed, and what it says. Pure.

A line is `EVENT TASK WORKER PID SECONDS`. The process of the pool writes `start` and `end`, and the
worker's main process writes `ack` when Celery's acknowledgement has returned. Each worker runs one
task at a time. So the nth end and the nth ack of a task in a worker belong to its nth start there.

What counts:

- A task is lost if no run of it came to its end.
- A run whose worker was killed before its ack line may be repeated, because no broker can know
  that it came to its end. So may a run whose worker was killed at most `ON_ITS_WAY_S` after the ack
  line: the acknowledgement was on its way to the broker. Both are counted.
- If a run came to its end and was not such a run, each later end of the task is needless.
- A start is needless if an earlier run of the task was still going on in a worker that lived, or
  had been acknowledged, unless that acknowledgement was on its way when its worker was killed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

ON_ITS_WAY_S: Final = 0.1
NEVER: Final = float("inf")


class Moment(Enum):
    """Moment in the life of a worker at which it was killed."""

    STARTING = "before their first task"
    RUNNING = "within a task"
    ACKING = "between end and ack"
    BETWEEN = "between two tasks"


@dataclass(slots=True)
class Run:
    """One run of a task. Times are seconds since the epoch, `NEVER` for what did not happen."""

    task: str
    worker: str
    started_s: float
    ended_s: float = NEVER
    acked_s: float = NEVER
    killed_s: float = NEVER

    @property
    def may_repeat(self) -> bool:
        """True if the kill of its worker explains another run of this task."""
        return self.acked_s > self.killed_s - ON_ITS_WAY_S

    @property
    def acked(self) -> bool:
        """True if it was acknowledged while its worker lived."""
        return self.acked_s <= self.killed_s


@dataclass(slots=True)
class Outcome:
    """Names of the tasks that were lost or that ran again.

    A task is in at most one of the fields, and may also be in `needless_starts`.
    """

    lost: list[str] = field(default_factory=list)
    needless_ends: list[str] = field(default_factory=list)
    needless_starts: list[str] = field(default_factory=list)
    repeated_unacked: list[str] = field(default_factory=list)
    repeated_on_its_way: list[str] = field(default_factory=list)


def runs_of(lines: Iterable[str], killed: Mapping[str, float]) -> list[Run]:
    """Return all runs in the order of their starts. `killed`: when each worker was killed."""
    runs: list[Run] = []
    unended: dict[tuple[str, str], Run] = {}
    unacked: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for line in lines:
        event, task, worker, _, seconds = line.split()
        key, at_s = (task, worker), float(seconds)
        if event == "start":
            run = Run(task, worker, at_s, killed_s=killed.get(worker, NEVER))
            runs.append(run)
            unended[key] = run
            unacked[key].append(run)
        elif event == "end":
            unended.pop(key).ended_s = at_s
        elif event == "ack":
            unacked[key].pop(0).acked_s = at_s
        else:
            raise ValueError(f"no event of this log: {line!r}")
    return sorted(runs, key=lambda run: run.started_s)


def outcome(sent: Iterable[str], runs: Iterable[Run]) -> Outcome:
    """Return what became of the tasks that were sent."""
    of_task: dict[str, list[Run]] = {task: [] for task in sent}
    for run in runs:
        of_task[run.task].append(run)
    found = Outcome()
    for task, mine in of_task.items():
        ended = sorted((run for run in mine if run.ended_s != NEVER), key=lambda run: run.ended_s)
        if not ended:
            found.lost.append(task)
        elif not all(run.may_repeat for run in ended[:-1]):
            found.needless_ends.append(task)
        elif any(run.acked for run in ended[:-1]):
            found.repeated_on_its_way.append(task)
        elif len(ended) > 1:
            found.repeated_unacked.append(task)
        pairs = ((run, later) for number, later in enumerate(mine) for run in mine[:number])
        if not all(_explains(run, later) for run, later in pairs):
            found.needless_starts.append(task)
    return found


def _explains(run: Run, later: Run) -> bool:
    """Return True if the kill of the worker of a run explains the start of a later one."""
    return run.may_repeat and run.killed_s <= later.started_s


def moments(runs: Iterable[Run], killed: Iterable[str]) -> Counter[Moment]:
    """Return how many of the killed workers were doing what."""
    of_worker: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        of_worker[run.worker].append(run)
    return Counter(moment_of(of_worker[worker]) for worker in killed)


def moment_of(runs: Sequence[Run]) -> Moment:
    """Return what a killed worker was doing, from all its runs."""
    if not runs:
        return Moment.STARTING
    if any(run.ended_s == NEVER for run in runs):
        return Moment.RUNNING
    return Moment.ACKING if any(run.acked_s == NEVER for run in runs) else Moment.BETWEEN
