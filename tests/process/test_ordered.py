"""Tests of ordered channels on real processes: parallel consumers get the messages of each key in
order and one at a time, also with kills.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter, defaultdict

import pytest
from support.broker import Broker, kill, wait_for

import zsq


class Books:
    """A record of what handlers received: for each key the numbers in the order in which their
    handlers began, and whether two handlers of one key ever ran at the same time.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.seen: defaultdict[bytes, list[int]] = defaultdict(list)
        self.running: Counter[bytes] = Counter()
        self.overlaps: list[bytes] = []
        self.finished: set[bytes] = set()
        self.failed: set[bytes] = set()

    def handle(self, message: zsq.Message) -> None:
        key = message.key or b""
        with self.lock:
            self.seen[key].append(int(message.body))
            self.running[key] += 1
            if self.running[key] > 1:
                self.overlaps.append(key)
        try:
            with self.lock:
                if int(message.body) % 17 == 3 and message.body not in self.failed:
                    self.failed.add(message.body)
                    raise RuntimeError("on purpose")
                self.finished.add(message.body)
        finally:
            with self.lock:
                self.running[key] -= 1


def publish(broker: Broker, topic: str, keys: int, count: int) -> None:
    with zsq.Producer(broker.ipc) as producer:
        for at in range(0, count, 100):
            numbers = range(at, min(at + 100, count))
            producer.publish_many(
                topic, [b"%d" % n for n in numbers], keys=[b"k%d" % (n % keys) for n in numbers]
            )


def serve(broker: Broker, topic: str, books: Books, count: int) -> list[threading.Thread]:
    """Start `count` consumers with two handler threads each. They end when `stop_all`
    closes them.
    """
    consumers = [
        zsq.Consumer(topic, "c", url=broker.ipc, ready=50, ordered=True) for _ in range(count)
    ]
    work = {
        "concurrency": 2,
        "requeue_delay": 0.05,
        "on_error": lambda message, error: None,
        "signals": False,
    }
    threads = [
        threading.Thread(target=one.run, args=(books.handle,), kwargs=work, daemon=True)
        for one in consumers
    ]
    for thread, one in zip(threads, consumers, strict=True):
        thread.consumer = one  # type: ignore[attr-defined]
        thread.start()
    return threads


def stop_all(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.consumer.close()  # type: ignore[attr-defined]
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def firsts(numbers: list[int]) -> list[int]:
    """Return each number once, in the order of its first appearance."""
    return list(dict.fromkeys(numbers))


def test_each_key_comes_in_its_order_one_at_a_time(broker: Broker) -> None:
    """The order also holds if handlers fail and their messages are delivered again after a
    delay.
    """
    with zsq.Admin(broker.ipc) as admin:
        admin.create_topic("t")
        admin.create_channel("t", "c", ordered=True)
    publish(broker, "t", 20, 1_500)
    books = Books()
    threads = serve(broker, "t", books, 4)
    wait_for(lambda: len(books.finished) == 1_500, 60, "all finished")
    stop_all(threads)
    assert not books.overlaps
    for key, numbers in books.seen.items():
        assert numbers == sorted(numbers), f"{key!r} came out of its order"
    assert len(books.failed) == len([n for n in range(1_500) if n % 17 == 3])
    assert sum(map(len, books.seen.values())) == 1_500 + len(books.failed), (
        "each that failed came twice, all others once"
    )


@pytest.mark.parametrize("kind", ["channel", "topic"])
def test_order_holds_over_kills(own_broker: Broker, kind: str) -> None:
    """Messages whose finish was not confirmed are delivered again, and so may be those after them.
    But no message is delivered for the first time before an older one.
    """
    with zsq.Admin(own_broker.ipc) as admin:
        admin.create_topic("t")
        admin.create_channel("t", "c", ordered=True)
    publish(own_broker, "t", 20, 6_000)
    books = Books()
    threads = serve(own_broker, "t", books, 3)
    for share in (1_000, 2_500, 4_000):
        wait_for(lambda share=share: len(books.finished) >= share, 60, f"{share} finished")  # type: ignore[misc]
        for pid in own_broker.pids(kind):
            kill(pid)
    wait_for(lambda: len(books.finished) == 6_000, 60, "all finished")
    stop_all(threads)
    for key, numbers in books.seen.items():
        assert firsts(numbers) == sorted(set(numbers)), f"{key!r} came out of its order"
        for before, after in itertools.pairwise(numbers):
            assert after <= before or after == before + 20, f"{key!r}: {after} came after {before}"


def test_a_delayed_requeue_blocks_its_key_over_a_kill_and_no_other(own_broker: Broker) -> None:
    with (
        zsq.Producer(own_broker.ipc) as producer,
        zsq.Consumer("t", "c", url=own_broker.ipc, ordered=True) as consumer,
    ):
        producer.publish_many(
            "t", [b"a1", b"b1", b"a2", b"b2", b"c1"], keys=[b"a", b"b", b"a", b"b", None]
        )
        first = consumer.receive(10)
        assert first is not None
        assert first.body == b"a1"
        due = time.time() + 4
        first.requeue(delay=4)
        bodies: list[bytes] = []
        while len(bodies) < 3:
            message = consumer.receive(10)
            assert message is not None
            bodies.append(message.body)
            message.finish(sync=True)
        assert sorted(bodies) == [b"b1", b"b2", b"c1"]
        assert bodies.index(b"b1") < bodies.index(b"b2")
        for pid in own_broker.pids("channel"):
            kill(pid)
        for body, attempts in ((b"a1", 2), (b"a2", 1)):
            message = consumer.receive(20)
            assert message is not None
            assert (message.body, message.attempts) == (body, attempts)
            assert time.time() > due - 0.01
            message.finish(sync=True)
        assert consumer.receive(0.2) is None


def test_a_message_that_is_held_stops_its_key_and_no_other(broker: Broker) -> None:
    """The statistics name the messages that wait behind it."""
    with (
        zsq.Producer(broker.ipc) as producer,
        zsq.Consumer("t", "c", url=broker.ipc, ready=1, ordered=True) as holder,
    ):
        producer.publish("t", b"0", key=b"hot")
        held = holder.receive(10)
        assert held is not None
        publish_hot = [b"%d" % i for i in range(1, 501)]
        producer.publish_many(
            "t", publish_hot, keys=[b"hot" if i % 2 else b"k%d" % i for i in range(1, 501)]
        )
        with (
            zsq.Consumer("t", "c", url=broker.ipc, ordered=True) as other,
            zsq.Admin(broker.ipc) as admin,
        ):
            others: set[bytes | None] = set()
            while len(others) < 250:
                message = other.receive(10)
                assert message is not None
                assert message.key != b"hot"
                others.add(message.key)
                message.finish()
            wait_for(
                lambda: (
                    admin.stats("t", "c")["topics"][0]["channels"][0].get("parked_count") == 250
                ),
                30,
                "what is parked",
            )
            assert admin.stats("t", "c")["topics"][0]["channels"][0]["depth"] == 250
            held.finish(sync=True)
            # The holder may have received the next message already. That message is delivered
            # again, before all messages behind it.
            holder.close()
            came: list[int] = []
            while len(came) < 250:
                message = other.receive(10)
                assert message is not None
                came.append(int(message.body))
                message.finish()
            assert came == list(range(1, 501, 2))
