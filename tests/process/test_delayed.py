"""Tests of delayed publishing on a real broker: the messages are durable at once, arrive once and
never early, and can be listed and cancelled. This also holds with kills.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator
from functools import partial

import pytest
from support.broker import Broker, kill, wait_for

import zsq
import zsq.aio

S = 1_000_000_000


@pytest.fixture
def producer(own_broker: Broker) -> Iterator[zsq.Producer]:
    with zsq.Producer(own_broker.ipc, timeout=60) as one:
        yield one


@pytest.fixture
def admin(own_broker: Broker) -> Iterator[zsq.Admin]:
    with zsq.Admin(own_broker.ipc, timeout=60) as one:
        yield one


def take(broker: Broker, count: int, channel: str = "c") -> list[tuple[int, bytes, int, int]]:
    """Return (time received, body, timestamp, offset) of the next messages."""
    found = []
    with zsq.Consumer("t", channel, url=broker.ipc) as consumer:
        for message in consumer:
            found.append((time.time_ns(), message.body, message.timestamp_ns, message.offset))
            message.finish()
            if len(found) == count:
                return found
    return found


def topic_stats(admin: zsq.Admin) -> dict[str, int]:
    found: dict[str, int] = admin.stats("t")["topics"][0]
    return found


def moved_more_than(admin: zsq.Admin, count: int) -> bool:
    return topic_stats(admin)["head"] > count


def stored_times(broker: Broker) -> list[int]:
    """Return the times at which the messages were written to the log."""
    with zsq.Reader("t", url=broker.ipc) as reader:
        return [block.header.time_ns for block in reader.read(0).blocks for _ in range(block.count)]


def test_delayed_messages_come_by_due_time_and_never_early(
    own_broker: Broker, producer: zsq.Producer, admin: zsq.Admin
) -> None:
    admin.create_channel("t", "c")
    began = time.time_ns()
    late = producer.publish("t", b"late", delay=1.5, key="k")
    soon = producer.publish("t", b"soon", delay=0.5)
    producer.publish("t", b"now")
    assert late.delayed_key is not None
    assert soon.delayed_keys() == [soon.delayed_key]
    assert late.offset == soon.offset == -1
    assert topic_stats(admin)["delayed_count"] == 2
    found = take(own_broker, 3)
    assert [body for _, body, _, _ in found] == [b"now", b"soon", b"late"]
    assert [offset for *_, offset in found] == [0, 1, 2]
    for (received, _, timestamp, _), stored, delay in zip(
        found[1:], stored_times(own_broker)[1:], (0.5, 1.5), strict=True
    ):
        assert received - began >= delay * S, "early"
        assert stored - began >= delay * S, "under a time before it was due"
        assert received - began < (delay + 10) * S
        assert began <= timestamp < began + 0.5 * S, "a message tells when it was published"
    wait_for(lambda: topic_stats(admin)["delayed_count"] == 0, 30, "an empty store")
    assert topic_stats(admin)["delayed_moved"] == 2


def test_delayed_messages_are_listed_counted_and_cancelled(
    own_broker: Broker, producer: zsq.Producer, admin: zsq.Admin
) -> None:
    assert admin.create_topic("t") == {"existed": False}
    assert admin.delayed_count("t")["messages"] == 0
    assert admin.delayed_list("t") == []
    assert admin.delayed_cancel("t", ["0" * 32]) == [False]
    keys = producer.publish_many(
        "t", [b"a" * 300, b"b", b"c"], tags=["x", None, None], delay=3600
    ).delayed_keys()
    other = producer.publish("t", b"d", delay=1800).delayed_key
    assert other is not None
    listed = admin.delayed_list("t")
    assert [one["delayed_key"] for one in listed] == [other, *keys]
    assert (listed[1]["size"], len(listed[1]["body"]), listed[1]["tag"]) == (300, 200, b"x")
    assert [one["delayed_key"] for one in admin.delayed_list("t", after=keys[0], count=1)] == [
        keys[1]
    ]
    count = admin.delayed_count("t")
    assert (count["messages"], count["next_due_ns"]) == (4, int(other[:16], 16))
    assert admin.delayed_cancel("t", [keys[1], keys[1], other]) == [True, False, True]
    assert [one["delayed_key"] for one in admin.delayed_list("t")] == [keys[0], keys[2]]
    with pytest.raises(zsq.Refused, match="E_NOT_EMPTY"):
        admin.delete_topic("t")
    assert admin.delayed_cancel_all("t") == 2
    assert admin.delayed_count("t")["messages"] == 0
    with pytest.raises(zsq.UsageError):
        admin.delayed_cancel("t", ["xyz"])
    admin.delete_topic("t")


def test_delayed_messages_work_with_asyncio_over_tcp(own_broker: Broker) -> None:
    async def main() -> None:
        async with (
            zsq.aio.Producer(own_broker.tcp) as producer,
            zsq.aio.Admin(own_broker.tcp) as admin,
        ):
            receipt = await producer.publish("t", b"x", delay=3600)
            many = await producer.publish_many("t", [b"y", b"z"], delay=3600)
            assert [one["delayed_key"] for one in await admin.delayed_list("t")] == [
                receipt.delayed_key,
                *many.delayed_keys(),
            ]
            assert (await admin.delayed_count("t"))["messages"] == 3
            assert await admin.delayed_cancel("t", [receipt.delayed_key or ""]) == [True]
            assert await admin.delayed_cancel_all("t") == 2
            lingering = zsq.aio.Producer(own_broker.tcp, linger_ms=60_000)
            sent = await lingering.publish("t", b"w", delay=3600)
            await sent.wait(20)
            assert (await admin.delayed_count("t"))["messages"] == 1, (
                "a delayed message does not linger"
            )
            await lingering.close()

    asyncio.run(main())


@pytest.mark.parametrize("sync", ["always", "interval", "never"])
def test_mixed_with_others_each_comes_once(
    own_broker: Broker, producer: zsq.Producer, admin: zsq.Admin, sync: str
) -> None:
    """The test does not wait for answers, so that plain and delayed blocks are queued behind each
    other.
    """
    admin.create_topic("t", sync=sync)
    admin.create_channel("t", "c")
    receipts = []
    for number in range(300):
        delay = 0.2 + number % 5 / 10 if number % 3 == 0 else None
        receipts.append(
            producer.publish_many(
                "t", [b"%d-%d" % (number, index) for index in range(3)], delay=delay, wait=False
            )
        )
    for receipt in receipts:
        receipt.wait()
    found = take(own_broker, 900)
    assert sorted(body for _, body, _, _ in found) == sorted(
        b"%d-%d" % (number, index) for number in range(300) for index in range(3)
    )
    assert topic_stats(admin)["head"] == 900


@pytest.mark.parametrize("kind", ["topic", "everything"])
def test_delayed_messages_come_once_although_processes_are_killed(
    own_broker: Broker, producer: zsq.Producer, admin: zsq.Admin, kind: str
) -> None:
    """The topic is killed again and again while blocks are moved. Every acknowledged message
    arrives and is in the log once.
    """
    admin.create_channel("t", "c")
    waiting = []
    for number in range(200):
        waiting.append(
            producer.publish_many(
                "t",
                [b"%03d-%d" % (number, index) for index in range(5)],
                delay=1 + number / 100,
                wait=False,
            )
        )
    for receipt in waiting[:150]:
        receipt.wait()
    for turn in range(3):
        wait_for(partial(moved_more_than, admin, turn * 100), 30, "moving")
        actors = own_broker.actors()
        victims = [actor["pid"] for actor in actors if kind in (actor["kind"], "everything")]
        for victim in victims:
            with contextlib.suppress(ProcessLookupError):  # it has followed its supervisor
                kill(victim)
        own_broker.wait_gone(victims)
        if kind == "everything":
            assert own_broker.process is not None
            own_broker.process.wait(40)
            own_broker.start()
            admin.close()
            admin = zsq.Admin(own_broker.ipc, timeout=60)
    for receipt in waiting:
        receipt.wait(60)
    found = take(own_broker, 1000)
    offsets = {offset: body for _, body, _, offset in found}
    assert sorted(offsets) == list(range(1000))
    assert sorted(offsets.values()) == sorted(
        b"%03d-%d" % (number, index) for number in range(200) for index in range(5)
    )
    assert topic_stats(admin)["delayed_count"] == 0
    admin.close()


def test_a_full_topic_refuses_delayed_publishes_and_accepts_due_messages(
    own_broker: Broker, producer: zsq.Producer, admin: zsq.Admin
) -> None:
    """A delayed message that was accepted before moves into the log although the topic is full."""
    admin.create_topic("t", max_bytes=8 << 20, when_full="reject")
    admin.create_channel("t", "c")
    bodies = [bytes(1_000)] * 1_000
    early = producer.publish("t", b"early", delay=3)

    def fill() -> None:
        for _ in range(20):
            producer.publish_many("t", bodies)

    with pytest.raises(zsq.Refused, match="E_TOPIC_FULL"):
        fill()
    full = topic_stats(admin)["head"]
    with pytest.raises(zsq.Refused, match="E_TOPIC_FULL"):
        producer.publish_many("t", bodies, delay=3)
    assert early.delayed_key is not None
    wait_for(partial(moved_more_than, admin, full), 20, "the one that was accepted")
    wait_for(lambda: topic_stats(admin)["delayed_count"] == 0, 30, "an empty store")


def test_a_message_that_became_due_while_stopped_comes_after_the_start(
    own_broker: Broker, producer: zsq.Producer, admin: zsq.Admin
) -> None:
    receipt = producer.publish("t", b"x", delay=1)
    assert receipt.delayed_key is not None
    due_ns = int(receipt.delayed_key[:16], 16)
    assert own_broker.stop() == 0
    wait_for(lambda: time.time_ns() > due_ns, 10, "the due time")
    own_broker.start()
    (message,) = take(own_broker, 1)
    assert message[1] == b"x"


def test_a_storage_that_does_not_answer_the_scan_is_not_killed(
    own_broker: Broker, producer: zsq.Producer, admin: zsq.Admin
) -> None:
    producer.publish("t", b"x", delay=3)
    (storage,) = own_broker.pids("topic")
    os.kill(storage, signal.SIGSTOP)
    try:
        wait_for(
            lambda: b"has not answered the scan" in own_broker.log.read_bytes(), 60, "the warning"
        )
    finally:
        os.kill(storage, signal.SIGCONT)
    assert take(own_broker, 1)[0][1] == b"x"
    assert own_broker.pids("topic") == [storage]
