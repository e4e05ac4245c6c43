"""Tests of the consumer that task queues share: a message comes back after its lease was lost."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.broker import Broker, kill, wait_for
from support.topic_names import topic_name_of

import zsq
from zsq.apps.integrations import source as sources
from zsq.apps.integrations.naming import CHANNEL
from zsq.apps.integrations.source import Held, LateFinishes, Source, identity

pytestmark = pytest.mark.timeout(400)
WAIT_S = 120.0


class Queue:
    """A topic with a source, and the process of its channel."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.name = name
        self.url = broker.tcp
        self.admin = zsq.Admin(broker.tcp)
        self.producer = zsq.Producer(broker.tcp)
        self.admin.create_topic(name)
        self.admin.create_channel(name, CHANNEL, start="earliest")
        self.arrived = threading.Event()
        self.source = Source(zsq.Consumer(name, CHANNEL, url=broker.tcp), 10, 60, self.arrived.set)

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

    def left(self) -> int:
        row = self.admin.stats(self.name, CHANNEL)["topics"][0]["channels"][0]
        return int(row["in_flight_count"] + row["depth"])

    def close(self) -> None:
        for one in (self.source, self.producer, self.admin):
            one.close()


@pytest.fixture
def queue(broker: Broker, request: pytest.FixtureRequest) -> Iterator[Queue]:
    with contextlib.closing(Queue(broker, topic_name_of(request.node.name)[:40])) as one:
        one.source.start()
        yield one


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


def test_a_message_that_does_not_come_back_is_forgotten(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker may get it. Somebody who moves the channel back wants it to be handled."""
    monkeypatch.setattr(sources, "LATE_S", 0.0)
    queue.producer.publish(queue.name, b"first")
    first = queue.take()
    queue.kill_channel(first)
    first.finish()
    assert queue.take().message.body == b"first"


def test_only_the_newest_are_remembered(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "LATE_MAX", 1)
    queue.producer.publish_many(queue.name, [b"first", b"second"])
    held = [queue.take(), queue.take()]
    late = LateFinishes()
    for one in held:
        late.add(one.message)
    assert [late.pop(one.message) for one in held] == [False, True]
    assert not late.pop(held[1].message), "it came back once"


def test_a_newer_delivery_takes_the_place_of_the_one_that_is_worked_on(queue: Queue) -> None:
    queue.producer.publish(queue.name, b"first")
    first = queue.take()
    queue.kill_channel(first)
    again = queue.take()
    assert first.replace(again)
    first.finish()
    wait_for(lambda: queue.left() == 0, WAIT_S, "the end")
    assert not first.replace(again), "it was answered: a newer one is to be handled"


def test_another_message_at_the_same_offset_has_another_place(queue: Queue) -> None:
    """A task of a topic that was created again must not count as one that is being worked on."""
    queue.producer.publish(queue.name, b"first")
    first = queue.take()
    place = first.place
    queue.kill_channel(first)
    again = queue.take()
    assert again.place == place
    other = SimpleNamespace(part=None, offset=first.message.offset, timestamp_ns=1)
    assert identity(cast("Any", other)) != identity(first.message)
    assert identity(first.message) in place
