"""Kills of Celery workers, and their cost: tasks that are lost, and tasks that run twice.

A steady worker and a mortal one run tasks with `acks_late`. All processes of the mortal one are
killed at a random moment, and the next one starts. `SHARES` says how many are killed at a random
time of their start, at a random time of their work, and within milliseconds of the end of a task,
which is when its acknowledgement is made and sent. `task_log.py` says what counts.

One task is longer than the lease of ZSQ and the visibility timeout of Redis, which are equal.

The seed decides the times and the tasks. It does not repeat a run exactly, because the speed of the
processes differs.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Final

from ..harness.crew import MemberFailed
from ..harness.report import Report
from .task_log import Moment, Outcome, Run, moments, outcome, runs_of
from .task_workers import (
    APP,
    POLL_S,
    Place,
    kill_worker,
    running_worker,
    start_worker,
    wait,
)

LEASE_S: Final = 3.0
LEASE: Final = {"message_timeout": LEASE_S, "visibility_timeout": LEASE_S}
LONG: Final = "long"
LONG_S: Final = 3 * LEASE_S
TASK_S: Final = (0.0, 0.0, 0.01, 0.05)  # one of them is a task's time
SHARES: Final = {"start": 0.25, "work": 0.35, "end": 0.4}
START_S_MAX: Final = 2.0  # a worker needs 1 to 2 s until it receives
WORK_S_MAX: Final = 1.0
END_S_MAX: Final = 0.005
LOOK_S: Final = 0.0002  # how often to look for the end of a task
BACKLOG: Final = 400  # tasks that wait at each start of a worker, so that none is idle
# When nothing was written for so long, no task comes back. A worker on Redis looks for tasks whose
# time is over every 10 s, with the option that it is given.
QUIET_S: Final = 30.0
DRAIN_S: Final = 900.0
EXAMPLES_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Kills:
    """Number of workers to kill, and the seed of the moments."""

    count: int
    seed: int


class Sender:
    """A process that sends tasks. It holds one connection."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.sent: list[str] = []
        self._process = process

    def send(self, name: str, seconds: float) -> None:
        """Return when the broker has the task."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(name, seconds, file=self._process.stdin, flush=True)
        if self._process.stdout.readline().strip() != name:
            raise MemberFailed(f"the task {name} could not be sent")
        self.sent.append(name)


@contextmanager
def _sender(place: Place) -> Iterator[Sender]:
    process = subprocess.Popen(
        [sys.executable, "-c", f"from {APP} import send_work; send_work()"],
        env=place.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Sender(process)
    finally:
        process.kill()
        process.communicate()


class Tail:
    """Lines that workers have written so far. `workers`: those that have begun a task."""

    def __init__(self, place: Place) -> None:
        self.ended: set[str] = set()
        self.workers: set[str] = set()
        self._path = place.log
        self._position = 0

    def look(self) -> list[list[str]]:
        """Return the words of each new line."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as log:
            log.seek(self._position)
            new = log.read()
        new = new[: new.rfind(b"\n") + 1]
        self._position += len(new)
        lines = [line.split() for line in new.decode().splitlines()]
        self.ended.update(task for event, task, *_ in lines if event == "end")
        self.workers.update(worker for _, _, worker, *_ in lines)
        return lines


class Killer:
    """One worker after the other, which it starts and kills."""

    def __init__(self, place: Place, sender: Sender, seed: int) -> None:
        self.killed: dict[str, float] = {}
        self._place = place
        self._sender = sender
        self._random = Random(seed)
        self._tasks = Random(seed)  # of its own, because how many are drawn is not the seed's
        self._tail = Tail(place)

    def kill_next(self) -> None:
        name = f"mortal{len(self.killed)}@bench"
        self._fill()
        worker = start_worker(self._place, name, **LEASE)
        try:
            self._live(name)
        finally:
            self.killed[name] = kill_worker(worker)

    def _fill(self) -> None:
        """Send tasks until enough of them wait."""
        self._tail.look()
        while len(self._sender.sent) - len(self._tail.ended) < BACKLOG:
            self._sender.send(f"task{len(self._sender.sent)}", self._tasks.choice(TASK_S))

    def _live(self, name: str) -> None:
        """Return when this worker is to be killed."""
        (kind,) = self._random.choices(list(SHARES), list(SHARES.values()))
        share, end_share = self._random.random(), self._random.random()
        if kind == "start":
            time.sleep(share * START_S_MAX)
            return
        wait(lambda: self._works(name), f"a task of {name}")
        time.sleep(share * WORK_S_MAX)
        if kind == "end":
            self._wait_end(name)
            time.sleep(end_share * END_S_MAX)

    def _works(self, name: str) -> bool:
        self._fill()
        return name in self._tail.workers

    def _wait_end(self, name: str) -> None:
        """Wait for the next end of a task of this worker, or until it has none for a while."""
        self._tail.look()
        deadline_s = time.monotonic() + WORK_S_MAX
        while time.monotonic() < deadline_s:
            if any(words[0] == "end" and words[2] == name for words in self._tail.look()):
                return
            time.sleep(LOOK_S)

    def wait_quiet(self) -> None:
        """Wait until nothing has been written for so long that no task can come back."""
        deadline_s = time.monotonic() + DRAIN_S
        since_s = time.monotonic()
        while time.monotonic() - since_s < QUIET_S:
            if time.monotonic() > deadline_s:
                raise MemberFailed(f"{self._place.name}: tasks still run after {DRAIN_S:g} s")
            time.sleep(POLL_S)
            if self._tail.look():
                since_s = time.monotonic()


def measure_kills(place: Place, report: Report, kills: Kills) -> None:
    """Kill workers, wait until no task comes back, and count what was lost or ran too often."""
    with _sender(place) as sender, running_worker(place, "steady@bench", **LEASE):
        sender.send(LONG, LONG_S)
        wait(lambda: bool(place.lines()), "the long task")
        killer = Killer(place, sender, kills.seed)
        for _ in range(kills.count):
            killer.kill_next()
        killer.wait_quiet()
    runs = runs_of(place.lines(), killer.killed)
    _add(place, report, sender.sent, runs, killer.killed)


def _add(
    place: Place, report: Report, sent: list[str], runs: list[Run], killed: dict[str, float]
) -> None:
    found = outcome(sent, runs)
    report.add(f"{place.name}: workers killed", "workers", len(killed))
    doing = moments(runs, killed)
    for moment in Moment:
        report.add(f"{place.name}: killed {moment.value}", "workers", doing[moment])
    report.add(f"{place.name}: tasks sent", "tasks", len(sent))
    for what, tasks in _rows(found):
        report.add(f"{place.name}: {what}", "tasks", len(tasks))
    ends = sum(run.task == LONG and run.ended_s < run.killed_s for run in runs)
    report.add(f"{place.name}: ends of the long task", "runs", ends)
    for task in [*found.lost, *found.needless_ends][:EXAMPLES_MAX]:
        report.notes += [f"{place.name}: {run}" for run in runs if run.task == task]


def _rows(found: Outcome) -> tuple[tuple[str, list[str]], ...]:
    return (
        ("tasks lost", found.lost),
        ("tasks run twice needlessly", found.needless_ends),
        ("tasks begun twice needlessly", found.needless_starts),
        ("tasks run twice, killed before the ack", found.repeated_unacked),
        ("tasks run twice, killed just after it", found.repeated_on_its_way),
    )
