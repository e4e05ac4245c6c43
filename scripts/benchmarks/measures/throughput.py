"""Throughput of blocks: published and consumed at once, alone, and by four channels.

Each round measures ZSQ and the limits of the machine in turn.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from local_setup.broker import LocalBroker
from zsq.transport.client.blocking.client import Admin

from ..harness.crew import Crew
from ..harness.loads import Shape, consume, publish
from ..harness.report import Report
from ..peers import limits, nsq_peers, redis

RATE: Final = "messages/s"
CHANNEL: Final = "bench"
FANOUT_CHANNELS: Final = 4
RAW: Final = "raw pyzmq"
DISK: Final = "writev + fdatasync"
ON_DISK: Final = "bytes on disk for each byte of body"
REDIS: Final = "redis streams, synced"


def e2e(broker: LocalBroker, report: Report, shape: Shape, rounds: int, *, streams: bool) -> None:
    """Measure one producer and one consumer at the same time. `streams` adds Redis streams."""

    def ours(topic: str) -> float:
        return rate_through(broker, topic, shape)

    _rounds(broker, report, shape, rounds, {"zsq, at once": ours}, hops=True, streams=streams)


def fanout(broker: LocalBroker, report: Report, shape: Shape, rounds: int) -> None:
    """Measure all deliveries of four channels with a consumer each, and one channel to compare.

    Redis streams are left out, because no budget compares ZSQ with them here.
    """

    channels = [f"{CHANNEL}{number}" for number in range(FANOUT_CHANNELS)]

    def four(topic: str) -> float:
        before = _disk_bytes(broker.data_dir)
        rate = rate_through(broker, topic, shape, channels)
        report.add(ON_DISK, "ratio", (_disk_bytes(broker.data_dir) - before) / shape.bytes)
        return rate * FANOUT_CHANNELS

    def one(topic: str) -> float:
        return rate_through(broker, topic, shape)

    both: dict[str, Callable[[str], float]] = {
        f"zsq, {FANOUT_CHANNELS} channels, all deliveries": four,
        "zsq, 1 channel": one,
    }
    _rounds(broker, report, shape, rounds, both, hops=True, channels=FANOUT_CHANNELS, streams=False)


def publish_alone(broker: LocalBroker, report: Report, shape: Shape, rounds: int) -> None:
    """Measure one producer without consumers."""

    def ours(topic: str) -> float:
        with Crew() as crew:
            crew.add(publish, broker.url, topic, shape)
            start = crew.go()
            return shape.messages / (crew.ends()[0] - start)

    _rounds(broker, report, shape, rounds, {"zsq, publish": ours}, consumes=False)


def consume_alone(broker: LocalBroker, report: Report, shape: Shape, rounds: int) -> None:
    """Measure one consumer on a backlog."""

    def ours(topic: str) -> float:
        with Crew() as crew:
            crew.add(publish, broker.url, topic, Shape(shape.messages, shape.size, shape.block))
            crew.go()
            crew.results()
        with Crew() as crew:
            crew.add(consume, broker.url, topic, CHANNEL, shape, shape.messages + 1)
            start = crew.go()
            return shape.messages / (crew.ends()[0] - start)

    name = "zsq, consume a backlog"
    _rounds(broker, report, shape, rounds, {name: ours}, hops=True, produces=False)


def rate_through(
    broker: LocalBroker,
    topic: str,
    shape: Shape,
    channels: Sequence[str] = (CHANNEL,),
    url: str = "",
) -> float:
    """Return the messages a second until all channels have finished all messages.

    The clients use `url`, or the broker's own address.
    """
    start, end = through(broker, topic, shape, channels, url)
    return shape.messages / (end - start)


def through(
    broker: LocalBroker,
    topic: str,
    shape: Shape,
    channels: Sequence[str] = (CHANNEL,),
    url: str = "",
) -> tuple[float, float]:
    """Publish and consume all messages. Return the monotonic times of the start and the end."""
    url = url or broker.url
    with Admin(broker.url) as admin:
        for channel in channels:
            admin.create_channel(topic, channel)
    with Crew() as crew:
        for channel in channels:
            # The producer warms up with one message.
            crew.add(consume, url, topic, channel, shape, shape.messages + 1)
        crew.add(publish, url, topic, shape)
        start = crew.go()
        return start, max(crew.ends())


@contextlib.contextmanager
def temporary_topic(broker: LocalBroker, topic: str) -> Iterator[str]:
    """Delete the topic at the end, so that it does not slow down what is measured next."""
    try:
        yield topic
    finally:
        broker.check()
        with Admin(broker.url, timeout=60) as admin:
            admin.delete_topic(topic, force=True)


def _rounds(
    broker: LocalBroker,
    report: Report,
    shape: Shape,
    rounds: int,
    ours: dict[str, Callable[[str], float]],
    *,
    hops: bool = False,
    channels: int = 1,
    streams: bool = True,
    produces: bool = True,
    consumes: bool = True,
) -> None:
    """Measure everything once in each round, so that other load affects all measures alike."""
    for number in range(rounds):
        for index, (name, measure) in enumerate(ours.items()):
            with temporary_topic(broker, f"bench-{number}-{index}") as topic:
                report.add(name, RATE, measure(topic))
        if hops:
            report.add(RAW, RATE, limits.raw_rate(shape), limit=True)
        report.add(DISK, RATE, limits.disk_rate(shape, broker.folder), limit=True)
        if not shape.single:
            _nsqd(report, broker.folder, shape, channels, produces, consumes)
            if streams:
                _redis(report, broker.folder, shape, produces, consumes)


def _redis(report: Report, folder: Path, shape: Shape, produces: bool, consumes: bool) -> None:
    """Measure Redis if it is on PATH, with fewer messages, because it is slower."""
    if (server := redis.find()) is not None:
        small = replace(shape, messages=min(shape.messages, redis.MESSAGES_MAX))
        report.add(REDIS, RATE, redis.rate(server, folder, small, produces, consumes), limit=True)


def _nsqd(
    report: Report, folder: Path, shape: Shape, channels: int, produces: bool, consumes: bool
) -> None:
    """Measure nsqd if it is on PATH, with no more messages than fit into its memory queue."""
    if (program := nsq_peers.find()) is not None:
        small = replace(
            shape, messages=min(shape.messages, nsq_peers.MESSAGES_MAX) // shape.block * shape.block
        )
        for kind in nsq_peers.BLOCK_KINDS if small.messages else ():
            with nsq_peers.nsqd(program, kind, folder) as (port, _):
                report.add(
                    kind,
                    RATE,
                    nsq_peers.rate(port, "bench", small, channels, produces, consumes),
                    limit=True,
                )


def _disk_bytes(folder: Path) -> int:
    """Return the bytes of all blocks allocated to files below a folder."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
