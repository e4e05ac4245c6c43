"""Tasks of Celery a second, and what killed workers cost, on ZSQ and on Redis in the same run.

The rate: one process sends no-op tasks with `delay()`. Then one worker with one process runs them.
Redis has its default durability: it answers before anything is on disk. A `delay()` on ZSQ returns
when the task is on disk, or, with `linger_ms`, at once.

The kills: two workers run tasks with `acks_late`, and one of them is killed again and again. Every
task must run to its end. A task that ran to its end must not run again. One task is longer than the
lease of ZSQ and the visibility timeout of Redis, which are equal.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from local_setup.broker import LocalBroker

from ..harness.crew import MemberFailed
from ..harness.report import Report
from ..peers import redis
from ..peers.nsq_peers import free_port

APP: Final = "benchmarks.measures.celery_tasks"
WAIT_S: Final = 300.0
POLL_S: Final = 0.05
LEASE_S: Final = 3.0
LONG_S: Final = 3 * LEASE_S
KILL_EVERY_S: Final = 4.0
TASK_S: Final = 0.05
LINGER_MS: Final = 1
REDIS: Final = "redis, not synced"


@dataclass(frozen=True, slots=True)
class Place:
    """A broker for Celery."""

    name: str
    url: str
    options: dict[str, Any]
    folder: Path

    def environment(self, **options: Any) -> dict[str, str]:
        return {
            **os.environ,
            "BENCH_BROKER": self.url,
            "BENCH_OPTIONS": json.dumps(self.options | options),
            "BENCH_LOG": str(self.folder / "tasks.log"),
        }

    def lines(self) -> list[list[str]]:
        log = self.folder / "tasks.log"
        return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def tasks(
    broker: LocalBroker, port: int, report: Report, count: int, kills: int, rounds: int
) -> None:
    """Measure rates in interleaved rounds, then the kills once for each broker."""
    for number in range(rounds):
        with _places(broker, port, f"rate{number}") as places:
            for place in places:
                _rate(place, report, count)
    if kills:
        with _places(broker, port, "kills") as places:
            for place in places:
                if LINGER_MS not in place.options.values():
                    _kills(place, report, kills)
    if redis.find() is None:
        report.notes.append("redis-server is not on PATH: nothing is compared with it")


@contextlib.contextmanager
def _places(broker: LocalBroker, port: int, prefix: str) -> Iterator[list[Place]]:
    with contextlib.ExitStack() as stack:

        def folder() -> Path:
            return Path(stack.enter_context(tempfile.TemporaryDirectory(dir=broker.folder)))

        url = f"zsq://127.0.0.1:{port}"
        found = [
            Place("zsq", f"{url}/{prefix}", {}, folder()),
            Place(
                f"zsq, linger {LINGER_MS} ms",
                f"{url}/{prefix}-linger",
                {"linger_ms": LINGER_MS},
                folder(),
            ),
        ]
        if (server := redis.find()) is not None:
            redis_port = stack.enter_context(_redis(server, folder()))
            found.append(Place(REDIS, f"redis://127.0.0.1:{redis_port}/0", {}, folder()))
        yield found


@contextlib.contextmanager
def _redis(server: str, folder: Path) -> Iterator[int]:
    """Run a server with the default durability of Debian: a snapshot from time to time."""
    port = free_port()
    process = subprocess.Popen(
        [server, "--port", str(port), "--dir", str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait(lambda: _listens(port) or process.poll() is not None, "redis-server")
        yield port
    finally:
        process.terminate()
        process.wait(WAIT_S)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _wait(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not done():
        if time.monotonic() > deadline:
            raise MemberFailed(f"{what}: not done within {WAIT_S:g} s")
        time.sleep(POLL_S)


@contextlib.contextmanager
def _worker(place: Place, name: str, *options: str, **transport: Any) -> Iterator[list[int]]:
    """Run a worker, and yield its process group, which the caller may kill."""
    command = [sys.executable, "-m", "celery", "-A", APP, "worker", "-c", "1", "-l", "WARNING"]
    with (place.folder / f"{name}.log").open("ab") as log:
        worker = subprocess.Popen(
            [*command, "-n", f"{name}@bench", *options],
            env=place.environment(**transport),
            cwd=place.folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield [worker.pid]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait(WAIT_S)


def _rate(place: Place, report: Report, count: int) -> None:
    sent = subprocess.run(
        [sys.executable, "-c", f"from {APP} import publish; publish({count})"],
        env=place.environment(),
        check=True,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    with _worker(place, "worker"):
        _wait(lambda: any(line[0] == "end" for line in place.lines()), f"{place.name}: the tasks")
    times = {line[0]: float(line[1]) for line in place.lines()}
    limit = place.name == REDIS
    report.add(f"{place.name}: sent", "delay()/s", float(sent.stdout), limit=limit)
    rate = count / (times["end"] - times["begin"])
    report.add(f"{place.name}: run", "tasks/s", rate, limit=limit)


def _kills(place: Place, report: Report, kills: int) -> None:
    """Kill a worker `kills` times, and count the tasks that were lost and run too often."""
    lease = {"message_timeout": LEASE_S, "visibility_timeout": LEASE_S}
    count = int(kills * KILL_EVERY_S / TASK_S)
    program = (
        f"from {APP} import work\nwork.delay('long', {LONG_S})\n"
        f"for number in range({count}):\n    work.delay(str(number), {TASK_S})\n"
    )
    environment = place.environment(**lease)
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=WAIT_S)
    with _worker(place, "steady", **lease):
        _wait(lambda: ["start", "long"] in place.lines(), "the long task")
        for number in range(kills):
            with _worker(place, f"mortal{number}", **lease):
                before = len(place.lines())
                _wait(partial(_grown, place, before), "a task")
                time.sleep(KILL_EVERY_S)
        _wait(lambda: _ended(place) == count + 1, f"{place.name}: all tasks")
        time.sleep(4 * LEASE_S)  # a task that comes back needlessly has come back by then
    lines = place.lines()
    ends = Counter(line[1] for line in lines if line[0] == "end")
    report.add(f"{place.name}: workers killed", "workers", kills)
    report.add(f"{place.name}: tasks lost", "tasks", count + 1 - len(ends))
    twice = sum(ends[name] > 1 for name in ends)
    report.add(f"{place.name}: tasks run to the end twice", "tasks", twice)
    report.add(f"{place.name}: runs of the task longer than the lease", "runs", ends["long"])


def _grown(place: Place, before: int) -> bool:
    return len(place.lines()) > before


def _ended(place: Place) -> int:
    return len({line[1] for line in place.lines() if line[0] == "end"})
