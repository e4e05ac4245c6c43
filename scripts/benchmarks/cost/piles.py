"""Sweeps over the content of a topic: a backlog behind a slow channel, and delayed messages."""

from __future__ import annotations

import time
from typing import Final

from local_setup.broker import LocalBroker
from zsq.transport.client.blocking.client import Admin, Producer

from ..harness.loads import WAIT_S, Shape
from ..measures.backlog import private_memory
from ..measures.throughput import rate_through
from .plot import Axis, Plot
from .sweeps import AT_ONCE, RATE_LINEAR, SIZE, Load

FIRST: Final = 10_000
BLOCK: Final = 10_000
TOPIC: Final = "pile"
LIVE: Final = "live"
SLOW: Final = "slow"
DELAY_S: Final = 86_400.0
MEMORY: Final = Axis("MB of its own that the process has", "MB", log=False)
KINDS: Final = {f"topic {TOPIC}": "topic", f"channel {TOPIC}/{SLOW}": "the slow channel"}


def steps(most: int) -> tuple[int, ...]:
    """Return the numbers of messages at which to measure: 0, 10,000, 100,000 and so on, and
    `most`.
    """
    found = [0]
    count = FIRST
    while count < most:
        found.append(count)
        count *= 10
    return (*found, most)


def backlog(load: Load) -> list[Plot]:
    """Measure one topic with a growing backlog.

    Before each step the slow channel skips the messages of the previous load.
    """
    where = Axis("messages waiting", "messages waiting", place="with")
    rates = Plot("backlog", "Messages waiting behind a slow channel", where, RATE_LINEAR)
    memory = Plot(
        "backlog-memory", "Memory, with messages waiting behind a slow channel", where, MEMORY
    )
    shape = Shape(load.count(600_000, 1000), SIZE, 1000)
    for _ in range(load.rounds):
        with load.broker() as broker, Admin(broker.url) as admin:
            # So that the memory of the topic and of its channels is that of their processes.
            admin.create_topic(TOPIC, own_process="always")
            admin.create_channel(TOPIC, SLOW)
            admin.create_channel(TOPIC, LIVE)
            # The memory that a process keeps after its first load is not due to the backlog.
            rate_through(broker, TOPIC, shape, [LIVE])
            for count in steps(load.waiting):
                admin.empty(TOPIC, SLOW)
                _fill(broker, count)
                admin.empty(TOPIC, LIVE)
                sizes = private_memory(broker)
                for name, kind in KINDS.items():
                    if name in sizes:
                        memory.add(kind, count, sizes[name] / 1e6)
                rates.add(AT_ONCE, count, rate_through(broker, TOPIC, shape, [LIVE]))
    return [rates, memory]


def _fill(broker: LocalBroker, count: int, delay: float | None = None) -> float:
    """Publish `count` messages of 20 bytes. Return the seconds that it took."""
    bodies = [b"%020d" % number for number in range(BLOCK)]
    begin = time.monotonic()
    with Producer(broker.url) as producer:
        for first in range(0, count, BLOCK):
            producer.publish_many(
                TOPIC, bodies[: min(BLOCK, count - first)], wait=False, delay=delay
            )
        producer.flush(WAIT_S)
    return time.monotonic() - begin


def delayed(load: Load) -> list[Plot]:
    where = Axis("delayed messages that are not due", "delayed messages", place="with")
    plot = Plot("delayed", "Delayed messages waiting", where, RATE_LINEAR)
    shape = Shape(load.count(600_000, 1000), SIZE, 1000)
    for _ in range(load.rounds):
        with load.broker() as broker, Admin(broker.url) as admin:
            admin.create_channel(TOPIC, LIVE)
            rate_through(broker, TOPIC, shape, [LIVE])
            there = 0
            for count in steps(load.delayed):
                if count:
                    plot.add(
                        "delayed ones stored, blocks of 10,000",
                        count,
                        (count - there) / _fill(broker, count - there, DELAY_S),
                    )
                there = count
                plot.add(AT_ONCE, count, rate_through(broker, TOPIC, shape, [LIVE]))
            found = admin.delayed_count(TOPIC)
            if found["messages"] != there:
                raise ValueError(
                    f"{there:,} messages were delayed, but the broker counts {found['messages']:,}"
                )
    return [plot]
