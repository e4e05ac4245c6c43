"""Tests of dead letters on a real broker: after too many attempts, by rejection, while their topic
accepts no messages, and with kills.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.broker import Broker, kill, wait_for

import zsq


def row(broker: Broker, topic: str = "t", channel: str = "c") -> dict[str, Any]:
    with zsq.Admin(broker.ipc) as admin:
        found: dict[str, Any] = admin.stats(topic, channel)["topics"][0]["channels"][0]
        return found


def dead(broker: Broker, count: int) -> None:
    wait_for(
        lambda: row(broker)["dead_letter_count"] == count and row(broker)["dying_count"] == 0,
        20,
        f"{count} dead letters",
    )


def read(broker: Broker, topic: str = "t.c.dead") -> list[tuple[bytes, dict[str, Any]]]:
    """Return all messages of the dead-letter topic."""
    with zsq.Reader(topic, url=broker.ipc) as reader:
        start, head = reader.bounds()
        found = [reader.message(offset) for offset in range(start, head)]
        return [(message.body, message.headers) for message in found]


def publish(broker: Broker, count: int) -> None:
    with zsq.Producer(broker.ipc) as producer:
        producer.publish_many(
            "t", [b"%d" % i for i in range(count)], headers=[{"own": i} for i in range(count)]
        )


def take(consumer: zsq.Consumer, count: int) -> list[zsq.Message]:
    found = [consumer.receive(10) for _ in range(count)]
    assert all(found)
    return [message for message in found if message is not None]


@pytest.mark.smoke
def test_messages_that_a_handler_gives_up_become_dead_letters(broker: Broker) -> None:
    publish(broker, 4)
    consumer = zsq.Consumer("t", "c", url=broker.ipc, max_attempts=3, backoff_s=0.05)
    seen: Counter[bytes] = Counter()

    def handle(message: zsq.Message) -> None:
        seen[message.body] += 1
        if message.body == b"1":
            message.reject(ValueError("poison"))
        elif message.body == b"2":
            if seen[b"2"] == 3:
                consumer._stop_taking()
            raise KeyError("k")

    consumer.run(handle, on_error=lambda message, error: None)
    assert seen == {b"0": 1, b"1": 1, b"2": 3, b"3": 1}
    dead(broker, 2)
    letters = dict(read(broker))
    told = {name.removeprefix("zsq-dead-"): value for name, value in letters[b"2"].items()}
    assert told.pop("time") > 1e18
    assert told.pop("consumer")
    assert str(told.pop("traceback")).endswith("KeyError: 'k'")
    with zsq.Admin(broker.ipc) as admin:
        uuid = admin.stats("t")["topics"][0]["uuid"]
    where = {"topic": "t", "uuid": uuid, "offset": 2, "channel": "c"}
    assert told == {
        "own": 2,
        **where,
        "attempts": 3,
        "reason": "max_attempts",
        "error": "KeyError('k')",
    }
    assert (letters[b"1"]["zsq-dead-reason"], letters[b"1"]["zsq-dead-error"]) == (
        "rejected",
        "ValueError('poison')",
    )
    assert row(broker)["depth"] == 0


def test_attempts_count_over_kills_and_a_restart(tmp_path: Path) -> None:
    """Each kill of the channel uses an attempt of what was begun. A message that has used its last
    attempt becomes a dead letter when the channel runs again, even without a consumer.
    """
    with Broker(tmp_path / "data") as broker:
        publish(broker, 3)
        with zsq.Consumer("t", "c", url=broker.ipc, max_attempts=2) as consumer:
            # This commit also stores rows for the other two messages.
            take(consumer, 3)[0].finish(sync=True)
            kill_when_begun(broker)
            again = take(consumer, 2)
            assert sorted((message.body, message.attempts) for message in again) == [
                (b"1", 2),
                (b"2", 2),
            ]
            kill_when_begun(broker)
            wait_for(lambda: row(broker).get("dead_letter_count") == 2, 20, "dead letters")
        assert sorted(body for body, _ in read(broker)) == [b"1", b"2"]
        assert broker.stop() == 0
        broker.start()
        wait_for(lambda: row(broker)["health"] == "OK", 30, "up")
        assert (row(broker)["dead_letter_count"], row(broker)["depth"], len(read(broker))) == (
            2,
            0,
            2,
        ), "once"


def kill_when_begun(broker: Broker) -> None:
    """Kill the channel when the attempts of two messages are on disk."""
    with zsq.Admin(url=broker.ipc) as admin:
        wait_for(lambda: admin.peek("t", "c").counts["in flight"] == 2, 20, "that both are begun")
        admin.unpause("t", "c")  # this is answered after a commit
    kill(channel_pid(broker))


def channel_pid(broker: Broker, name: str = "channel t/c") -> int:
    found: list[int] = []

    def up() -> bool:
        found[:] = [
            actor["pid"]
            for actor in broker.actors()
            if actor["name"] == name and actor.get("state") == "up"
        ]
        return bool(found)

    wait_for(up, 20, name)
    return found[0]


def fill(broker: Broker, topic: str) -> None:
    """Publish until not even a small message fits."""
    with zsq.Producer(broker.ipc) as producer:
        for size in (1 << 20, 1_000):
            with contextlib.suppress(zsq.Refused) if size > 1_000 else contextlib.nullcontext():
                while True:
                    producer.publish(topic, b"x" * size)


def test_a_full_dead_letter_topic_is_waited_for_and_said(own_broker: Broker) -> None:
    with zsq.Admin(own_broker.ipc) as admin:
        admin.create_topic("full", max_bytes=8 << 20, when_full="reject")
        admin.create_channel("full", "keeps")
        with pytest.raises(zsq.Refused, match="E_TOPIC_FULL"):
            fill(own_broker, "full")
        publish(own_broker, 51)
        with zsq.Consumer("t", "c", url=own_broker.ipc, dead_letter_topic="full") as consumer:
            *rejected, last = take(consumer, 51)
            for message in rejected:
                message.reject()
            last.finish(sync=True)  # with this commit the rejections are durable
        wait_for(lambda: "E_TOPIC_FULL" in row(own_broker)["health"], 20, "health")
        assert row(own_broker)["health"].startswith(
            "50 messages wait for the dead-letter topic: E_TOPIC_FULL"
        )
        assert (row(own_broker)["dying_count"], row(own_broker)["dead_letter_count"]) == (50, 0)
        with pytest.raises(zsq.ZsqError, match="E_NOT_EMPTY"):
            admin.delete_channel("t", "c")
        kill(channel_pid(own_broker))
        wait_for(
            lambda: row(own_broker)["dying_count"] == 50,
            20,
            "rejected is rejected, after a kill too",
        )
        admin.configure_topic("full", max_bytes=-1)
        dead(own_broker, 50)
        wait_for(lambda: row(own_broker)["health"] == "OK", 30, "health")
        letters = [
            headers for _, headers in read(own_broker, "full") if "zsq-dead-reason" in headers
        ]
        assert Counter(headers["own"] for headers in letters) == Counter(range(50))
        assert {headers["zsq-dead-reason"] for headers in letters} == {"rejected"}
        assert "not known" in letters[0]["zsq-dead-error"]


def test_another_dead_letter_topic_is_taken_at_once(broker: Broker) -> None:
    """The default name would be too long. The dead letters wait until a setting names another
    topic.
    """
    name = "t" * 60
    with zsq.Producer(broker.ipc) as producer, zsq.Admin(broker.ipc) as admin:
        producer.publish(name, b"a")
        with zsq.Consumer(name, "c", url=broker.ipc) as consumer:
            take(consumer, 1)[0].reject("no")
            wait_for(lambda: "set dead_letter_topic" in row(broker, name)["health"], 30, "health")
            admin.configure_channel(name, "c", dead_letter_topic="graves")
            wait_for(lambda: row(broker, name)["dead_letter_count"] == 1, 30, "a dead letter")
        assert [body for body, _ in read(broker, "graves")] == [b"a"]


@pytest.mark.parametrize("kind", ["channel t/c", "topic t.c.dead"])
def test_kills_during_the_move_of_dead_letters_lose_none(own_broker: Broker, kind: str) -> None:
    count = 3_000
    publish(own_broker, count)
    with zsq.Consumer("t", "c", url=own_broker.ipc, ready=50) as consumer:
        for stored in (1, count // 2):
            wait_for(
                lambda stored=stored: reject(own_broker, consumer)["dead_letter_count"] >= stored,  # type: ignore[misc]
                30,
                "letters",
            )
            kill(channel_pid(own_broker, kind))
        wait_for(lambda: reject(own_broker, consumer)["unfinished"] == 0, 60, "all dead")
    found = Counter(body for body, _ in read(own_broker))
    assert set(found) == {b"%d" % i for i in range(count)}
    assert kind == "channel t/c" or set(found.values()) == {1}, "a resend stores nothing twice"


def reject(broker: Broker, consumer: zsq.Consumer) -> dict[str, Any]:
    """Reject the messages that wait and those that are delivered again. Then return the channel's
    statistics.
    """
    for _ in range(10):
        batch = consumer.receive_batch(0.01)
        if batch is None:
            break
        for message in batch:
            message.reject("all of them")
    found = row(broker)
    left = (
        found["depth"] + found["in_flight_count"] + found["dying_count"]
        if found["health"] != "starting"
        else -1
    )
    return {"dead_letter_count": 0, **found, "unfinished": left}


def test_ten_thousand_rejected_messages_all_become_dead_letters(own_broker: Broker) -> None:
    """The messages are sent in blocks, and the channel needs little memory."""
    publish(own_broker, 10_000)
    with zsq.Consumer("t", "c", url=own_broker.ipc, ready=10_000) as consumer:
        left = 10_000
        while left:
            batch = consumer.receive_batch(10)
            assert batch is not None
            batch.reject("all")
            left -= len(batch)
        dead(own_broker, 10_000)
    with zsq.Reader("t.c.dead", url=own_broker.ipc) as reader:
        assert reader.bounds() == (0, 10_000)


def test_the_brokers_backoff_doubles_and_follows_the_setting(broker: Broker) -> None:
    publish(broker, 1)
    with (
        zsq.Admin(broker.ipc) as admin,
        zsq.Consumer("t", "c", url=broker.ipc, backoff_s=0.2, backoff_max_s=0.4) as consumer,
    ):
        pauses = []
        for _ in range(4):
            (message,) = take(consumer, 1)
            message.requeue(backoff=True)
            begin = time.monotonic()
            (message,) = take(consumer, 1)
            pauses.append(time.monotonic() - begin)
            if len(pauses) == 3:
                admin.configure_channel("t", "c", backoff_s=2.0, backoff_max_s=2.0)
            message.requeue()
        assert [
            pause >= shortest for pause, shortest in zip(pauses, (0.2, 0.4, 0.4, 2.0), strict=True)
        ] == [True] * 4, pauses
        assert pauses[0] < 2.0


def test_in_an_ordered_channel_what_follows_waits_for_the_letter(broker: Broker) -> None:
    with zsq.Producer(broker.ipc) as producer:
        producer.publish_many("t", [b"0", b"1", b"2"], keys=[b"k"] * 3)
    with zsq.Consumer("t", "c", url=broker.ipc, ordered=True, max_attempts=2) as consumer:
        for attempts in (1, 2):
            (message,) = take(consumer, 1)
            assert (message.body, message.attempts) == (b"0", attempts)
            message.requeue(error="no")
        (message,) = take(consumer, 1)
        assert message.body == b"1"
        assert [body for body, _ in read(broker)] == [b"0"], (
            "it is there before the next one is handed out"
        )
        message.reject()
        (message,) = take(consumer, 1)
        assert message.body == b"2"
        message.finish(sync=True)
    dead(broker, 2)


def test_an_impossible_dead_letter_name_is_refused_when_it_is_set(broker: Broker) -> None:
    """The default dead-letter name would be too long, so the channel needs a dead_letter_topic. A
    consumer of an existing channel does not have to repeat that setting.
    """
    name = "t" * 60
    with zsq.Admin(broker.ipc) as admin:
        admin.create_topic("t")
        admin.create_topic(name)
        with pytest.raises(zsq.UsageError, match="set dead_letter_topic"):
            admin.create_channel(name, "c", max_attempts=5)
        with (
            pytest.raises(zsq.UsageError, match="set dead_letter_topic"),
            zsq.Consumer(name, "c", url=broker.ipc, max_attempts=5) as consumer,
        ):
            consumer.receive(timeout=20)
        admin.create_channel(name, "c", max_attempts=5, dead_letter_topic="graves")
        with zsq.Consumer(name, "c", url=broker.ipc, max_attempts=5) as consumer:
            assert consumer.receive(timeout=0.1) is None
        with pytest.raises(zsq.UsageError, match="set dead_letter_topic"):
            admin.configure_channel(name, "c", dead_letter_topic=None)
        admin.create_channel("t", "c")
        with pytest.raises(zsq.UsageError, match="cannot go to itself"):
            admin.configure_channel("t", "c", dead_letter_topic="t")


def test_a_topic_in_memory_is_refused_for_a_durable_channel(broker: Broker) -> None:
    """The setting is refused when a channel is created with it, by an order or by a consumer, and
    when the channel is configured.
    """
    publish(broker, 1)
    lost: dict[str, Any] = {"dead_letter_topic": "d#ephemeral"}
    with zsq.Admin(broker.ipc) as admin:
        with pytest.raises(zsq.UsageError, match="name a topic on disk"):
            admin.create_channel("t", "c", **lost)
        with (
            pytest.raises(zsq.UsageError, match="name a topic on disk"),
            zsq.Consumer("t", "c", url=broker.ipc, **lost),
        ):
            pass
        assert not admin.stats("t")["topics"][0]["channels"]
        admin.create_channel("t", "c")
        with pytest.raises(zsq.UsageError, match="name a topic on disk"):
            admin.configure_channel("t", "c", **lost)
        assert row(broker)["settings"]["dead_letter_topic"] == ""
    with zsq.Consumer("t", "e#ephemeral", url=broker.ipc, start="earliest", **lost) as consumer:
        take(consumer, 1)[0].reject("no")
        wait_for(
            lambda: row(broker, channel="e#ephemeral")["dead_letter_count"] == 1,
            20,
            "the dead letter",
        )
    assert [body for body, _ in read(broker, "d#ephemeral")] == [b"0"]
