"""Tests of ids on a real broker: what has an id is stored once within the window, also with kills
of the broker, for delayed messages, and in topics with parts.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from support.broker import Broker, wait_for

import zsq


@pytest.fixture
def producer(own_broker: Broker) -> Iterator[zsq.Producer]:
    with zsq.Producer(own_broker.ipc, timeout=60) as one:
        yield one


@pytest.fixture
def admin(own_broker: Broker) -> Iterator[zsq.Admin]:
    with zsq.Admin(own_broker.ipc, timeout=60) as one:
        yield one


def bodies(broker: Broker, topic: str = "t") -> list[bytes]:
    with zsq.Reader(topic, url=broker.ipc) as reader:
        found = reader.read(0, bytes_max=8 << 20)
        return [body or b"" for block in found.blocks for body in block.body.values()]


def restart(broker: Broker) -> None:
    broker.signal_all(signal.SIGKILL)
    broker.start()


def test_an_id_is_stored_once(own_broker: Broker, producer: zsq.Producer) -> None:
    first = producer.publish("t", b"first", dedupe_id="order-1")
    assert (first.offset, first.duplicate) == (0, False)
    again = producer.publish("t", b"again", dedupe_id="order-1")
    assert (again.offset, again.duplicate) == (0, True)
    assert producer.publish("t", b"other", dedupe_id="order-2").offset == 1
    assert producer.publish("t", b"none").offset == 2
    many = producer.publish_many(
        "t",
        [b"a", b"b", b"c", b"d", b"e"],
        dedupe_ids=["order-2", "x", None, "x", "y"],
    )
    assert many.results == ((1, True), (3, False), (4, False), (3, True), (5, False))
    assert not many.duplicate
    assert bodies(own_broker) == [b"first", b"other", b"none", b"b", b"c", b"e"]


def test_ids_outlive_kills(own_broker: Broker, producer: zsq.Producer) -> None:
    """Also those that no file has yet, and the producer goes on as if nothing had happened."""
    for round_ in range(3):
        receipt = producer.publish_many(
            "t", [b"%d" % n for n in range(50)], dedupe_ids=[f"{n}" for n in range(50)]
        )
        assert receipt.duplicate == (round_ > 0)
        assert [result.offset for result in receipt.results] == list(range(50))
        restart(own_broker)
    assert producer.publish("t", b"new", dedupe_id="new").offset == 50
    assert len(bodies(own_broker)) == 51


def test_a_delayed_message_counts_from_its_publish(
    own_broker: Broker, producer: zsq.Producer, admin: zsq.Admin
) -> None:
    first = producer.publish("t", b"late", delay=3600, dedupe_id="one")
    assert first.key is not None
    for delay in (None, 60):
        again = producer.publish("t", b"again", delay=delay, dedupe_id="one")
        assert (again.duplicate, again.offset, again.key) == (True, -1, None)
    restart(own_broker)
    assert producer.publish("t", b"again", delay=5, dedupe_id="one").duplicate
    plain = producer.publish("t", b"now", dedupe_id="two")
    assert (plain.duplicate, plain.offset) == (False, 0)
    assert producer.publish("t", b"again", delay=5, dedupe_id="two").offset == 0
    mixed = producer.publish_many("t", [b"x", b"y"], delay=1800, dedupe_ids=["two", "three"])
    assert len(mixed.delayed_keys()) == 1
    assert [result.duplicate for result in mixed.results] == [True, False]
    assert admin.delayed_count("t")["messages"] == 2
    assert bodies(own_broker) == [b"now"]


def test_a_window_ends(own_broker: Broker, producer: zsq.Producer, admin: zsq.Admin) -> None:
    admin.create_topic("t", dedupe_window_s=0.3)
    assert not producer.publish("t", b"1", dedupe_id="one").duplicate
    wait_for(lambda: not producer.publish("t", b"2", dedupe_id="one").duplicate)
    admin.configure_topic("t", dedupe_window_s=0)
    assert not producer.publish("t", b"3", dedupe_id="one").duplicate
    assert bodies(own_broker) == [b"1", b"2", b"3"]
    topic = admin.stats("t")["topics"][0]
    assert topic["duplicate_count"] >= 0
    wait_for(lambda: admin.stats("t")["topics"][0]["dedupe_ids"] == 0)
