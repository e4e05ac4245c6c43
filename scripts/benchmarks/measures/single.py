"""Single messages (latency), many producers at once (clients), costs of channels (processes)."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from typing import TYPE_CHECKING, Any, Final, Literal

from local_setup.broker import LocalBroker
from zsq.transport.client.blocking.client import Admin, Consumer, Producer

from ..harness.crew import Crew
from ..harness.loads import WAIT_S, Start
from ..harness.pace import Load
from ..harness.report import Report, percentile
from ..harness.usage import Usage, kinds_on_the_way
from ..peers import limits
from ..peers.raw_single import RAW_COST, RAW_TO_ANSWER, RAW_TO_CONSUMER, raw_singles
from .paced import at_rate, peers_on_path
from .topics import CREATION

if TYPE_CHECKING:
    from zsq.transport.client.asyncio import aio

MILLISECONDS: Final = "ms"
COST: Final = "us CPU/message"
PROCESSOR: Final = "processor time of a message:"
ALL: Final = "all processes"
CLIENT_PROCESSES: Final = 4
CHANNELS: Final = 200
SHARED: Final = "in a shared process: "
PLACES: Final[tuple[tuple[Literal["always", "never"], str], ...]] = (
    ("always", ""),
    ("never", SHARED),
)
MOVE: Final = "longest time to a handler while the topic moves to processes of its own"
MOVE_S: Final = 5.0  # within half of this time, the topic has moved
RAW_MESSAGES_MAX: Final = 1_500  # in a round; this is enough to measure the limit


def latency(
    broker: LocalBroker, report: Report, size: int, seconds: float, a_second: float, rounds: int
) -> None:
    """Measure the time from the call of publish() to the handler, and the processor time: of a
    topic with processes of its own, of one in a shared process, and while one moves between both.

    The rate is fixed and far below the broker's limit. The peers on PATH get the same rate.
    """
    count = max(10, int(seconds * a_second))
    for number in range(rounds):
        topic = f"latency-{number}"
        for own_process, where in PLACES[:: (-1) ** number]:
            _alone(
                broker, report, f"{topic}-{own_process}", own_process, where, size, count, a_second
            )
        _moved(broker, report, f"{topic}-moved", size, count, a_second)
        raw = raw_singles(size, min(count, RAW_MESSAGES_MAX), a_second, broker.folder)
        report.add(RAW_TO_CONSUMER, MILLISECONDS, percentile(raw.arrived, 0.5) * 1000, limit=True)
        report.add(RAW_TO_ANSWER, MILLISECONDS, percentile(raw.answered, 0.5) * 1000, limit=True)
        report.add(RAW_COST, COST, raw.cpu_s / len(raw.arrived) * 1e6, limit=True)
        synced = limits.sync_seconds(size + 88, 200, broker.folder)
        report.add(
            "one write + fdatasync, p50", MILLISECONDS, percentile(synced, 0.5) * 1000, limit=True
        )
        with peers_on_path(broker.folder) as peers:
            for peer in peers:
                at_rate(peer, report, peer.name, topic, Load(count, size, a_second))


def _alone(
    broker: LocalBroker,
    report: Report,
    topic: str,
    own_process: Literal["always", "never"],
    where: str,
    size: int,
    count: int,
    a_second: float,
) -> None:
    with Admin(broker.url) as admin:
        admin.create_topic(topic, own_process=own_process)
        admin.create_channel(topic, "bench")
        kinds = kinds_on_the_way(admin.stats()["processes"])
    with Crew() as crew:
        crew.add(receive_stamps, broker.url, topic, count)
        crew.add(publish_stamps, broker.url, topic, size, count, a_second)
        crew.wait_ready()
        usage = Usage(broker.process.pid)
        crew.go()
        taken, answered = crew.results()
        inside = usage.by_kind(kinds)
    used = dict(zip(("consumer", "producer"), crew.cpu_s, strict=True)) | inside
    # Topic and channel have one process together if they share it.
    costs = ({} if where else used) | {ALL: sum(used.values())}
    for kind, cpu_s in costs.items():
        report.add(f"{where}{PROCESSOR} {kind}", COST, cpu_s / count * 1e6)
    for what, times in (("handler", taken), ("acknowledgement", answered)):
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            value = percentile(times, share) * 1000
            report.add(f"{where}publish to {what}, {name}", MILLISECONDS, value)


def _moved(
    broker: LocalBroker, report: Report, topic: str, size: int, count: int, a_second: float
) -> None:
    """Measure the longest time from publish() to the handler while the topic moves, once."""
    count = max(count, int(MOVE_S * a_second))
    with Admin(broker.url) as admin:
        admin.create_topic(topic, own_process="never")
        admin.create_channel(topic, "bench")
        with Crew() as crew:
            crew.add(receive_stamps, broker.url, topic, count)
            crew.add(publish_stamps, broker.url, topic, size, count, a_second)
            crew.wait_ready()
            crew.go()
            time.sleep(count / a_second / 2)
            admin.configure_topic(topic, own_process="always")
            taken, _ = crew.results()
        rows = admin.stats()["processes"]
    if any("host" in row for row in rows if row["name"] == f"topic {topic}"):
        raise ValueError(f"topic {topic} did not move within {count / a_second / 2:.1f} s")
    report.add(MOVE, MILLISECONDS, max(taken) * 1000)


def publish_stamps(
    start: Start, url: str, topic: str, size: int, count: int, a_second: float
) -> list[float]:
    answered = []
    padding = os.urandom(max(0, size - 20))
    with Producer(url) as producer:
        due = start() + 0.2
        for _ in range(count):
            if (left := due - time.monotonic()) > 0:
                time.sleep(left)
            now = time.monotonic()
            producer.publish(topic, b"%020d" % int(now * 1e9) + padding)
            answered.append(time.monotonic() - now)
            due += 1 / a_second
    return answered


def receive_stamps(
    start: Start, url: str, topic: str, count: int, channel: str = "bench"
) -> list[float]:
    taken: list[float] = []
    with Consumer(topic, channel, url=url) as consumer:
        start()
        while len(taken) < count:
            message = consumer.receive(timeout=WAIT_S)
            if message is None:
                raise ValueError(f"{len(taken)} of {count} messages arrived")
            taken.append(time.monotonic() - int(message.body[:20]) / 1e9)
            message.finish()
    return taken


def clients(
    broker: LocalBroker, report: Report, size: int, seconds: float, count: int, rounds: int
) -> None:
    """Measure `count` producers that publish one message at a time and wait, and one alone."""
    for number in range(rounds):
        for many in (1, count):
            topic = f"clients-{number}-{many}"
            with Admin(broker.url) as admin:
                admin.create_topic(topic)
            rate = singles_rate(broker, topic, size, seconds, many)
            report.add(
                f"{many} client{'s' * (many > 1)}, a message at a time",
                "messages/s",
                rate,
                limit=many == 1,
            )
        synced = limits.sync_seconds(size + 88, 200, broker.folder)
        report.add(
            "one write + fdatasync after another",
            "messages/s",
            1 / statistics.median(synced),
            limit=True,
        )


def singles_rate(broker: LocalBroker, topic: str, size: int, seconds: float, count: int) -> float:
    """Return the messages a second of `count` producers that wait for each message."""
    processes = min(CLIENT_PROCESSES, count)
    with Crew() as crew:
        for index in range(processes):
            share = count // processes + (index < count % processes)
            crew.add(_publish_singly, broker.url, topic, size, seconds, share)
        crew.go()
        return float(sum(crew.results()) / seconds)


def _publish_singly(
    start: Start, url: str, topic: str, size: int, seconds: float, count: int
) -> int:
    """Return how many messages `count` producers of one process have stored in the time."""
    from zsq.transport.client.asyncio import aio

    async def one(producer: aio.Producer, number: int, end: float) -> int:
        stored = 0
        padding = os.urandom(max(0, size - 16))
        while time.monotonic() < end:
            await producer.publish(topic, b"%04d%012d" % (number, stored) + padding)
            stored += 1
        return stored

    async def all_of_them() -> int:
        producers = [aio.Producer(url) for _ in range(count)]
        try:
            for producer in producers:
                await producer.publish(topic, b"warm")
            end = start() + seconds
            return sum(
                await asyncio.gather(
                    *(one(producer, number, end) for number, producer in enumerate(producers))
                )
            )
        finally:
            await asyncio.gather(*(producer.close() for producer in producers))

    return asyncio.run(all_of_them())


def processes(broker: LocalBroker, report: Report, count: int, rounds: int) -> None:
    """Measure the time to create a channel, and by how much it lets the processes grow."""
    for number in range(rounds):
        topic = f"processes-{number}"
        with Admin(broker.url) as admin:
            start = time.monotonic()
            admin.create_topic(topic)
            report.add("create a topic", MILLISECONDS, (time.monotonic() - start) * 1000)
            before = _memory(admin.stats())
            taken = []
            for index in range(count):
                start = time.monotonic()
                admin.create_channel(topic, f"channel{index}")
                taken.append((time.monotonic() - start) * 1000)
            report.add("create a channel", MILLISECONDS, statistics.median(taken))
            report.add(CREATION, "s", sum(taken) / 1000)
            grown = _memory(admin.stats()) - before
            report.add("memory of a channel", "MB", grown / count / 1e6)
            admin.delete_topic(topic, force=True)


def _memory(stats: dict[str, Any]) -> int:
    """Return the memory of topics and channels, in shared processes and in their own."""
    rows = [row for row in stats["processes"] if row["kind"] in ("host", "topic", "channel")]
    return sum(row.get("private_bytes") or 0 for row in rows)
