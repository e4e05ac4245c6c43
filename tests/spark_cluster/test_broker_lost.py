"""Tests in which the topic's process or the whole broker is killed while Spark writes: the query
continues, and each row is in the topic exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.broker import Broker
from support.spark_chaos import attempts
from support.spark_cluster import Job, SparkDriver, met, ranges
from support.spark_rows import exactly_once
from support.spark_topic import Topic, Trap, crash, files

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

SIZE = 200
# Rows of a task. The large number makes 5 MB. Then the broker adopts the stage's file as a chunk,
# instead of appending its blocks.
SMALL, LARGE = 1_000, 25_000
FILES = 6  # two files make a batch
BATCHES = [0, 1, 2]


class Query:
    """A streaming query into a topic. It has three batches with two tasks each."""

    def __init__(self, spark: SparkDriver, topic: Topic, folder: Path, rows: int) -> None:
        self._spark, self._topic, self._rows = spark, topic, rows
        self._arguments: dict[str, Any] = {
            "source": ranges(folder / "ranges", files=FILES, rows=rows),
            "checkpoint": str(folder / "checkpoint"),
            "size": SIZE,
            "options": {"url": topic.broker.ipc, "topic": topic.name},
        }

    def start(self) -> Job:
        return self._spark.submit("stream", **self._arguments)

    def went_on(self, job: Job) -> None:
        """Check that the query ran to its end without an error, that Spark repeated no task, and
        that each row is stored once.
        """
        assert job.result()["batches"] == BATCHES
        assert attempts(self._spark.chaos, self._topic.name) == FILES, "no task failed"
        exactly_once(self._topic.broker.ipc, self._topic.name, range(FILES * self._rows), SIZE)
        self._topic.no_stage_left()


def test_a_write_goes_on_when_storage_is_killed_while_staging(
    spark: SparkDriver, topic: Topic
) -> None:
    """The topic's process is killed once after an interim seal, so that a part of the stage is on
    disk and the rest must be sent again, and once before the final seal.
    """
    count, size = 60_000, 1_000
    gates = [spark.gate(topic.name, f"write.0.{batch}") for batch in ("45", "end")]
    writing = {"url": topic.broker.ipc, "topic": topic.name}
    job = spark.submit("write", first=0, count=count, partitions=1, size=size, options=writing)
    for gate in gates:
        met(gate, job)
        topic.wait_staged(32 << 20)
        topic.kill_storage()
        gate.open()
    job.result()
    assert attempts(spark.chaos, topic.name) == 1, "the task went on"
    exactly_once(topic.broker.ipc, topic.name, range(count), size)
    topic.no_stage_left()


@pytest.mark.parametrize("rows", [SMALL, LARGE])
def test_a_stream_goes_on_when_storage_is_killed_before_the_commit(
    spark: SparkDriver, topic: Topic, tmp_path: Path, rows: int
) -> None:
    query = Query(spark, topic, tmp_path, rows)
    gate = spark.gate(topic.name, "commit.1.before")
    job = query.start()
    met(gate, job)
    topic.kill_storage()
    gate.open()
    query.went_on(job)


@pytest.mark.parametrize("rows", [SMALL, LARGE])
@pytest.mark.parametrize("point", ["before", "after"])
def test_a_stream_goes_on_when_the_broker_is_killed_around_the_commit(
    spark: SparkDriver, broker: Broker, topic: Topic, tmp_path: Path, point: str, rows: int
) -> None:
    """While there is no broker, Spark tries the commit, or writes the next batch."""
    query = Query(spark, topic, tmp_path, rows)
    gate = spark.gate(topic.name, f"commit.1.{point}")
    job = query.start()
    met(gate, job)
    visible = topic.head()
    assert visible == (2 if point == "before" else 4) * rows
    crash(broker)
    gate.open()
    broker.start()
    query.went_on(job)


def of_kind(found: dict[str, int], ending: str) -> dict[str, int]:
    return {name: size for name, size in found.items() if name.endswith(ending)}


# The first signs of a commit on disk: the last chunk grows by the group, a staged file gets its
# footer, or it becomes a chunk.
SIGNS: dict[str, Callable[[dict[str, int], dict[str, int]], bool]] = {
    "appended": lambda before, now: of_kind(now, ".chunk") != of_kind(before, ".chunk"),
    "prepared": lambda before, now: of_kind(now, ".part") != of_kind(before, ".part"),
    "adopted": lambda before, now: (
        of_kind(now, ".chunk").keys() != of_kind(before, ".chunk").keys()
    ),
}


@pytest.mark.parametrize(
    ("sign", "rows"), [("appended", SMALL), ("prepared", LARGE), ("adopted", LARGE)]
)
def test_a_stream_goes_on_when_the_broker_is_killed_within_the_commit(
    spark: SparkDriver, broker: Broker, topic: Topic, tmp_path: Path, sign: str, rows: int
) -> None:
    query = Query(spark, topic, tmp_path, rows)
    gate = spark.gate(topic.name, "commit.1.before")
    job = query.start()
    met(gate, job)
    before = files(topic.folder)
    assert broker.process is not None
    pids = sorted(actor["pid"] for actor in broker.actors() if actor["pid"] != broker.process.pid)
    trap = Trap(
        topic.folder,
        [topic.storage_pid(), broker.process.pid],
        lambda now: SIGNS[sign](before, now),
    )
    try:
        gate.open()
        assert trap.caught.wait(60), "the commit came"
    finally:
        trap.close()
    broker.process.wait(20)
    broker.wait_gone(pids)
    broker.start()
    query.went_on(job)


def test_broker_killed_while_a_query_reads_and_writes(
    spark: SparkDriver, broker: Broker, topic: Topic, tmp_path: Path
) -> None:
    """The query copies from one topic to another. The broker is killed while its tasks read and
    write. The next batch is planned with a new broker.
    """
    source = Topic(broker, f"{topic.name[:50]}-source").create()
    given = {"url": broker.ipc, "topic": source.name}
    spark.submit("write", first=0, count=3 * LARGE, partitions=2, size=SIZE, options=given).result()
    reading = {
        "format": "zsq",
        **given,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(LARGE),
        "minPartitions": "2",
    }
    writing = {"url": broker.ipc, "topic": topic.name}
    gate = spark.gate(topic.name, "write.0.2")
    job = spark.submit(
        "stream",
        source=reading,
        checkpoint=str(tmp_path / "checkpoint"),
        size=SIZE,
        options=writing,
    )
    met(gate, job)
    topic.wait_staged()
    crash(broker)
    gate.open()
    broker.start()
    assert job.result()["batches"] == BATCHES
    assert attempts(spark.chaos, topic.name) == 2 * len(BATCHES), "no task failed"
    exactly_once(broker.ipc, topic.name, range(3 * LARGE), SIZE)
    topic.no_stage_left()
