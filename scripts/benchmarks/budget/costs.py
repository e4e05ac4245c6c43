"""Budgets of costs: a channel, a backlog, a restart, Spark's read and write, and an open console.

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
from ..measures.console import console as measure_console
from ..peers.nsq_peers import free_port
from .lines import Goal
from .work import Found, Work, found, group

SIZE: Final = 200
MIB: Final = 1 << 20


def channel(work: Work) -> Found:
    with group(work, "a channel") as (broker, result):
        single.processes(
            broker, result.report, max(2, int(single.CHANNELS * work.scale)), work.rounds
        )
    result.lines.of(
        result.report, "memory of its own", "own memory of a channel", Goal(6.0, at_least=False)
    )
    result.lines.of(
        result.report, "until it is made", "create a channel", Goal(15.0, at_least=False)
    )
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
        Goal(10.0, at_least=False),
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
        "start after kill -9 until a publish was durable",
        Goal(2.0, at_least=False),
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
