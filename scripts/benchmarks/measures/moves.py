"""Moves: how long publishes wait while a part moves to another broker, and how long a move takes.

Two brokers share the bucket. A producer publishes one message after the other all the time. Each
round moves a part to the other broker: one with few messages, and parts with `ARCHIVED_MIB` in the
archive, whose objects are copied.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from local_setup.broker import BrokerFailed, temporary_broker
from local_setup.s3_servers import free_ports
from zsq.transport.client.blocking.client import Admin
from zsq.transport.client.blocking.producer import Producer

from ..harness.report import Report

ARCHIVED_MIB: Final = (64, 512)
CHUNK: Final = "4MiB"
TIMEOUT_S: Final = 120.0
POLL_S: Final = 0.05
PAUSE_S: Final = 0.005  # between two publishes
MIB: Final = 1024 * 1024


def moves(report: Report, place: str, rounds: int) -> None:
    """Measure moves of a small part and of parts with an archive."""
    ports = free_ports(4)
    with ExitStack() as stack:
        urls = []
        for name, listen, push in (("one", *ports[:2]), ("two", *ports[2:])):
            options = (
                *("--listen", f"127.0.0.1:{listen}", "--listen-push", f"127.0.0.1:{push}"),
                *("--bucket", f"{place}/{name}", "--cluster", place, "--chunk-bytes", CHUNK),
                *("--no-nsq", "--no-http"),
            )
            stack.enter_context(temporary_broker(*options, prefix="zsq-bench-"))
            urls.append(f"tcp://127.0.0.1:{listen}")
        admins = [stack.enter_context(Admin(url, timeout=TIMEOUT_S)) for url in urls]
        _wait(lambda: len(admins[0].cluster(fresh=True)["brokers"]) == 2, "both brokers")
        with Producer(",".join(urls), timeout=TIMEOUT_S) as producer:
            sizes = {"small": 0, **{f"archived-{mib}-MiB": mib for mib in ARCHIVED_MIB}}
            for topic, mib in sizes.items():
                admins[0].create_topic(topic, parts=1, brokers=[0])
                _fill(admins[0], producer, topic, mib)
                for turn in range(rounds):
                    _move(report, admins, producer, topic, 1 - turn % 2)


def _fill(admin: Admin, producer: Producer, topic: str, mib: int) -> None:
    """Publish `mib` MiB, and wait until they are in the archive."""
    body = os.urandom(MIB // 16)
    for _ in range(mib):
        producer.publish_many(f"{topic}#0", [body] * 16)

    def is_archived() -> bool:
        (row,) = admin.stats(f"{topic}#0")["topics"]
        return not mib or (row["archived_bytes"] > 0 and not row["unarchived_bytes"])

    _wait(is_archived, "the archive")


def _move(report: Report, admins: list[Admin], producer: Producer, topic: str, to: int) -> None:
    waits: list[float] = []
    over = threading.Event()
    failures: list[BaseException] = []

    def publish() -> None:
        try:
            while not over.is_set():
                begun = time.monotonic()
                producer.publish(f"{topic}#0", b"x")
                waits.append(time.monotonic() - begun)
                over.wait(PAUSE_S)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        _wait(lambda: len(waits) > 20 or failures, "publishes")
        # As `zsq topic move-part` does, so that both brokers know of it at once.
        admins[1 - to].cluster(fresh=True)
        begun = time.monotonic()
        admins[1 - to].move_part(f"{topic}#0", to)
        _wait(lambda: _is_at(admins[to], topic, to), "the move")
        took = time.monotonic() - begun
        count = len(waits)
        _wait(lambda: len(waits) > count + 20 or failures, "publishes after the move")
    finally:
        over.set()
        thread.join(TIMEOUT_S)
    if failures:
        raise BrokerFailed(f"a publish failed during a move: {failures[0]}")
    report.add(f"{topic}: longest wait of a publish", "s", max(waits))
    report.add(f"{topic}: the whole move", "s", took)


def _is_at(admin: Admin, topic: str, broker: int) -> bool:
    (found,) = [one for one in admin.cluster(fresh=True)["topics"] if one["topic"] == topic]
    return found["parts"][0] == broker and not found["moves"]


def _wait(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise BrokerFailed(f"{what} did not come within {TIMEOUT_S:g} s")
        time.sleep(POLL_S)
