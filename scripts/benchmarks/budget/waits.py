"""Time budgets: publish to handler, with slower syncs, and the start of a broker and of `zsq`."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import Final

from local_setup.broker import STOP_WAIT_S, BrokerFailed, LocalBroker, serve_again
from zsq.transport.client.blocking.client import Admin

from ..harness.loads import Shape
from ..harness.slow_sync import slow_broker
from ..measures import single, throughput
from ..peers.raw_single import RAW_TO_CONSUMER
from .lines import Goal, ratios
from .work import GATES, Found, Work, found, group

SIZE: Final = 200
RATE: Final = 500.0
DELAYS_MS: Final = (0.0, 0.1, 1.0, 5.0)
KEPT: Final = 0.8
TOPICS: Final = 10
CHANNELS: Final = 3  # the number of channels of each topic
HELPS: Final = 5  # the number of runs of `zsq --help` in each round
START_WAIT_S: Final = 30.0


def latency(work: Work) -> Found:
    with group(work, f"one message, publish to handler, {RATE:g} a second") as (broker, result):
        single.latency(broker, result.report, SIZE, work.seconds(4.0), RATE, work.rounds)
    lines, report = result.lines, result.report
    for name, goal in (
        ("p50", Goal(0.35, at_least=False)),
        ("p99", Goal(1.5, at_least=False)),
        ("p99.9", None),
    ):
        lines.of(report, f"{name}, durable", f"publish to handler, {name}", goal)
    lines.of(
        report,
        "p50 of raw pyzmq over the same hops, with a write and an fdatasync",
        RAW_TO_CONSUMER,
    )
    lines.of(report, "p50 of one write and fdatasync alone", "one write + fdatasync, p50")
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
    result = found("start-up")
    for _ in range(work.rounds):
        with group(work, "start-up") as (broker, _):
            _make_topics(broker)
            _stop(broker)
            _start(broker, result)
        for _ in range(HELPS):
            begin = time.perf_counter()
            subprocess.run(
                [sys.executable, "-P", "-m", "zsq", "--help"], stdout=subprocess.DEVNULL, check=True
            )
            result.report.add("help", "ms", (time.perf_counter() - begin) * 1e3)
    lines, report = result.lines, result.report
    name = f"{TOPICS} topics and {TOPICS * CHANNELS} channels"
    lines.of(
        report, f"`zsq serve` with {name}, until it answers", "answers", Goal(1.0, at_least=False)
    )
    lines.of(report, "... until all of the channels are there", "whole")
    lines.of(report, "`zsq --help`", "help", Goal(150.0, at_least=False))
    return result


def _make_topics(broker: LocalBroker) -> None:
    with Admin(broker.url) as admin:
        for topic in range(TOPICS):
            for channel in range(CHANNELS):
                admin.create_channel(f"topic{topic}", f"channel{channel}")


def _stop(broker: LocalBroker) -> None:
    broker.process.send_signal(signal.SIGTERM)
    broker.process.wait(STOP_WAIT_S)


def _start(broker: LocalBroker, result: Found) -> None:
    begin = time.perf_counter()
    with serve_again(broker, "--no-http", "--no-nsq") as again, Admin(again.url) as admin:
        admin.ping()
        result.report.add("answers", "s", time.perf_counter() - begin)
        while sum(len(row["channels"]) for row in admin.stats()["topics"]) < TOPICS * CHANNELS:
            if time.perf_counter() > begin + START_WAIT_S:
                raise BrokerFailed(
                    f"some of its channels were not ready {START_WAIT_S:.0f} s after the start"
                )
            time.sleep(0.01)
        result.report.add("whole", "s", time.perf_counter() - begin)
