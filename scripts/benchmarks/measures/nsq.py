"""NSQ's protocol: rates and costs of ZSQ, beside the same client on a bare event loop and on nsqd.

Five loads run on one topic: MPUBs, a consumer that finishes each message, many connections that
publish single messages, one such connection, and many consumers. After each load all messages are
read, and each must come exactly once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from local_setup.broker import LocalBroker
from zsq.transport.client.blocking.client import Admin

from ..harness.crew import Crew
from ..harness.loads import BODIES_MAX, Shape
from ..harness.report import Report, percentile
from ..harness.usage import Usage, kinds_on_the_way
from ..peers import limits, nsq_client, nsq_peers
from ..peers.nsq_client import Done
from ..peers.nsq_peers import AHEAD, CONNECTIONS, READY

RATE: Final = "messages/s"
COST: Final = "us CPU/message"
MILLISECONDS: Final = "ms"
TOPIC: Final = "bench"
BLOCK: Final = 200
MPUB: Final = f"MPUB of {BLOCK}"
FIN: Final = f"consume, RDY {READY}, a FIN each"
LOOP: Final = "uvloop alone"
DISK: Final = "writev + fdatasync"
LATENCY: Final = "1 connection, PUB"
CROWD: Final = "500 consumers, RDY 1, a FIN each"
CONSUMERS: Final = 500
CROWD_SHARE: Final = 10  # many consumers get this part of the messages
SETTLED_S: Final = 10.0  # the time in which the statistics must show that nothing is left


@dataclass(frozen=True, slots=True)
class Load:
    """The sizes of the five loads.

    `messages` is the number for MPUBs and for the consumer. `connections` publish single messages
    for `seconds`, and then one connection does the same. `crowd` is the number of messages for
    CONSUMERS consumers.
    """

    messages: int
    size: int
    connections: int
    seconds: float

    @property
    def shape(self) -> Shape:
        return Shape(self.messages, self.size, BLOCK)

    @property
    def crowd(self) -> Shape:
        return replace(
            self.shape, messages=max(BLOCK, self.messages // CROWD_SHARE // BLOCK * BLOCK)
        )

    @property
    def singles(self) -> str:
        return f"{self.connections} connections, PUB"


@dataclass(frozen=True, slots=True)
class Server:
    """A server that speaks NSQ's protocol on `port`.

    `name` is its name in the report, `root` its first process. `kinds` are those of its processes.
    """

    name: str
    port: int
    root: int
    kinds: dict[int, str]


def nsq(broker: LocalBroker, report: Report, port: int, load: Load, rounds: int) -> None:
    """Measure everything once in each round."""
    program = nsq_peers.find()
    for _ in range(rounds):
        with _ours(broker, port) as server:
            _loads(server, report, load, limit=False)
            broker.check()
        _loop_alone(report, load)
        _disk(report, load, broker.folder)
        for kind in nsq_peers.KINDS if program is not None else ():
            assert program is not None
            with nsq_peers.nsqd(program, kind, broker.folder) as (place, pid):
                nsq_client.make_channel(place, TOPIC)
                fewer = replace(
                    load,
                    messages=max(BLOCK, load.messages // nsq_peers.SYNCED_SHARE // BLOCK * BLOCK),
                )
                _loads(
                    Server(kind, place, pid, {}),
                    report,
                    fewer if kind == nsq_peers.SYNCED else load,
                    limit=True,
                )
    kinds = (MPUB, FIN, load.singles, LATENCY, CROWD)
    report.measures = {
        name: one
        for kind in kinds
        for name, one in report.measures.items()
        if name.startswith(kind)
    }


@contextlib.contextmanager
def _ours(broker: LocalBroker, port: int) -> Iterator[Server]:
    nsq_client.make_channel(port, TOPIC)
    with Admin(broker.url) as admin:
        kinds = kinds_on_the_way(admin.stats()["processes"])
        try:
            yield Server("zsq", port, broker.process.pid, kinds)
            _nothing_left(admin)
        finally:
            broker.check()
            admin.delete_topic(TOPIC, force=True)


def _nothing_left(admin: Admin) -> None:
    """Check that all messages are finished, each at its first delivery.

    The statistics of a busy channel may be those of a second ago, when the last load was published
    and not consumed yet.
    """
    deadline = time.monotonic() + SETTLED_S
    [row] = admin.stats(TOPIC)["topics"][0]["channels"]
    while row["depth"] and time.monotonic() < deadline:
        time.sleep(0.1)
        [row] = admin.stats(TOPIC)["topics"][0]["channels"]
    if row["depth"] or row["timeout_count"] or row["requeue_count"]:
        raise nsq_client.NsqFailed(
            f"the channel has unfinished messages, or had time-outs or requeues: {row}"
        )


def _loads(server: Server, report: Report, load: Load, *, limit: bool) -> None:
    shape, port = load.shape, server.port
    _measured(
        server,
        report,
        MPUB,
        limit,
        nsq_client.publish_blocks,
        port,
        TOPIC,
        shape,
        CONNECTIONS,
        AHEAD,
    )
    different = min(shape.messages, BODIES_MAX)
    _measured(
        server,
        report,
        FIN,
        limit,
        nsq_client.consume,
        port,
        TOPIC,
        load.size,
        READY,
        shape.messages,
        different,
    )
    for kind, connections in ((load.singles, load.connections), (LATENCY, 1)):
        stored = _measured(
            server,
            report,
            kind,
            limit,
            nsq_client.publish_singly,
            port,
            TOPIC,
            load.size,
            load.seconds,
            connections,
        )
        _together((nsq_client.consume, port, TOPIC, load.size, READY, stored, stored))
    _together((nsq_client.publish_blocks, port, TOPIC, load.crowd, CONNECTIONS, AHEAD))
    expected = load.crowd.messages
    crowd = (port, TOPIC, load.size, CONSUMERS, expected, min(expected, BODIES_MAX))
    _measured(server, report, CROWD, limit, nsq_client.consume_crowd, *crowd)


def _measured(
    server: Server, report: Report, kind: str, limit: bool, work: nsq_client.Work, *arguments: Any
) -> int:
    """Run a load and return its number of messages.

    The report gets the rate or the waits, and the processor time of each process of the server.
    """
    with Crew() as crew:
        crew.add(work, *arguments)
        crew.wait_ready()
        usage = Usage(server.root)
        begin = crew.go()
        done: Done = crew.results()[0]
        used = usage.by_kind(server.kinds)
    _rate(report, kind, server.name, (done.end - begin, done), limit=limit)
    if kind == LATENCY:
        _waits(report, server.name, done, limit=limit)
    report.add(f"{kind}: CPU of {server.name}", COST, sum(used.values()) / done.messages * 1e6)
    for part, seconds in used.items() if server.kinds else ():
        report.add(f"{kind}: CPU of {part}", COST, seconds / done.messages * 1e6)
    client = "the client" if server.kinds else f"the client of {server.name}"
    report.add(f"{kind}: CPU of {client}", COST, done.cpu_s / done.messages * 1e6)
    return done.messages


def _together(*works: tuple[Any, ...]) -> tuple[float, Done]:
    """Run functions with their arguments, each in a process.

    Return the seconds that all took, and the result of the last function.
    """
    with Crew() as crew:
        for work in works:
            crew.add(*work)
        begin = crew.go()
        done: Done = crew.results()[-1]
    return done.end - begin, done


def _loop_alone(report: Report, load: Load) -> None:
    """Measure the same client and bytes with an event loop that neither parses nor stores them."""
    shape = load.shape
    frame = len(nsq_client.mpub_frames(TOPIC, Shape(BLOCK, load.size, BLOCK))[0])
    single = nsq_peers.pub_bytes(TOPIC, load.size)

    different = min(shape.messages, BODIES_MAX)
    port = nsq_peers.free_port()
    blocks = (nsq_client.publish_blocks, port, TOPIC, shape, CONNECTIONS, AHEAD)
    _rate(
        report,
        MPUB,
        LOOP,
        _together((nsq_peers.sink, port, CONNECTIONS, frame), blocks),
        limit=True,
    )
    port = nsq_peers.free_port()
    consumer = (nsq_client.consume, port, TOPIC, load.size, READY, shape.messages, different)
    _rate(report, FIN, LOOP, _together((nsq_peers.source, port, shape), consumer), limit=True)
    for count in (load.connections, 1):
        port = nsq_peers.free_port()
        singly = (nsq_client.publish_singly, port, TOPIC, load.size, load.seconds, count)
        done = _together((nsq_peers.sink, port, count, single), singly)
        if count > 1:
            _rate(report, load.singles, LOOP, done, limit=True)
        else:
            _waits(report, LOOP, done[1], limit=True)


def _disk(report: Report, load: Load, folder: Path) -> None:
    report.add(f"{MPUB}: {DISK}", RATE, limits.disk_rate(load.shape, folder), limit=True)
    synced = limits.sync_seconds(load.size + 88, 200, folder)
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        report.add(
            f"{LATENCY}, {name}: write + fdatasync",
            MILLISECONDS,
            percentile(synced, share) * 1000,
            limit=True,
        )
    report.add(
        f"{load.singles}: write + fdatasync, one after another",
        RATE,
        1 / percentile(synced, 0.5),
        limit=True,
    )


def _rate(report: Report, kind: str, name: str, done: tuple[float, Done], *, limit: bool) -> None:
    seconds, result = done
    report.add(f"{kind}: {name}", RATE, result.messages / seconds, limit=limit, against=f"{kind}: ")


def _waits(report: Report, name: str, done: Done, *, limit: bool) -> None:
    for which, share in (("p50", 0.5), ("p99", 0.99)):
        value = percentile(list(done.waits), share) * 1000
        report.add(
            f"{LATENCY}, {which}: {name}",
            MILLISECONDS,
            value,
            limit=limit,
            against=f"{LATENCY}, {which}: ",
        )
