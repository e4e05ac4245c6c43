"""Benchmark of ids: publishes in blocks with ids beside the same without, and what ids cost."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

from local_setup.broker import LocalBroker
from zsq.storage.dedupe.id_index import IdIndex
from zsq.storage.files import Files
from zsq.transport.client.blocking.client import Producer
from zsq.transport.wire.dedupe import digest_of

from ..harness.loads import WAIT_S, Shape, make_bodies
from ..harness.report import Report

RATE: Final = "messages/s"
UUID: Final = bytes(16)
BLOCK: Final = 1_000


def dedupe(broker: LocalBroker, report: Report, shape: Shape, rounds: int, ids: int) -> None:
    for number in range(rounds):
        rates = {}
        for kind in ("without ids", "with ids", "all duplicates"):
            name = f"{number}-{kind}" if kind == "without ids" else f"{number}"
            rates[kind] = _published(broker, f"topic{name}".replace(" ", ""), shape, kind)
            report.add(f"publish {kind}", RATE, rates[kind])
        report.add("with ids by without", "ratio", rates["with ids"] / rates["without ids"])
    _many(report, ids)


def _published(broker: LocalBroker, topic: str, shape: Shape, kind: str) -> float:
    bodies = make_bodies(shape)
    with Producer(broker.url) as producer:
        producer.publish(topic, b"x")
        begin = time.monotonic()
        for at in range(0, shape.messages, shape.block):
            first = at % (len(bodies) - shape.block + 1)
            names = None
            if kind != "without ids":
                names = [f"order-{number}" for number in range(at, at + shape.block)]
            chosen = bodies[first : first + shape.block]
            producer.publish_many(topic, chosen, dedupe_ids=names, wait=False)
        producer.flush(WAIT_S)
        return shape.messages / (time.monotonic() - begin)


def _many(report: Report, ids: int) -> None:
    """Add so many ids to an index, without a broker, and start it again."""
    folder = Path(tempfile.mkdtemp(prefix="zsq-ids-"))
    try:
        index = IdIndex(Files(), str(folder), UUID, ids + BLOCK)
        spent = 0.0
        for at in range(0, ids, BLOCK):
            digests = [digest_of(b"order-%d" % number) for number in range(at, at + BLOCK)]
            begin = time.monotonic()
            index.known(digests, 0)
            index.add(digests, range(at, at + BLOCK), at + 1, at + BLOCK)
            spent += time.monotonic() - begin
            if at % 200_000 == 0:
                _flush(index)
        _flush(index)
        report.add(f"{ids:,} ids: looked up and added", "ids/s", ids / spent)
        report.add(f"{ids:,} ids: memory", "MB", index.memory_bytes / 1e6)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        report.add(f"{ids:,} ids: disk", "MB", size / 1e6)
        index.close()
        begin = time.monotonic()
        index = IdIndex(Files(), str(folder), UUID, ids + BLOCK)
        index.load(1 << 60)
        report.add(f"{ids:,} ids: time of a start", "s", time.monotonic() - begin)
        index.close()
    finally:
        shutil.rmtree(folder)


def _flush(index: IdIndex) -> None:
    while (flush := index.take(1 << 60)) is not None:
        flush.run()
        index.done(flush)
