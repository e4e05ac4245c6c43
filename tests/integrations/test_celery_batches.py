"""Tests of celery-batches on ZSQ, with the example of docs/task-queues.md. See conftest.py."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from celery import Celery
from kombu import pools
from support.broker import Broker, wait_for

import zsq

pytestmark = pytest.mark.timeout(400)
WAIT_S = 120.0
PAGE = Path(__file__).parents[2] / "docs/task-queues.md"
QUEUE = "celery"
Start = Callable[[], subprocess.Popen[bytes]]


@pytest.fixture
def app(tmp_path: Path, broker: Broker) -> Iterator[Celery]:
    """Save the example as the module `clicks`, and return an application that sends to it."""
    found = re.search(r"```python\n([^`]*celery_batches.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    code = (
        found[1].replace("4153", str(broker.port)).replace("flush_interval=5", "flush_interval=2")
    )
    (tmp_path / "clicks.py").write_text(code)
    app = Celery("clicks", broker=f"zsq://127.0.0.1:{broker.port}")
    yield app
    app.close()
    pools.reset()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a worker of the example. Its output is in `worker.log`."""
    running: list[subprocess.Popen[bytes]] = []

    def start_one() -> subprocess.Popen[bytes]:
        with (tmp_path / "worker.log").open("ab") as log:
            worker = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "clicks", "worker", "-c", "2"],
                cwd=tmp_path,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        running.append(worker)
        return worker

    try:
        yield start_one
    finally:
        for worker in running:
            if worker.poll() is None:
                os.killpg(worker.pid, signal.SIGKILL)
                worker.wait(WAIT_S)


def left(broker: Broker) -> int:
    with zsq.Admin(broker.tcp) as admin:
        row = admin.stats(QUEUE, "workers")["topics"][0]["channels"][0]
    return int(row["depth"] + row["in_flight_count"] + row["deferred_count"])


def batches(folder: Path) -> list[int]:
    """Return how many rows each batch had that has run."""
    return [int(count) for count in re.findall(r"(\d+) rows", (folder / "worker.log").read_text())]


def test_tasks_run_in_batches_and_are_acknowledged(
    app: Celery, start: Start, broker: Broker, tmp_path: Path
) -> None:
    for number in range(250):
        app.send_task("clicks.store", [number])
    start()
    wait_for(lambda: left(broker) == 0, WAIT_S, "the acknowledgements")
    assert sum(batches(tmp_path)) == 250
    assert batches(tmp_path)[0] == 100


def test_tasks_that_wait_for_their_batch_when_the_worker_is_killed_run_later(
    app: Celery, start: Start, broker: Broker, tmp_path: Path
) -> None:
    source = tmp_path / "clicks.py"
    code = source.read_text()
    # The batch is never complete, and waits longer than the lease.
    source.write_text(
        code.replace("flush_interval=2", "flush_interval=600")
        + 'app.conf.broker_transport_options = {"message_timeout": 1}\n'
    )
    for number in range(5):
        app.send_task("clicks.store", [number])
    first = start()

    def row() -> dict[str, int]:
        with zsq.Admin(broker.tcp) as admin:
            return dict(admin.stats(QUEUE, "workers")["topics"][0]["channels"][0])

    wait_for(lambda: row()["in_flight_count"] == 5, WAIT_S, "the batch")
    end = time.monotonic() + 3
    wait_for(lambda: time.monotonic() > end, WAIT_S, "three leases")
    assert (row()["in_flight_count"], row()["timeout_count"]) == (5, 0)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait(WAIT_S)
    source.write_text(code)
    assert batches(tmp_path) == []
    start()
    wait_for(lambda: left(broker) == 0, WAIT_S, "the acknowledgements")
    assert sum(batches(tmp_path)) == 5
