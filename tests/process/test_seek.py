"""Tests of channels that are moved to other offsets, and of readers that search by time and by
bytes, on real processes.
"""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.broker import Broker, kill, wait_for
from support.stages import TOPIC, bodies_of, write

import zsq
from zsq.transport.client.blocking.stage_writer import StageCommitter

BODIES = bodies_of("m", 1_000)


@pytest.fixture
def consumer(own_broker: Broker) -> zsq.Consumer:
    with zsq.Producer(own_broker.ipc) as producer, zsq.Admin(own_broker.ipc) as admin:
        admin.create_channel(TOPIC, "c")
        for first in range(0, 600, 100):
            producer.publish_many(TOPIC, BODIES[first : first + 100])
        with StageCommitter(TOPIC, url=own_broker.ipc) as committer:
            committer.commit("app", 1, [write(own_broker.ipc, BODIES[600:900], per_block=70)])
        producer.publish_many(TOPIC, BODIES[900:])
    return zsq.Consumer(TOPIC, "c", url=own_broker.ipc, ready=50, heartbeat_ms=1_000)


def take(consumer: zsq.Consumer, count: int) -> list[int]:
    """Finish the next `count` messages. Return their offsets."""
    found = []
    for _ in range(count):
        message = consumer.receive(20)
        assert message is not None
        assert message.body == BODIES[message.offset]
        found.append(message.offset)
        message.finish()
    return found


def drained(consumer: zsq.Consumer) -> list[int]:
    found = []
    while (message := consumer.receive(0.5)) is not None:
        found.append(message.offset)
        message.finish()
    return found


@pytest.mark.parametrize(
    ("offset", "forward", "expected"),
    [
        (0, False, 0),
        (150, False, 150),
        (677, False, 677),  # in the middle of a block that was committed
        (990, False, 990),
        (990, True, 990),
        (10, True, None),
    ],
)
def test_a_channel_goes_on_at_the_offset_it_was_moved_to(
    own_broker: Broker, consumer: zsq.Consumer, offset: int, forward: bool, expected: int | None
) -> None:
    with consumer, zsq.Admin(own_broker.ipc) as admin:
        held = [consumer.receive(20) for _ in range(10)]
        assert take(consumer, 290)[-1] == 299
        if expected is None:
            at = admin.seek(TOPIC, "c", offset, forward=forward)["offset"]
            assert at >= 300
            for message in held:
                assert message is not None
                message.finish(sync=True)
            assert drained(consumer) == list(range(300, 1_000))
            return
        assert admin.seek(TOPIC, "c", offset, forward=forward)["offset"] == expected
        for message in held:
            assert message is not None
            with pytest.raises(zsq.LeaseLost):
                message.finish(sync=True)
        got = drained(consumer)
        before = len(got) - (1_000 - expected)
        assert got[before:] == list(range(expected, 1_000))
        assert got[:before] == list(range(300, 300 + before)), (
            "what lay with the consumer already, or was on its way there"
        )
        assert before <= 100
        row = admin.stats(TOPIC, "c")["topics"][0]["channels"][0]
        assert (row["depth"], row["deferred_count"], row["lost_count"]) == (0, 0, 0)


def test_a_seek_is_durable_when_it_is_answered(own_broker: Broker, consumer: zsq.Consumer) -> None:
    with zsq.Admin(own_broker.ipc) as admin:
        admin.seek(TOPIC, "c", 800)
        for kind in ("channel", "topic"):
            (victim,) = own_broker.pids(kind)
            kill(victim)
            own_broker.wait_gone([victim])
        with consumer:
            assert take(consumer, 200) == list(range(800, 1_000))
            admin.seek(TOPIC, "c", 100)
            assert take(consumer, 900) == list(range(100, 1_000))


def test_an_offset_beyond_the_end_is_refused_unless_it_is_clamped(
    own_broker: Broker, consumer: zsq.Consumer
) -> None:
    with consumer, zsq.Admin(own_broker.ipc) as admin:
        admin.create_channel(TOPIC, "beyond", start=700)
        for forward in (False, True):
            with pytest.raises(
                zsq.UsageError,
                match=(
                    f"offset 1001 is beyond the end of topic '{TOPIC}' at offset 1000: channel "
                    "'beyond' would skip 300 waiting and 0 deferred messages"
                ),
            ):
                admin.seek(TOPIC, "beyond", 1_001, forward=forward)
        with pytest.raises(zsq.UsageError, match="ahead of the broker's clock"):
            admin.seek(TOPIC, "beyond", time.time() + 3600)
        assert admin.stats(TOPIC, "beyond")["topics"][0]["channels"][0]["next_offset"] == 700, (
            "nothing has changed"
        )
        assert admin.seek(TOPIC, "beyond", 5_000, clamp=True) == {"offset": 1_000}
        assert admin.seek(TOPIC, "beyond", 700) == {"offset": 700}
        assert admin.seek(TOPIC, "beyond", time.time() + 3600, clamp=True) == {"offset": 1_000}
        assert admin.seek(TOPIC, "beyond", 1_000) == {"offset": 1_000}, "the end itself"
        assert admin.seek(TOPIC, "beyond", "latest") == {"offset": 1_000}


def test_an_answer_to_an_older_question_is_not_taken_after_a_seek(own_broker: Broker) -> None:
    """The topic's process is stopped during a read. The answer to that read lies after the new
    offset, and must not count as a gap.
    """
    bodies = [b"%06d" % n + bytes(10_000) for n in range(2_000)]
    with (
        zsq.Producer(own_broker.ipc) as producer,
        zsq.Admin(own_broker.ipc) as admin,
        zsq.Consumer("big", "c", url=own_broker.ipc, ready=100, heartbeat_ms=30_000) as consumer,
        ThreadPoolExecutor() as pool,
    ):
        admin.create_channel("big", "c")
        for first in range(0, 2_000, 20):
            producer.publish_many("big", bodies[first : first + 20])
        (storage,) = own_broker.pids("topic")
        message = consumer.receive(20)
        os.kill(storage, signal.SIGSTOP)
        try:
            last = -1
            while message is not None:
                last = message.offset
                message.finish()
                message = consumer.receive(1)
            assert 100 < last < 1_900, "all that the channel held"
            seeking = pool.submit(admin.seek, "big", "c", 5)
            assert consumer.receive(3) is None, "time for the order to reach the channel"
        finally:
            os.kill(storage, signal.SIGCONT)
        assert seeking.result(20)["offset"] == 5
        got = [found.offset for _ in range(50) if (found := consumer.receive(10)) is not None]
        assert got == list(range(5, 55))
        assert admin.stats("big", "c")["topics"][0]["channels"][0]["lost_count"] == 0


def test_a_seek_without_an_existing_channel_is_refused(
    own_broker: Broker, consumer: zsq.Consumer
) -> None:
    with zsq.Admin(own_broker.ipc) as admin, consumer:
        with pytest.raises(zsq.NotFound):
            admin.seek(TOPIC, "nobody", 0)
        with pytest.raises(zsq.UsageError):
            admin.seek(TOPIC, "", 0)


@pytest.mark.parametrize("way", ["ipc", "tcp"])
def test_a_reader_finds_offsets_by_time_and_by_bytes(own_broker: Broker, way: str) -> None:
    url = own_broker.ipc if way == "ipc" else own_broker.tcp
    before_ns = time.time_ns()
    with zsq.Producer(url) as producer, StageCommitter(TOPIC, url=url) as committer:
        producer.publish_many(TOPIC, bodies_of("a", 100, 1_000))
        middle_ns = time.time_ns()
        large = write(url, bodies_of("b", 6_000, 1_000), per_block=50)
        small = write(url, bodies_of("c", 100, 1_000))
        committer.commit("app", 1, [large, small])
        after_ns = time.time_ns()
        producer.publish_many(TOPIC, bodies_of("d", 100, 1_000))
    with zsq.Reader(TOPIC, url=url) as reader, zsq.Admin(url) as admin:
        assert reader.bounds() == (0, 6_300)
        assert reader.uuid() == admin.stats(TOPIC)["topics"][0]["uuid"]
        asked = [0, before_ns, middle_ns, after_ns, time.time_ns()]
        assert [reader.offset_at(at) for at in asked] == [0, 0, 100, 6_200, 6_300]
        whole = reader.measure(0)
        assert 6_300_000 <= whole.bytes <= 7_000_000
        assert whole.offset == 6_300
        part = reader.measure(100, 6_200, max_bytes=1_000_000)
        assert 100 < part.offset < 2_500
        assert reader.measure(6_300).bytes == 0
        assert reader.measure(50, 10).bytes == 0
        at, steps = 0, 0
        while at < 6_300:
            before, at = at, reader.measure(at, max_bytes=500_000).offset
            assert at > before
            steps += 1
        assert 8 <= steps <= 30


def test_a_seek_that_would_skip_all_counts_the_deferred_messages_too(shared: Broker) -> None:
    with (
        zsq.Admin(shared.ipc) as admin,
        zsq.Producer(shared.ipc) as producer,
        zsq.Consumer("far", "c", url=shared.ipc) as consumer,
    ):
        producer.publish_many("far", [b"x"] * 3)
        for _ in range(2):
            message = consumer.receive(20)
            assert message is not None
            message.requeue(delay=600)
        consumer.close()
        wait_for(lambda: row(admin)["deferred_count"] == 2)
        wait_for(lambda: row(admin)["depth"] == 1)
        with pytest.raises(zsq.UsageError, match="would skip 1 waiting and 2 deferred messages"):
            admin.seek("far", "c", 100)
        assert row(admin)["deferred_count"] == 2, "a seek that is refused drops nothing"


def row(admin: zsq.Admin) -> dict[str, Any]:
    return dict(admin.stats("far", "c")["topics"][0]["channels"][0])
