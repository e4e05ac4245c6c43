"""Tests of Dramatiq's worker on ZSQ where its own tests say nothing: what a worker holds when it is
paused or stopped, topics that are deleted, and publishes that the broker refuses.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import dramatiq
import pytest
from support.broker import Broker, wait_for
from support.topic_names import topic_name_of

import zsq
from zsq.apps.integrations.dramatiq import ZsqBroker
from zsq.transport.block.block import MESSAGE_BYTES_MAX

pytestmark = pytest.mark.timeout(400)
WAIT_S = 120.0
WAIT_MS = int(WAIT_S * 1000)
WAKE_MS = 20


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    return topic_name_of(request.node.name)[:30]


@pytest.fixture
def tasks(broker: Broker) -> Iterator[ZsqBroker]:
    found = ZsqBroker(broker.tcp)
    try:
        yield found
    finally:
        found.close()


@pytest.fixture
def worker(tasks: ZsqBroker) -> Iterator[dramatiq.Worker]:
    found = dramatiq.Worker(tasks, worker_timeout=WAKE_MS, worker_threads=1)
    try:
        yield found
    finally:
        found.stop()


def channel_of(tasks: ZsqBroker, queue: str) -> dict[str, Any]:
    row: dict[str, Any] = tasks._admin.stats(tasks.topic(queue))["topics"][0]["channels"][0]
    return row


class Gate:
    """An actor that waits until the test lets it go on, and the arguments of its runs."""

    def __init__(self, tasks: ZsqBroker, queue: str) -> None:
        self.runs: list[int] = []
        self.begun = threading.Event()
        self.go_on = threading.Event()

        @dramatiq.actor(broker=tasks, queue_name=queue, max_retries=0)
        def gate(number: int) -> None:
            self.runs.append(number)
            self.begun.set()
            self.go_on.wait(WAIT_S)

        self.actor = gate


def test_a_worker_that_is_paused_keeps_what_it_holds(
    tasks: ZsqBroker, worker: dramatiq.Worker, queue: str
) -> None:
    gate = Gate(tasks, queue)
    worker.start()
    for number in range(3):
        gate.actor.send(number)
    assert gate.begun.wait(WAIT_S)
    consumer = worker.consumers[queue]
    wait_for(lambda: worker.work_queue.qsize() == 1, WAIT_S, "a second message")
    consumer.pause()
    assert consumer.paused_event.wait(WAIT_S)
    # The third one, which the worker had no room for, can go to another worker.
    wait_for(lambda: channel_of(tasks, queue)["in_flight_count"] == 2, WAIT_S, "two are held")
    gate.go_on.set()
    wait_for(lambda: gate.runs == [0, 1], WAIT_S, "the second run")
    consumer.resume()
    tasks.join(queue, timeout=WAIT_MS)
    assert gate.runs == [0, 1, 2]
    assert channel_of(tasks, queue)["requeue_count"] == 0


def test_a_worker_that_stops_gives_back_what_it_has_not_begun(
    tasks: ZsqBroker, worker: dramatiq.Worker, queue: str
) -> None:
    gate = Gate(tasks, queue)
    worker.start()
    for number in range(2):
        gate.actor.send(number)
    assert gate.begun.wait(WAIT_S)
    wait_for(lambda: worker.work_queue.qsize() == 1, WAIT_S, "a second message")
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    wait_for(lambda: not worker.workers[0].running, WAIT_S, "the end of the worker's thread")
    gate.go_on.set()
    stopping.join(WAIT_S)
    wait_for(lambda: channel_of(tasks, queue)["depth"] == 1, WAIT_S, "the message that waits")
    found = channel_of(tasks, queue)
    assert (gate.runs, found["finish_count"], found["in_flight_count"]) == ([0], 1, 0)
    assert found["delivery_count"] == 2  # it did not come back to the worker that stops


def test_a_message_of_another_program_becomes_a_dead_letter(
    broker: Broker, tasks: ZsqBroker, worker: dramatiq.Worker, queue: str
) -> None:
    """Otherwise each worker would stop consuming when it gets the message."""
    gate = Gate(tasks, queue)
    gate.go_on.set()
    whole = json.loads(gate.actor.message(1).encode())
    wrong: list[dict[str, Any]] = [{"options": 5}, {"actor_name": []}, {"kwargs": None}]
    foreign = [b"hello", b"[1]", b"\xff", b"[" * 100_000]
    foreign += [json.dumps({**whole, **fields}).encode() for fields in wrong]
    topic = tasks.topic(queue)
    gate.actor.send(0)
    with zsq.Producer(broker.tcp) as producer:
        for body in foreign:
            producer.publish(topic, body)
    gate.actor.send(1)
    worker.start()
    tasks.join(queue, timeout=WAIT_MS)
    assert gate.runs == [0, 1]
    with zsq.Consumer(f"{topic}.workers.dead", "look", url=broker.tcp) as dead:
        bodies = [dead.receive(WAIT_S) for _ in foreign]
    assert [message and message.body for message in bodies] == foreign


def test_a_broker_that_is_closed_closes_its_consumers(broker: Broker, queue: str) -> None:
    tasks = ZsqBroker(broker.tcp)

    @dramatiq.actor(broker=tasks, queue_name=queue)
    def never() -> None:
        raise AssertionError

    never.send()
    assert next(tasks.consume(queue)) is not None
    tasks.close()
    other = ZsqBroker(broker.tcp)
    try:
        other.declare_queue(queue)
        consumer = other.consume(queue, timeout=WAIT_MS)
        assert next(consumer) is not None
    finally:
        other.close()


def test_messages_that_a_consumer_does_not_hold_are_ignored(tasks: ZsqBroker, queue: str) -> None:
    tasks.declare_queue(queue)
    consumer = tasks.consume(queue)
    message: Any = dramatiq.Message(queue, "unknown", (), {}, {})
    for one in (message, dramatiq.MessageProxy(message)):
        consumer.ack(one)
        consumer.nack(one)
        consumer.requeue([one])


@pytest.mark.parametrize("running", [False, True], ids=["without_a_worker", "with_a_worker"])
def test_a_topic_that_was_deleted_is_created_again_as_it_was(
    tasks: ZsqBroker, worker: dramatiq.Worker, queue: str, running: bool
) -> None:
    runs: list[int] = []

    @dramatiq.actor(broker=tasks, queue_name=queue)
    def work(number: int) -> None:
        runs.append(number)

    if running:
        worker.start()
    work.send(1)
    if running:
        tasks.join(queue, timeout=WAIT_MS)
    tasks._admin.delete_topic(tasks.topic(queue), force=True)
    work.send(2)
    if not running:
        worker.start()
    tasks.join(queue, timeout=WAIT_MS)
    worker.join()
    assert runs == ([1, 2] if running else [2])
    assert channel_of(tasks, queue)["settings"]["max_hold_s"] == -1


def test_a_message_is_not_lost_if_what_follows_it_is_refused(
    tasks: ZsqBroker, worker: dramatiq.Worker, broker: Broker, queue: str
) -> None:
    """The retry, the next one of a pipeline, and a callback are published before the finish."""

    @dramatiq.actor(broker=tasks, queue_name=queue)
    def large() -> str:
        return "x" * MESSAGE_BYTES_MAX

    @dramatiq.actor(broker=tasks, queue_name=queue)
    def never(text: str) -> None:
        raise AssertionError

    dramatiq.pipeline([large.message(), never.message()], broker=tasks).run()
    worker.start()
    with zsq.Consumer(f"{tasks.topic(queue)}.workers.dead", "look", url=broker.tcp) as dead:
        message = dead.receive(WAIT_S)
        assert message is not None
        assert json.loads(message.body)["actor_name"] == "large"
        assert "E_TOO_BIG" in str(message.headers["zsq-dead-error"])


def test_a_message_that_is_too_large_or_too_late_is_refused(tasks: ZsqBroker, queue: str) -> None:
    @dramatiq.actor(broker=tasks, queue_name=queue)
    def never(text: str) -> None:
        raise AssertionError

    with pytest.raises(zsq.UsageError, match="E_TOO_BIG"):
        never.send("x" * MESSAGE_BYTES_MAX)
    with pytest.raises(zsq.UsageError, match="366 days"):
        never.send_with_options(args=("",), delay=367 * 86_400_000)


def test_a_queue_that_was_not_declared_is_not_found(tasks: ZsqBroker, queue: str) -> None:
    for use in (tasks.consume, tasks.flush, tasks.join):
        with pytest.raises(dramatiq.QueueNotFound):
            use(queue)
    assert tasks.topic(queue) not in tasks._admin.topics()


def test_a_retry_that_is_refused_is_tried_again(
    tasks: ZsqBroker, worker: dramatiq.Worker, queue: str
) -> None:
    runs: list[int] = []

    @dramatiq.actor(broker=tasks, queue_name=queue, min_backoff=1, max_backoff=1)
    def fails_once() -> None:
        runs.append(1)
        if len(runs) < 3:
            raise ValueError("again")

    fails_once.send()
    tasks._admin.close_topic(tasks.topic(queue))  # as when the disk is full
    worker.start()
    wait_for(lambda: channel_of(tasks, queue)["requeue_count"], WAIT_S, "the refused retry")
    tasks._admin.open_topic(tasks.topic(queue))
    tasks.join(queue, timeout=WAIT_MS)
    assert len(runs) == 3


def test_a_join_waits_for_no_other_channel_of_the_topic(tasks: ZsqBroker, queue: str) -> None:
    tasks.declare_queue(queue)
    tasks.flush(queue)  # creates the topic and its channel
    tasks._admin.create_channel(tasks.topic(queue), "audit")
    tasks.enqueue(dramatiq.Message(queue, "unknown", (), {}, {}))
    with pytest.raises(dramatiq.QueueJoinTimeout):
        tasks.join(queue, timeout=1)
    tasks.flush(queue)
    tasks.join(queue, timeout=WAIT_MS)


def test_a_delay_that_is_over_is_none(
    tasks: ZsqBroker, worker: dramatiq.Worker, queue: str
) -> None:
    gate = Gate(tasks, queue)
    gate.go_on.set()
    worker.start()
    gate.actor.send_with_options(args=(1,), delay=-1000)
    tasks.join(queue, timeout=WAIT_MS)
    assert gate.runs == [1]


def test_a_worker_backs_off_while_its_actors_fail(broker: Broker, queue: str) -> None:
    tasks = ZsqBroker(broker.tcp, backoff=zsq.Backoff(0.5, 1, failures=3))
    works = threading.Event()
    runs: list[int] = []

    @dramatiq.actor(broker=tasks, queue_name=queue, max_retries=0, throws=ValueError)
    def task(number: int) -> None:
        runs.append(number)
        if not works.is_set():
            raise ValueError("the database is down")

    for number in range(50):
        task.send(number)
    worker = dramatiq.Worker(tasks, worker_timeout=WAKE_MS, worker_threads=2)
    worker.start()
    try:
        wait_for(lambda: client_of(tasks, queue).get("backoff_s") is not None, WAIT_S, "a backoff")
        wait_for(lambda: client_of(tasks, queue)["in_flight_count"] == 0, WAIT_S, "a rest")
        assert len(runs) < 25, "not the whole backlog"
        works.set()
        wait_for(lambda: len(runs) == 50, WAIT_S, "all messages")
        wait_for(lambda: client_of(tasks, queue)["backoff_s"] is None, WAIT_S, "the end of it")
    finally:
        worker.stop()
        tasks.close()


def test_a_probe_that_is_no_message_of_dramatiq_is_followed_by_another_one(
    broker: Broker, queue: str
) -> None:
    tasks = ZsqBroker(broker.tcp, backoff=zsq.Backoff(0.1, 0.2, failures=1))

    @dramatiq.actor(broker=tasks, queue_name=queue, max_retries=0, throws=ValueError)
    def task(works: bool) -> None:
        if not works:
            raise ValueError("the database is down")

    task.send(False)
    worker = dramatiq.Worker(tasks, worker_timeout=WAKE_MS, worker_threads=1)
    worker.start()
    try:
        wait_for(lambda: client_of(tasks, queue).get("backoff_s") is not None, WAIT_S, "a backoff")
        with zsq.Producer(broker.tcp) as producer:
            producer.publish(tasks.topic(queue), b"of another program")
        wait_for(lambda: channel_of(tasks, queue)["dead_letter_count"] == 2, WAIT_S, "the probe")
        assert client_of(tasks, queue)["backoff_s"] is not None
        task.send(True)
        wait_for(lambda: client_of(tasks, queue)["backoff_s"] is None, WAIT_S, "the end of it")
    finally:
        worker.stop()
        tasks.close()


def client_of(tasks: ZsqBroker, queue: str) -> dict[str, Any]:
    clients = channel_of(tasks, queue)["clients"]
    return clients[0] if clients else {}
