"""Tests of workers of Celery and taskiq that back off as a whole while their tasks fail."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection, Consumer, Producer, Queue
from support.broker import Broker, wait_for
from support.celery_workers import Workers
from support.topic_names import topic_name_of
from taskiq import Context, TaskiqDepends, TaskiqMessage, TaskiqResult
from taskiq.acks import AcknowledgeType
from taskiq.api import run_receiver_task
from taskiq.exceptions import NoResultError, TaskRejectedError

import zsq
from zsq.apps.integrations.taskiq import ZsqBroker
from zsq.apps.integrations.taskiq_backoff import TaskOutcomes
from zsq.transport.client.core.consumer_backoff import Outcome

pytestmark = pytest.mark.timeout(400)
WAIT_S = 120.0
PAGE = Path(__file__).parents[2] / "docs/task-queues.md"
COUNT = 50


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    return topic_name_of(request.node.name)[:30]


def channel_row(broker: Broker, topic: str) -> dict[str, Any]:
    with zsq.Admin(broker.tcp) as admin:
        return dict(admin.stats(topic, "workers")["topics"][0]["channels"][0])


def backoff_s(broker: Broker, topic: str) -> float | None:
    """Return when the only worker of a queue probes, or None if it does not back off."""
    clients = channel_row(broker, topic)["clients"]
    return clients[0]["backoff_s"] if clients else None


def left(broker: Broker, topic: str) -> int:
    row = channel_row(broker, topic)
    return int(row["depth"] + row["in_flight_count"] + row["deferred_count"])


@pytest.mark.parametrize("requeue", [True, False])
def test_a_consumer_of_kombu_backs_off_while_it_rejects_messages(
    broker: Broker, queue: str, requeue: bool
) -> None:
    with zsq.Admin(broker.tcp) as admin:
        admin.create_topic(queue)
        admin.create_channel(queue, "workers", backoff_s=2, max_attempts=0)
    handled: list[bool] = []
    works = False

    def handle(message: Any) -> None:
        handled.append(works)
        if works:
            message.ack()
        else:
            message.reject(requeue=requeue)

    def drain(until: Callable[[], bool]) -> None:
        def condition() -> bool:
            with contextlib.suppress(TimeoutError):
                connection.drain_events(timeout=0.1)
            return until()

        wait_for(condition, WAIT_S, "the messages")

    options = {"backoff": zsq.Backoff(0.25, 0.5, failures=3)}
    url = f"zsq://127.0.0.1:{broker.port}/"
    with Connection(url, transport_options=options) as connection:
        producer = Producer(connection)
        for number in range(COUNT):
            producer.publish(number, routing_key=queue, declare=[Queue(queue)])
        with Consumer(connection, [Queue(queue)], on_message=handle, prefetch_count=4):
            drain(lambda: backoff_s(broker, queue) is not None)
            assert len(handled) <= 15, "not the whole backlog"
            row = channel_row(broker, queue)
            assert bool(row["deferred_count"]) is requeue, "it has the backoff of the channel too"
            works = True
            drain(lambda: left(broker, queue) == 0)
            drain(lambda: backoff_s(broker, queue) is None)
    dead = channel_row(broker, queue)["dead_letter_count"]
    assert dead == (0 if requeue else handled.count(False))
    assert handled.count(True) + dead == COUNT


def test_a_probe_of_kombu_that_no_consumer_handles_is_followed_by_another_one(
    broker: Broker, queue: str
) -> None:
    """A message of another program, an expired one, and one that is given back unhandled."""
    url = f"zsq://127.0.0.1:{broker.port}/"
    options = {"backoff": zsq.Backoff(0.1, 0.2, failures=1)}
    got: list[Any] = []
    with Connection(url, transport_options=options) as connection:
        producer = Producer(connection)

        def send(body: str, **more: Any) -> None:
            producer.publish(body, routing_key=queue, declare=[Queue(queue)], **more)

        def drain(condition: Callable[[], bool]) -> None:
            def is_true() -> bool:
                with contextlib.suppress(TimeoutError):
                    connection.drain_events(timeout=0.05)
                return condition()

            wait_for(is_true, WAIT_S, "the messages")

        send("fails")
        with Consumer(connection, [Queue(queue)], on_message=got.append, prefetch_count=1) as taker:
            drain(lambda: len(got) == 1)
            got.pop().reject()
            drain(lambda: backoff_s(broker, queue) is not None)
            with zsq.Producer(broker.tcp) as other:
                other.publish(queue, b"of another program")
            drain(lambda: channel_row(broker, queue)["dead_letter_count"] == 2)
            send("expired", expiration=0.001)
            drain(lambda: left(broker, queue) == 0)
            assert backoff_s(broker, queue) is not None
            send("given back")
            drain(lambda: len(got) == 1)
            taker.recover(requeue=True)
            got.clear()
            drain(lambda: len(got) == 1)
            assert backoff_s(broker, queue) is not None
            got.pop().ack()
            drain(lambda: backoff_s(broker, queue) is None)


def test_a_worker_of_celery_backs_off_with_the_documented_settings(
    workers: Workers, broker: Broker
) -> None:
    lines = [
        line.strip() for line in PAGE.read_text().splitlines() if line.startswith("    app.conf")
    ]
    assert len(lines) == 3
    workers.environment["TASKS_SETTINGS"] = "\n".join(lines).replace("1, 60", "0.5, 1")
    for number in range(COUNT):
        workers.send("closed", number)
    workers.start("one")
    wait_for(lambda: backoff_s(broker, workers.queue) is not None, WAIT_S, "a backoff")
    wait_for(lambda: not channel_row(broker, workers.queue)["in_flight_count"], WAIT_S, "a rest")
    assert len(workers.lines()) < COUNT / 2, "not the whole backlog"
    workers.gate.touch()
    wait_for(lambda: left(broker, workers.queue) == 0, WAIT_S, "the end of the backlog")
    wait_for(lambda: backoff_s(broker, workers.queue) is None, WAIT_S, "the end of the backoff")
    lines = workers.lines()
    dead = channel_row(broker, workers.queue)["dead_letter_count"]
    assert lines.count("failed") == dead
    assert lines.count("done") + dead == COUNT


@contextlib.asynccontextmanager
async def receiving(tasks: ZsqBroker, how: AcknowledgeType) -> AsyncIterator[None]:
    receiver = asyncio.create_task(run_receiver_task(tasks, ack_time=how))
    try:
        yield
    finally:
        receiver.cancel()
        await asyncio.gather(receiver, return_exceptions=True)
        await tasks.shutdown()


async def until(condition: Callable[[], bool], text: str) -> None:
    await asyncio.to_thread(wait_for, condition, WAIT_S, text)


@pytest.mark.parametrize("how", [AcknowledgeType.WHEN_SAVED, AcknowledgeType.WHEN_RECEIVED])
def test_a_worker_of_taskiq_backs_off_while_tasks_fail(
    broker: Broker, queue: str, how: AcknowledgeType
) -> None:
    runs: list[bool] = []
    works = False

    async def main() -> None:
        nonlocal works
        tasks = ZsqBroker(
            broker.tcp, queue=queue, ready=4, backoff=zsq.Backoff(0.25, 0.5, failures=3)
        )

        @tasks.task
        async def task() -> None:
            runs.append(works)
            if not works:
                raise ValueError("the database is down")

        await tasks.startup()
        for _ in range(COUNT):
            await task.kiq()
        async with receiving(tasks, how):
            await until(lambda: backoff_s(broker, queue) is not None, "a backoff")
            assert len(runs) < COUNT / 2, "not the whole backlog"
            works = True
            await until(lambda: left(broker, queue) == 0, "all tasks")
            await until(lambda: backoff_s(broker, queue) is None, "the end of the backoff")

    asyncio.run(main())
    assert len(runs) == COUNT


@pytest.mark.parametrize(
    ("error", "breaks", "outcome"),
    [
        (None, None, Outcome.SUCCESS),
        (ValueError("the database is down"), None, Outcome.FAILURE),
        (NoResultError(), None, Outcome.NEITHER),  # the task was requeued
        (TaskRejectedError(), None, Outcome.SUCCESS),
        (None, ValueError("a middleware is broken"), Outcome.FAILURE),
        (NoResultError(), asyncio.CancelledError(), Outcome.FAILURE),
    ],
)
def test_each_task_of_taskiq_has_one_outcome_although_a_middleware_is_broken(
    error: BaseException | None, breaks: BaseException | None, outcome: Outcome
) -> None:
    noted: list[tuple[int, Outcome]] = []
    outcomes = TaskOutcomes(lambda: 7, lambda *each: noted.append(each))
    message = TaskiqMessage(task_id="1", task_name="task", labels={}, args=[], kwargs={})

    async def callback() -> None:
        assert not outcomes.is_running
        assert outcomes.pre_execute(message) is message
        assert outcomes.is_running
        if error is not None:
            result: TaskiqResult[None] = TaskiqResult(
                is_err=True, return_value=None, execution_time=0
            )
            outcomes.on_error(message, result, error)
        if breaks is not None:
            raise breaks

    async def main() -> None:
        await asyncio.gather(asyncio.create_task(callback()), return_exceptions=True)

    asyncio.run(main())
    assert noted == [(7, outcome)]


def test_a_probe_of_taskiq_that_is_no_task_is_followed_by_another_one(
    broker: Broker, queue: str
) -> None:
    runs: list[str] = []

    async def main() -> None:
        tasks = ZsqBroker(
            broker.tcp, queue=queue, ready=1, backoff=zsq.Backoff(0.1, 0.2, failures=1)
        )

        @tasks.task
        async def task(name: str, context: Context = TaskiqDepends()) -> None:  # noqa: B008
            runs.append(name)
            if name == "fails":
                raise ValueError("again")
            if name == "requeues" and runs.count(name) == 1:
                await context.requeue()

        await tasks.startup()
        async with receiving(tasks, AcknowledgeType.WHEN_SAVED):
            await task.kiq("fails")
            await until(lambda: backoff_s(broker, queue) is not None, "a backoff")
            with zsq.Producer(broker.tcp) as producer:
                producer.publish(queue, b"no task")
            await task.kiq("requeues")
            await until(lambda: left(broker, queue) == 0, "the unknown one")
            await until(lambda: runs.count("requeues") == 2, "the requeued one")
            await until(lambda: backoff_s(broker, queue) is None, "the end of the backoff")

    asyncio.run(main())
    assert runs == ["fails", "requeues", "requeues"]
