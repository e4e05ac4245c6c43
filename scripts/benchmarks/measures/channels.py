"""A thousand idle channels on one topic: cost, a producer's waits, late expiries, a restart."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Final

from local_setup.broker import STOP_WAIT_S, LocalBroker, serve_again
from zsq import aio
from zsq.transport.client.blocking.client import Admin, Producer

from ..harness.crew import Crew
from ..harness.loads import Start
from ..harness.report import Report

TOPIC: Final = "wide"
RATE: Final = 20_000  # single messages a second, in blocks of BLOCK
BLOCK: Final = 100
PUBLISH_S: Final = 10.0
TIMEOUT_S: Final = 1.0  # the shortest lease that a consumer can have
EXPIRING: Final = 100  # the number of channels with a consumer that does not answer
EXPIRIES: Final = 5  # the number of expired leases to measure in each of these channels
MIB: Final = 1 << 20


def channels(broker: LocalBroker, report: Report, size: int, count: int, rounds: int) -> None:
    with Admin(broker.url, timeout=60) as admin:
        _create(admin, report, count)
        _publish(broker, report, size, rounds)
        report.add("own memory, median", "MiB", _memory(admin)[0])
        report.add("own memory, largest", "MiB", _memory(admin)[1])
        _expire(broker, admin, report, count)
    _restart(broker, report, count)


def _create(admin: Admin, report: Report, count: int) -> None:
    admin.create_topic(TOPIC)
    begin = time.perf_counter()
    for number in range(count):
        before = time.perf_counter()
        admin.create_channel(TOPIC, f"channel{number}")
        report.add("creation, each by itself", "ms", (time.perf_counter() - before) * 1e3)
    report.add(f"creation of {count:,}", "s", time.perf_counter() - begin)


def _memory(admin: Admin) -> tuple[float, float]:
    rows = [
        row["private_bytes"] / MIB for row in admin.stats()["processes"] if row["kind"] == "channel"
    ]
    return sorted(rows)[len(rows) // 2], max(rows)


def _publish(broker: LocalBroker, report: Report, size: int, rounds: int) -> None:
    for _ in range(rounds):
        with Crew() as crew:
            crew.add(_steady, broker.url, size)
            crew.go()
            rate, waits = crew.results()[0]
        waits.sort()
        report.add("publish, rate", "messages/s", rate)
        for share in (50, 99):
            report.add(
                f"publish, p{share} of a block of {BLOCK}", "ms", waits[len(waits) * share // 100]
            )


def _steady(start: Start, url: str, size: int) -> tuple[float, list[float]]:
    """Publish blocks at a fixed rate, and measure each wait from the time when the block was due.

    A block that is late because of earlier blocks thus counts as late.
    """
    bodies = [b"%0*d" % (size, number) for number in range(BLOCK)]
    total = int(PUBLISH_S * RATE / BLOCK)
    waits = []
    with Producer(url) as producer:
        producer.publish_many(TOPIC, bodies)
        start()
        begin = time.perf_counter()
        for number in range(total):
            due = begin + number * BLOCK / RATE
            if (left := due - time.perf_counter()) > 0:
                time.sleep(left)
            producer.publish_many(TOPIC, bodies)
            waits.append((time.perf_counter() - due) * 1e3)
        return total * BLOCK / (time.perf_counter() - begin), waits


def _expire(broker: LocalBroker, admin: Admin, report: Report, count: int) -> None:
    """Measure how late messages of consumers that do not answer are delivered again."""
    late = sorted(asyncio.run(_expiries(broker.url, admin, min(EXPIRING, count))))
    report.add("an expiry is late by, median", "ms", late[len(late) // 2])
    report.add("an expiry is late by, p99", "ms", late[len(late) * 99 // 100])
    report.add("an expiry is late by, largest", "ms", late[-1])


async def _expiries(url: str, admin: Admin, count: int) -> list[float]:
    for number in range(count):
        admin.empty(TOPIC, f"channel{number}")
    with Producer(url) as producer:
        producer.publish(TOPIC, b"held")
    found: list[list[float]] = await asyncio.gather(
        *(_held(url, number, number / count) for number in range(count))
    )
    return [late for one in found for late in one]


async def _held(url: str, number: int, phase_s: float) -> list[float]:
    await asyncio.sleep(phase_s)
    late = []
    async with aio.Consumer(
        TOPIC, f"channel{number}", url=url, ready=1, message_timeout=TIMEOUT_S
    ) as consumer:
        message = await consumer.receive(timeout=30)
        for _ in range(EXPIRIES):
            before = time.perf_counter()
            message = await consumer.receive(timeout=30)
            late.append((time.perf_counter() - before - TIMEOUT_S) * 1e3)
        assert message is not None
        await message.finish()
    return late


def _restart(broker: LocalBroker, report: Report, count: int) -> None:
    begin = time.perf_counter()
    broker.process.send_signal(signal.SIGTERM)
    broker.process.wait(STOP_WAIT_S * 4)
    report.add("stop", "s", time.perf_counter() - begin)
    begin = time.perf_counter()
    with serve_again(broker) as again, Admin(again.url, timeout=60) as admin:
        report.add("start until ready", "s", time.perf_counter() - begin)
        up = len(admin.stats(TOPIC)["topics"][0]["channels"])
        report.notes.append(f"after the start {up:,} of {count:,} channels are up")
