"""Time budgets: publish to handler, with slower syncs, starts and a restart, and `zsq --help`."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from local_setup.broker import BrokerFailed, LocalBroker, serve_again
from zsq.transport.client.blocking.client import Admin

from ..harness.loads import Shape
from ..harness.report import Report
from ..harness.slow_sync import slow_broker
from ..harness.usage import used_s
from ..measures import backlog, single, throughput, topics
from ..peers import nsq_peers, redis
from ..peers.raw_single import RAW_COST, RAW_TO_CONSUMER
from .lines import Goal, most, ratios
from .work import GATES, Found, Work, found, group

SIZE: Final = 200
RATE: Final = 200.0
DELAYS_MS: Final = (0.0, 0.1, 1.0, 5.0)
KEPT: Final = 0.8
TOPICS: Final = 10
CHANNELS: Final = 2  # the number of channels of each topic
HELPS: Final = 5  # the number of runs of `zsq --help` in each round
START_WAIT_S: Final = 30.0


def latency(work: Work) -> Found:
    with group(work, f"one message, publish to handler, {RATE:g} a second") as (broker, result):
        single.latency(broker, result.report, SIZE, work.seconds(5.0), RATE, work.rounds)
    lines, report = result.lines, result.report
    ours = "publish to handler, p50"
    lines.of(report, "p50, durable", ours, most(0.85))
    lines.of(report, "p99, durable", "publish to handler, p99", most(1.6))
    lines.of(
        report,
        "p50 of raw pyzmq over the same hops, with a write and an fdatasync",
        RAW_TO_CONSUMER,
    )
    lines.ratio(report, "p50 by that", ours, RAW_TO_CONSUMER, most(1.0))
    lines.of(report, "p50 of one write and fdatasync alone", "one write + fdatasync, p50")
    for name in report.measures:
        if name.endswith((": p50", ": p99")):
            lines.of(report, f"{name[-3:]} of {name[:-5]}", name)
    shared = f"{single.SHARED}publish to handler"
    lines.of(report, f"{single.SHARED}p50", f"{shared}, p50")
    lines.of(report, f"{single.SHARED}p99", f"{shared}, p99")
    lines.of(report, single.MOVE, single.MOVE, most(50.0))
    for name in report.measures:
        if name.startswith(single.PROCESSOR):
            goal = most(800.0) if name.endswith(single.ALL) else None
            lines.of(report, name, name, goal)
    name = f"{single.SHARED}{single.PROCESSOR} {single.ALL}"
    lines.of(report, name, name)
    lines.of(report, "processor time of a message: raw pyzmq over the same hops", RAW_COST)
    return result


def syncs(work: Work) -> Found:
    """Measure one broker with each delay in turn.

    So all delays are measured with the same broker and the same page cache.
    """
    result = found("a sync takes longer, publish and consume at once, blocks of 1,000")
    shape = Shape(work.count(1_000_000), SIZE, 1000)
    with slow_broker(*GATES, under=work.folder) as (broker, delay):
        for number in range(work.rounds):
            for added_ms in DELAYS_MS if number % 2 == 0 else reversed(DELAYS_MS):
                delay.set(added_ms / 1e3)
                with throughput.temporary_topic(broker, f"bench-{number}-{added_ms:g}") as topic:
                    rate = throughput.rate_through(broker, topic, shape)
                result.report.add(_with(added_ms), throughput.RATE, rate)
            delay.set(0.0)
    measures = result.report.measures
    for added_ms in DELAYS_MS:
        result.lines.of(result.report, f"messages of 200 B, {_with(added_ms)}", _with(added_ms))
    for added_ms in DELAYS_MS[1:]:
        kept = ratios(measures[_with(added_ms)].values, measures[_with(0.0)].values)
        result.lines.add(f"{_with(added_ms)}: by the rate with none", "times", kept, Goal(KEPT))
    return result


def _with(added_ms: float) -> str:
    return f"{added_ms:g} ms added to each sync"


def startup(work: Work) -> Found:
    result = found("start and restart")
    report = result.report
    for _ in range(work.rounds):
        begin = time.perf_counter()
        with group(work, "without topics") as (broker, _):
            report.add("no topics", "s", time.perf_counter() - begin)
            report.add("no topics: processor time", "s", used_s(broker.process.pid))
            topics.create(broker, topics.places(TOPICS, CHANNELS))
            topics.stop(broker)
            _starts(broker, report)
            _peers(report, broker.folder)
        for _ in range(HELPS):
            begin = time.perf_counter()
            subprocess.run(
                [sys.executable, "-P", "-m", "zsq", "--help"], stdout=subprocess.DEVNULL, check=True
            )
            report.add("help", "ms", (time.perf_counter() - begin) * 1e3)
    for what, name, bound in (
        ("`zsq serve` without topics, until ready", "no topics", 0.4),
        (f"with {TOPICS} topics and {TOPICS * CHANNELS} channels, until ready", "ready", 0.5),
        ("... until all of the channels are there", "whole", None),
        ("after `kill -9` under load, until a publish was durable", backlog.RESTART, 0.6),
        ("nsqd, until it answers", "nsqd", None),
        ("redis-server, until it answers", "redis", None),
    ):
        goal = None if bound is None else most(bound)
        result.lines.of(report, what, name, goal, why="it is not on PATH")
    result.lines.of(report, "`zsq --help`", "help", most(150.0))
    return result


def _starts(broker: LocalBroker, report: Report) -> None:
    """Measure a start of the broker's topics, and one after a kill."""
    begin = time.perf_counter()
    with serve_again(broker, *GATES) as again:
        report.add("ready", "s", time.perf_counter() - begin)
        report.add("ready: processor time", "s", used_s(again.process.pid))
        with Admin(again.url) as admin:
            while sum(len(row["channels"]) for row in admin.stats()["topics"]) < TOPICS * CHANNELS:
                if time.perf_counter() > begin + START_WAIT_S:
                    raise BrokerFailed(
                        f"some channels were not ready {START_WAIT_S:.0f} s after the start"
                    )
                time.sleep(0.01)
        report.add("whole", "s", time.perf_counter() - begin)
        backlog.restart(again, report, "topic-0")


def _peers(report: Report, folder: Path) -> None:
    """Measure the start of nsqd and of Redis, if they are on PATH."""
    begin = time.perf_counter()
    if (program := nsq_peers.find()) is not None:
        with nsq_peers.nsqd(program, "nsqd", folder):
            report.add("nsqd", "s", time.perf_counter() - begin)
    begin = time.perf_counter()
    if (program := redis.find()) is not None:
        with redis.running(program, folder):
            report.add("redis", "s", time.perf_counter() - begin)
