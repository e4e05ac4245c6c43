"""Latency of single messages at a pace that is fixed in advance, for ZSQ and its peers.

The pace is a share of the rate at which each broker is saturated in the same run. Every message is
published and acknowledged separately. Its latency counts from the time at which it was due (see
`harness/pace.py`).
"""

from __future__ import annotations

import contextlib
import os
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich import box
from rich.table import Table

from local_setup.broker import LocalBroker
from zsq.transport.client.blocking.client import Admin, Consumer, Producer, Receipt
from zsq.transport.errors import BrokerUnreachable

from ..harness.crew import Crew, MemberFailed
from ..harness.loads import Start
from ..harness.pace import LEAD_S, Arrivals, Load, Sent, known, latencies
from ..harness.pace import SHARES as PERCENTILES
from ..harness.report import Report, percentile, short
from ..peers import jetstream, nsq_peers, redis
from ..peers import paced_clients as clients

SHARES: Final = (10.0, 50.0, 80.0)  # percent of the saturated rate
SATURATED: Final = "saturated"
LAG: Final = "publisher late, p99"
LAG_MAX: Final = "publisher late, most"
COLUMNS: Final = (*PERCENTILES, LAG, LAG_MAX)
LINGER_MS: Final = 1.0
CHANNEL: Final = "bench"
WARM: Final = b"warm"
PROBE: Final = 2_000  # messages of the first, short run, which estimates the saturated rate
CLOSED_S: Final = 4.0  # the longest duration of the second run, which measures that rate
MESSAGES_MAX: Final = 4_000_000
READY: Final = 5_000


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes of the runs. `rates` replace the `shares` (percent) if there are any."""

    size: int
    seconds: float
    shares: tuple[float, ...]
    rates: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Peer:
    """A broker at `place`, its clients, and how to make and remove a topic."""

    name: str
    place: str
    prepare: Callable[[str, str], None]
    publish: Callable[[Start, str, str, Load], Sent]
    consume: Callable[[Start, str, str, Load], array[float]]
    remove: Callable[[str, str], None] | None = None


class PacedReport(Report):
    """A report with a row for each broker and rate."""

    __slots__ = ()

    def table(self) -> Table:
        rows = dict.fromkeys(name.rpartition(": ")[0] for name in self.measures)
        table = Table("broker, rate", box=box.SIMPLE_HEAD)
        for column in ("messages/s", *(f"{column}, ms" for column in COLUMNS)):
            table.add_column(column, justify="right")
        for row in rows:
            found = (self.measures.get(f"{row}: {column}") for column in ("rate", *COLUMNS))
            table.add_row(row, *("" if one is None else short(one.median) for one in found))
        return table


def paced(broker: LocalBroker, report: Report, plan: Plan, rounds: int) -> None:
    """Find the saturated rates, then measure latencies at shares of them.

    In each round, all brokers run one after the other at each rate.
    """
    before = os.getloadavg()[0]
    for number in range(0 if plan.rates else rounds):
        with _peers(broker) as peers:
            for peer in peers:
                report.add(
                    f"{peer.name}, {SATURATED}: rate",
                    "messages/s",
                    _saturated_rate(peer, f"saturated{number}", plan),
                )
    for number in range(rounds):
        with _peers(broker) as peers:
            for index in range(len(plan.rates or plan.shares)):
                for peer in peers:
                    _at_a_rate(peer, report, plan, f"paced{number}-{index}", index)
                    broker.check()
    for name, found in (
        ("redis-server", redis.find()),
        ("nsqd", nsq_peers.find()),
        ("nats-server", jetstream.find()),
    ):
        if found is None:
            report.notes.append(f"{name} is not on PATH: nothing is compared with it")
    report.notes.append(f"load average of the machine before the first run: {before:.1f}")


def _at_a_rate(peer: Peer, report: Report, plan: Plan, topic: str, index: int) -> None:
    if plan.rates:
        rate = plan.rates[index]
        name = f"{peer.name}, {rate:,.0f}/s"
    else:
        rate = report.measures[f"{peer.name}, {SATURATED}: rate"].median * plan.shares[index] / 100
        name = f"{peer.name}, {plan.shares[index]:g} %"
    load = Load(max(1, min(MESSAGES_MAX, int(rate * plan.seconds))), plan.size, rate)
    at_rate(peer, report, name, topic, load)


def at_rate(peer: Peer, report: Report, name: str, topic: str, load: Load) -> None:
    """Measure one run by the timetable. `name` begins the names of its measures."""
    begin, sent, times = _run(peer, topic, load)
    missing = times.count(0.0)
    if missing or not sent.answered:
        what = (
            f"{missing:,} of {load.count:,} messages did not arrive"
            if missing
            else "not all messages were acknowledged"
        )
        report.notes.append(f"{name}: a run is left out, {what} within {load.end_s:.0f} s")
        return
    report.add(f"{name}: rate", "messages/s", load.rate)
    taken = latencies(load, begin, times)
    for column, share in known(load.count).items():
        report.add(f"{name}: {column}", "ms", percentile(taken, share) * 1000)
    report.add(f"{name}: {LAG}", "ms", percentile(list(sent.lags), 0.99) * 1000)
    report.add(f"{name}: {LAG_MAX}", "ms", max(sent.lags) * 1000)


def _saturated_rate(peer: Peer, topic: str, plan: Plan) -> float:
    """Return the messages a second from the publisher to the handler in a closed loop."""
    estimate = _closed_rate(peer, f"{topic}-probe", Load(PROBE, plan.size))
    count = int(estimate * min(plan.seconds, CLOSED_S))
    return _closed_rate(peer, topic, Load(max(PROBE, min(MESSAGES_MAX, count)), plan.size))


def _closed_rate(peer: Peer, topic: str, load: Load) -> float:
    begin, _, times = _run(peer, topic, load)
    if not any(times):
        raise MemberFailed(f"no message arrived through {peer.name}")
    return (load.count - times.count(0.0)) / (max(times) - begin)


def _run(peer: Peer, topic: str, load: Load) -> tuple[float, Sent, array[float]]:
    """Return the start of the load, the publisher's result, and the times of arrival."""
    peer.prepare(peer.place, topic)
    with Crew() as crew:
        crew.add(peer.consume, peer.place, topic, load)
        crew.add(peer.publish, peer.place, topic, load)
        begin = crew.go() + LEAD_S
        times, sent = crew.results()
    if peer.remove is not None:
        peer.remove(peer.place, topic)
    return begin, sent, times


@contextlib.contextmanager
def _peers(broker: LocalBroker) -> Iterator[list[Peer]]:
    """Start the other brokers that are on PATH, and yield them together with ZSQ's."""
    ours = (
        (_prepare, publish_blocks, _consume, _remove),
        (_prepare, publish_lingering, _consume, _remove),
    )
    found = [
        Peer("zsq", broker.url, *ours[0]),
        Peer(f"zsq, linger {LINGER_MS:g} ms", broker.url, *ours[1]),
    ]
    with peers_on_path(broker.folder) as others:
        yield found + others


@contextlib.contextmanager
def peers_on_path(folder: Path) -> Iterator[list[Peer]]:
    """Start the brokers beside ZSQ that are on PATH, with their data below `folder`."""
    with contextlib.ExitStack() as stack:
        yield list(_found(stack, folder))


def _found(stack: contextlib.ExitStack, folder: Path) -> Iterator[Peer]:
    if (program := redis.find()) is not None:
        path = stack.enter_context(redis.running(program, folder))
        stream = (
            clients.prepare_stream,
            clients.publish_redis,
            clients.consume_redis,
            clients.remove_stream,
        )
        yield Peer("redis, synced", path, *stream)
    if (program := jetstream.find()) is not None:
        port = str(stack.enter_context(jetstream.jetstream(program, folder)))
        file = (
            jetstream.prepare_jetstream,
            jetstream.publish_jetstream,
            jetstream.consume_jetstream,
            jetstream.remove_jetstream,
        )
        yield Peer("jetstream, synced", port, *file)
    if (program := nsq_peers.find()) is not None:
        for kind in (nsq_peers.SYNCED, nsq_peers.IN_MEMORY):
            port = str(stack.enter_context(nsq_peers.nsqd(program, kind, folder))[0])
            yield Peer(
                kind, port, clients.prepare_channel, clients.publish_nsq, clients.consume_nsq
            )


# ZSQ


def _prepare(url: str, topic: str) -> None:
    with Admin(url) as admin:
        admin.create_channel(topic, CHANNEL)


def _remove(url: str, topic: str) -> None:
    with Admin(url) as admin:
        admin.delete_topic(topic, force=True)


def publish_blocks(start: Start, url: str, topic: str, load: Load) -> Sent:
    """Publish each message as a separate block, which is sent immediately."""
    return _publish(
        start,
        url,
        topic,
        load,
        0.0,
        lambda producer, body: producer.publish_many(topic, [body], wait=False),
    )


def publish_lingering(start: Start, url: str, topic: str, load: Load) -> Sent:
    """Publish each message by a separate call. Messages of one millisecond share a block."""
    return _publish(
        start, url, topic, load, LINGER_MS, lambda producer, body: producer.publish(topic, body)
    )


def _publish(
    start: Start,
    url: str,
    topic: str,
    load: Load,
    linger_ms: float,
    publish: Callable[[Producer, bytes], Receipt],
) -> Sent:
    clock = time.monotonic
    lags = array("d")
    receipts: deque[Receipt] = deque()
    producer = Producer(url, linger_ms=linger_ms, timeout=load.end_s)
    try:
        publish(producer, WARM).wait()
        begin = start() + LEAD_S
        sent = 0
        while sent < load.count and (passed := clock() - begin) < load.end_s:
            for number in range(sent, load.allowed(passed, sent - len(receipts))):
                receipt = publish(producer, load.body(number))
                lags.append(clock() - begin - load.due_s(number))
                if not load.rate:
                    receipts.append(receipt)
                sent += 1
            if load.rate:
                time.sleep(max(0.0, begin + load.due_s(sent) - clock()))
            elif receipts:
                receipts.popleft().wait()
        producer.flush(max(0.1, begin + load.end_s - clock()))
    except BrokerUnreachable:
        return Sent(lags, answered=False)
    finally:
        with contextlib.suppress(BrokerUnreachable):
            producer.close(0.1)
    return Sent(lags, sent == load.count)


def _consume(start: Start, url: str, topic: str, load: Load) -> array[float]:
    with Consumer(topic, CHANNEL, url=url, ready=READY) as consumer:
        arrivals = Arrivals(load, start() + LEAD_S)
        while not arrivals.over:
            batch = consumer.receive_batch(timeout=1.0)
            for message in batch.messages() if batch is not None else ():
                if message.body != WARM:
                    arrivals.add(message.body)
                message.finish()
    return arrivals.times
