"""A paused topic: what is published meanwhile is shown as its depth, is not lost by deletions, and comes to all channels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.broker import Broker

import zsq

TOPIC = "clicks"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    one = Broker(tmp_path / "data")
    try:
        yield one.start()
    finally:
        one.close()


@pytest.fixture
def admin(broker: Broker) -> Iterator[zsq.Admin]:
    with zsq.Admin(broker.ipc) as one:
        one.create_channel(TOPIC, "c")
        one.pause(TOPIC)
        with zsq.Producer(broker.ipc) as producer:
            producer.publish_many(TOPIC, [b"%d" % number for number in range(5)])
        yield one


def bodies(broker: Broker, channel: str) -> list[bytes]:
    with zsq.Consumer(broker.ipc, TOPIC, channel) as consumer:
        found = []
        for _ in range(5):
            message = consumer.receive(20)
            assert message is not None
            found.append(message.body)
            message.finish()
    return found


ALL = [b"%d" % number for number in range(5)]


def test_what_lies_behind_a_pause_is_not_finished(broker: Broker, admin: zsq.Admin) -> None:
    topic = admin.stats(TOPIC)["topics"][0]
    assert (topic["depth"], topic["channels"][0]["depth"]) == (5, 0)
    with pytest.raises(zsq.Refused, match="5 of them lie behind its pause") as refusal:
        admin.delete_channel(TOPIC, "c")
    assert refusal.value.code == "E_NOT_EMPTY"
    with pytest.raises(zsq.Refused, match="5 of them lie behind its pause"):
        admin.delete_topic(TOPIC)
    admin.delete_channel(TOPIC, "c", force=True)
    assert admin.stats(TOPIC)["topics"][0]["depth"] == 5
    with pytest.raises(zsq.Refused):
        admin.delete_topic(TOPIC)
    admin.unpause(TOPIC)
    assert bodies(broker, "next") == ALL


def test_every_channel_that_is_there_at_its_end_gets_it(broker: Broker, admin: zsq.Admin) -> None:
    admin.create_channel(TOPIC, "second")
    admin.unpause(TOPIC)
    assert bodies(broker, "c") == bodies(broker, "second") == ALL
    assert admin.stats(TOPIC)["topics"][0]["depth"] == 0
    admin.create_channel(TOPIC, "third")
    with zsq.Consumer(broker.ipc, TOPIC, "third") as consumer:
        assert consumer.receive(0.3) is None
