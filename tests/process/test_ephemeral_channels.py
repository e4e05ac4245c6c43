"""Tests of ephemeral channels on a real broker: they appear with their first consumer and end with
the last one, with their process, or with the broker.
"""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from support.broker import Broker, free_port, kill, wait_for

import zsq
from zsq.actors.settings import options
from zsq.storage.state.state import StateStore

TOPIC, CHANNEL = "t", "c#ephemeral"


def rows(broker: Broker) -> dict[str, dict[str, Any]]:
    with zsq.Admin(broker.ipc) as admin:
        return {row["channel_name"]: row for row in admin.stats(TOPIC)["topics"][0]["channels"]}


def publish(broker: Broker, *bodies: bytes) -> None:
    with zsq.Producer(broker.ipc) as producer:
        producer.publish_many(TOPIC, list(bodies))


def wait_no_channel(broker: Broker, within_s: float = 20) -> None:
    wait_for(lambda: not rows(broker), within_s, "the end of the channel")


def take(consumer: zsq.Consumer, count: int) -> list[bytes]:
    """Receive and finish `count` messages, with confirmation."""
    found = []
    for _ in range(count):
        message = consumer.receive(timeout=20)
        assert message is not None
        found.append(message.body)
        message.finish(sync=True)
    return found


@pytest.mark.parametrize("way", ["ipc", "tcp"])
def test_an_ephemeral_channel_ends_with_its_last_consumer(broker: Broker, way: str) -> None:
    url = getattr(broker, way)
    publish(broker, b"a", b"b")
    with (
        zsq.Consumer(TOPIC, CHANNEL, url=url) as consumer,
        zsq.Consumer(TOPIC, CHANNEL, url=url) as second,
    ):
        assert take(consumer, 2) == [b"a", b"b"], "the first channel gets what waits"
        second.close()
        publish(broker, b"c")
        assert take(consumer, 1) == [b"c"], "one of two leaves: it stays"
    wait_no_channel(broker)
    publish(broker, b"d")
    with zsq.Consumer(TOPIC, "durable", url=url) as durable:
        assert take(durable, 1) == [b"d"], (
            "what an ephemeral channel had is not kept for a first one"
        )


def test_unfinished_messages_go_with_it(broker: Broker) -> None:
    publish(broker, b"a", b"b")
    with zsq.Consumer(TOPIC, CHANNEL, url=broker.ipc, ready=1) as consumer:
        assert consumer.receive(timeout=20) is not None
    wait_no_channel(broker)
    with zsq.Consumer(TOPIC, CHANNEL, url=broker.ipc) as consumer:
        publish(broker, b"c")
        assert take(consumer, 1) == [b"c"]


def test_a_consumer_that_comes_as_the_channel_ends_gets_a_new_one(broker: Broker) -> None:
    """The consumer leaves and comes back at once, many times. Sometimes its Sub reaches the old
    process, and sometimes its Lookup arrives during the deletion.
    """
    publish(broker, b"first")
    for number in range(15):
        with zsq.Consumer(TOPIC, CHANNEL, url=broker.ipc) as consumer:
            wait_for(lambda: rows(broker).get(CHANNEL, {}).get("client_count"), 20, "a consumer")
            body = b"%d" % number
            publish(broker, body)
            assert take(consumer, 1 if number else 2)[-1] == body
    wait_no_channel(broker)


def test_settings_and_deferred_messages_work(broker: Broker) -> None:
    with zsq.Consumer(TOPIC, CHANNEL, url=broker.ipc, max_attempts=7) as consumer:
        publish(broker, b"later")
        message = consumer.receive(timeout=20)
        assert message is not None
        message.requeue(0.7)
        wait_for(lambda: rows(broker)[CHANNEL]["deferred_count"], 20, "the deferral")
        again = consumer.receive(timeout=20)
        assert again is not None
        assert (again.body, again.attempts) == (b"later", 2)
        with zsq.Admin(broker.ipc) as admin:
            assert (
                admin.configure_channel(TOPIC, CHANNEL, max_attempts=9)["settings"]["max_attempts"]
                == 9
            )
            admin.pause(TOPIC, CHANNEL)
        assert rows(broker)[CHANNEL]["paused"]


def test_a_killed_ephemeral_channel_starts_again_at_the_end(own_broker: Broker) -> None:
    with zsq.Consumer(TOPIC, CHANNEL, url=own_broker.ipc) as consumer:
        publish(own_broker, b"a")
        held = consumer.receive(timeout=20)
        assert held is not None
        (victim,) = own_broker.pids("channel")
        drive = consumer._made
        assert drive is not None
        engine = drive.engine
        up_until_ns = engine.down_ns
        kill(victim)
        own_broker.wait_gone([victim])
        # The statistics may still be those of the killed process.
        wait_for(lambda: engine.down_ns != up_until_ns and engine.up, 20, "a new channel")
        publish(own_broker, b"b")
        assert take(consumer, 1) == [b"b"], (
            "the new channel begins at the end, and knows nothing of the old one's messages"
        )
    wait_no_channel(own_broker)


def test_an_ephemeral_channel_keeps_its_settings_when_its_topic_is_killed(
    own_broker: Broker,
) -> None:
    with (
        zsq.Consumer(TOPIC, "durable", url=own_broker.ipc) as durable,
        zsq.Consumer(TOPIC, CHANNEL, url=own_broker.ipc) as consumer,
    ):
        publish(own_broker, b"a")
        assert (take(durable, 1), take(consumer, 1)) == ([b"a"], [b"a"])
        consumer.close()
        wait_for(lambda: CHANNEL not in rows(own_broker), 20, "the end of the channel")
        with zsq.Consumer(TOPIC, CHANNEL, url=own_broker.ipc, max_attempts=7) as other:
            wait_for(
                lambda: rows(own_broker).get(CHANNEL, {}).get("client_count"), 20, "a consumer"
            )
            victims = own_broker.pids("topic")
            # A channel ends with its topic. Before that, a channel with a consumer may be the old
            # one.
            channels = own_broker.pids("channel")
            kill(victims[0])
            own_broker.wait_gone([*victims, *channels])

            settings: dict[str, Any] = {}

            # The settings must be read in the same request. At the next one the topic may be
            # starting again.
            def is_up() -> bool:
                if {*channels} & {*own_broker.pids("channel")}:
                    # The supervisor has not noticed the end of the old channels and still shows
                    # their last report.
                    return False
                row = rows(own_broker).get(CHANNEL, {})
                settings.update(row.get("settings", {}))
                return bool(row.get("client_count"))

            wait_for(is_up, 20, "a new channel")
            assert settings["max_attempts"] == 7
            publish(own_broker, b"b")
            assert (take(durable, 1), take(other, 1)) == ([b"b"], [b"b"])


def test_an_unused_ephemeral_channel_ends_when_its_topic_is_killed(own_broker: Broker) -> None:
    consumer = zsq.Consumer(TOPIC, CHANNEL, url=own_broker.tcp)
    publish(own_broker, b"a")
    assert take(consumer, 1) == [b"a"]
    kill(own_broker.pids("gateway")[0])
    (storage,) = own_broker.pids("topic")
    kill(storage)
    consumer.close()
    own_broker.wait_gone([storage])
    wait_for(lambda: len(own_broker.pids("topic")) == 1, 20, "the topic")
    # A Lookup that was on its way when the consumer closed creates the channel again. No consumer
    # joins it, so it ends after EPHEMERAL_UNUSED_S.
    wait_no_channel(own_broker, options.EPHEMERAL_UNUSED_S + 20)


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_an_ephemeral_channel_does_not_exist_after_a_restart(own_broker: Broker, how: str) -> None:
    with zsq.Consumer(TOPIC, CHANNEL, url=own_broker.tcp) as consumer:
        publish(own_broker, b"a", b"b")
        assert take(consumer, 1) == [b"a"]
        wait_for(
            lambda: waiting(own_broker) == 2, 20, "the checkpoint of where a first channel begins"
        )
        if how == "stop":
            own_broker.stop()
        else:
            everyone = [actor["pid"] for actor in own_broker.actors()]
            assert own_broker.process is not None
            kill(own_broker.process.pid)
            own_broker.process.wait(20)
            own_broker.wait_gone(everyone)
    # A Lookup that the consumer sent before it was closed must not reach the next broker.
    own_broker.port = free_port()
    own_broker.start()
    assert rows(own_broker) == {}
    publish(own_broker, b"c")
    with zsq.Consumer(TOPIC, "durable", url=own_broker.ipc) as durable:
        assert take(durable, 1) == [b"c"]


def waiting(broker: Broker) -> int:
    """Return the committed offset at which a first channel would begin. It is read from a copy of
    the state store, to which nothing is written at this time.
    """
    copy = broker.data_dir.parent / "copy"
    shutil.copytree(broker.data_dir / "topics" / "000001" / "state", copy, dirs_exist_ok=True)
    store = StateStore(str(copy), readonly=True)
    try:
        return store.load().waiting
    finally:
        store.close()


def test_an_ephemeral_channel_counts_its_losses_and_holds_no_chunk(broker: Broker) -> None:
    """A bounded topic drops messages that only an ephemeral channel has not finished. They do not
    count as a loss of the topic.
    """
    with zsq.Admin(broker.ipc) as admin:
        admin.create_topic(TOPIC, keep_bytes=0)
    with zsq.Consumer(TOPIC, CHANNEL, url=broker.ipc, ready=1) as consumer:
        publish(broker, b"first")
        first = consumer.receive(timeout=20)
        assert first is not None
        for _ in range(4):
            publish(broker, *(b"x" * 500_000 for _ in range(8)))
        wait_for(lambda: rows(broker)[CHANNEL]["dropped_count"] >= 20, 30, "the loss")
        with zsq.Admin(broker.ipc) as admin:
            assert admin.stats(TOPIC)["topics"][0]["dropped_count"] == 0
        publish(broker, b"last")
        first.finish(sync=True)
        body = b""
        while body != b"last":
            (body,) = take(consumer, 1)


def test_an_ephemeral_channel_waits_for_its_first_consumer(broker: Broker) -> None:
    """The channel stays for a while, so that it can be created before its consumer starts."""
    with zsq.Admin(broker.ipc) as admin:
        admin.create_channel(TOPIC, CHANNEL)
        publish(broker, b"a")
        assert CHANNEL in rows(broker)
        with zsq.Consumer(TOPIC, CHANNEL, url=broker.ipc) as consumer:
            assert take(consumer, 1) == [b"a"]
        wait_no_channel(broker)
        admin.create_channel(TOPIC, CHANNEL)
        admin.delete_channel(TOPIC, CHANNEL)
        assert rows(broker) == {}
