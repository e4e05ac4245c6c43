"""Backlog of a slow channel: rates and memory without and with a huge backlog, and a restart.

The restart follows a kill of all processes under load. `startup` measures it without a backlog.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Final

from local_setup.broker import LocalBroker, serve_again
from local_setup.processes import kill_group
from zsq.transport.client.blocking.client import Admin, Producer

from ..harness.crew import Crew
from ..harness.loads import WAIT_S, Shape, drain, publish
from ..harness.report import Report
from .throughput import RATE, rate_through

EMPTY: Final = "empty"
FULL: Final = "full"
SLOW: Final = "slow"
LIVE: Final = "live"
BLOCK: Final = 10_000
LOAD_BLOCK: Final = 1_000
LOAD_S: Final = 1.0  # the duration of the load before the kill
RESTART: Final = "start after kill -9 until a publish was durable"
MIB: Final = 1 << 20


def backlog(broker: LocalBroker, report: Report, waiting: int, shape: Shape, rounds: int) -> None:
    """Measure two topics in turns: one without and one with a backlog for a slow channel."""
    with Admin(broker.url) as admin:
        for topic in (EMPTY, FULL):
            # So that the memory of a topic is that of its processes.
            admin.create_topic(topic, own_process="always")
            admin.create_channel(topic, SLOW)
            admin.create_channel(topic, LIVE)
    with Crew() as crew:  # the oldest messages of the backlog have the measured size
        crew.add(publish, broker.url, FULL, Shape(shape.messages * rounds, shape.size, shape.block))
        crew.go()
        crew.results()
    memory = private_memory(broker)
    _fill(broker, report, waiting)
    grown = {
        name: size - memory[name] for name, size in private_memory(broker).items() if name in memory
    }
    worst = max(grown, key=lambda name: grown[name])
    report.add(f"growth of the process that grew most ({worst})", "MiB", grown[worst] / MIB)
    for number in range(rounds):
        for topic in (EMPTY, FULL) if number % 2 else (FULL, EMPTY):
            _rates(broker, report, shape, topic)
    restart(broker, report, FULL)


def _rates(broker: LocalBroker, report: Report, shape: Shape, topic: str) -> None:
    rate = rate_through(broker, topic, shape, [LIVE])
    report.add(f"publish and consume, {topic}", RATE, rate)
    with Crew() as crew:
        crew.add(publish, broker.url, topic, shape)
        begin = crew.go()
        report.add(f"publish, {topic}", RATE, shape.messages / (crew.ends()[0] - begin))
    with Admin(broker.url) as admin:
        admin.empty(topic, LIVE)
    with Crew() as crew:
        crew.add(drain, broker.url, topic, SLOW, shape.messages)
        begin = crew.go()
        report.add(f"consume the oldest, {topic}", RATE, shape.messages / (crew.ends()[0] - begin))


def _fill(broker: LocalBroker, report: Report, waiting: int) -> None:
    """Publish `waiting` messages of 20 bytes, and more until the last chunk is nearly full."""
    bodies = [b"%020d" % number for number in range(BLOCK)]
    begin = time.monotonic()
    with Producer(broker.url) as producer:
        for _ in range(waiting // BLOCK):
            producer.publish_many(FULL, bodies, wait=False)
        producer.flush(WAIT_S)
        report.add("filling", RATE, waiting / (time.monotonic() - begin))
        while _last_chunk(broker.data_dir) < 240 * MIB:
            producer.publish_many(FULL, bodies)
    with Admin(broker.url) as admin:
        admin.empty(FULL, LIVE)
        rows = admin.stats(FULL)["topics"][0]["channels"]
    report.notes.append(
        "waiting: " + ", ".join(f"{row['channel_name']} {row['depth']:,}" for row in rows)
    )


def _last_chunk(data_dir: Path) -> int:
    chunks = sorted((data_dir / "topics").glob("*/*.chunk"))
    return chunks[-1].stat().st_size


def private_memory(broker: LocalBroker) -> dict[str, int]:
    """Return the private memory of each process in bytes, by the process's name. An actor of a
    shared process has none of its own.
    """
    time.sleep(3.0)  # an idle process releases the memory of its last load
    with Admin(broker.url) as admin:
        rows = admin.stats()["processes"]
    return {row["name"]: row["private_bytes"] for row in rows if "private_bytes" in row}


def restart(broker: LocalBroker, report: Report, topic: str) -> None:
    """Kill all processes with SIGKILL while a producer publishes, and measure until the topic
    answers again.
    """
    over = threading.Event()
    load = threading.Thread(target=_load, args=(broker.url, topic, over))
    load.start()
    time.sleep(LOAD_S)
    kill_group(broker.process)
    begin = time.monotonic()
    with serve_again(broker, "--no-http", "--no-nsq") as again:
        report.add("until the broker was ready", "s", time.monotonic() - begin)
        with Producer(again.url) as producer:
            producer.publish(topic, b"first")
        report.add(RESTART, "s", time.monotonic() - begin)
        over.set()
        load.join()
        with Admin(again.url) as admin:
            rows = admin.stats(topic)["topics"][0]["channels"]
        report.notes.append(
            "after the restart: "
            + ", ".join(f"{row['channel_name']} {row['depth']:,}" for row in rows)
        )


def _load(url: str, topic: str, over: threading.Event) -> None:
    """Publish blocks, each after the answer to the last one, also across the restart."""
    bodies = [b"%020d" % number for number in range(LOAD_BLOCK)]
    with Producer(url, timeout=WAIT_S) as producer:
        while not over.is_set():
            producer.publish_many(topic, bodies)
