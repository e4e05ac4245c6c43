"""Tests of the ends of Celery's workers: which tasks run again, and that none is lost.

The table in docs/task-queues-reference.md says the same.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable

import pytest
from support.broker import Broker, wait_for
from support.celery_workers import WAIT_S, Workers

import zsq

pytestmark = pytest.mark.timeout(600)
TASKS = 6  # two run, and the worker holds more that it has not begun
Process = subprocess.Popen[bytes]


def left(broker: Broker, topic: str) -> int:
    with zsq.Admin(broker.tcp) as admin:
        row = admin.stats(topic, "workers")["topics"][0]["channels"][0]
        return int(row["depth"] + row["in_flight_count"] + row["deferred_count"])


def warm(workers: Workers, worker: Process) -> None:
    worker.send_signal(signal.SIGTERM)
    log = workers.folder / "one.log"
    wait_for(lambda: b"Warm shutdown" in log.read_bytes(), WAIT_S, "the warm shutdown")
    workers.gate.touch()


def warm_twice(workers: Workers, worker: Process) -> None:
    worker.send_signal(signal.SIGTERM)
    warm(workers, worker)


def cold(workers: Workers, worker: Process) -> None:
    worker.send_signal(signal.SIGQUIT)


def killed(workers: Workers, worker: Process) -> None:
    os.killpg(worker.pid, signal.SIGKILL)


def runs_after(
    workers: Workers,
    broker: Broker,
    pool: str,
    task: str,
    end: Callable[[Workers, Process], None],
) -> tuple[set[str], Counter[str]]:
    """End a worker that runs two tasks, and let another one run the rest.

    Return the tasks that ran at the end, and how often each task was begun.
    """
    first = workers.start("one", "-P", pool)
    for number in range(TASKS):
        workers.send(task, number)
    wait_for(lambda: len(workers.lines()) >= 2, WAIT_S, "two tasks")
    running = {line.split()[1] for line in workers.lines()}
    end(workers, first)
    first.wait(WAIT_S)
    workers.start("two", "-P", pool)
    workers.gate.touch()
    wait_for(lambda: left(broker, workers.queue) == 0, WAIT_S, "the end of all tasks")
    wait_for(lambda: len(begun(workers)) == TASKS, WAIT_S, "each task was begun")
    return running, begun(workers)


def begun(workers: Workers) -> Counter[str]:
    """Return how often each task was begun."""
    return Counter(line.split()[1] for line in workers.lines() if line.startswith("start"))


@pytest.mark.parametrize("task", ["gated", "gated_early"])
@pytest.mark.parametrize("end", [warm, pytest.param(warm_twice, marks=pytest.mark.long)])
@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.long)])
def test_a_worker_that_is_stopped_ends_its_tasks_and_returns_the_others(
    workers: Workers,
    broker: Broker,
    pool: str,
    end: Callable[[Workers, Process], None],
    task: str,
) -> None:
    _, counts = runs_after(workers, broker, pool, task, end)
    assert set(counts.values()) == {1}
    ends = sorted(line.split()[1] for line in workers.lines() if line.startswith("end"))
    assert ends == sorted(counts)


@pytest.mark.parametrize(
    ("pool", "end"),
    [
        ("prefork", cold),
        ("prefork", killed),
        pytest.param("threads", killed, marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("task", ["gated", "gated_early"])
def test_only_the_tasks_that_ran_are_begun_again(
    workers: Workers,
    broker: Broker,
    pool: str,
    end: Callable[[Workers, Process], None],
    task: str,
) -> None:
    """With `acks_late` they run again. Otherwise Celery has acknowledged them before."""
    running, counts = runs_after(workers, broker, pool, task, end)
    again = {number for number, count in counts.items() if count > 1}
    # An early acknowledgement follows the begin of its task, so it may be lost with the worker.
    assert again == running if task == "gated" else again <= running
    assert max(counts.values()) <= 2


def test_a_process_that_is_replaced_after_some_tasks_loses_none(
    workers: Workers, broker: Broker
) -> None:
    workers.gate.touch()
    workers.start("one", "--max-tasks-per-child", "1")
    for number in range(TASKS):
        workers.send(("gated", "gated_early")[number % 2], number)
    wait_for(lambda: len(workers.lines()) >= 2 * TASKS, WAIT_S, "all tasks")
    wait_for(lambda: left(broker, workers.queue) == 0, WAIT_S, "the acknowledgements")
    assert len(workers.lines()) == 2 * TASKS
