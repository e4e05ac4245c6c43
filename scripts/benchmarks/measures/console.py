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
from typing import Final

from local_setup.broker import LocalBroker
from zsq.actors.runtime.process import private_bytes
from zsq.transport.client.blocking.client import Admin

from ..harness.report import Report
from ..harness.usage import CORE, Usage

FIRST_PAGE: Final = (
    "/",
    "/console/all.js",
    "/api/overview",
    "/api/histories?span=5m&points=60&series=in,backlog",
)
ALL_CHANNELS: Final = "/api/overview?channels=1"
STREAM_TOPICS: Final = "/api/live"
STREAM_CHANNELS: Final = "/api/live?channels=1"
ASKED: Final = ("supervisor", "http_gateway")  # only these processes answer the console
SETTLE_S: Final = 12.0  # seconds until new processes send their heartbeats at long intervals
LINGER_S: Final = 32.0
MIB: Final = 1 << 20


def console(
    broker: LocalBroker,
    report: Report,
    port: int,
    topics: int,
    channels: int,
    seconds: float,
) -> None:
    """Measure the console of a broker to which nothing is published."""
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
    _pages(report, port)
    _wait(LINGER_S)  # the gateway still works for the previous page for 30 s
    alone = _costs(broker, processes, seconds)
    for stream, name in ((STREAM_TOPICS, "topics"), (STREAM_CHANNELS, "channels too")):
        with _open(port, stream) as heard:
            _wait(1)
            opened = _costs(broker, processes, seconds)
        added = {kind: opened[kind] - alone[kind] for kind in ASKED}
        for kind, share in added.items():
            report.add(f"a page of {name}: {kind}", CORE, share)
        report.add(f"a page of {name}", CORE, sum(added.values()))
        report.add(f"a page of {name}: events", "KiB/s", heard[0] / 1024 / (seconds + 1))
    report.add("no page: supervisor and gateway", CORE, sum(alone[kind] for kind in ASKED))
    report.add("no page: all processes", CORE, alone["all"])
    memory = [private_bytes(pid) / MIB for pid in processes if processes[pid] == "http_gateway"]
    report.add("memory of the HTTP gateway", "MiB", *memory)


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


def _costs(broker: LocalBroker, kinds: dict[int, str], seconds: float) -> dict[str, float]:
    """Return the percentage of a core that each kind of process uses, and all of them together."""
    usage, begin = Usage(broker.process.pid), time.perf_counter()
    _wait(seconds)
    used, passed = usage.by_kind(kinds), time.perf_counter() - begin
    shares = {kind: 100 * seconds / passed for kind, seconds in used.items()}
    return shares | {"all": sum(shares.values())}


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)
