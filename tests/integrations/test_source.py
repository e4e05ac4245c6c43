"""Tests of the consumer that task queues share: a message comes back after its lease was lost."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.broker import Broker, kill, wait_for
from support.topic_names import topic_name_of

import zsq
from zsq.apps.integrations.naming import CHANNEL
from zsq.apps.integrations.source import ConsumerThread, Held, OpenWork

pytestmark = pytest.mark.timeout(400)
WAIT_S = 120.0


class Queue:
    """A topic with a source, and the process of its channel."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.name = name
        self.broker = broker
        self.admin = zsq.Admin(broker.tcp)
        self.producer = zsq.Producer(broker.tcp)
        self.admin.create_topic(name)
        self.admin.create_channel(name, CHANNEL, start="earliest")
        self.arrived = threading.Event()
        self.work = OpenWork()
        self.open()

    def open(self) -> None:
        consumer = zsq.Consumer(self.name, CHANNEL, url=self.broker.tcp)
        self.source = ConsumerThread(consumer, 10, 60, self.arrived.set, self.work).start()

    def take(self) -> Held:
        """Return the next message that is to be handled."""
        while (held := self.source.take()) is None:
            assert self.arrived.wait(WAIT_S)
            self.arrived.clear()
        return held

    def kill_channel(self, held: Held) -> None:
        """Let the lease of this message end. The supervisor starts the channel again."""
        [pid] = [
            row["pid"]
            for row in self.admin.stats()["processes"]
            if row["name"] == f"channel {self.name}/{CHANNEL}"
        ]
        kill(pid)
        wait_for(lambda: not held.message.leased, WAIT_S, "the loss of the lease")

    def row(self) -> dict[str, Any]:
        row: dict[str, Any] = self.admin.stats(self.name, CHANNEL)["topics"][0]["channels"][0]
        return row

    def left(self) -> int:
        row = self.row()
        return int(row["in_flight_count"] + row["depth"])

    def dead(self) -> int:
        topic = f"{self.name}.{CHANNEL}.dead"
        if topic not in self.admin.topics():
            return 0
        return int(self.admin.stats(topic)["topics"][0]["message_count"])

    def close(self) -> None:
        for one in (self.source, self.producer, self.admin):
            one.close()


@pytest.fixture
def queue(broker: Broker, request: pytest.FixtureRequest) -> Iterator[Queue]:
    with contextlib.closing(Queue(broker, topic_name_of(request.node.name)[:40])) as one:
        yield one


@pytest.fixture
def restarted(tmp_path: Path) -> Iterator[Queue]:
    """Return a queue at a broker that the test may kill."""
    broker = Broker(tmp_path / "data")
    try:
        with contextlib.closing(Queue(broker.start(), "tasks")) as one:
            yield one
    finally:
        broker.close()


def test_a_message_that_was_finished_without_a_lease_is_not_handled_again(queue: Queue) -> None:
    queue.producer.publish_many(queue.name, [b"first", b"second"])
    first, second = queue.take(), queue.take()
    queue.kill_channel(first)
    first.finish()
    second.requeue()
    again = queue.take()
    assert again.message.body == b"second"
    again.finish()
    wait_for(lambda: queue.left() == 0, WAIT_S, "the end")
    # Somebody wants it to be handled once more.
    queue.admin.seek(queue.name, CHANNEL, "earliest")
    assert sorted([queue.take().message.body, queue.take().message.body]) == [b"first", b"second"]


@pytest.mark.parametrize("end", ["finish", "reject"])
def test_a_message_that_ended_just_before_the_broker_was_killed_is_not_handled_again(
    restarted: Queue, end: str
) -> None:
    """The answer was sent, or waits for that. The broker has not committed it."""
    queue = restarted
    queue.producer.publish(queue.name, b"first")
    first = queue.take()
    first.finish() if end == "finish" else first.reject("bad")
    queue.broker.signal_all(signal.SIGKILL)
    queue.broker.start()
    queue.producer.publish(queue.name, b"second")
    second = queue.take()
    assert second.message.body == b"second"
    second.finish()
    wait_for(lambda: queue.left() == 0, WAIT_S, "the end")
    wait_for(lambda: queue.dead() == (end == "reject"), WAIT_S, "the dead letter")


def test_a_source_that_is_opened_again_does_not_repeat_a_message(restarted: Queue) -> None:
    """Celery opens its connection again after an error, for example."""
    queue = restarted
    queue.producer.publish_many(queue.name, [b"first", b"second"])
    first = queue.take()
    queue.broker.signal_all(signal.SIGKILL)
    wait_for(lambda: not first.message.leased, WAIT_S, "the loss of the lease")
    queue.source.close()
    first.finish()
    queue.broker.start()
    queue.open()
    second = queue.take()
    assert second.message.body == b"second"
    second.finish()
    wait_for(lambda: queue.left() == 0, WAIT_S, "the end")


def test_a_message_that_is_worked_on_is_not_begun_once_more(queue: Queue) -> None:
    queue.producer.publish(queue.name, b"first")
    first = queue.take()
    queue.kill_channel(first)
    queue.producer.publish(queue.name, b"second")
    second = queue.take()
    assert second.message.body == b"second"
    first.finish()
    first.finish()  # a second answer changes nothing
    second.finish()
    wait_for(lambda: queue.left() == 0, WAIT_S, "the end")
