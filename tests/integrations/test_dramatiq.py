"""Tests of the broker of Dramatiq, with its real worker and a real broker of ZSQ."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dramatiq
import pytest
from support.broker import Broker, wait_for
from support.topic_names import topic_name_of

import zsq
from zsq.apps.integrations.dramatiq import ZsqBroker

pytestmark = pytest.mark.timeout(400)
WAIT_S = 120.0
LEASE_S = 1.0


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    return topic_name_of(request.node.name)[:30]


@pytest.fixture
def tasks(broker: Broker) -> Iterator[ZsqBroker]:
    found = ZsqBroker(broker.tcp, message_timeout=LEASE_S)
    try:
        yield found
    finally:
        found.close()


@pytest.fixture
def worker(tasks: ZsqBroker) -> Iterator[dramatiq.Worker]:
    found = dramatiq.Worker(tasks, worker_timeout=100, worker_threads=2)
    try:
        yield found
    finally:
        found.stop()


def test_messages_run_and_retries_and_delays_wait(
    tasks: ZsqBroker, worker: dramatiq.Worker, queue: str
) -> None:
    seen: list[Any] = []

    @dramatiq.actor(broker=tasks, queue_name=queue, min_backoff=100, max_retries=3)
    def flaky(name: str) -> None:
        seen.append((name, time.monotonic()))
        if len([one for one in seen if one[0] == name]) < 3 and name == "flaky":
            raise ValueError("again")

    sent = time.monotonic()
    flaky.send_with_options(args=("late",), delay=1000)
    flaky.send("flaky")
    worker.start()
    tasks.join(queue, timeout=int(WAIT_S * 1000))
    worker.join()
    assert sorted(name for name, _ in seen) == ["flaky", "flaky", "flaky", "late"]
    assert dict(seen)["late"] >= sent + 0.99


def test_a_message_that_is_given_up_is_a_dead_letter(
    tasks: ZsqBroker, worker: dramatiq.Worker, broker: Broker, queue: str
) -> None:
    @dramatiq.actor(broker=tasks, queue_name=queue, max_retries=0)
    def fails() -> None:
        raise ValueError("never")

    fails.send()
    worker.start()
    topic = f"{tasks.topic(queue)}.workers.dead"
    with zsq.Consumer(topic, "look", url=broker.tcp) as dead:
        message = dead.receive(WAIT_S)
        assert message is not None
        assert dramatiq.Message.decode(message.body).actor_name == "fails"
        assert "never" in str(message.headers["zsq-dead-error"])


def test_a_message_longer_than_its_lease_runs_once(
    tasks: ZsqBroker, worker: dramatiq.Worker, broker: Broker, queue: str
) -> None:
    runs: list[int] = []
    go_on = threading.Event()

    @dramatiq.actor(broker=tasks, queue_name=queue)
    def slow() -> None:
        runs.append(1)
        go_on.wait(WAIT_S)

    with zsq.Admin(broker.tcp) as admin:  # somebody has made the channel before
        admin.create_topic(tasks.topic(queue))
        admin.create_channel(tasks.topic(queue), "workers")
    slow.send()
    worker.start()
    until = time.monotonic() + 4 * LEASE_S
    wait_for(lambda: time.monotonic() > until, WAIT_S, "four leases")
    go_on.set()
    tasks.join(queue, timeout=int(WAIT_S * 1000))
    assert runs == [1]
    with zsq.Admin(broker.tcp) as admin:
        row = admin.stats(tasks.topic(queue), "workers")["topics"][0]["channels"][0]
    # A message that comes back to its worker would not run twice either.
    assert row["delivery_count"] == 1
    assert row["settings"]["max_hold_s"] == -1


def test_wrong_options_are_refused_at_once() -> None:
    for given in ({"url": "127.0.0.1:4153"}, {"message_timeout": 0}):
        with pytest.raises(zsq.UsageError, match="E_BAD_ARGUMENT"):
            ZsqBroker(**given)


def test_a_flush_removes_what_waits_and_what_is_delayed(tasks: ZsqBroker, queue: str) -> None:
    @dramatiq.actor(broker=tasks, queue_name=queue)
    def never() -> None:
        raise AssertionError

    never.send()
    never.send_with_options(delay=100_000)
    assert tasks._left(queue) == 2
    tasks.flush_all()
    assert tasks._left(queue) == 0
    with pytest.raises(dramatiq.QueueNotFound):
        tasks.consume("unknown")


PROGRAM = """
import os, sys, dramatiq
from zsq.apps.integrations.dramatiq import ZsqBroker
dramatiq.set_broker(ZsqBroker(os.environ["TASKS_BROKER"], message_timeout=1))

@dramatiq.actor
def work(name):
    with open(os.environ["TASKS_LOG"], "a") as log:
        log.write(name + "\\n")
    if name == "kill" and open(os.environ["TASKS_LOG"]).read().count("kill") == 1:
        os.kill(os.getpid(), 9)

if __name__ == "__main__":
    for name in sys.argv[1:]:
        work.send(name)
"""


def test_the_command_line_worker_runs_a_message_of_a_killed_process_again(
    broker: Broker, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    log = tmp_path / "tasks.log"
    log.touch()
    environment = {"TASKS_BROKER": broker.tcp, "TASKS_LOG": str(log), "PATH": "/usr/bin:/bin"}
    send = [sys.executable, "program.py", "a", "kill"]
    subprocess.run(send, cwd=tmp_path, env=environment, check=True, timeout=200)

    def worker() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dramatiq", "program", "-p", "1", "-t", "1"]
        with (tmp_path / "worker.log").open("ab") as output:
            return subprocess.Popen(
                command, cwd=tmp_path, env=environment, stdout=output, stderr=output
            )

    first = worker()
    first.wait(WAIT_S)  # a worker process that dies ends the whole command
    second = worker()
    try:
        # "a" may run again, too: its finish may still have been in the process that was killed.
        wait_for(lambda: log.read_text().split().count("kill") == 2, WAIT_S, "the second run")
    finally:
        second.terminate()
        assert second.wait(WAIT_S) == 0
