"""Tests of ephemeral topics on a real broker: they are in memory, have a bound, and end with their
last channel or with the broker.
"""

from __future__ import annotations

import contextlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.broker import Broker, free_port, kill, wait_for

import zsq
from zsq.actors.settings.options import EPHEMERAL_BYTES_MAX
from zsq.transport.block.block import pack
from zsq.transport.client.blocking import stage_writer

TOPIC = "t#ephemeral"
MIB = 1024 * 1024


def topics(broker: Broker) -> dict[str, dict[str, Any]]:
    with zsq.Admin(broker.ipc) as admin:
        return {row["topic_name"]: row for row in admin.stats()["topics"]}


def publish(broker: Broker, *bodies: bytes) -> None:
    with zsq.Producer(broker.ipc) as producer:
        producer.publish_many(TOPIC, list(bodies))


def take(consumer: zsq.Consumer, count: int) -> list[bytes]:
    """Return the bodies of `count` finished messages. A message whose lease ended with a channel's
    process is delivered again, even if it was received before.
    """
    found: list[bytes] = []
    while len(found) < count:
        message = consumer.receive(timeout=20)
        assert message is not None
        with contextlib.suppress(zsq.LeaseLost):
            message.finish(sync=True)
            found.append(message.body)
    return found


def memory(broker: Broker) -> Path:
    return Path(json.loads((broker.data_dir / "memory.json").read_text())["memory"])


def test_an_ephemeral_topic_is_in_memory_and_ends_with_its_last_channel(own_broker: Broker) -> None:
    publish(own_broker, b"a")
    row = topics(own_broker)[TOPIC]
    assert (row["sync"], row["settings"]["when_full"], row["settings"]["max_bytes"]) == (
        "never",
        "drop-oldest",
        EPHEMERAL_BYTES_MAX,
    )
    (folder,) = [path for path in memory(own_broker).iterdir() if path.is_dir()]
    assert not list((own_broker.data_dir / "topics").iterdir())
    assert TOPIC not in (own_broker.data_dir / "registry.json").read_text()
    with (
        zsq.Consumer(TOPIC, "c", url=own_broker.ipc) as consumer,
        zsq.Consumer(TOPIC, "d#ephemeral", url=own_broker.ipc) as other,
    ):
        assert take(consumer, 1) == [b"a"]
        publish(own_broker, b"b")
        assert (take(consumer, 1), take(other, 1)) == ([b"b"], [b"b"])
    wait_for(lambda: len(topics(own_broker)[TOPIC]["channels"]) == 1, 20, "the end of one channel")
    publish(own_broker, b"unfinished")
    with zsq.Admin(own_broker.ipc) as admin:
        with pytest.raises(zsq.Refused, match="not finished"):
            admin.delete_channel(TOPIC, "c")
        admin.delete_channel(TOPIC, "c", force=True)
    wait_for(lambda: TOPIC not in topics(own_broker), 20, "the end of the topic")
    assert not folder.exists()
    own_broker.stop()
    assert not (own_broker.data_dir / "memory.json").exists()


@pytest.mark.parametrize("way", ["ipc", "tcp"])
def test_a_consumer_that_comes_as_the_topic_ends_gets_a_new_one(broker: Broker, way: str) -> None:
    """The topic's only channel is ephemeral too, so the topic is created and removed with each
    consumer.
    """
    url = getattr(broker, way)
    with zsq.Producer(url) as producer:
        for number in range(8):
            with zsq.Consumer(TOPIC, "c#ephemeral", url=url) as consumer:
                body = b"%d" % number
                message = None
                while message is None or message.body != body:
                    producer.publish(TOPIC, body)
                    message = consumer.receive(timeout=1)
                message.finish()
    wait_for(lambda: TOPIC not in topics(broker), 20, "the end of the topic")


@pytest.mark.parametrize("victim", ["topic", "channel"])
def test_a_process_that_dies_costs_no_message(own_broker: Broker, victim: str) -> None:
    """The folder in memory outlives the processes."""
    with zsq.Consumer(TOPIC, "c", url=own_broker.ipc, ready=1) as consumer:
        publish(own_broker, b"a", b"b")
        assert take(consumer, 1) == [b"a"]
        pids = own_broker.pids(victim)
        kill(pids[0])
        own_broker.wait_gone(pids)
        publish(own_broker, b"c")
        assert sorted(take(consumer, 2)) == [b"b", b"c"], "in either order: one may be a redelivery"


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_it_is_gone_after_a_restart(own_broker: Broker, how: str) -> None:
    with zsq.Admin(own_broker.ipc) as admin:
        admin.create_topic("durable")
    publish(own_broker, b"a")
    folder = memory(own_broker)
    assert folder.exists()
    if how == "stop":
        assert own_broker.stop() == 0
        assert not folder.exists()
    else:
        everyone = [actor["pid"] for actor in own_broker.actors()]
        for pid in everyone:
            with contextlib.suppress(ProcessLookupError):  # it ended with the forkserver
                kill(pid)
        assert own_broker.process is not None
        own_broker.process.wait(20)
        own_broker.wait_gone(everyone)
        assert folder.exists()
    own_broker.port = free_port()
    own_broker.start()
    assert set(topics(own_broker)) == {"durable"}
    assert not folder.exists()
    publish(own_broker, b"b")
    with zsq.Consumer(TOPIC, "c", url=own_broker.ipc) as consumer:
        assert take(consumer, 1) == [b"b"]


def test_memory_is_bounded_and_what_was_dropped_is_counted(own_broker: Broker) -> None:
    """Five times the bound is published, and the channel has no consumer. The newest
    messages stay.
    """
    with zsq.Admin(own_broker.ipc) as admin:
        admin.create_topic(TOPIC, max_bytes=8 * MIB)
        admin.create_channel(TOPIC, "c")
    most = 0
    with zsq.Producer(own_broker.ipc) as producer:
        for number in range(40):
            producer.publish_many(
                TOPIC, [b"%06d" % (number * 16 + i) + b"x" * 65_000 for i in range(16)]
            )
            most = max(most, size_of(memory(own_broker)))
    # The drop follows a moment later: usually below twice the bound, and more on a busy machine.
    assert most < 32 * MIB, "four times the bound at most"
    wait_for(lambda: topics(own_broker)[TOPIC]["log_bytes"] <= 9 * MIB, 20, "the drop")
    row = topics(own_broker)[TOPIC]
    (channel,) = row["channels"]
    assert row["dropped_count"] == channel["dropped_count"] > 400
    with zsq.Consumer(TOPIC, "c", url=own_broker.ipc) as consumer:
        numbers = [int(body[:6]) for body in take(consumer, 640 - row["dropped_count"])]
    assert numbers == list(range(row["dropped_count"], 640))


def size_of(root: Path) -> int:
    found = 0
    for path in root.rglob("*"):
        try:
            found += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue  # the file was removed in the meantime
    return found


def fill(producer: zsq.Producer, delay: float = 0) -> None:
    for _ in range(30):
        producer.publish_many(TOPIC, [b"x" * 500_000], delay=delay)


def test_settings_that_would_unbind_it_are_refused(broker: Broker) -> None:
    with zsq.Admin(broker.ipc) as admin:
        with pytest.raises(zsq.UsageError, match="max_bytes of a topic in memory is at most"):
            admin.create_topic(TOPIC, max_bytes=-1)
        admin.create_topic(TOPIC, keep_bytes=MIB)
        with pytest.raises(zsq.UsageError, match="keep_bytes of a topic in memory is at most"):
            admin.configure_topic(TOPIC, keep_bytes=1 << 40)
        assert (
            admin.configure_topic(TOPIC, when_full="reject", max_bytes=8 * MIB)["settings"][
                "when_full"
            ]
            == "reject"
        )
    assert topics(broker)[TOPIC]["settings"]["keep_bytes"] == MIB
    with zsq.Producer(broker.ipc) as producer, pytest.raises(zsq.Refused, match="E_TOPIC_FULL"):
        fill(producer)


def test_delayed_messages_work_and_are_bounded(broker: Broker) -> None:
    with zsq.Admin(broker.ipc) as admin:
        admin.create_topic(TOPIC, max_bytes=8 * MIB)
        admin.create_channel(TOPIC, "c")
        with zsq.Producer(broker.ipc) as producer:
            producer.publish(TOPIC, b"soon", delay=0.3)
            with zsq.Consumer(TOPIC, "c", url=broker.ipc) as consumer:
                assert take(consumer, 1) == [b"soon"]
            with pytest.raises(zsq.Refused, match="delayed messages use"):
                fill(producer, delay=3600)
            assert admin.delayed_cancel_all(TOPIC) > 10
            producer.publish(TOPIC, b"again", delay=3600)


def test_reading_by_offset_works(broker: Broker) -> None:
    publish(broker, b"a", b"b")
    with zsq.Reader(TOPIC, url=broker.ipc) as reader:
        assert [reader.message(offset).body for offset in (0, 1)] == [b"a", b"b"]


@pytest.mark.parametrize("way", ["ipc", "tcp"])
@pytest.mark.parametrize("knows", [True, False])
def test_transactions_are_refused_and_make_no_topic(
    broker: Broker, way: str, knows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that does not check the name is refused, too. Over TCP the gateway refuses it. A
    local client creates the topic, and storage refuses.
    """
    if not knows:
        monkeypatch.setattr(stage_writer, "check_stage_topic", lambda name: name)
    with pytest.raises(zsq.UsageError, match=r"E_UNSUPPORTED .*transactions.*use one on disk"):
        stage(getattr(broker, way))
    if knows or way == "tcp":
        assert not topics(broker)


def stage(url: str) -> None:
    with zsq.StageWriter(TOPIC, "app", 1, url=url) as writer:
        writer.push(pack([b"x"]))
        writer.seal()


def test_pause_close_and_delete_work(own_broker: Broker) -> None:
    publish(own_broker, b"a")
    with zsq.Admin(own_broker.ipc) as admin:
        admin.pause(TOPIC)
        assert topics(own_broker)[TOPIC]["paused"]
        admin.unpause(TOPIC)
        admin.close_topic(TOPIC)
        with pytest.raises(zsq.Refused, match="closed to publishers"):
            publish(own_broker, b"b")
        admin.open_topic(TOPIC)
        publish(own_broker, b"b")
        with pytest.raises(zsq.Refused, match="2 messages that are not finished"):
            admin.delete_topic(TOPIC)
        admin.delete_topic(TOPIC, force=True)
        assert TOPIC not in topics(own_broker)
    assert [path.name for path in memory(own_broker).iterdir()] == ["lock"]


# Topics with ephemeral channels only


def removed(broker: Broker, topic: str) -> int:
    found: int = topics(broker)[topic]["removed_bytes"]
    return found


def passed(broker: Broker) -> None:
    """Wait until retention has run for all topics: finished messages of a probe topic must have
    been removed, twice in a row.
    """
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc) as producer:
        for number in range(2):
            probe = f"probe{number}#ephemeral"
            admin.create_channel(probe, "c")
            producer.publish(probe, b"x")
            with zsq.Consumer(probe, "c", url=broker.ipc) as consumer:
                assert take(consumer, 1) == [b"x"]
            wait_for(partial(removed, broker, probe), 30, "the removal of what is finished")


def test_unfinished_messages_stay_in_an_ephemeral_topic(broker: Broker) -> None:
    """The messages are in flight, requeued, deferred, behind a pause, or were never sent."""
    with (
        zsq.Consumer(TOPIC, "c#ephemeral", url=broker.ipc, ready=4) as consumer,
        zsq.Admin(broker.ipc) as admin,
    ):
        publish(broker, *(b"%d" % number for number in range(10)))
        held = [message for _ in range(4) if (message := consumer.receive(timeout=20)) is not None]
        assert [message.body for message in held] == [b"0", b"1", b"2", b"3"]
        held[0].finish(sync=True)
        held[1].requeue(6)
        admin.pause(TOPIC)
        publish(broker, b"10")
        passed(broker)
        row = topics(broker)[TOPIC]
        (channel,) = row["channels"]
        assert (row["dropped_count"], row["removed_bytes"], channel["dropped_count"]) == (0, 0, 0)
        admin.unpause(TOPIC)
        passed(broker)
        for message in held[2:]:
            message.requeue()
        assert sorted(map(int, take(consumer, 10))) == list(range(1, 11))
        wait_for(lambda: removed(broker, TOPIC), 30, "the removal of what is finished")
        assert topics(broker)[TOPIC]["dropped_count"] == 0


def test_the_bound_drops_and_counts(broker: Broker) -> None:
    with zsq.Admin(broker.ipc) as admin:
        admin.create_topic(TOPIC, max_bytes=8 * MIB)
    with zsq.Consumer(TOPIC, "c#ephemeral", url=broker.ipc, ready=1) as consumer:
        first = consumer_has_one(broker, consumer)
        with zsq.Producer(broker.ipc) as producer:
            for number in range(60):
                producer.publish_many(
                    TOPIC, [b"%06d" % (number * 8 + i) + b"x" * 65_000 for i in range(8)]
                )
        wait_for(lambda: topics(broker)[TOPIC]["log_bytes"] <= 9 * MIB, 20, "the drop")
        first.finish(sync=True)
        row = topics(broker)[TOPIC]
        (channel,) = row["channels"]
        assert row["dropped_count"] > 300
        assert 0 <= row["dropped_count"] - channel["dropped_count"] <= 1, (
            "and the one that its consumer held"
        )
        left = take(consumer, 481 - row["dropped_count"])
        assert int(left[-1][:6]) == 479


def consumer_has_one(broker: Broker, consumer: zsq.Consumer) -> zsq.Message:
    publish(broker, b"first")
    message = consumer.receive(timeout=20)
    assert message is not None
    return message


def test_publish_is_refused_when_a_rejecting_ephemeral_topic_is_full(broker: Broker) -> None:
    with zsq.Admin(broker.ipc) as admin:
        admin.create_topic(TOPIC, max_bytes=8 * MIB, when_full="reject")
    with zsq.Consumer(TOPIC, "c#ephemeral", url=broker.ipc, ready=1) as consumer:
        first = consumer_has_one(broker, consumer)
        with zsq.Producer(broker.ipc) as producer, pytest.raises(zsq.Refused, match="E_TOPIC_FULL"):
            fill(producer)
        passed(broker)
        row = topics(broker)[TOPIC]
        assert (row["dropped_count"], row["removed_bytes"], row["refused_count"] > 0) == (
            0,
            0,
            True,
        )
        first.finish(sync=True)
        with zsq.Producer(broker.ipc, when_full="wait") as producer:
            waiting = producer.publish_many(TOPIC, [b"last"], wait=False)
            body = b""
            while body != b"last":
                (body,) = take(consumer, 1)
            waiting.wait()
