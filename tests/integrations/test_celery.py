"""Tests of Celery on ZSQ, with real workers in processes of their own, which are killed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import OperationalError
from support.broker import Broker, wait_for
from support.celery_workers import LEASE_S, WAIT_S, Workers

import zsq

pytestmark = pytest.mark.timeout(400)


def channel_row(broker: Broker, topic: str) -> dict[str, Any]:
    with zsq.Admin(broker.tcp) as admin:
        return dict(admin.stats(topic, "workers")["topics"][0]["channels"][0])


def waiting(broker: Broker, topic: str) -> int:
    row = channel_row(broker, topic)
    return int(row["depth"] + row["in_flight_count"] + row["deferred_count"])


def test_tasks_run_and_retry_and_wait_for_their_time(workers: Workers, broker: Broker) -> None:
    sent = time.time()
    workers.send("note", "early", countdown=1.0)
    workers.start("one")
    workers.send("note", "now")
    workers.send("note", "low", priority=9)
    workers.send("flaky", "flaky")
    workers.wait_lines("flaky 0", "flaky 1", "flaky 2")
    wait_for(lambda: len(workers.lines()) == 6, WAIT_S, "all tasks")
    times = {line.split()[0]: float(line.split()[1]) for line in workers.lines()}
    assert times["early"] >= sent + 1.0 - 0.1
    assert {"now", "low"} <= times.keys()
    wait_for(lambda: waiting(broker, workers.queue) == 0, WAIT_S, "the acknowledgements")


def test_remote_control_events_and_purge(workers: Workers) -> None:
    workers.start("one")
    control = workers.app.control
    name = f"one@{workers.queue}"
    assert control.ping(timeout=5, limit=1, destination=[name]) == [{name: {"ok": "pong"}}]
    inspect = control.inspect([name], timeout=5, limit=1)
    assert inspect.active_queues()[name][0]["name"] == workers.queue
    assert "support.celery_app.note" in inspect.registered()[name]
    seen: list[str] = []
    with workers.app.connection() as connection:
        receiver = workers.app.events.Receiver(
            connection, handlers={"*": lambda one: seen.append(one["type"])}
        )
        events = receiver.itercapture(limit=None, timeout=WAIT_S, wakeup=False)
        next(events)
        workers.send("note", "x")
        while "task-succeeded" not in seen:
            next(events)  # heartbeats come every 2 s, and the test has a time-out
        events.close()
    assert control.broadcast(
        "cancel_consumer", {"queue": workers.queue}, [name], reply=True, timeout=5, limit=1
    )
    for _ in range(3):
        workers.send("note", "purged")
    with workers.app.connection() as connection:
        queue = workers.app.amqp.queues[workers.queue]
        assert queue(connection.default_channel).purge() == 3


def test_a_task_of_a_killed_worker_runs_again_and_another_one_does_not(
    workers: Workers, broker: Broker
) -> None:
    with zsq.Admin(broker.tcp) as admin:  # somebody has made the channel before
        admin.create_topic(workers.queue)
        admin.create_channel(workers.queue, "workers")
    first = workers.start("one")
    workers.send("gated", "task")
    workers.wait_lines("start task")
    os.killpg(first.pid, signal.SIGKILL)
    first.wait(WAIT_S)
    workers.start("two")
    wait_for(lambda: workers.lines().count("start task") == 2, WAIT_S, "the second attempt")
    # The second worker needs longer than the lease. The killed one may have got a delivery more.
    deliveries = channel_row(broker, workers.queue)["delivery_count"]
    until = time.monotonic() + 3 * LEASE_S
    wait_for(lambda: time.monotonic() > until, WAIT_S, "three leases")
    workers.gate.touch()
    workers.wait_lines("end task")
    wait_for(lambda: waiting(broker, workers.queue) == 0, WAIT_S, "the acknowledgement")
    assert workers.lines() == ["start task", "start task", "end task"]
    row = channel_row(broker, workers.queue)
    assert row["delivery_count"] == deliveries, "the lease was extended: the task never came back"
    assert row["settings"]["max_hold_s"] == -1


def test_a_worker_that_is_stopped_finishes_its_task(workers: Workers, broker: Broker) -> None:
    worker = workers.start("one")
    workers.send("gated", "task")
    workers.wait_lines("start task")
    worker.send_signal(signal.SIGTERM)
    # The task needs longer than the lease, after the consumer was cancelled.
    until = time.monotonic() + 2 * LEASE_S
    wait_for(lambda: time.monotonic() > until, WAIT_S, "two leases")
    workers.gate.touch()
    assert worker.wait(WAIT_S) == 0
    assert workers.lines() == ["start task", "end task"]
    assert waiting(broker, workers.queue) == 0
    assert channel_row(broker, workers.queue)["delivery_count"] == 1


def test_a_process_of_the_pool_sends_what_lingers_when_it_ends(
    workers: Workers, broker: Broker
) -> None:
    """Celery replaces a process after three tasks, and stops the others with the worker."""
    worker = workers.start("lingering", "--max-tasks-per-child", "3")
    for number in range(10):
        workers.send("publish", str(number))
    workers.wait_lines(*(f"published {number}" for number in range(10)))
    worker.terminate()
    assert worker.wait(60) == 0
    with zsq.Reader("published", url=broker.tcp) as reader:
        assert reader.bounds() == (0, 10)


def test_a_task_that_ended_just_before_the_broker_was_killed_does_not_run_again(
    tmp_path: Path,
) -> None:
    """The acknowledgement was sent, and the broker has not committed it, or not confirmed it."""
    broker = Broker(tmp_path / "data").start()
    workers = Workers(tmp_path, broker, "tasks")
    try:
        workers.start("one")
        for number in range(5):
            workers.send("gated", number)
            workers.gate.touch()
            workers.wait_lines(f"end {number}")
            broker.signal_all(signal.SIGKILL)
            broker.start()
        workers.send("note", "last")
        workers.wait_line("last")
        wait_for(lambda: waiting(broker, workers.queue) == 0, WAIT_S, "the acknowledgements")
        runs = [line for line in workers.lines() if line.startswith("start")]
        assert runs == [f"start {number}" for number in range(5)]
    finally:
        workers.close()
        broker.close()


def test_a_delay_waits_for_its_time_out_when_the_broker_is_away(tmp_path: Path) -> None:
    """Neither Celery's retries nor the close of the connection make it wait again."""
    broker = Broker(tmp_path / "data").start()
    options = {"publish_timeout": 2}
    app = Celery(broker=broker.tcp.replace("tcp", "zsq"), broker_transport_options=options)
    try:
        app.send_task("any", queue="away")
        broker.signal_all(signal.SIGKILL)
        begin = time.monotonic()
        with pytest.raises(OperationalError, match="did not confirm within 2 s"):
            app.send_task("any", queue="away")
        assert 1.9 < time.monotonic() - begin < 4
    finally:
        app.close()
        broker.close()
