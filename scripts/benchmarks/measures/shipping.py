"""Shipping: what it costs publishers to have everything in a bucket, and how long a restore takes.

The server of the bucket runs on the same machine. Its processor time is shown, because it takes a
part of the two cores that a broker without a bucket has for itself.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from local_setup.broker import LocalBroker, serve_again, temporary_broker
from local_setup.processes import cpu_s, kill_group, read_file
from zsq.storage.bucket.bucket_url import parse_bucket_url
from zsq.storage.bucket.object_store import open_bucket
from zsq.transport.client.blocking.client import Admin, Producer

from ..harness.loads import Shape
from ..harness.report import Report, percentile
from .throughput import rate_through, through

MIB: Final = 1 << 20
BLOCKS: Final = Shape(2_000_000, 200, 1_000)
LAG_RATE: Final = 100_000_000  # bytes a second
LAG_S: Final = 8.0
IDLE_S: Final = 10.0
LOOK_S: Final = 0.02
TOPICS: Final = 100
TOPIC_RATE: Final = 10  # messages a second of each topic
TOPICS_S: Final = 20.0
SINGLES: Final = 200
HISTORY_MIB: Final = (256, 1024)
OPTIONS: Final = ("--no-listen", "--chunk-bytes", "64MiB", "--bucket-lag", "1s")

Stats = dict[str, Any]


def shipping(report: Report, url: str, server: Path, rounds: int) -> None:
    """Add all measures of shipping to the report. `server` is the folder of the bucket's server."""
    server_pid = _pid_of(server)
    _throughput(report, url, server_pid, rounds)
    _synced(report, url, server_pid, rounds)
    _lag(report, f"{url}/lag")
    _requests(report, f"{url}/requests")
    for mib in HISTORY_MIB:
        _restore(report, f"{url}/restore-{mib}", mib)


@contextlib.contextmanager
def _shipping_broker(*options: str) -> Iterator[LocalBroker]:
    """Run a broker with a bucket. Yield it when it has begun its log of ticks."""
    with temporary_broker(*OPTIONS, *options, prefix="zsq-bench-") as broker:
        _wait_open(broker)
        yield broker


def _wait_open(broker: LocalBroker) -> None:
    deadline = time.monotonic() + 120
    while _stats(broker)["bucket"]["shipping"] != "open":
        if time.monotonic() > deadline:
            raise TimeoutError("the bucket could not be used within 120 s")
        time.sleep(0.2)


def _stats(broker: LocalBroker) -> Any:
    with Admin(broker.url, timeout=60) as admin:
        return admin.stats()


def _throughput(report: Report, url: str, server_pid: int, rounds: int) -> None:
    """Publish and consume at once, with and without shipping, in turn."""
    with (
        temporary_broker("--no-listen", "--chunk-bytes", "64MiB", prefix="zsq-bench-") as without,
        _shipping_broker("--bucket", f"{url}/e2e") as shipped,
    ):
        names = {"e2e: no bucket": without, "e2e: with shipping": shipped}
        for number in range(rounds):
            for name in sorted(names, reverse=bool(number % 2)):
                broker, topic = names[name], f"e2e-{number}"
                if broker is shipped:
                    _measured(report, broker, topic, server_pid, name, "e2e")
                    _wait_shipped(broker)
                else:
                    rate = rate_through(broker, topic, BLOCKS)
                    report.add(name, "messages/s", rate, limit=True, against="e2e")
        row = _wait_shipped(shipped)["bucket"]
        published = rounds * BLOCKS.bytes
        report.add("sent by published, archive and ticks", "bytes", row["sent_bytes"] / published)
        report.add("private memory: no bucket", "MiB", _private_mib(without))
        report.add("private memory: with shipping", "MiB", _private_mib(shipped))


def _wait_shipped(broker: LocalBroker) -> Stats:
    """Wait until everything is in the bucket, and all full files are archived."""
    deadline = time.monotonic() + 300
    while True:
        found: Stats = _stats(broker)
        rows = found["topics"]
        if all(row["shipped_end"] == row["head"] and not row["unarchived_bytes"] for row in rows):
            return found
        if time.monotonic() > deadline:
            raise TimeoutError("not everything was shipped within 300 s")
        time.sleep(0.5)


class _Used:
    """Processor time of the bucket's server, looked at all the time."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seen: list[tuple[float, float]] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._is_over.wait(LOOK_S):
            self._seen.append((time.monotonic(), cpu_s([self._pid])))

    def share(self, start: float, end: float) -> float:
        """Return the share of a core that the server used between two monotonic times."""
        within = [cpu_s for at, cpu_s in self._seen if start <= at <= end + LOOK_S]
        return (within[-1] - within[0]) / (end - start)


def _measured(
    report: Report, broker: LocalBroker, topic: str, server_pid: int, name: str, against: str
) -> None:
    """Add the rate of a broker with a bucket, and what it would be if the server took no time."""
    with _Used(server_pid) as used:
        start, end = through(broker, topic, BLOCKS)
    rate, share = BLOCKS.messages / (end - start), used.share(start, end)
    report.add(name, "messages/s", rate, against=against)
    report.add(f"{name}, server meanwhile, share of a core", "%", 100 * share)
    report.add(
        f"{name}, with the server's time given back",
        "messages/s",
        rate / max(0.1, 1 - share / (os.cpu_count() or 1)),
        against=against,
    )


def _synced(report: Report, url: str, server_pid: int, rounds: int) -> None:
    """Measure topics that acknowledge only what is in the bucket."""
    bucket = open_bucket(parse_bucket_url(url))
    with (
        temporary_broker("--no-listen", prefix="zsq-bench-") as without,
        _shipping_broker("--bucket", f"{url}/sync", "--sync", "bucket") as synced,
    ):
        body = os.urandom(200)
        with Producer(synced.url) as producer:
            producer.publish("single", body)
            for number in range(SINGLES):
                name = f"put/{os.getpid()}-{number}"
                put = _timed(partial(bucket.create, name, os.urandom(600)))
                report.add("one PUT", "ms", 1e3 * put, limit=True, against="one")
                took = _timed(partial(_publish, producer, body))
                report.add("one publish, --sync bucket", "ms", 1e3 * took, against="one")
        for number in range(rounds):
            plain = rate_through(without, f"sync-{number}", BLOCKS)
            report.add("blocks: no bucket", "messages/s", plain, limit=True, against="blocks")
            name = "blocks: --sync bucket"
            _measured(report, synced, f"sync-{number}", server_pid, name, "blocks")
            _wait_shipped(synced)


def _publish(producer: Producer, body: bytes) -> None:
    producer.publish("single", body)


def _timed(job: Callable[[], object]) -> float:
    begin = time.perf_counter()
    job()
    return time.perf_counter() - begin


def _lag(report: Report, url: str) -> None:
    """Publish at a fixed rate, and look how old the oldest part is that the bucket lacks."""
    with _shipping_broker("--bucket", url) as broker:
        bodies = [os.urandom(1_000) for _ in range(1_000)]
        lags: list[float] = []
        is_over = threading.Event()

        def look() -> None:
            with Admin(broker.url) as admin:
                while not is_over.wait(0.05):
                    lags.extend(row["ship_lag_s"] for row in admin.stats("lag")["topics"])

        with Producer(broker.url, timeout=60) as producer:
            producer.publish("lag", b"first")
            watcher = threading.Thread(target=look)
            watcher.start()
            begin = time.monotonic()
            sent = 0
            while (passed := time.monotonic() - begin) < LAG_S:
                if sent < passed * LAG_RATE:
                    producer.publish_many("lag", bodies, wait=False)
                    sent += 1_000_000
                else:
                    time.sleep(0.001)
            producer.flush(60)
            took = time.monotonic() - begin
            is_over.set()
            watcher.join()
        report.add("lag: published", "MB/s", sent / took / 1e6)
        report.add("lag: p50", "s", percentile(lags, 0.5))
        report.add("lag: p99", "s", percentile(lags, 0.99))


def _requests(report: Report, url: str) -> None:
    """Count the requests of an idle broker, and of one with many slow topics."""
    with (
        _shipping_broker("--bucket", url, "--processes-max", "500") as broker,
        Producer(broker.url, timeout=60) as producer,
    ):
        for number in range(TOPICS):
            producer.publish(f"slow-{number}", b"first")
        _wait_shipped(broker)
        time.sleep(3)
        report.add("requests a second: idle", "", _rate(broker, IDLE_S, lambda: None))
        body = os.urandom(200)
        round_s = 1 / TOPIC_RATE

        def publish() -> None:
            begin = time.monotonic()
            for number in range(TOPICS):
                producer.publish_many(f"slow-{number}", [body], wait=False)
            time.sleep(max(0.0, round_s - (time.monotonic() - begin)))

        name = f"requests a second: {TOPICS} topics, {TOPIC_RATE} messages/s each"
        report.add(name, "", _rate(broker, TOPICS_S, publish))
        producer.flush(60)


def _rate(broker: LocalBroker, seconds: float, work: Callable[[], object]) -> float:
    """Return the requests a second while `work` is repeated for `seconds`."""
    before, begin = _stats(broker)["bucket"], time.monotonic()
    while time.monotonic() - begin < seconds:
        work()
        time.sleep(0.001)
    took, after = time.monotonic() - begin, _stats(broker)["bucket"]
    names = ("write_requests", "read_requests", "remove_requests")
    return float(sum(after[name] - before[name] for name in names) / took)


def _restore(report: Report, url: str, mib: int) -> None:
    """Destroy a broker with `mib` MiB of history, restore it, and publish."""
    name = f"restore, {mib} MiB of history"
    options = (*OPTIONS, "--keep-bytes", "64MiB", "--bucket", url)
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(_shipping_broker("--keep-bytes", "64MiB", "--bucket", url))
        bodies = [os.urandom(1_000) for _ in range(1_000)]
        with Producer(broker.url, timeout=120) as producer:
            for _ in range(mib * MIB // 1_000_000):
                producer.publish_many("history", bodies, wait=False)
            producer.flush(120)
        _wait_shipped(broker)
        kill_group(broker.process)
        shutil.rmtree(broker.data_dir)
        begin = time.monotonic()
        command = [sys.executable, "-P", "-m", "zsq", "restore", url]
        subprocess.run(
            [*command, "--data-dir", str(broker.data_dir)], check=True, stdout=subprocess.DEVNULL
        )
        report.add(f"{name}: the command", "s", time.monotonic() - begin)
        again = stack.enter_context(serve_again(broker, *options[1:]))
        with Producer(again.url, timeout=60) as producer:
            producer.publish("history", b"first")
        report.add(f"{name}: until the first publish is durable", "s", time.monotonic() - begin)


def _private_mib(broker: LocalBroker) -> float:
    """Return the private memory of the topics and the archive actor together."""
    found = 0
    for row in _stats(broker)["processes"]:
        if row["kind"] in ("topic", "archive"):
            found += sum(_private_kib(row["pid"]))
    return found / 1024


def _private_kib(pid: int) -> Iterator[int]:
    for line in read_file(pid, "smaps_rollup").splitlines():
        if line.startswith(("Private_Clean", "Private_Dirty")):
            yield int(line.split()[1])


def _pid_of(folder: Path) -> int:
    """Return the process of the server that works in this folder."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"-dir={folder}".encode() in path.read_bytes().split(b"\0"):
                return int(path.parent.name)
    raise LookupError(f"no process works in {folder}")
