"""Tests of fairness between consumers on a real broker: equal shares, a consumer that stops, and a
consumer with much credit beside one with little.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import pytest
from support.broker import Broker, wait_for

import zsq

MESSAGES = 100_000
BODY = b"x" * 50


@contextlib.contextmanager
def consumers(broker: Broker, *credits: int) -> Iterator[list[zsq.Consumer]]:
    with contextlib.ExitStack() as stack:
        found = [
            stack.enter_context(
                zsq.Consumer("t", "c", url=broker.ipc, ready=ready, heartbeat_ms=60_000)
            )
            for ready in credits
        ]
        for consumer in found:
            consumer.subscribe(20)
        yield found


def publish(producer: zsq.Producer, count: int, block: int) -> None:
    for _ in range(count // block):
        producer.publish_many("t", [BODY] * block, wait=False)
    producer.flush()


def take(consumer: zsq.Consumer, limit: int) -> int:
    """Finish the messages that have arrived, up to `limit`, so that all consumers are
    equally fast.
    """
    count = 0
    while count < limit and (message := consumer.receive(0)) is not None:
        message.finish()
        count += 1
    return count


def rounds(
    producer: zsq.Producer, everybody: Sequence[zsq.Consumer], each: int, limit: int, until: int
) -> list[int]:
    """Publish `each` messages per round and let all consumers work. Return how many messages each
    consumer finished in the end.
    """
    counts = [0] * len(everybody)
    published = quiet = 0
    while sum(counts) < until:
        if published < until and published - sum(counts) < 20 * each:
            publish(producer, each, 100)
            published += each
        worked = [take(consumer, limit) for consumer in everybody]
        counts = [a + b for a, b in zip(counts, worked, strict=True)]
        quiet = 0 if any(worked) else quiet + 1
        assert quiet < 2_000, f"nothing comes any more: {counts}"
        if quiet and (message := everybody[quiet % len(everybody)].receive(0.005)) is not None:
            message.finish()
            counts[quiet % len(everybody)] += 1
    return counts


@pytest.mark.parametrize(
    ("each", "limit"),
    [(2_000, 100), (800, 10_000)],
    ids=["the consumers' speed counts", "the producer's speed counts"],
)
def test_eight_equal_consumers_get_an_eighth_each(broker: Broker, each: int, limit: int) -> None:
    with zsq.Producer(broker.ipc) as producer, consumers(broker, *[300] * 8) as everybody:
        counts = rounds(producer, everybody, each, limit, MESSAGES)
    shares = [count / sum(counts) for count in counts]
    assert all(0.125 * 0.8 < share < 0.125 * 1.2 for share in shares), shares


def test_a_consumer_that_stops_costs_the_others_only_what_it_holds(broker: Broker) -> None:
    with (
        zsq.Producer(broker.ipc) as producer,
        consumers(broker, *[300] * 8) as everybody,
        zsq.Admin(broker.ipc) as admin,
    ):
        stopped = everybody.pop()
        publish(producer, 3_000, 100)
        counts = [0] * 7
        for number, consumer in enumerate(everybody):
            counts[number] += take(consumer, 100)

        def full() -> bool:
            clients = admin.stats("t", "c")["topics"][0]["channels"][0]["clients"]
            return bool(max(client["in_flight_count"] for client in clients) == 300)

        wait_for(full, 30, "the stopped one's credit is used up")
        counts = [
            a + b
            for a, b in zip(
                counts, rounds(producer, everybody, 2_000, 100, 50_000 - 1_000), strict=True
            )
        ]
        assert max(counts) < 1.2 * min(counts), counts
        clients = admin.stats("t", "c")["topics"][0]["channels"][0]["clients"]
        assert min(client["message_count"] for client in clients) == 300
        stopped.close()


def test_much_credit_does_not_starve_little(broker: Broker) -> None:
    """Much credit must not starve little credit, and little credit must not starve much credit. A
    consumer with room is served in each round.
    """
    with zsq.Producer(broker.ipc) as producer, consumers(broker, 2_500, 10) as (large, small):
        publish(producer, MESSAGES, 1_000)
        counts = {large: 0, small: 0}
        waits = 0
        while sum(counts.values()) < MESSAGES - 5_000:
            for consumer in (large, small):
                # The consumer has room, and there are many messages, so one must come.
                message = consumer.receive(5)
                if message is None:
                    waits += 1
                    break
                message.finish()
                counts[consumer] += 1 + take(consumer, 2_500)
        assert waits == 0
        assert counts[small] > 200
        assert counts[large] > counts[small]
