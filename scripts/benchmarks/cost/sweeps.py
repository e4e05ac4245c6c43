"""Sweeps of one broker: sizes, blocks, channels, consumers, producers, topics, and slower syncs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from local_setup.broker import LocalBroker, temporary_broker
from zsq.transport.client.blocking.client import Admin

from ..harness.crew import Crew
from ..harness.loads import Shape
from ..harness.slow_sync import slow_broker
from ..measures import single
from ..measures.throughput import rate_through, temporary_topic
from ..peers import limits
from .crowd import READY_ALL, consume_all, publish_to, shares
from .plot import Axis, Plot

OPTIONS: Final = ("--no-listen", "--no-http", "--no-nsq")
SIZE: Final = 200
MIB: Final = 1 << 20
RATE: Final = Axis("messages a second", "messages a second")
RATE_LINEAR: Final = Axis("messages a second", "messages a second", log=False)
AT_ONCE: Final = "publish and consume at once"
PRODUCERS: Final = (1, 4, 16, 64, 256)
DISK: Final = "writev and fdatasync alone"
SINGLES: Final = "64 clients, a message at a time"


@dataclass(frozen=True, slots=True)
class Load:
    """The load of the sweeps.

    `scale` multiplies the load of each point. `waiting` and `delayed` are the last points of the
    sweeps with these names. The brokers' directories are in `folder`.
    """

    folder: Path | None
    rounds: int = 1
    scale: float = 1.0
    waiting: int = 10_000_000
    delayed: int = 1_000_000

    def count(self, full: int, block: int) -> int:
        """Return the scaled number of messages in whole blocks, at least two."""
        return max(2 * block, int(full * self.scale) // block * block)

    def turns(self, places: tuple[float, ...]) -> Iterator[tuple[int, float]]:
        """Yield each round with each place. In every second round, the places are in reverse
        order.
        """
        for number in range(self.rounds):
            for place in places if number % 2 == 0 else reversed(places):
                yield number, place

    @contextmanager
    def broker(self) -> Iterator[LocalBroker]:
        with temporary_broker(*OPTIONS, prefix="zsq-bench-", under=self.folder) as broker:
            yield broker


def sizes(load: Load) -> list[Plot]:
    plot = Plot(
        "size",
        "Message size",
        Axis("bytes of a message", "B"),
        Axis("MB of bodies a second", "MB a second"),
    )
    with load.broker() as broker:
        for number, x in load.turns((10, 100, 1_000, 10_000, 100_000, MIB)):
            size = int(x)
            block = min(1000, max(1, 200_000 // size))
            shape = Shape(load.count(min(600_000, 200_000_000 // size), block), size, block)
            rate = _through(broker, f"size-{number}-{size}", shape)
            plot.add(AT_ONCE, x, rate * size / 1e6)
            plot.add(DISK, x, limits.disk_rate(shape, broker.folder) * size / 1e6)
    return [plot]


def blocks(load: Load) -> list[Plot]:
    where = Axis(
        "messages of 200 B in a block",
        "messages in a block",
        place="with",
        singular="message in a block",
    )
    plot = Plot("block", "Block size", where, RATE)
    with load.broker() as broker:
        for number, x in load.turns((1, 10, 100, 1_000, 10_000)):
            block = int(x)
            shape = Shape(load.count(min(1_000_000, 15_000 * block), block), SIZE, block)
            plot.add(AT_ONCE, x, _through(broker, f"block-{number}-{block}", shape))
            plot.add(DISK, x, limits.disk_rate(shape, broker.folder))
    return [plot]


def channels(load: Load) -> list[Plot]:
    where = Axis("channels, a consumer each", "channels", place="with", singular="channel")
    plot = Plot("channels", "Channels on one topic", where, RATE)
    with load.broker() as broker:
        for number, x in load.turns((1, 2, 4, 8, 16, 32, 64)):
            count, topic = int(x), f"channels-{number}-{int(x)}"
            shape = Shape(load.count(max(50_000, 800_000 // count), 1000), SIZE, 1000)
            places = [(topic, f"channel{index}") for index in range(count)]
            rate = _crowd(broker, places, [topic], shape, (shape.messages + 1) * count)
            plot.add("deliveries of all together", x, rate * count)
            plot.add("published", x, rate)
    return [plot]


def consumers(load: Load) -> list[Plot]:
    where = Axis("consumers", "consumers", place="with", singular="consumer")
    plot = Plot("consumers", "Consumers on one channel", where, RATE_LINEAR)
    shape = Shape(load.count(600_000, 1000), SIZE, 1000)
    with load.broker() as broker:
        for number, x in load.turns((1, 4, 16, 64)):
            topic = f"consumers-{number}-{int(x)}"
            plot.add(
                AT_ONCE,
                x,
                _crowd(broker, [(topic, "channel")] * int(x), [topic], shape, shape.messages + 1),
            )
    return [plot]


def topics(load: Load) -> list[Plot]:
    where = Axis("topics, a channel and a consumer each", "topics", place="with", singular="topic")
    plot = Plot("topics", "Topics at once", where, RATE_LINEAR)
    with load.broker() as broker:
        for number, x in load.turns((1, 4, 16, 64)):
            names = [f"topic-{number}-{int(x)}-{index}" for index in range(int(x))]
            shape = Shape(load.count(600_000, 1000), SIZE, 1000)
            rate = _crowd(
                broker,
                [(name, "channel") for name in names],
                names,
                shape,
                shape.messages + len(names),
            )
            plot.add(f"{AT_ONCE}, all topics", x, rate)
    return [plot]


def _crowd(
    broker: LocalBroker,
    places: list[tuple[str, str]],
    names: list[str],
    shape: Shape,
    expected: int,
) -> float:
    """Return the messages a second through one producer process and the consumers of all places.

    The consumers must get exactly `expected` messages.
    """
    with Admin(broker.url, timeout=60) as admin:
        for topic, channel in dict.fromkeys(places):
            admin.create_channel(topic, channel)
        try:
            with Crew() as crew:
                ready = max(1_000, READY_ALL // len(places))
                first = 0
                for share in shares(len(places)):
                    crew.add(
                        consume_all, broker.url, places[first : first + share], ready, expected
                    )
                    first += share
                crew.add(publish_to, broker.url, names, shape)
                begin = crew.go()
                consumed: list[tuple[int, float]] = crew.results()[:-1]
        finally:
            broker.check()
            for topic in names:
                admin.delete_topic(topic, force=True)
    if (seen := sum(count for count, _ in consumed)) != expected:
        raise ValueError(f"{seen:,} of {expected:,} messages arrived")
    return shape.messages / (max(end for _, end in consumed) - begin)


def producers(load: Load) -> list[Plot]:
    where = Axis(
        "producers that publish a message at a time",
        "producers",
        place="with",
        singular="producer",
    )
    plot = Plot("producers", "Producers at once", where, RATE)
    with load.broker() as broker:
        for number, x in load.turns(PRODUCERS):
            plot.add(
                "published, durable",
                x,
                _singly(broker, f"producers-{number}-{int(x)}", int(x), load),
            )
    return [plot]


def _singly(broker: LocalBroker, topic: str, count: int, load: Load) -> float:
    seconds = max(0.3, 2.0 * load.scale)
    with temporary_topic(broker, topic):
        return single.singles_rate(broker, topic, SIZE, seconds, count)


def _through(broker: LocalBroker, name: str, shape: Shape) -> float:
    with temporary_topic(broker, name) as topic:
        return rate_through(broker, topic, shape)


def syncs(load: Load) -> list[Plot]:
    where = Axis("ms added to each sync", "ms added", place="with")
    plot = Plot("sync", "A sync takes longer", where, RATE)
    shape = Shape(load.count(1_000_000, 1000), SIZE, 1000)
    with slow_broker(*OPTIONS, under=load.folder) as (broker, delay):
        for number, x in load.turns((0.0, 0.1, 1.0, 5.0)):
            delay.set(x / 1e3)
            plot.add(
                f"{AT_ONCE}, blocks of 1,000", x, _through(broker, f"sync-{number}-{x:g}", shape)
            )
            plot.add(SINGLES, x, _singly(broker, f"singles-{number}-{x:g}", 64, load))
        delay.set(0.0)
    return [plot]


Sweep = Callable[[Load], list[Plot]]
