"""Budgets of costs: quiet topics, channels, a backlog, Spark's read and write, an open console.

The console has no budget.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from typing import Final

from ..harness.loads import Shape
from ..measures import backlog as backlogs
from ..measures import single
from ..measures import topics as measure
from ..measures.console import console as measure_console
from ..peers.nsq_peers import free_port
from .lines import Goal, most
from .work import Found, Work, found, group

SIZE: Final = 200
MIB: Final = 1 << 20


def topics(work: Work) -> Found:
    channels = measure.places(work.topics(100), 2)
    seconds = work.seconds(12.0)
    name = f"{work.topics(100):,} topics with 2 channels, nothing published"
    with group(work, name, "--no-listen", *measure.STAY_AWAKE) as (broker, result):
        measure.quiet(broker, result.report, channels, seconds, work.rounds)
        measure.asleep(broker, result.report, channels, seconds)
        measure.beside_nsqd(result.report, broker.folder, channels, seconds)
        measure.beside_redis(result.report, broker.folder, channels, seconds)
    lines = result.lines
    _beside(result, "creation", measure.CREATION, most(2.0))
    for state, memory, share in (
        (measure.AWAKE, 150.0, 1.0),
        (measure.CONNECTED, 200.0, 2.0),
        (measure.ASLEEP, None, 0.5),
    ):
        goal = None if memory is None else most(memory)
        _beside(result, f"{state}: memory (PSS)", f"{state}: memory (PSS)", goal)
        _beside(result, f"{state}: processor time", f"{state}: processor time", most(share))
    lines.of(result.report, "start until ready, all awake", measure.START, most(1.2))
    return result


def thousand(work: Work) -> Found:
    count, seconds = work.topics(1000), work.seconds(12.0)
    name = f"{count:,} topics with a channel, nothing published"
    with group(work, name, "--no-listen", *measure.STAY_AWAKE) as (broker, result):
        lines, report = result.lines, result.report
        why = measure.too_small(broker, count)
        if not why:
            measure.quiet(broker, report, measure.places(count, 1), seconds, 1, connected=False)
    awake = f"{measure.AWAKE}: memory (PSS)"
    lines.of(report, awake, awake, most(1024.0), why=why)
    lines.of(report, "start until ready, all awake", measure.START, most(5.0), why=why)
    return result


def _beside(result: Found, what: str, name: str, goal: Goal | None) -> None:
    """Add a line, and one for each peer that was measured too."""
    result.lines.of(result.report, what, name, goal)
    for peer in measure.PEERS:
        if (of_peer := f"{peer}: {name}") in result.report.measures:
            result.lines.of(result.report, f"{what}, {peer}", of_peer)


def channel(work: Work) -> Found:
    count = max(2, int(single.CHANNELS * work.scale))
    with group(work, f"{count} channels of one topic") as (broker, result):
        single.processes(broker, result.report, count, 1)
        measure.beside_nsqd(
            result.report, broker.folder, [("topic", f"channel-{n}") for n in range(count)]
        )
    _beside(result, "creation", measure.CREATION, most(3.0))
    lines, report = result.lines, result.report
    lines.of(report, "memory of one", "memory of a channel", most(0.5))
    lines.of(report, "until one is made", "create a channel", most(15.0))
    return result


def backlog(work: Work) -> Found:
    shape = Shape(work.count(500_000), SIZE, 1000)
    waiting = max(100_000, int(work.waiting * min(1.0, work.scale)))
    with group(work, f"{waiting:,} messages waiting") as (broker, result):
        backlogs.backlog(broker, result.report, waiting, shape, work.rounds)
    lines, report = result.lines, result.report
    [grown] = [
        one for one in report.measures.values() if one.name.startswith("growth of the process")
    ]
    name = grown.name.partition("(")[2].removesuffix(")")
    lines.add(
        f"memory of the process that grew most, {name}",
        "MB",
        [size * MIB / 1e6 for size in grown.values],
        most(10.0),
    )
    for kind in ("publish and consume", "publish", "consume the oldest"):
        lines.of(report, f"{kind}, with nothing waiting", f"{kind}, {backlogs.EMPTY}")
        lines.ratio(
            report,
            f"{kind}: with the backlog by without",
            f"{kind}, {backlogs.FULL}",
            f"{kind}, {backlogs.EMPTY}",
            Goal(0.8),
        )
    lines.of(
        report,
        "start after `kill -9`, a full last chunk, until a publish was durable",
        backlogs.RESTART,
        most(0.6),
    )
    return result


def spark(work: Work) -> Found:
    if (why := no_spark()) is not None:
        result = found("Spark, rows of 200 B")
        for what, bound in (
            ("source by prebuilt Arrow batches", 0.8),
            ("source by tuples", 3.0),
            ("sink by one that throws away", 0.7),
        ):
            result.lines.add(what, "times", (), Goal(bound), why)
        return result
    from ..measures import spark as sparks

    rows = work.count(1_000_000, 10_000)
    with group(work, "Spark, rows of 200 B") as (broker, result):
        sparks.spark(broker, result.report, rows, SIZE, work.rounds)
    lines, report, suffix = result.lines, result.report, f", {SIZE} B"
    lines.of(report, "source: read", f"read: ZSQ{suffix}")
    lines.ratio(
        report,
        "source by prebuilt Arrow batches",
        f"read: ZSQ{suffix}",
        f"{sparks.SOURCE}{suffix}",
        Goal(0.8),
    )
    lines.ratio(
        report, "source by tuples", f"read: ZSQ{suffix}", f"read: tuples{suffix}", Goal(3.0)
    )
    lines.of(report, "sink: written, durable, exactly once", f"write: ZSQ{suffix}")
    lines.ratio(
        report,
        "sink by one that throws away",
        f"write: ZSQ{suffix}",
        f"{sparks.SINK}{suffix}",
        Goal(0.7),
    )
    return result


def no_spark() -> str | None:
    """Return the reason why Spark cannot be measured here, or None."""
    missing = [name for name in ("pyspark", "pyarrow") if importlib.util.find_spec(name) is None]
    home = os.environ.get("JAVA_HOME", "")
    java = os.path.exists(f"{home}/bin/java") if home else shutil.which("java") is not None
    missing += [] if java else ["Java"]
    return f"{', '.join(missing)} was not found" if missing else None


def console(work: Work) -> Found:
    topics, channels = max(2, int(20 * work.scale)), max(4, int(200 * work.scale))
    port = free_port()
    name = f"an open console, {topics} topics and {channels} channels"
    with group(work, name, *("--no-listen", "--no-nsq", "--http-listen", f"127.0.0.1:{port}")) as (
        broker,
        result,
    ):
        measure_console(broker, result.report, port, topics, channels, work.seconds(5.0))
    lines, report = result.lines, result.report
    lines.of(report, "first page, all it asks for", "first page")
    lines.of(report, "a page of topics, nothing happening", "a page of topics")
    lines.of(report, "the whole broker, no page", "no page: all processes")
    return result
