"""Benchmark of priorities: the rate of a channel with them beside one without, and how long an
urgent message behind a backlog waits.
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
PLAIN: Final = "plain"
LEVELS: Final = "levels"
URGENT: Final = {"zsq-priority": 1}
# The topics, and which messages of them are urgent: one in this many, or none.
TOPICS: Final = {"no urgent ones": 0, "1 in 100 urgent": 100, "1 in 2 urgent": 2}
WAITS: Final = 20  # urgent messages whose wait is measured


def priorities(broker: LocalBroker, report: Report, shape: Shape, rounds: int) -> None:
    topics = {name: f"topic{number}" for number, name in enumerate(TOPICS)}
    with Admin(broker.url) as admin:
        for name, topic in topics.items():
            for channel, levels in ((PLAIN, 0), (LEVELS, 2)):
                admin.create_channel(topic, channel, priorities=levels)
            _publish(broker, topic, shape, TOPICS[name])
        for number in range(rounds):
            for name, topic in topics.items():
                rates = {}
                for channel in (PLAIN, LEVELS) if number % 2 else (LEVELS, PLAIN):
                    admin.seek(topic, channel, "earliest")
                    rates[channel] = _consumed(broker, topic, channel, shape.messages)
                report.add(f"{name}: without priorities", RATE, rates[PLAIN])
                report.add(f"{name}: with priorities", RATE, rates[LEVELS])
                report.add(f"{name}: with by without", "ratio", rates[LEVELS] / rates[PLAIN])
            _wait(broker, admin, report, topics["no urgent ones"])


def _publish(broker: LocalBroker, topic: str, shape: Shape, every: int) -> None:
    bodies = make_bodies(shape)
    headers = [URGENT if every and not at % every else {} for at in range(shape.block)]
    with Producer(broker.url) as producer:
        for at in range(0, shape.messages, shape.block):
            first = at % (len(bodies) - shape.block + 1)
            producer.publish_many(
                topic,
                bodies[first : first + shape.block],
                headers=headers if every else None,
                wait=False,
            )
        producer.flush(WAIT_S)


def _consumed(broker: LocalBroker, topic: str, channel: str, count: int) -> float:
    with Crew() as crew:
        crew.add(drain, broker.url, topic, channel, count)
        begin = crew.go()
        return count / (crew.ends()[0] - begin)


def _wait(broker: LocalBroker, admin: Admin, report: Report, topic: str) -> None:
    """Measure how long urgent messages behind the whole topic wait, with a consumer that handles
    one message at a time and takes no time for it.

    The first one waits until the channel has read the backlog. The others do not.
    """
    admin.seek(topic, LEVELS, "earliest")
    with Producer(broker.url) as producer, Consumer(topic, LEVELS, url=broker.url, ready=1) as one:
        for number in range(WAITS):
            begin = time.monotonic()
            producer.publish(topic, b"urgent", headers=URGENT)
            while True:
                message = one.receive(WAIT_S)
                if message is None:
                    raise ValueError("the urgent message did not arrive")
                message.finish()
                if message.body == b"urgent":
                    break
            kind = "the next ones" if number else "the first one"
            report.add(
                f"an urgent message behind the backlog: {kind}",
                "ms",
                (time.monotonic() - begin) * 1e3,
            )
        one.flush()
