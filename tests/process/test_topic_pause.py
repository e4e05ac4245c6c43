"""Tests of a paused topic: messages that are published during the pause count in its depth, are not
lost by deletions, and reach all channels.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.broker import Broker

import zsq

TOPIC = "clicks"


@pytest.fixture
def admin(own_broker: Broker) -> Iterator[zsq.Admin]:
    with zsq.Admin(own_broker.ipc) as one:
        one.create_channel(TOPIC, "c")
        one.pause(TOPIC)
        with zsq.Producer(own_broker.ipc) as producer:
            producer.publish_many(TOPIC, [b"%d" % number for number in range(5)])
        yield one


def bodies(broker: Broker, channel: str) -> list[bytes]:
    with zsq.Consumer(TOPIC, channel, url=broker.ipc) as consumer:
        found = []
        for _ in range(5):
            message = consumer.receive(20)
            assert message is not None
            found.append(message.body)
            message.finish()
    return found


ALL = [b"%d" % number for number in range(5)]


def test_messages_after_a_pause_are_not_finished(own_broker: Broker, admin: zsq.Admin) -> None:
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
    assert bodies(own_broker, "next") == ALL


def test_every_channel_that_exists_at_the_end_of_a_pause_gets_all_of_it(
    own_broker: Broker, admin: zsq.Admin
) -> None:
    admin.create_channel(TOPIC, "second")
    admin.unpause(TOPIC)
    assert bodies(own_broker, "c") == bodies(own_broker, "second") == ALL
    assert admin.stats(TOPIC)["topics"][0]["depth"] == 0
    admin.create_channel(TOPIC, "third")
    with zsq.Consumer(TOPIC, "third", url=own_broker.ipc) as consumer:
        assert consumer.receive(0.3) is None


def drained(broker: Broker, channel: str) -> list[bytes]:
    """Return what the channel delivers until no message waits."""
    found: list[bytes] = []
    with zsq.Consumer(TOPIC, channel, url=broker.ipc) as consumer:
        while (message := consumer.receive(1 if found else 20)) is not None:
            found.append(message.body)
            message.finish()
    return found


def publish(broker: Broker, *bodies: bytes) -> None:
    with zsq.Producer(broker.ipc) as producer:
        producer.publish_many(TOPIC, bodies)


def counts(admin: zsq.Admin) -> tuple[int, list[tuple[int, int]]]:
    """Return the depth of the topic, and the depth and the number of messages of each channel."""
    topic = admin.stats(TOPIC)["topics"][0]
    return topic["depth"], sorted((row["depth"], row["message_count"]) for row in topic["channels"])


def test_emptying_a_paused_topic_clears_what_waits_behind_its_pause(
    own_broker: Broker, admin: zsq.Admin
) -> None:
    """nsqd does the same. The channels are before the pause, at the pause, or created later."""
    admin.unpause(TOPIC)
    assert drained(own_broker, "c") == ALL
    admin.create_channel(TOPIC, "behind", start="earliest")
    admin.create_channel(TOPIC, "brief#ephemeral")
    admin.pause(TOPIC)
    publish(own_broker, b"gone", b"gone too")
    admin.empty(TOPIC)
    assert counts(admin) == (0, [(0, 0), (0, 5), (5, 5)])
    publish(own_broker, b"gone after all")
    admin.empty(TOPIC)
    publish(own_broker, b"kept")
    admin.create_channel(TOPIC, "later")
    assert counts(admin)[0] == 1
    own_broker.stop()
    own_broker.start()
    with zsq.Admin(own_broker.ipc) as again:
        again.unpause(TOPIC)
        assert drained(own_broker, "c") == drained(own_broker, "later") == [b"kept"]
        assert drained(own_broker, "behind") == [*ALL, b"kept"]
        assert counts(again) == (0, [(0, 1), (0, 6), (0, 6)])
        assert all(
            row["lost_count"] == row["dropped_count"] == 0
            for row in again.stats(TOPIC)["topics"][0]["channels"]
        )


def test_emptying_a_paused_topic_without_a_channel_clears_it_for_every_channel_to_come(
    own_broker: Broker, admin: zsq.Admin
) -> None:
    admin.delete_channel(TOPIC, "c", force=True)
    admin.empty(TOPIC)
    publish(own_broker, b"kept")
    admin.create_channel(TOPIC, "one")
    admin.create_channel(TOPIC, "two")
    admin.unpause(TOPIC)
    assert drained(own_broker, "one") == drained(own_broker, "two") == [b"kept"]


def test_a_seek_back_brings_what_was_emptied_as_the_log_still_has_it(
    own_broker: Broker, admin: zsq.Admin
) -> None:
    admin.empty(TOPIC)
    admin.unpause(TOPIC)
    publish(own_broker, b"kept")
    assert drained(own_broker, "c") == [b"kept"]
    admin.seek(TOPIC, "c", 0)
    assert drained(own_broker, "c") == [*ALL, b"kept"]
