"""Tests of executors on two addresses, over tcp: a standalone master, and a worker at each address.
Spark starts speculative attempts only if there are two hosts.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.broker import kill, wait_for
from support.spark_chaos import attempts
from support.spark_cluster import SparkDriver, Standalone, met
from support.spark_rows import exactly_once
from support.spark_topic import Topic

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

ROWS = 40_000
SIZE = 200
HOSTS = ("127.0.0.1", "127.0.0.2")


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkDriver]:
    """Start Spark with speculation. Spark must not end the Python worker of a slow attempt whose
    task is done, so that it runs as long as the test needs it.
    """
    folder = tmp_path_factory.mktemp("spark")
    cluster = Standalone(folder / "cluster", HOSTS)
    one = SparkDriver(
        folder / "driver", cluster.url, spark__executor__memory="512m", spark__speculation="true", spark__speculation__interval="100ms",
        spark__speculation__multiplier="1.2", spark__speculation__quantile="0.5", spark__python__task__killTimeout="120s",
    )  # fmt: skip
    try:
        cluster.start()
        yield one.start()
    finally:
        one.close()
        cluster.close()


def options(topic: Topic) -> dict[str, str]:
    return {"url": topic.broker.tcp, "topic": topic.name}


def test_a_zombie_goes_on_after_the_commit(spark: SparkDriver, topic: Topic) -> None:
    """When the rows of the fast attempt are in the topic, the slow attempt still has rows to push.
    It pushes them and seals its stage.
    """
    gate, sealed = spark.gate(topic.name, "write.0.5"), spark.gate(topic.name, "sealed.0")
    sealed.open()
    job = spark.submit(
        "write", first=0, count=ROWS, partitions=4, size=SIZE, options=options(topic)
    )
    slow = met(gate, job)
    job.result()
    fast = sealed.here()
    assert fast is not None
    assert fast["pid"] != slow["pid"]
    assert attempts(spark.chaos, topic.name) >= 5, "Spark speculated"
    exactly_once(topic.broker.ipc, topic.name, range(ROWS), SIZE)
    last, after = spark.gate(topic.name, "write.0.end"), spark.gate(topic.name, "sealed.0")
    last.open()
    gate.open()
    wait_for(lambda: last.here(), 30, "the zombie pushed all it has")
    wait_for(lambda: (after.here() or fast)["pid"] == slow["pid"], 30, "the zombie sealed")
    after.open()
    exactly_once(topic.broker.ipc, topic.name, range(ROWS), SIZE)
    topic.no_stage_left()


def test_rows_are_written_once_when_the_gateway_is_killed(spark: SparkDriver, topic: Topic) -> None:
    gates = [spark.gate(topic.name, f"write.{partition}.10") for partition in (0, 1)]
    job = spark.submit(
        "write", first=0, count=ROWS, partitions=2, size=SIZE, options=options(topic)
    )
    for gate in gates:
        met(gate, job)
    topic.wait_staged()
    for pid in topic.broker.pids("gateway"):
        kill(pid)
    for gate in gates:
        gate.open()
    job.result()
    exactly_once(topic.broker.ipc, topic.name, range(ROWS), SIZE)
    topic.no_stage_left()


def test_rows_are_written_once_when_storage_behind_the_gateway_is_killed(
    spark: SparkDriver, topic: Topic
) -> None:
    gate, commit = spark.gate(topic.name, "write.0.10"), spark.gate(topic.name, "commit.job.before")
    job = spark.submit(
        "write", first=0, count=ROWS, partitions=2, size=SIZE, options=options(topic)
    )
    for stop in (gate, commit):
        met(stop, job)
        topic.kill_storage()
        stop.open()
    job.result()
    exactly_once(topic.broker.ipc, topic.name, range(ROWS), SIZE)
    topic.no_stage_left()


def test_a_read_over_tcp_equals_one_over_ipc(spark: SparkDriver, topic: Topic) -> None:
    spark.submit(
        "write", first=0, count=ROWS, partitions=2, size=SIZE, options=options(topic)
    ).result()
    found = [spark.submit("read", options={**options(topic), "url": url, "minPartitions": "4"}).result()
             for url in (topic.broker.tcp, topic.broker.ipc)]  # fmt: skip
    assert found[0]["rows"] == found[0]["numbers"] == ROWS
    assert found[0] == found[1]
