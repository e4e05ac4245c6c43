"""Cost of the console: the first data of its pages, and processor time while a page is open.

The broker has many topics and channels.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from local_setup.broker import LocalBroker
from zsq.actors.runtime.process import private_bytes
from zsq.transport.client.blocking.client import Admin, Producer

from ..harness.report import Report
from .console_browser import browser_here, first_rows_ms

FIRST_PAGE: Final = (
    "/",
    "/console/all.js",
    "/api/overview",
    "/api/histories?span=5m&points=60&series=in,backlog",
)
PLACES: Final = ("#/", "#/channels", "#/topics/topic0")
BROWSED: Final = 5  # the number of times that each page is loaded in a round
ALL_CHANNELS: Final = "/api/overview?channels=1"
STREAM_TOPICS: Final = "/api/live"
STREAM_CHANNELS: Final = "/api/live?channels=1"
ASKED: Final = ("supervisor", "http_gateway")  # only these processes answer the console
SETTLE_S: Final = 12.0  # seconds until new processes send their heartbeats at long intervals
LINGER_S: Final = 32.0
BUSY: Final = 10  # the number of topics that get messages
MIB: Final = 1 << 20


def console(
    broker: LocalBroker,
    report: Report,
    port: int,
    topics: int,
    channels: int,
    seconds: float,
    rounds: int,
    *,
    busy: bool = True,
) -> None:
    """Measure with no publisher and, if `busy`, with publishers to some of the topics."""
    with Admin(broker.url, timeout=120) as admin:
        begin = time.perf_counter()
        for topic in range(topics):
            admin.create_topic(f"topic{topic}")
            for channel in range(channels // topics):
                admin.create_channel(f"topic{topic}", f"channel{channel}")
        report.add("creation", "s", time.perf_counter() - begin)
        processes = {
            row["pid"]: row["kind"]
            for row in admin.overview(processes=True).get("processes", ())
            if "pid" in row
        }
    _wait(SETTLE_S)
    executable = browser_here()
    for _ in range(rounds):
        _pages(report, port)
        for place, times in (
            first_rows_ms(executable, f"http://127.0.0.1:{port}", PLACES, BROWSED).items()
            if executable
            else ()
        ):
            report.add(f"{place} in Chromium, to its first row", "ms", *times)
        for load in ("idle", f"{BUSY} topics busy")[: 1 + busy]:
            with _publishing(broker, BUSY if load != "idle" else 0):
                _wait(LINGER_S)  # the gateway still works for the previous page for 30 s
                alone = _costs(processes, seconds)
                for stream, name in ((STREAM_TOPICS, "topics"), (STREAM_CHANNELS, "channels too")):
                    with _open(port, stream) as heard:
                        _wait(1)
                        opened = _costs(processes, seconds)
                    for kind in ASKED:
                        report.add(
                            f"{load}, a page of {name}: {kind}",
                            "% of a core",
                            opened[kind] - alone[kind],
                        )
                    report.add(
                        f"{load}, a page of {name}",
                        "% of a core",
                        sum(opened[kind] - alone[kind] for kind in ASKED),
                    )
                    report.add(
                        f"{load}, a page of {name}: events",
                        "KiB/s",
                        heard[0] / 1024 / (seconds + 1),
                    )
                report.add(
                    f"{load}, no page: supervisor and gateway",
                    "% of a core",
                    sum(alone[kind] for kind in ASKED),
                )
                report.add(f"{load}, no page: all processes", "% of a core", alone["all"])
        report.add(
            "memory of the HTTP gateway",
            "MiB",
            *(
                private_bytes(pid) / MIB
                for pid, kind in processes.items()
                if kind == "http_gateway"
            ),
        )


def _pages(report: Report, port: int) -> None:
    """Send requests as a browser does: on one connection, one after another."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    begin, size = time.perf_counter(), 0
    for path in FIRST_PAGE:
        size += len(_get(connection, path))
    report.add("first page", "ms", (time.perf_counter() - begin) * 1e3)
    report.add("first page, bytes", "KiB", size / 1024)
    begin = time.perf_counter()
    body = _get(connection, ALL_CHANNELS)
    report.add("all channels", "ms", (time.perf_counter() - begin) * 1e3)
    report.add("all channels, bytes", "KiB", len(body) / 1024)
    connection.close()
    assert json.loads(body)["topics"]


def _get(connection: http.client.HTTPConnection, path: str) -> bytes:
    connection.request("GET", path)
    response = connection.getresponse()
    body = response.read()
    if response.status != 200:
        raise OSError(f"GET {path}: {response.status} {body[:200]!r}")
    return body


@contextmanager
def _open(port: int, path: str) -> Iterator[list[int]]:
    """Open a page that receives events. Yield a list with one element, the number of bytes."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    response = connection.getresponse()
    heard, over = [0], threading.Event()

    def hear() -> None:
        while not over.is_set() and (line := response.readline()):
            heard[0] += len(line)

    thread = threading.Thread(target=hear, daemon=True)
    thread.start()
    try:
        yield heard
    finally:
        over.set()
        if connection.sock is not None:
            connection.sock.shutdown(2)
        thread.join(10)
        connection.close()


@contextmanager
def _publishing(broker: LocalBroker, topics: int) -> Iterator[None]:
    """Publish a block of 100 messages to each topic ten times a second. No channel has a reader."""
    over = threading.Event()

    def publish() -> None:
        bodies = [b"x" * 100] * 100
        with Producer(broker.url) as producer:
            while not over.wait(0.1):
                for topic in range(topics):
                    producer.publish_many(f"topic{topic}", bodies, wait=False)

    thread = threading.Thread(target=publish, daemon=True)
    if topics:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if topics:
            thread.join(30)


def _costs(processes: dict[int, str], seconds: float) -> dict[str, float]:
    """Return the percentage of a core that each kind of process uses, and all of them together."""
    before, begin = _spent(processes), time.perf_counter()
    _wait(seconds)
    after, passed_ns = _spent(processes), (time.perf_counter() - begin) * 1e9
    found = dict.fromkeys(("all", *processes.values()), 0.0)
    for pid, kind in processes.items():
        share = (after.get(pid, 0) - before.get(pid, 0)) / passed_ns * 100
        found[kind] += share
        found["all"] += share
    return found


def _spent(processes: dict[int, str]) -> dict[int, int]:
    """Return the processor time in nanoseconds of all threads of each process."""
    found: dict[int, int] = {}
    for pid in processes:
        for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            found[pid] = found.get(pid, 0) + int(task.read_text().split()[0])
    return found


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)
