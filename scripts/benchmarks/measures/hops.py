"""Processor time and wake-ups of each process that a block passes, by thread: for several block
sizes at full speed, or for messages that come alone.

Processor time is the kernel's (`schedstat`, nanoseconds), so it counts what a thread does, not what
it waits for. A wake-up ends a wait for a socket, for a disk, or for a lock that another thread
holds: it is a voluntary context switch. The sum over all processes, divided by the cores, limits
the rate at full speed. The steps of a block are also measured alone, and so are plain sockets that
move the same bytes. Messages that come alone find cold caches after each wake-up, so they cost
several times as much.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from local_setup.broker import LocalBroker
from zsq.transport.client.blocking.client import Admin

from ..harness.crew import Crew
from ..harness.loads import Shape, Start, consume, publish
from ..harness.report import Report
from ..peers.raw_sockets import raw_costs
from .block_steps import step_costs
from .single import publish_stamps, receive_stamps
from .throughput import temporary_topic

CHANNEL: Final = "bench0"
KINDS: Final = ("producer", "topic", "channel", "consumer")
BLOCKS_MAX: Final = 10_000  # the most blocks of a round
SECONDS_MAX: Final = 20.0  # the longest round of messages that come alone
MAIN, ZEROMQ, OTHER = "main thread", "ZeroMQ's threads", "other threads"
# For each kind of thread: seconds of processor time, and the number of wake-ups.
Costs = dict[str, tuple[float, int]]


def hops(
    broker: LocalBroker,
    report: Report,
    messages: int,
    size: int,
    blocks: tuple[int, ...],
    rounds: int,
    rate: float = 0.0,
) -> None:
    """Measure a producer and a consumer at the same time, with `messages` in blocks of each size.

    A round has at most BLOCKS_MAX blocks. With a `rate`, each message comes alone, so many in a
    second, for SECONDS_MAX at most.
    """
    for number in range(rounds):
        for block in (1,) if rate else blocks:
            blocks_max = int(rate * SECONDS_MAX) if rate else BLOCKS_MAX
            shape = Shape(min(messages, blocks_max * block), size, block)
            with temporary_topic(broker, f"hops-{number}-{block}") as topic:
                _one(broker, report, topic, shape, rate)


def _one(broker: LocalBroker, report: Report, topic: str, shape: Shape, rate: float) -> None:
    with Admin(broker.url) as admin:
        admin.create_channel(topic, CHANNEL)
        pids = {str(row["name"]): int(row["pid"]) for row in admin.stats()["processes"]}
    inside = {"topic": pids[f"topic {topic}"], "channel": pids[f"channel {topic}/{CHANNEL}"]}
    with Crew() as crew:
        if rate:
            count = shape.messages
            crew.add(_costed, receive_stamps, broker.url, topic, count, CHANNEL)
            crew.add(_costed, publish_stamps, broker.url, topic, shape.size, count, rate)
        else:
            crew.add(_costed, consume, broker.url, topic, CHANNEL, shape, shape.messages + 1)
            crew.add(_costed, publish, broker.url, topic, shape)
        before = {kind: thread_costs(pid) for kind, pid in inside.items()}
        start = crew.go()
        (consumer_result, consumer), (_, producer) = crew.results()
        after = {kind: thread_costs(pid) for kind, pid in inside.items()}
    costs = {kind: _less(after[kind], before[kind]) for kind in inside} | {
        "consumer": consumer,
        "producer": producer,
    }
    if rate:
        name = f"{rate:g} messages a second"
    else:
        name = f"blocks of {shape.block:,}"
        report.add(f"{name}: rate", "messages/s", shape.messages / (consumer_result - start))
    total_seconds, total_wakes = 0.0, 0
    for kind in KINDS:
        for thread, (seconds, wakes) in sorted(costs[kind].items()):
            total_seconds += seconds
            total_wakes += wakes
            report.add(f"{name}: {kind}, {thread}", "us CPU/block", seconds / shape.blocks * 1e6)
            report.add(f"{name}: {kind}, {thread}, woken", "times/block", wakes / shape.blocks)
    report.add(f"{name}: all", "us CPU/block", total_seconds / shape.blocks * 1e6)
    report.add(f"{name}: all, woken", "times/block", total_wakes / shape.blocks)
    report.add(f"{name}: all, a message", "ns CPU/message", total_seconds / shape.messages * 1e9)
    if not rate:
        _floor(broker, report, name, shape)


def _floor(broker: LocalBroker, report: Report, name: str, shape: Shape) -> None:
    """Measure the steps alone, and what plain sockets take to move the same bytes."""
    ns = "ns CPU/message"
    for step, seconds in step_costs(shape, broker.folder).items():
        report.add(f"{name}: step alone: {step}", ns, seconds / shape.block * 1e9)
    costs = raw_costs(shape, broker.folder)
    for kind in KINDS:
        report.add(f"{name}: plain sockets: {kind}", ns, costs[kind] / shape.block * 1e9)
    report.add(f"{name}: plain sockets: all", ns, sum(costs.values()) / shape.block * 1e9)


def _costed(start: Start, work: Callable[..., Any], *arguments: Any) -> tuple[Any, Costs]:
    """Run a client and return its result, with the costs of its threads since its start.

    Threads that it has ended count among the others.
    """
    before: Costs = {}

    def begin() -> float:
        now = start()
        before.update(_own_costs())
        return now

    result = work(begin, *arguments)
    return result, _less(_own_costs(), before)


def _own_costs() -> Costs:
    costs, usage = thread_costs(os.getpid()), resource.getrusage(resource.RUSAGE_SELF)
    alive = [costs[kind] for kind in (MAIN, ZEROMQ) if kind in costs]
    seconds = usage.ru_utime + usage.ru_stime - sum(seconds for seconds, _ in alive)
    return costs | {OTHER: (max(0.0, seconds), usage.ru_nvcsw - sum(wakes for _, wakes in alive))}


def _less(after: Costs, before: Costs) -> Costs:
    zero = (0.0, 0)
    return {
        kind: (cost[0] - before.get(kind, zero)[0], cost[1] - before.get(kind, zero)[1])
        for kind, cost in after.items()
    }


def thread_costs(pid: int) -> Costs:
    """Return the costs of a process: of its main thread, of ZeroMQ's threads, and of the others."""
    costs: Costs = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            seconds = int((task / "schedstat").read_text().split()[0]) / 1e9
            status = (task / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread has ended
        is_zeromq = "ZMQbg" in status.partition("\n")[0]
        kind = ZEROMQ if is_zeromq else MAIN if task.name == str(pid) else OTHER
        wakes = int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
        cost, count = costs.get(kind, (0.0, 0))
        costs[kind] = (cost + seconds, count + wakes)
    return costs
