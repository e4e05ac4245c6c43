"""Tasks of Celery a second, and what killed workers cost, on ZSQ and on Redis in the same run.

One process sends no-op tasks with `delay()`. Then one worker with one process runs them. Redis has
its default durability: it answers before anything is on disk. A `delay()` on ZSQ returns when the
task is on disk, or, with `linger_ms`, at once. `task_kills.py` has the kills.
"""

from __future__ import annotations

import subprocess
import sys

from local_setup.broker import LocalBroker

from ..harness.report import Report
from ..peers import redis
from .task_kills import Kills, measure_kills
from .task_workers import APP, REDIS, WAIT_S, Place, open_places, running_worker, wait


def tasks(
    broker: LocalBroker, port: int, report: Report, count: int, kills: Kills, rounds: int
) -> None:
    """Measure rates in interleaved rounds, then the kills once for each broker."""
    for number in range(rounds):
        with open_places(broker, port, f"rate{number}") as places:
            for place in places:
                _rate(place, report, count)
    if kills.count:
        with open_places(broker, port, "kills") as places:
            for place in places:
                if "linger_ms" not in place.options:
                    measure_kills(place, report, kills)
    if redis.find() is None:
        report.notes.append("redis-server is not on PATH: nothing is compared with it")


def _rate(place: Place, report: Report, count: int) -> None:
    sent = subprocess.run(
        [sys.executable, "-c", f"from {APP} import publish; publish({count})"],
        env=place.environment(),
        check=True,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    with running_worker(place, "worker"):
        wait(
            lambda: any(line.startswith("end ") for line in place.lines()),
            f"{place.name}: the tasks",
        )
    times = {event: float(seconds) for event, seconds in map(str.split, place.lines())}
    limit = place.name == REDIS
    report.add(f"{place.name}: sent", "delay()/s", float(sent.stdout), limit=limit)
    rate = count / (times["end"] - times["begin"])
    report.add(f"{place.name}: run", "tasks/s", rate, limit=limit)
