"""Storage benchmark: the rates of the log alone and of one producer, beside writev + fdatasync.

It also measures how many bytes storage writes to the disk for each byte of a block: `write_bytes`
in /proc/PID/io of the topic's process, which includes its state store.
"""

from __future__ import annotations

import shutil
import time
import uuid
from pathlib import Path
from typing import Any, Final

from local_setup.broker import LocalBroker
from zsq.storage.directory.store import StoreOptions, TopicIdentity, create_store, open_store
from zsq.storage.files import Files
from zsq.transport.block.block import pack
from zsq.transport.client.blocking.client import Admin

from ..harness.crew import Crew
from ..harness.loads import Shape, Start, make_bodies, publish
from ..harness.report import Report
from ..peers import limits
from .throughput import DISK, RATE, temporary_topic

WRITTEN: Final = "bytes written for each byte of blocks"
SETTLE_S: Final = 20.0


def storage(broker: LocalBroker, report: Report, shape: Shape, rounds: int) -> None:
    """Measure the disk's limit, the log alone in a process, and one producer, in each round.

    The producer's round also gives the bytes that storage wrote.
    """
    for number in range(rounds):
        with Crew() as crew:
            crew.add(_log_alone, str(broker.folder / f"log-{number}"), shape)
            begin = crew.go()
            report.add("zsq, the log alone", RATE, shape.messages / (crew.ends()[0] - begin))
        report.add(DISK, RATE, limits.disk_rate(shape, broker.folder), limit=True)
        _through_broker(broker, report, shape, f"bench-{number}")
        report.add(DISK, RATE, limits.disk_rate(shape, broker.folder), limit=True)


def _log_alone(start: Start, folder: str, shape: Shape) -> float:
    """Append as much at a time as a topic gathers under load, and sync before the next append."""
    block = pack(make_bodies(shape)[: shape.block])
    together = max(1, limits.SYNC_BYTES // block.length)
    files, identity = Files(), TopicIdentity("bench", uuid.uuid4().hex)
    create_store(files, folder, identity)
    store = open_store(files, folder, StoreOptions(), identity)
    try:
        start()
        left = shape.blocks
        while left:
            count = min(together, left)
            store.log.append([block] * count, time.time_ns())
            store.log.sync()
            left -= count
        return time.monotonic()
    finally:
        store.close()
        shutil.rmtree(folder)


def _through_broker(broker: LocalBroker, report: Report, shape: Shape, topic: str) -> None:
    with temporary_topic(broker, topic), Admin(broker.url) as admin:
        admin.create_channel(topic, "bench")
        pid = next(
            row["pid"] for row in admin.stats()["processes"] if row["name"] == f"topic {topic}"
        )
        before = written_bytes(pid)
        with Crew() as crew:
            crew.add(publish, broker.url, topic, shape)
            begin = crew.go()
            report.add("zsq, one producer", RATE, shape.messages / (crew.ends()[0] - begin))
        _settle(pid)
        stored = shape.blocks * pack(make_bodies(shape)[: shape.block]).length
        report.add(WRITTEN, "ratio", (written_bytes(pid) - before) / stored)


def written_bytes(pid: int) -> int:
    """Return the bytes that the process has sent to the disk."""
    rows: dict[str, Any] = dict(
        line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines()
    )
    return int(rows["write_bytes"])


def _settle(pid: int) -> None:
    """Wait until no bytes are written for three seconds, because checkpoints follow a load."""
    deadline = time.monotonic() + SETTLE_S
    last, since = written_bytes(pid), time.monotonic()
    while time.monotonic() < deadline and time.monotonic() - since < 3.0:
        time.sleep(0.1)
        now = written_bytes(pid)
        if now != last:
            last, since = now, time.monotonic()
