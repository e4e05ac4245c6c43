"""Tests of tasks that die, fail or are slow: each row is in the topic exactly once, and nothing of
an abandoned attempt is ever visible.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.broker import kill
from support.spark_chaos import attempts
from support.spark_cluster import SparkDriver, SparkFailed, met, ranges
from support.spark_rows import exactly_once, value_of
from support.spark_topic import Topic

import zsq

pytestmark = pytest.mark.timeout(300)

ROWS = 60_000
SIZE = 200


def options(topic: Topic, **more: str) -> dict[str, str]:
    return {"url": topic.broker.ipc, "topic": topic.name, **more}


# The process to kill: the Python worker itself, or the executor's JVM above it (worker, daemon,
# executor).
VICTIMS: dict[str, Callable[[int, list[int]], int]] = {
    "worker": lambda pid, above: pid,
    "executor": lambda pid, above: above[1],
}


@pytest.mark.parametrize("victim", VICTIMS)
def test_killed_in_the_middle_of_a_write(spark: SparkDriver, topic: Topic, victim: str) -> None:
    gate = spark.gate(topic.name, "write.0.20")
    job = spark.submit(
        "write", first=0, count=ROWS, partitions=2, size=SIZE, options=options(topic)
    )
    who = met(gate, job)
    topic.wait_staged()
    kill(VICTIMS[victim](who["pid"], who["parents"]))
    job.result()
    assert attempts(spark.chaos, topic.name) == 3, "the task was tried again, the other one was not"
    exactly_once(topic.broker.ipc, topic.name, range(ROWS), SIZE)
    topic.no_stage_left()


@pytest.mark.parametrize("victim", VICTIMS)
def test_killed_when_its_stage_was_sealed(spark: SparkDriver, topic: Topic, victim: str) -> None:
    """Spark repeats the killed task. Then two sealed stages have the same rows, and the commit
    names one of them.
    """
    gate = spark.gate(topic.name, "sealed.1")
    job = spark.submit(
        "write", first=0, count=ROWS, partitions=2, size=SIZE, options=options(topic)
    )
    who = met(gate, job)
    assert topic.head() == 0, "sealed is not visible"
    kill(VICTIMS[victim](who["pid"], who["parents"]))
    job.result()
    assert attempts(spark.chaos, topic.name) == 3
    exactly_once(topic.broker.ipc, topic.name, range(ROWS), SIZE)
    topic.no_stage_left()


def test_a_job_that_fails_leaves_nothing(spark: SparkDriver, topic: Topic) -> None:
    writing = options(topic)
    with pytest.raises(SparkFailed, match="poisoned"):
        spark.submit(
            "write", first=0, count=ROWS, partitions=2, size=SIZE, options=writing, poison=ROWS - 1
        ).result()
    assert attempts(spark.chaos, topic.name) == 5, (
        "one task succeeded, the other one was tried four times"
    )
    assert topic.head() == 0
    topic.no_stage_left()
    spark.submit("write", first=0, count=ROWS, partitions=2, size=SIZE, options=writing).result()
    exactly_once(topic.broker.ipc, topic.name, range(ROWS), SIZE)


def test_a_transaction_repeated_is_written_once(spark: SparkDriver, topic: Topic) -> None:
    for version in ("0", "1", "1", "0"):
        writing = options(topic, txnAppId="nightly", txnVersion=version)
        spark.submit(
            "write", first=int(version) * 1000, count=1000, partitions=2, size=SIZE, options=writing
        ).result()
    exactly_once(topic.broker.ipc, topic.name, range(2000), SIZE)
    topic.no_stage_left()


def test_a_commit_that_raises_after_its_effect_is_not_repeated(
    spark: SparkDriver, topic: Topic, tmp_path: Path
) -> None:
    """Spark then aborts the batch, although the broker has committed it. After a restart of the
    query, Spark writes and commits the batch again.
    """
    stream = {
        "source": ranges(tmp_path / "ranges", files=6, rows=1000),
        "checkpoint": str(tmp_path / "checkpoint"),
        "size": SIZE,
        "options": options(topic),
    }
    spark.gate(topic.name, "commit.1.after", "raise")
    with pytest.raises(SparkFailed, match="raised on purpose"):
        spark.submit("stream", **stream).result()
    assert topic.head() == 4000, "batches 0 and 1 are visible, whatever Spark believes"
    assert spark.submit("stream", **stream).result()["batches"] == [1, 2]
    exactly_once(topic.broker.ipc, topic.name, range(6000), SIZE)
    topic.no_stage_left()


def test_a_range_read_again_is_the_same_while_producers_write(
    spark: SparkDriver, topic: Topic
) -> None:
    """The range is read as a whole and in pieces, on two executors."""
    stop = threading.Event()

    def produce() -> None:
        with zsq.Producer(topic.broker.ipc) as producer:
            number = 0
            while not stop.wait(0.01):
                producer.publish_many(topic.name, [value_of(number + n, SIZE) for n in range(100)])
                number += 100

    spark.submit(
        "write", first=1_000_000, count=5000, partitions=2, size=SIZE, options=options(topic)
    ).result()
    producing = threading.Thread(target=produce)
    producing.start()
    try:
        spark.submit(
            "write", first=2_000_000, count=5000, partitions=2, size=SIZE, options=options(topic)
        ).result()
        end = topic.head()
        reading = options(
            topic,
            startingOffsets=f'{{"{topic.name}": 17}}',
            endingOffsets=f'{{"{topic.name}": {end}}}',
        )
        found = [
            spark.submit("read", options={**reading, "minPartitions": str(pieces)}).result()
            for pieces in (1, 7, 2)
        ]
        assert topic.head() > end, "the producer went on"
    finally:
        stop.set()
        producing.join()
    assert found[0]["rows"] == found[0]["offsets"] == end - 17
    assert (found[0]["first"], found[0]["last"]) == (17, end - 1)
    assert found[0] == found[1] == found[2]
