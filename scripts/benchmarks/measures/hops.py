"""Processor time and waits of each process that a block passes, by thread, for several block sizes.

Processor time is the kernel's (`schedstat`, nanoseconds), so it counts what a thread does, not what
it waits for. A voluntary switch is a wait for a socket, for a disk, or for a lock that another
thread holds. The sum over all processes, divided by the cores, limits the rate.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from local_setup.broker import LocalBroker
from zsq.transport.client.blocking.client import Admin

from ..harness.crew import Crew
from ..harness.loads import Shape, Start, consume, publish
from ..harness.report import Report
from .throughput import temporary_topic

CHANNEL: Final = "bench0"
KINDS: Final = ("producer", "topic", "channel", "consumer")
BLOCKS_MAX: Final = 10_000  # the most blocks of a round
OWN, ZEROMQ = "own threads", "ZeroMQ's thread"
# For each kind of thread: seconds of processor time, and the number of voluntary switches.
Costs = dict[str, tuple[float, int]]


def hops(
    broker: LocalBroker,
    report: Report,
    messages: int,
    size: int,
    blocks: tuple[int, ...],
    rounds: int,
) -> None:
    """Measure a producer and a consumer at the same time, with `messages` in blocks of each size.

    A round has at most BLOCKS_MAX blocks.
    """
    for number in range(rounds):
        for block in blocks:
            shape = Shape(min(messages, BLOCKS_MAX * block), size, block)
            with temporary_topic(broker, f"hops-{number}-{block}") as topic:
                _one(broker, report, topic, shape)


def _one(broker: LocalBroker, report: Report, topic: str, shape: Shape) -> None:
    with Admin(broker.url) as admin:
        admin.create_channel(topic, CHANNEL)
        pids = {str(row["name"]): int(row["pid"]) for row in admin.stats()["processes"]}
    inside = {"topic": pids[f"topic {topic}"], "channel": pids[f"channel {topic}/{CHANNEL}"]}
    with Crew() as crew:
        crew.add(_costed, consume, broker.url, topic, CHANNEL, shape, shape.messages + 1)
        crew.add(_costed, publish, broker.url, topic, shape)
        before = {kind: thread_costs(pid) for kind, pid in inside.items()}
        start = crew.go()
        (end, consumer), (_, producer) = crew.results()
        after = {kind: thread_costs(pid) for kind, pid in inside.items()}
    costs = {kind: _less(after[kind], before[kind]) for kind in inside} | {
        "consumer": consumer,
        "producer": producer,
    }
    name = f"blocks of {shape.block:,}"
    report.add(f"{name}: rate", "messages/s", shape.messages / (end - start))
    whole = 0.0
    for kind in KINDS:
        for thread, (seconds, switches) in sorted(costs[kind].items()):
            whole += seconds
            report.add(f"{name}: {kind}, {thread}", "us CPU/block", seconds / shape.blocks * 1e6)
            report.add(f"{name}: {kind}, {thread}, waits", "waits/block", switches / shape.blocks)
    report.add(f"{name}: all of it", "us CPU/block", whole / shape.blocks * 1e6)
    report.add(f"{name}: all of it, a message", "ns CPU/message", whole / shape.messages * 1e9)


def _costed(start: Start, work: Callable[..., float], *arguments: Any) -> tuple[float, Costs]:
    """Run a client and return its result, with the costs of its threads since its start."""
    before: Costs = {}

    def begin() -> float:
        now = start()
        before.update(thread_costs(os.getpid()))
        return now

    end = work(begin, *arguments)
    return end, _less(thread_costs(os.getpid()), before)


def _less(after: Costs, before: Costs) -> Costs:
    zero = (0.0, 0)
    return {
        kind: (cost[0] - before.get(kind, zero)[0], cost[1] - before.get(kind, zero)[1])
        for kind, cost in after.items()
    }


def thread_costs(pid: int) -> Costs:
    """Return the costs of a process: those of its own threads together, and of ZeroMQ's thread."""
    found: Costs = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            seconds = int((task / "schedstat").read_text().split()[0]) / 1e9
            status = (task / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread has ended
        kind = ZEROMQ if "ZMQbg" in status.partition("\n")[0] else OWN
        switches = int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
        cost, count = found.get(kind, (0.0, 0))
        found[kind] = (cost + seconds, count + switches)
    return found
