"""Spark: rates of writes and reads beside the fastest Python data sources.

As many tasks run at a time as there are cores. The JVM makes the rows of a write (a number padded
to the size), in the same way for all writes. Each way is warmed up once and then measured in
interleaved rounds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from local_setup.broker import LocalBroker
from local_setup.spark import spark_session
from zsq.transport.client.blocking.client import Admin

from ..harness.report import Report
from ..peers.spark_peers import Prebuilt, ThrowAway

SINK: Final = "write: Arrow sink that throws away"
SOURCE: Final = "read: prebuilt Arrow"
PARQUET: Final = "read: Parquet, by the JVM"  # the same rows, which no Python process sees
PARTITIONS: Final = 8
BATCH_ROWS: Final = 10_000  # rows of a prebuilt Arrow batch, the most that Spark itself sends
TUPLES_SHARE: Final = 4  # tuples are slow, so a quarter of the rows is enough


def spark(
    broker: LocalBroker,
    report: Report,
    rows: int,
    size: int,
    rounds: int,
) -> None:
    """Measure the rates of rows with values of `size` bytes."""
    cores = len(os.sched_getaffinity(0))
    with spark_session(broker.folder, f"local[{cores}]") as session, Admin(broker.url) as admin:
        for peer in (ThrowAway, Prebuilt):
            session.dataSource.register(peer)
        for number in range(rounds + 1):
            _round(
                session,
                admin,
                broker.url,
                report,
                rows if number else rows // 4,
                size,
                f"bench-{number}",
                str(broker.folder / f"parquet-{number}"),
                keep=number > 0,
            )


def _round(
    session: SparkSession,
    admin: Admin,
    url: str,
    report: Report,
    rows: int,
    size: int,
    topic: str,
    parquet: str,
    *,
    keep: bool,
) -> None:
    def measure(name: str, count: int, job: Callable[[], None], against: str = "") -> None:
        start = time.monotonic()
        job()
        if keep:
            rate = count / (time.monotonic() - start)
            report.add(
                f"{name}, {size} B",
                "rows/s",
                rate,
                limit=not against,
                against=f"{against}, {size} B" if against else "",
            )

    data = rows_of(session, rows, size)
    measure(SINK, rows, lambda: data.write.format(ThrowAway.name()).mode("append").save())
    measure(
        "write: ZSQ",
        rows,
        lambda: data.write.format("zsq").options(url=url, topic=topic).mode("append").save(),
        SINK,
    )
    measure(
        "write: foreachPartition, thrown away",
        rows // TUPLES_SHARE,
        lambda: rows_of(session, rows // TUPLES_SHARE, size).foreachPartition(_drain),
        SINK,
    )
    [found] = admin.stats(topic)["topics"]
    if found["head"] != rows:
        raise AssertionError(f"{rows} rows were written, but the topic has {found['head']}")

    prebuilt = session.read.format(Prebuilt.name()).options(
        rows=rows, size=size, batch=BATCH_ROWS, partitions=PARTITIONS
    )
    measure(SOURCE, rows, lambda: noop(prebuilt.options(how="arrow").load()))
    ours = session.read.format("zsq").options(url=url, topic=topic, minPartitions=PARTITIONS)
    measure("read: ZSQ", rows, lambda: noop(ours.load()), SOURCE)
    ours.load().write.parquet(parquet)
    measure(PARQUET, rows, lambda: noop(session.read.parquet(parquet)))
    few = prebuilt.options(how="tuples", rows=rows // TUPLES_SHARE)
    measure("read: tuples", rows // TUPLES_SHARE, lambda: noop(few.load()), SOURCE)
    admin.delete_topic(topic, force=True)


def rows_of(session: SparkSession, rows: int, size: int) -> DataFrame:
    body = f.rpad(f.col("id").cast("string"), size, "x").cast("binary")
    return session.range(0, rows, numPartitions=PARTITIONS).select(body.alias("value"))


def noop(data: DataFrame) -> None:
    data.write.format("noop").mode("overwrite").save()


def _drain(rows: Iterator[Any]) -> None:
    for _ in rows:
        pass
