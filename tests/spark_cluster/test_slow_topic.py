"""Tests of a slow topic: executors wait for it, nothing is lost, and no process keeps in memory
what the topic cannot accept yet.
"""

from __future__ import annotations

import os
import signal

import pytest
from support.broker import Broker, wait_for
from support.memory import Peak
from support.spark_cluster import SparkDriver, met
from support.spark_rows import exactly_once
from support.spark_topic import Topic

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

ROWS = 140_000
SIZE = 1_000
TURN_S = 0.2
GROWTH_BYTES_MAX = 64 << 20
BATCH = 10_000  # rows of an Arrow batch with Spark's default settings; they take 10 MB
FAR = 5  # number of batches: more than a task may send without an answer


@pytest.mark.parametrize("over", ["ipc", "tcp"])
def test_a_slow_topic_slows_the_executors(
    spark: SparkDriver, broker: Broker, topic: Topic, over: str
) -> None:
    spark.submit(
        "conf", key="spark.sql.execution.arrow.maxRecordsPerBatch", value=str(BATCH)
    ).result()
    url = getattr(broker, over)
    writing = {"url": url, "topic": topic.name}
    first = [spark.gate(topic.name, f"write.{partition}.1") for partition in (0, 1)]
    far = [spark.gate(topic.name, f"write.{partition}.{FAR}") for partition in (0, 1)]
    job = spark.submit("write", first=0, count=ROWS, partitions=2, size=SIZE, options=writing)
    workers = [met(gate, job)["pid"] for gate in first]
    storage = topic.storage_pid()
    peak = Peak([*workers, storage, *broker.pids("gateway"), *broker.pids("topic")])
    try:
        os.kill(storage, signal.SIGSTOP)
        for gate in first:
            gate.open()
        assert not job.wait(2), "nothing is taken"
        assert not any(gate.here() for gate in far), "the executors wait"
        for gate in far:
            gate.open()
        while True:
            os.kill(storage, signal.SIGCONT)
            if job.wait(TURN_S):
                break
            os.kill(storage, signal.SIGSTOP)
            job.wait(TURN_S)
    finally:
        os.kill(storage, signal.SIGCONT)
        growth = peak.close()
    job.result(60)
    assert all(gate.here() for gate in far)
    assert growth
    assert max(growth.values()) <= GROWTH_BYTES_MAX, growth
    exactly_once(broker.ipc, topic.name, range(ROWS), SIZE)
    topic.no_stage_left()
    wait_for(lambda: topic.head() == ROWS, 10, "all rows")
