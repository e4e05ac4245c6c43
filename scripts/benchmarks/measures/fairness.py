"""Benchmark of fairness and rate limits: the rate of a fair channel beside a plain one, how long
the first message of a new key behind a backlog waits, and the rates of limited channels.
"""

from __future__ import annotations

import time
from typing import Final

from local_setup.broker import LocalBroker
from zsq.transport.client.blocking.client import Admin, Consumer, Producer

from ..harness.crew import Crew
from ..harness.loads import WAIT_S, Shape, drain, make_bodies
from ..harness.report import Report

RATE: Final = "messages/s"
# The topics, and how many messages of a key follow each other.
TOPICS: Final = {"one key": 0, "100 keys, 1000 in a row": 1_000, "100 keys, alternating": 1}
KEYS: Final = 100
WAITS: Final = 20  # new keys whose wait is measured
LIMITS: Final = (100.0, 5_000.0, 50_000.0)
LIMITED_S: Final = 2.0


def fairness(broker: LocalBroker, report: Report, shape: Shape, rounds: int) -> None:
    topics = {name: f"topic{number}" for number, name in enumerate(TOPICS)}
    with Admin(broker.url) as admin:
        for name, topic in topics.items():
            admin.create_channel(topic, "plain")
            admin.create_channel(topic, "fair", fair_by="key")
            _publish(broker, topic, shape, TOPICS[name])
        for number in range(rounds):
            for name, topic in topics.items():
                rates = {}
                for channel in ("plain", "fair") if number % 2 else ("fair", "plain"):
                    admin.seek(topic, channel, "earliest")
                    with Crew() as crew:
                        crew.add(drain, broker.url, topic, channel, shape.messages)
                        begin = crew.go()
                        rates[channel] = shape.messages / (crew.ends()[0] - begin)
                report.add(f"{name}: plain", RATE, rates["plain"])
                report.add(f"{name}: fair", RATE, rates["fair"])
                report.add(f"{name}: fair by plain", "ratio", rates["fair"] / rates["plain"])
            _wait(broker, admin, report, topics["one key"], number)
        for limit in LIMITS:
            _limited(broker, admin, report, topics["one key"], limit)


def _publish(broker: LocalBroker, topic: str, shape: Shape, in_a_row: int) -> None:
    bodies = make_bodies(shape)
    with Producer(broker.url) as producer:
        for at in range(0, shape.messages, shape.block):
            first = at % (len(bodies) - shape.block + 1)
            numbers = range(at, at + shape.block)
            keys = [b"%d" % (n // in_a_row % KEYS if in_a_row else 0) for n in numbers]
            producer.publish_many(topic, bodies[first : first + shape.block], keys=keys, wait=False)
        producer.flush(WAIT_S)


def _wait(broker: LocalBroker, admin: Admin, report: Report, topic: str, number: int) -> None:
    """Measure how long the first messages of new keys behind the whole topic wait, with a consumer
    that handles one message at a time and takes no time for it.

    The first one waits until the channel has read the backlog. The others do not.
    """
    admin.seek(topic, "fair", "earliest")
    with Producer(broker.url) as producer, Consumer(topic, "fair", url=broker.url, ready=1) as one:
        for at in range(WAITS):
            key = b"new %d %d" % (number, at)
            begin = time.monotonic()
            producer.publish(topic, b"new", key=key)
            before = 0
            while True:
                message = one.receive(WAIT_S)
                if message is None:
                    raise ValueError("the message of the new key did not arrive")
                message.finish()
                if message.key == key:
                    break
                before += 1
            kind = "the next ones" if at else "the first one"
            wait_ms = (time.monotonic() - begin) * 1e3
            report.add(f"a new key behind the backlog: {kind}", "ms", wait_ms)
        one.flush()


def _limited(broker: LocalBroker, admin: Admin, report: Report, topic: str, limit: float) -> None:
    """Measure the rate of a limited channel, as a part of its limit."""
    admin.configure_channel(topic, "plain", max_rate=limit)
    admin.seek(topic, "plain", "earliest")
    burst = max(1, int(limit / 10))
    count, begin = 0, time.monotonic()
    with Consumer(topic, "plain", url=broker.url, ready=2_500) as consumer:
        while (now := time.monotonic()) < begin + LIMITED_S:
            message = consumer.receive(0.1)
            if message is None:
                continue
            message.finish()
            count += 1
            if count == burst:  # it has gone at once, and what follows is the rate
                begin = now
    report.add(
        f"limited to {limit:,.0f}/s: rate by limit",
        "ratio",
        (count - burst) / (now - begin) / limit,
    )
    admin.configure_channel(topic, "plain", max_rate=None)
