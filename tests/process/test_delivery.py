"""Tests of topics and channels as a user sees them, on real processes: leases, requeues, pauses,
restarts, and lost consumers.
"""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from support.broker import Broker, kill, wait_for
from support.topic_names import topic_name_of

import zsq


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return topic_name_of(request.node.name)


def channel_row(url: str, topic: str, channel: str) -> dict[str, Any]:
    with zsq.Admin(url) as admin:
        return dict(admin.stats(topic, channel)["topics"][0]["channels"][0])


@pytest.mark.smoke
def test_all_parts_of_a_message_arrive(url: str, topic: str) -> None:
    with zsq.Producer(url) as producer, zsq.Consumer(topic, "c", url=url) as consumer:
        before = time.time_ns()
        receipt = producer.publish(
            topic, b"body", key=b"\x00k", tag="t", headers={"n": 1, "s": "text", "b": b"\xff"}
        )
        assert receipt.done
        message = consumer.receive(10)
        assert message is not None
        assert (message.body, message.key, message.tag, message.offset, message.attempts) == (
            b"body",
            b"\x00k",
            "t",
            receipt.offset,
            1,
        )
        assert message.headers == {"n": 1, "s": "text", "b": b"\xff"}
        assert before <= message.timestamp_ns <= time.time_ns()
        message.finish(sync=True)
    assert channel_row(url, topic, "c")["finish_count"] == 1


def test_first_channel_gets_what_waits_and_a_later_one_what_comes_after(
    url: str, topic: str
) -> None:
    with zsq.Producer(url) as producer:
        producer.publish_many(topic, [b"1", b"2"])
        with (
            zsq.Consumer(topic, "first", url=url) as first,
            zsq.Consumer(topic, "later", url=url) as later,
        ):
            with zsq.Admin(url) as admin:
                admin.create_channel(topic, "later")
            wait_for(
                lambda: channel_row(url, topic, "later")["client_count"] == 1,
                30,
                "the second subscription",
            )
            producer.publish(topic, b"3")
            got = [first.receive(10) for _ in range(3)]
            assert [m.body for m in got if m is not None] == [b"1", b"2", b"3"]
            only = later.receive(10)
            assert only is not None
            assert only.body == b"3"


@pytest.mark.smoke
def test_a_requeued_message_comes_at_once_or_after_its_delay(url: str, topic: str) -> None:
    with zsq.Producer(url) as producer, zsq.Consumer(topic, "c", url=url) as consumer:
        producer.publish_many(topic, [b"now", b"later"])
        for _ in range(2):
            message = consumer.receive(10)
            assert message is not None
            asked = time.monotonic()
            message.requeue(delay=0.0 if message.body == b"now" else 0.7)
        first, second = consumer.receive(10), consumer.receive(10)
        assert first is not None
        assert second is not None
        assert (first.body, first.attempts, second.body, second.attempts) == (
            b"now",
            2,
            b"later",
            2,
        )
        assert 0.7 <= time.monotonic() - asked < 1.7
        assert channel_row(url, topic, "c")["requeue_count"] == 2


def test_a_consumer_can_change_its_ready_count_and_keep_what_it_holds(url: str, topic: str) -> None:
    with (
        zsq.Producer(url) as producer,
        zsq.Consumer(topic, "c", url=url, ready=1) as consumer,
    ):
        producer.publish_many(topic, [b"1", b"2", b"3", b"4"])
        first = consumer.receive(10)
        assert first is not None
        consumer.set_ready(3)
        second, third = consumer.receive(10), consumer.receive(10)
        assert second is not None
        assert third is not None
        consumer.set_ready(0)
        first.finish(sync=True)
        second.finish(sync=True)
        assert consumer.receive(0.3) is None
        third.finish(sync=True)
        consumer.set_ready(1)
        fourth = consumer.receive(10)
        assert fourth is not None
        assert [one.body for one in (first, second, third, fourth)] == [b"1", b"2", b"3", b"4"]


def test_a_thread_that_receives_for_others_misses_no_delivery(url: str, topic: str) -> None:
    """One thread receives and another one finishes, as in the integrations of task queues."""
    count = 2_000
    arrived: queue.SimpleQueue[zsq.Message] = queue.SimpleQueue()
    with (
        zsq.Producer(url) as producer,
        zsq.Consumer(topic, "c", url=url, ready=4, heartbeat_ms=60_000) as consumer,
    ):
        producer.publish_many(topic, [b"x"] * count)

        def receive() -> None:
            while (message := consumer.receive()) is not None:
                arrived.put(message)

        receiver = threading.Thread(target=receive)
        receiver.start()
        for _ in range(count):
            arrived.get(timeout=10).finish()
        consumer.close()
        receiver.join(10)
        assert not receiver.is_alive()


@pytest.mark.parametrize("kind", [zsq.Consumer, zsq.aio.Consumer])
def test_a_ready_count_has_bounds(kind: Any, url: str) -> None:
    consumer = kind("t", "c", url=url)
    with pytest.raises(zsq.UsageError, match="ready must be 0 to 100000, not -1"):
        consumer.set_ready(-1)
    with pytest.raises(zsq.UsageError, match="ready must be 1 to 100000, not 0"):
        kind("t", "c", url=url, ready=0)


def test_timeout_gives_the_message_to_another_and_the_old_lease_changes_nothing(
    url: str, topic: str
) -> None:
    with (
        zsq.Producer(url) as producer,
        zsq.Consumer(topic, "c", url=url, message_timeout=1.0, ready=1) as slow,
        zsq.Consumer(topic, "c", url=url, ready=1) as other,
    ):
        wait_for(
            lambda: (
                channel_row(url, topic, "c")["client_count"] == 2 if _exists(url, topic) else False
            ),
            30,
            "two consumers",
        )
        producer.publish_many(topic, [b"1", b"2"])
        mine, theirs = slow.receive(10), other.receive(10)
        assert mine is not None
        assert theirs is not None
        theirs.finish(sync=True)
        assert mine.leased
        again = other.receive(10)  # after a second the scan ends the lease of the slow consumer
        assert again is not None
        assert (again.body, again.attempts) == (mine.body, 2)
        assert (mine.leased, again.leased) == (False, True)
        with pytest.raises(zsq.LeaseLost):
            mine.finish(sync=True)
        row = channel_row(url, topic, "c")
        assert row["timeout_count"] == 1
        assert row["in_flight_count"] == 1
        again.finish(sync=True)


def _exists(url: str, topic: str) -> bool:
    with zsq.Admin(url) as admin:
        return any(
            row["topic_name"] == topic and row["channels"] for row in admin.stats()["topics"]
        )


def test_touch_keeps_the_lease(url: str, topic: str) -> None:
    with (
        zsq.Producer(url) as producer,
        zsq.Consumer(topic, "c", url=url, message_timeout=1.0) as consumer,
    ):
        producer.publish(topic, b"long work")
        message = consumer.receive(10)
        assert message is not None
        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            message.touch()
            assert consumer.receive(0.3) is None
        message.finish(sync=True)
        assert channel_row(url, topic, "c")["timeout_count"] == 0


@pytest.mark.smoke
def test_batches_finish_by_range(url: str, topic: str) -> None:
    with zsq.Producer(url) as producer, zsq.Consumer(topic, "c", url=url, ready=5_000) as consumer:
        producer.publish_many(topic, [b"%d" % n for n in range(3_000)])
        bodies: list[bytes] = []
        while len(bodies) < 3_000:
            batch = consumer.receive_batch(10)
            assert batch is not None
            bodies += batch.bodies
            batch.finish(sync=True)
        assert bodies == [b"%d" % n for n in range(3_000)]
        row = channel_row(url, topic, "c")
        assert (row["finish_count"], row["in_flight_count"], row["depth"]) == (3_000, 0, 0)


def test_pausing_a_channel_stops_its_deliveries(url: str, topic: str) -> None:
    with (
        zsq.Producer(url) as producer,
        zsq.Consumer(topic, "c", url=url) as consumer,
        zsq.Admin(url) as admin,
    ):
        admin.create_channel(topic, "c")
        admin.pause(topic, "c")
        producer.publish(topic, b"1")
        assert consumer.receive(0.5) is None
        assert channel_row(url, topic, "c")["depth"] == 1
        admin.unpause(topic, "c")
        message = consumer.receive(10)
        assert message is not None
        message.finish(sync=True)


def test_pausing_a_topic_fixes_the_end_that_channels_see(url: str, topic: str) -> None:
    with (
        zsq.Producer(url) as producer,
        zsq.Consumer(topic, "c", url=url) as consumer,
        zsq.Admin(url) as admin,
    ):
        producer.publish(topic, b"1")
        admin.pause(topic)
        producer.publish(topic, b"2")
        first = consumer.receive(10)
        assert first is not None
        assert first.body == b"1"
        assert consumer.receive(0.5) is None
        admin.unpause(topic)
        second = consumer.receive(10)
        assert second is not None
        assert second.body == b"2"


def test_empty_clears_the_backlog(url: str, topic: str) -> None:
    with zsq.Producer(url) as producer, zsq.Admin(url) as admin:
        admin.create_channel(topic, "c")
        producer.publish_many(topic, [b"x"] * 100)
        assert channel_row(url, topic, "c")["depth"] == 100
        admin.empty(topic, "c")
        assert channel_row(url, topic, "c")["depth"] == 0
        producer.publish(topic, b"after")
        with zsq.Consumer(topic, "c", url=url) as consumer:
            message = consumer.receive(10)
            assert message is not None
            assert message.body == b"after"


def test_deleting_with_a_backlog_is_refused_unless_forced_and_offsets_are_never_reused(
    url: str, topic: str
) -> None:
    with zsq.Producer(url) as producer, zsq.Admin(url) as admin:
        admin.create_channel(topic, "c")
        producer.publish_many(topic, [b"x"] * 5)
        with pytest.raises(zsq.Refused, match="not finished"):
            admin.delete_channel(topic, "c")
        with pytest.raises(zsq.Refused, match="not finished"):
            admin.delete_topic(topic)
        assert admin.ended(topic) is None
        admin.delete_topic(topic, force=True)
        with pytest.raises(zsq.NotFound):
            admin.stats(topic)
        assert admin.ended(topic) == 5
    with zsq.Producer(url) as producer:
        assert producer.publish(topic, b"again").offset == 5


def test_a_killed_consumers_messages_go_to_others(shared: Broker, url: str, topic: str) -> None:
    code = (
        "import sys, zsq\n"
        "c = zsq.Consumer(sys.argv[2], 'c', url=sys.argv[1], heartbeat_ms=1000)\n"
        "m = c.receive(20)\n"
        "print(m.offset, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with zsq.Producer(url) as producer:
        producer.publish(topic, b"precious")
        victim = subprocess.Popen(
            [sys.executable, "-c", code, url, topic], stdout=subprocess.PIPE, stdin=subprocess.PIPE
        )
        assert victim.stdout is not None
        assert victim.stdin is not None
        assert victim.stdout.readline().strip() == b"0"
        with zsq.Admin(url) as admin:
            wait_for(
                lambda: admin.peek(topic, "c").counts["in flight"] == 1, 20, "the consumer's report"
            )
        kill(victim.pid)
        victim.wait(40)
        victim.stdout.close()
        victim.stdin.close()
        with zsq.Consumer(topic, "c", url=url) as consumer:
            # After two missed heartbeats, and not only after the message timeout of 60 s.
            message = consumer.receive(15)
            assert message is not None
            assert (message.body, message.attempts) == (b"precious", 2)
            message.finish(sync=True)


@pytest.mark.parametrize("sync", ["always", "interval", "never"])
def test_a_clean_restart_keeps_all(tmp_path: Path, sync: str) -> None:
    with Broker(tmp_path / "data") as broker:
        with zsq.Admin(broker.ipc) as admin:
            admin.create_topic("t", sync=sync)
            admin.create_channel("t", "c")
            admin.create_channel("t", "paused")
            admin.pause("t", "paused")
        with (
            zsq.Producer(broker.ipc) as producer,
            zsq.Consumer("t", "c", url=broker.ipc, ready=10) as consumer,
        ):
            producer.publish_many("t", [b"%d" % n for n in range(100)])
            for n in range(10):
                message = consumer.receive(10)
                assert message is not None
                if n == 4:
                    message.requeue(delay=3600)
                else:
                    message.finish()
        counts = itemgetter("depth", "deferred_count", "finish_count")
        # The channel learns a moment later that the consumer has ended. Then the messages that the
        # consumer held are waiting again.
        wait_for(
            lambda: counts(channel_row(broker.ipc, "t", "c")) == (90, 1, 9),
            20,
            "what the consumer held",
        )
        assert broker.stop() == 0
        broker.start()
        assert counts(channel_row(broker.ipc, "t", "c")) == (90, 1, 9)
        assert channel_row(broker.ipc, "t", "paused")["paused"] is True
        with zsq.Consumer("t", "c", url=broker.ipc) as consumer:
            bodies = []
            for _ in range(90):
                message = consumer.receive(10)
                assert message is not None
                bodies.append(message.body)
                message.finish()
            assert sorted(bodies, key=int) == [b"%d" % n for n in range(10, 100)]


def test_a_disconnected_consumers_messages_go_to_others_at_once_and_it_comes_back(
    url: str, topic: str
) -> None:
    with (
        zsq.Producer(url) as producer,
        zsq.Admin(url) as admin,
        zsq.Consumer(topic, "c", url=url, ready=2, label="stuck") as stuck,
    ):
        producer.publish_many(topic, [b"0", b"1"])
        held = [stuck.receive(10) for _ in range(2)]
        with zsq.Consumer(topic, "c", url=url, ready=2, label="nobody 2") as other:
            wait_for(lambda: channel_row(url, topic, "c")["client_count"] == 2, what="both")
            with pytest.raises(zsq.NotFound, match="has no consumer 'nobody'"):
                admin.disconnect(topic, "c", "nobody")
            assert admin.disconnect(topic, "c", "stuck") == {"count": 1}
            found = [other.receive(10) for _ in range(2)]
            assert sorted((one.body, one.attempts) for one in found if one is not None) == [
                (b"0", 1),
                (b"1", 1),
            ]
            with pytest.raises(zsq.LeaseLost):
                held[0].finish(sync=True)  # type: ignore[union-attr]
            for one in found:
                assert one is not None
                one.finish(sync=True)
            wait_for(
                lambda: channel_row(url, topic, "c")["client_count"] == 2, what="that it is back"
            )
        producer.publish(topic, b"2")
        again = stuck.receive(10)
        assert again is not None
        assert (again.body, again.attempts) == (b"2", 1)
