"""Bucket: cost of archiving while messages are published, and Spark's reads from the bucket.

The server runs on the same machine, so it takes a part of its two cores. Its processor time is
shown. The reads are compared with reads of the same segments by the object store's library alone:
two processes with four threads each, as the tasks have them.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from pyspark.sql import functions as f

from local_setup.broker import LocalBroker, temporary_broker
from local_setup.processes import cpu_s
from local_setup.spark import spark_session
from zsq.apps.spark.data_source import ZsqDataSource
from zsq.apps.spark.source import BatchReader
from zsq.storage.bucket.archive.archive_format import SEGMENT_BYTES, chunk_object, segments_of
from zsq.storage.bucket.archive.archive_reader import AHEAD, topics_of
from zsq.storage.bucket.bucket_url import parse_bucket_url
from zsq.storage.bucket.object_store import open_bucket
from zsq.transport.client.blocking.client import Admin, Producer

from ..harness.crew import Crew
from ..harness.report import Report

TOPIC: Final = "history"
MIB: Final = 1 << 20
BODY: Final = 1_000
BLOCK: Final = 1_000
CHUNK_MIB: Final = 64
KEEP_MIB: Final = 128
READERS: Final = 2
ARCHIVE_WAIT_S: Final = 300.0
OPTIONS: Final = (
    "--no-listen",
    "--chunk-bytes",
    str(CHUNK_MIB * MIB),
    "--keep-bytes",
    f"{KEEP_MIB}MiB",
    "--bucket-lag",
    "none",
)

Segments = list[tuple[str, int, int]]


def bucket(report: Report, url: str, mib: int, rounds: int) -> None:
    """Publish `mib` MiB with and without the bucket, then read what is archived."""
    with (
        temporary_broker(*OPTIONS, "--bucket", url, prefix="zsq-bench-") as broker,
        temporary_broker(*OPTIONS, prefix="zsq-bench-") as without,
    ):
        for number in range(rounds):
            each = [
                (without, "publish: no bucket", True),
                (broker, "publish: with a bucket", False),
            ]
            for one, name, limit in each if number % 2 else reversed(each):
                report.add(
                    name, "MiB/s", _publish(one, mib // rounds), limit=limit, against="publish"
                )
        _wait_archived(broker, url)
        row = _stats(broker)["bucket"]
        published = rounds * (mib // rounds) * MIB
        report.add("sent by published", "bytes", row["sent_bytes"] / published)
        report.add("write requests for a GiB", "", row["write_requests"] * 1024 * MIB / published)
        report.add("read requests for a GiB", "", row["read_requests"] * 1024 * MIB / published)
        _reads(broker, report, url, rounds)


def _publish(broker: LocalBroker, mib: int) -> float:
    """Return the MiB a second at which blocks were published and answered."""
    bodies = [os.urandom(BODY // 2).hex().encode() for _ in range(BLOCK)]
    count = mib * MIB // (BODY * BLOCK)
    with Producer(broker.url, timeout=120) as producer:
        begin = time.perf_counter()
        for _ in range(count):
            producer.publish_many(TOPIC, bodies, wait=False)
        producer.flush(120)
        return count * BODY * BLOCK / MIB / (time.perf_counter() - begin)


def _stats(broker: LocalBroker) -> Any:
    with Admin(broker.url, timeout=60) as admin:
        return admin.stats()


def _wait_archived(broker: LocalBroker, url: str) -> None:
    """Wait until all full files are in the bucket and in its list, and have left the disk."""
    deadline = time.monotonic() + ARCHIVE_WAIT_S
    while True:
        (row,) = _stats(broker)["topics"]
        if not row["unarchived_bytes"] and row["log_bytes"] <= (KEEP_MIB + CHUNK_MIB) * MIB:
            found = topics_of(open_bucket(parse_bucket_url(url))).get(TOPIC)
            if found is not None and len(found.chunks) == row["archived_chunks"]:
                return
        if time.monotonic() > deadline:
            raise TimeoutError(f"not archived within {ARCHIVE_WAIT_S:g} s")
        time.sleep(1.0)


# Reads


def _reads(broker: LocalBroker, report: Report, url: str, rounds: int) -> None:
    manifest = topics_of(open_bucket(parse_bucket_url(url)))[TOPIC]
    size_mib = sum(row.size for row in manifest.chunks) / MIB
    segments = [
        (
            chunk_object(manifest.uuid, row.base_offset, row.crc),
            number * SEGMENT_BYTES,
            SEGMENT_BYTES,
        )
        for row in manifest.chunks
        for number in range(segments_of(row.size))
    ]
    end = manifest.chunks[-1].next_offset
    report.settings |= {"archived": f"{size_mib:,.0f} MiB in {len(manifest.chunks)} files"}

    def timed(name: str, job: Callable[[], object], *, limit: bool = False) -> None:
        begin = time.perf_counter()
        job()
        seconds = time.perf_counter() - begin
        report.add(name, "MiB/s", size_mib / seconds, limit=limit, against="read")

    def raw() -> None:
        _crew(_read_segments, url, [segments[n::READERS] for n in range(READERS)])

    def tasks() -> None:
        parts = _partitions(url)
        counts = _crew(_read_parts, url, [list(range(n, parts, READERS)) for n in range(READERS)])
        assert sum(counts) == end - manifest.chunks[0].base_offset, (counts, end)

    with spark_session(broker.folder, f"local[{READERS}]") as session:

        def job(**options: str) -> Callable[[], None]:
            def run() -> None:
                rows = session.read.format("zsq").options(topic=TOPIC, **options).load()
                found = rows.agg(f.count("*"), f.sum(f.length("value"))).collect()[0]
                assert found[0] == end - manifest.chunks[0].base_offset, found

            return run

        ends = f'{{"{TOPIC}": {end}}}'
        of_bucket = job(url=url, columns="value")
        of_broker = job(url=broker.url, columns="value", bucket="never", endingOffsets=ends)
        automatic = job(url=broker.url, columns="value", endingOffsets=ends)
        of_bucket()  # the first job starts Python's processes
        for _ in range(rounds):
            timed("read: the library alone", raw, limit=True)
            timed("read: ZSQ's tasks without Spark", tasks)
            timed("read: Spark, from the bucket alone", of_bucket)
            with _used(_pids(broker)) as share:
                timed("read: Spark, past the broker", automatic)
            report.add("broker meanwhile, share of a core", "%", 100 * share())
            timed("read: Spark, through the broker", of_broker)


def _crew(work: Callable[..., int], url: str, shares: Sequence[Sequence[Any]]) -> list[int]:
    with Crew() as crew:
        for share in shares:
            crew.add(work, url, share)
        crew.go()
        return [int(found) for found in crew.results()]


def _read_segments(start: Callable[[], float], url: str, segments: Segments) -> int:
    """Read segments by the library alone, in as many threads as a task has."""
    found = open_bucket(parse_bucket_url(url))
    with ThreadPoolExecutor(AHEAD) as threads:
        start()
        return sum(threads.map(lambda one: len(found.read(*one)), segments))


def _options(url: str) -> Any:
    return ZsqDataSource({"url": url, "topic": TOPIC, "columns": "value"})._source(False)


def _partitions(url: str) -> int:
    return len(BatchReader(_options(url)).partitions())


def _read_parts(start: Callable[[], float], url: str, numbers: Sequence[int]) -> int:
    """Make Arrow batches of some partitions. Return the number of rows."""
    reader = BatchReader(_options(url))
    parts = reader.partitions()
    start()
    return sum(batch.num_rows for number in numbers for batch in reader.read(parts[number]))


def _pids(broker: LocalBroker) -> list[int]:
    return [row["pid"] for row in _stats(broker)["processes"]]


@contextlib.contextmanager
def _used(pids: Sequence[int]) -> Iterator[Callable[[], float]]:
    """Yield a function that returns the share of a core that these processes used."""
    before, begin = cpu_s(pids), time.perf_counter()
    after: list[float] = []
    yield lambda: (after[0] - before) / after[1]
    after += [cpu_s(pids), time.perf_counter() - begin]
