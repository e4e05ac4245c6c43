"""e2e, publish, consume and fanout: how many messages a second, beside the limits, in interleaved rounds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from ...transport.client import Admin
from ..broker import Broker
from . import limits, redis
from .crew import Crew
from .loads import Shape, consume, publish
from .report import Report

RATE: Final = "messages/s"
FANOUT_CHANNELS: Final = 4


def e2e(broker: Broker, report: Report, shape: Shape, rounds: int) -> None:
    """One producer and one consumer at once."""

    def ours(topic: str) -> float:
        return _through(broker, topic, shape, channels=1)

    _rounds(broker, report, shape, rounds, {"zsq, at once": ours}, hops=True)


def fanout(broker: Broker, report: Report, shape: Shape, rounds: int) -> None:
    """Four channels on one topic, a consumer each: all deliveries together; and one channel, to compare."""

    def four(topic: str) -> float:
        before = _disk_bytes(broker.data_dir)
        rate = _through(broker, topic, shape, channels=FANOUT_CHANNELS)
        report.add("bytes on disk for each byte of body", "ratio", (_disk_bytes(broker.data_dir) - before) / shape.bytes)
        return rate * FANOUT_CHANNELS

    def one(topic: str) -> float:
        return _through(broker, topic, shape, channels=1)

    _rounds(broker, report, shape, rounds, {f"zsq, {FANOUT_CHANNELS} channels, all deliveries": four, "zsq, 1 channel": one}, hops=True)


def publish_alone(broker: Broker, report: Report, shape: Shape, rounds: int) -> None:
    """One producer; nobody reads."""

    def ours(topic: str) -> float:
        with Crew() as crew:
            crew.add(publish, broker.url, topic, shape)
            start = crew.go()
            return shape.messages / (crew.ends()[0] - start)

    _rounds(broker, report, shape, rounds, {"zsq, publish": ours})


def consume_alone(broker: Broker, report: Report, shape: Shape, rounds: int) -> None:
    """One consumer on a backlog that was published before."""

    def ours(topic: str) -> float:
        with Crew() as crew:
            crew.add(publish, broker.url, topic, Shape(shape.messages, shape.size, shape.block))
            crew.go()
            crew.results()
        with Crew() as crew:
            crew.add(consume, broker.url, topic, "bench", shape, shape.messages + 1)
            start = crew.go()
            return shape.messages / (crew.ends()[0] - start)

    _rounds(broker, report, shape, rounds, {"zsq, consume a backlog": ours}, hops=True)


def _through(broker: Broker, topic: str, shape: Shape, *, channels: int) -> float:
    """Messages a second until the last of the channels had finished all."""
    with Admin(broker.url) as admin:
        for index in range(channels):
            admin.create_channel(topic, f"bench{index}")
    with Crew() as crew:
        for index in range(channels):
            crew.add(consume, broker.url, topic, f"bench{index}", shape, shape.messages + 1)  # the producer warms up with one
        crew.add(publish, broker.url, topic, shape)
        start = crew.go()
        return shape.messages / (max(crew.ends()) - start)


def _rounds(
    broker: Broker, report: Report, shape: Shape, rounds: int, ours: dict[str, Callable[[str], float]], *, hops: bool = False
) -> None:
    """Each round measures everything once, so that what the machine does meanwhile strikes all alike."""
    peer = redis.find()
    for number in range(rounds):
        for index, (name, measure) in enumerate(ours.items()):
            topic = f"bench-{number}-{index}"
            try:
                report.add(name, RATE, measure(topic))
            finally:
                broker.check()
                with Admin(broker.url) as admin:
                    admin.delete_topic(topic, force=True)
        if hops:
            report.add("raw pyzmq", RATE, limits.raw_rate(shape, broker.folder), limit=True)
        report.add("writev + fdatasync", RATE, limits.disk_rate(shape, broker.folder), limit=True)
        if peer is not None and not shape.single:
            small = Shape(min(shape.messages, redis.MESSAGES_MAX), shape.size, shape.block)
            kinds = {"zsq, publish": (True, False), "zsq, consume a backlog": (False, True)}
            produces, consumes = kinds.get(next(iter(ours)), (True, True))
            report.add("redis streams, synced", RATE, redis.rate(peer, broker.folder, small, produces, consumes), limit=True)


def _disk_bytes(folder: Path) -> int:
    """Blocks allocated below a folder."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
