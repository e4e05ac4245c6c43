"""Tests of skipped messages with real processes: a user finishes chosen messages for a channel,
wherever they are.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from support.broker import Broker, kill, wait_for
from support.topic_names import topic_name_of
from support.zsq_command import run_text

import zsq


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return topic_name_of(request.node.name)


def row(url: str, topic: str) -> dict[str, Any]:
    with zsq.Admin(url) as admin:
        return dict(admin.stats(topic, "c")["topics"][0]["channels"][0])


def received(consumer: zsq.Consumer, count: int) -> list[zsq.Message]:
    found = [message for _ in range(count) if (message := consumer.receive(10)) is not None]
    assert len(found) == count
    return found


@pytest.mark.parametrize("settings", [{}, {"ordered": True}, {"priorities": 2}])
def test_messages_are_skipped_in_every_state_and_stay_skipped(
    own_broker: Broker, topic: str, settings: dict[str, Any]
) -> None:
    url = own_broker.ipc
    keys = [b"%d" % number for number in range(20)]
    skipped = [0, 3, 7, 8, 15, 19]
    with zsq.Admin(url) as admin, zsq.Producer(url) as producer:
        admin.create_channel(topic, "c", **settings)
        producer.publish_many(topic, keys, keys=keys)
        with zsq.Consumer(topic, "c", url=url, ready=6) as consumer:
            messages = received(consumer, 6)
            assert [message.offset for message in messages] == [*range(6)]
            for message in messages[:3]:
                message.requeue(600)
            wait_for(lambda: row(url, topic)["deferred_count"] == 3, 30, "the deferred messages")
            # 0 to 2 are deferred, 3 is in flight, and 15 and 19 are ahead of the cursor.
            wanted = [*skipped, 20, 500]
            assert admin.skip(topic, "c", wanted, preview=True) == skipped
            assert admin.unfinished(topic, "c") == 20
            assert admin.skip(topic, "c", wanted) == skipped
            assert admin.skip(topic, "c", wanted) == []
            assert admin.unfinished(topic, "c") == 14
            assert {one.offset for one in admin.peek(topic, "c", count=100).messages} == {
                *range(20)
            }.difference(skipped)
            # The consumer knows that it was skipped, or hears so in answer to its finish.
            messages[3].finish()
            with contextlib.suppress(zsq.LeaseLost):
                consumer.flush()
        for pid in own_broker.pids("topic"):
            kill(pid)
        with zsq.Consumer(topic, "c", url=url) as consumer:
            for message in (rest := received(consumer, 12)):
                message.finish()
            consumer.flush()
        assert {message.offset for message in rest} == {*range(1, 20)}.difference(skipped, {1, 2})
        found = row(url, topic)
        assert (found["message_count"], found["skipped_count"], found["finish_count"]) == (
            20,
            6,
            12,
        )
        assert (found["depth"], found["in_flight_count"], found["deferred_count"]) == (0, 0, 2)


def test_an_ordered_channel_goes_on_behind_a_skipped_message(broker: Broker, topic: str) -> None:
    url = broker.ipc
    with zsq.Admin(url) as admin, zsq.Producer(url) as producer:
        admin.create_channel(topic, "c", ordered=True)
        producer.publish_many(topic, [b"poison", b"one", b"two"], key=b"k")
        with zsq.Consumer(topic, "c", url=url) as consumer:
            (poison,) = received(consumer, 1)
            poison.requeue(600, error="no such customer")
            consumer.flush()
            wait_for(lambda: row(url, topic)["deferred_count"] == 1, 30, "the deferred message")
            shown = run_text("--url", url, "channel", "show", topic, "c").stdout
            assert (
                "blocked by offset 0, attempt 1 failed, 2 messages of its key wait; last error: "
                "no such customer"
            ) in shown
            assert admin.skip(topic, "c", [0, 1]) == [0, 1]
            (two,) = received(consumer, 1)
            assert two.body == b"two"
            two.finish()
            consumer.flush()
        assert admin.unfinished(topic, "c") == 0
