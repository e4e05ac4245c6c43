"""Budgets of rates: blocks end to end, publishing alone, single messages, storage and channels."""

from __future__ import annotations

from typing import Final

from ..harness.loads import Shape
from ..harness.slow_sync import slow_broker
from ..measures import single, storage, throughput
from ..measures.nsq import BLOCK as NSQ_BLOCK
from ..measures.nsq import CROWD, FIN, LATENCY, MPUB, Load
from ..measures.nsq import nsq as measure_nsq
from ..peers.nsq_peers import IN_MEMORY, ON_DISK, free_port
from .lines import TIMES, Goal, Lines, most
from .work import GATES, Found, Work, found, group

SIZE: Final = 200
NO_NSQD: Final = "nsqd is not on PATH"
NO_REDIS: Final = "redis-server is not on PATH"
CLIENTS: Final = 64
ADDED_MS: Final = 1.0


def e2e(work: Work) -> Found:
    return _at_once(
        work,
        "publish and consume at once, blocks of 1,000",
        1000,
        {"nsqd": 3.0, "redis": 12.0, "raw": 0.5},
    )


def e2e_200(work: Work) -> Found:
    return _at_once(work, "publish and consume at once, blocks of 200", 200, {"nsqd": 2.5})


def _at_once(work: Work, name: str, block: int, bounds: dict[str, float]) -> Found:
    shape = Shape(work.count(1_000_000), SIZE, block)
    with group(work, name) as (broker, result):
        throughput.e2e(broker, result.report, shape, work.rounds, streams="redis" in bounds)
    ours = "zsq, at once"
    result.lines.of(result.report, "messages of 200 B, durable", ours)
    _peers(result, ours, bounds)
    _limits(result, ours, bounds)
    return result


def _peers(result: Found, ours: str, bounds: dict[str, float]) -> None:
    goals = {name: Goal(bound) for name, bound in bounds.items()}
    result.lines.ratio(
        result.report, "by nsqd in memory", ours, IN_MEMORY, goals.get("nsqd"), NO_NSQD
    )
    if "nsqd, disk" in goals:
        result.lines.ratio(
            result.report, "by nsqd on disk", ours, ON_DISK, goals["nsqd, disk"], NO_NSQD
        )
    if "redis" in goals:
        result.lines.ratio(
            result.report,
            "by Redis streams, synced always",
            ours,
            throughput.REDIS,
            goals["redis"],
            NO_REDIS,
        )


def _limits(result: Found, ours: str, bounds: dict[str, float]) -> None:
    """Add the limits of the machine, measured in the same run."""
    for what, name, key in (
        ("raw pyzmq over the same hops", throughput.RAW, "raw"),
        ("writev and fdatasync alone", throughput.DISK, "disk"),
    ):
        if name in result.report.measures:
            result.lines.of(result.report, what, name)
            result.lines.ratio(
                result.report,
                f"by {what}",
                ours,
                name,
                Goal(bounds[key]) if key in bounds else None,
            )


def publish(work: Work) -> Found:
    shape = Shape(work.count(1_000_000), SIZE, 1000)
    with group(work, "publish alone, blocks of 1,000") as (broker, result):
        throughput.publish_alone(broker, result.report, shape, work.rounds)
    ours, bounds = "zsq, publish", {"nsqd": 1.3, "nsqd, disk": 6.0, "redis": 15.0}
    result.lines.of(result.report, "messages of 200 B, durable", ours)
    _peers(result, ours, bounds)
    _limits(result, ours, bounds)
    return result


def singly(work: Work) -> Found:
    shape = Shape(work.count(300_000), SIZE, 1000, single=True)
    with group(work, "one call a message, in Python") as (broker, result):
        throughput.publish_alone(broker, result.report, shape, work.rounds)
        throughput.consume_alone(broker, result.report, shape, work.rounds)
    result.lines.of(
        result.report, "publish() with lingering, durable", "zsq, publish", Goal(500_000)
    )
    result.lines.of(
        result.report,
        "a loop over messages, each finished by itself",
        "zsq, consume a backlog",
        Goal(1_300_000),
    )
    return result


def kilobytes(work: Work) -> Found:
    shape = Shape(work.count(300_000), 1024, 1000)
    with group(work, "blocks of 1 KB messages to disk") as (broker, result):
        storage.storage(broker, result.report, shape, work.rounds)
    lines, report = result.lines, result.report
    lines.of(report, "one producer through the broker", "zsq, one producer")
    lines.of(report, "writev and fdatasync of the same blocks", throughput.DISK)
    lines.ratio(report, "one producer by that", "zsq, one producer", throughput.DISK, Goal(0.6))
    lines.ratio(report, "the log alone by that", "zsq, the log alone", throughput.DISK, Goal(0.7))
    lines.of(report, storage.WRITTEN, storage.WRITTEN, unit=TIMES)
    return result


def fanout(work: Work) -> Found:
    shape = Shape(work.count(500_000), SIZE, 1000)
    with group(work, "four channels on one topic") as (broker, result):
        throughput.fanout(broker, result.report, shape, work.rounds)
    lines, report = result.lines, result.report
    ours = f"zsq, {throughput.FANOUT_CHANNELS} channels, all deliveries"
    lines.of(report, "deliveries of all together, 200 B", ours)
    lines.ratio(report, "by nsqd in memory", ours, IN_MEMORY, Goal(3.0), NO_NSQD)
    lines.ratio(report, "by those of one channel", ours, "zsq, 1 channel", Goal(1.3))
    lines.of(
        report,
        "bytes on disk for each byte of body: written once",
        throughput.ON_DISK,
        most(1.5),
        TIMES,
    )
    return result


def clients(work: Work) -> Found:
    """Measure many clients on one broker, with the real disk and with a slower one in turn."""
    result = found(f"single publishes from {CLIENTS} clients at once")
    slower = found("with a slower sync")
    seconds = work.seconds(2.0)
    with slow_broker(*GATES, under=work.folder) as (broker, delay):
        for _ in range(work.rounds):
            for one, added_ms in ((result, 0.0), (slower, ADDED_MS)):
                delay.set(added_ms / 1e3)
                single.clients(broker, one.report, SIZE, seconds, CLIENTS, 1)
    _crowd(result.lines, result, "", Goal(15_000), Goal(7.0))
    _crowd(result.lines, slower, f", {ADDED_MS:g} ms added to each sync", None, Goal(20.0))
    for name, measure in slower.report.measures.items():
        result.report.add(
            f"{name}, {ADDED_MS:g} ms added to each sync",
            measure.unit,
            *measure.values,
            limit=measure.limit,
        )
    return result


def _crowd(lines: Lines, of: Found, suffix: str, rate: Goal | None, ratio: Goal) -> None:
    many, one = f"{CLIENTS} clients, a message at a time", "1 client, a message at a time"
    lines.of(of.report, f"messages a second{suffix}", many, rate)
    lines.ratio(of.report, f"by one client's{suffix}", many, one, ratio)


def nsq(work: Work) -> Found:
    load = Load(work.count(200_000, NSQ_BLOCK), SIZE, CLIENTS, work.seconds(1.5))
    port = free_port()
    with group(
        work, "NSQ's protocol", *("--no-listen", "--no-http", "--nsq-listen", f"127.0.0.1:{port}")
    ) as (broker, result):
        measure_nsq(broker, result.report, port, load, work.rounds)
    lines, report = result.lines, result.report
    for what, kind, rate, share in (
        (MPUB, MPUB, Goal(500_000), None),
        (FIN, FIN, Goal(250_000), None),
        (f"{CLIENTS} connections, a PUB at a time", load.singles, Goal(15_000), Goal(0.6)),
        ("1 connection, a PUB at a time, as `to_nsq`", LATENCY, None, Goal(0.2)),
    ):
        lines.of(report, what, f"{kind}: zsq", rate)
        lines.ratio(
            report, f"{what}: by nsqd in memory", f"{kind}: zsq", f"{kind}: nsqd", share, NO_NSQD
        )
    what = f"{CROWD}: processor time of a message"
    lines.of(report, what, f"{CROWD}: CPU of zsq", most(100.0))
    lines.of(report, f"{what}, nsqd in memory", f"{CROWD}: CPU of nsqd", why=NO_NSQD)
    return result
