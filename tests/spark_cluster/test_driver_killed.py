"""Tests in which the driver is killed before or after the broker's commit, and started again with
its checkpoint.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.broker import Broker
from support.spark_cluster import Job, SparkDriver, met, ranges
from support.spark_rows import exactly_once, value_of
from support.spark_topic import Topic

import zsq

pytestmark = [pytest.mark.long, pytest.mark.timeout(420)]

SIZE = 200
# Seconds after which the broker removes abandoned stages. A commit takes less, even on a busy
# machine. The time is short, because the test waits at its end for the removal.
KEPT_S = 20


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("zsq") / "data", "--stage-timeout", str(KEPT_S)) as broker:
        yield broker


@contextlib.contextmanager
def driver(folder: Path) -> Iterator[SparkDriver]:
    with SparkDriver(folder, "local[2]") as driver:
        yield driver


class Query:
    def __init__(self, topic: Topic, checkpoint: Path, source: dict[str, str]) -> None:
        self.topic = topic
        self._arguments: dict[str, Any] = {
            "source": source,
            "checkpoint": str(checkpoint),
            "size": SIZE,
            "options": {"url": topic.broker.ipc, "topic": topic.name},
        }

    def start(self, spark: SparkDriver) -> Job:
        return spark.submit("stream", **self._arguments)

    def stop_at(self, spark: SparkDriver, point: str) -> int:
        """Run until the point is reached. Return the topic's head at that moment."""
        gate = spark.gate(self.topic.name, point)
        met(gate, self.start(spark))
        return self.topic.head()


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[Broker]:
    """Return a broker that keeps stages for the usual time."""
    with Broker(tmp_path / "data") as broker:
        yield broker


def test_a_stream_into_several_topics_survives_kills_of_its_driver(
    patient: Broker, tmp_path: Path
) -> None:
    """The driver is killed before the commit of a batch, and after it. Each row names its topic."""
    broker = patient
    topics = [Topic(broker, f"spread-{number}").create() for number in range(3)]
    query: dict[str, Any] = {
        "checkpoint": str(tmp_path / "checkpoint"),
        "size": SIZE,
        "options": {"url": broker.ipc},
        "topic": "concat('spread-', cast(substr(cast(value as string), 1, 12) as bigint) % 3)",
    }
    source = ranges(tmp_path / "ranges", files=6, rows=1000)
    for point in ("commit.0.before", "commit.0.after", ""):
        with driver(tmp_path / f"driver-{point}") as spark:
            if not point:
                spark.submit("stream", source=source, **query).result()
                continue
            met(spark.gate("column", point), spark.submit("stream", source=source, **query))
            assert sum(topic.head() for topic in topics) == (2000 if "after" in point else 0)
            spark.kill()
    for number, topic in enumerate(topics):
        exactly_once(broker.ipc, topic.name, range(number, 6000, 3), SIZE)


def publish(topic: Topic, first: int, count: int) -> None:
    with zsq.Producer(topic.broker.ipc) as producer:
        producer.publish_many(
            topic.name, [value_of(number, SIZE) for number in range(first, first + count)]
        )


def test_queries_write_each_row_once_although_their_driver_is_killed(
    broker: Broker, tmp_path: Path
) -> None:
    """There are two queries at once, one that reads files and one that copies a topic to which
    producers continue to write, and a job that is never repeated.
    """
    filed, given, copied, orphan = (
        Topic(broker, name).create() for name in ("filed", "given", "copied", "orphan")
    )
    one = Query(filed, tmp_path / "one", ranges(tmp_path / "ranges", files=6, rows=1000))
    source = {
        "format": "zsq",
        "url": broker.ipc,
        "topic": given.name,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "1500",
    }
    two = Query(copied, tmp_path / "two", source)
    publish(given, 0, 4000)

    with driver(tmp_path / "first") as spark:
        gate = spark.gate(orphan.name, "write.0.10")
        met(
            gate,
            spark.submit(
                "write",
                first=0,
                count=20_000,
                partitions=1,
                size=SIZE,
                options={"url": broker.ipc, "topic": orphan.name},
            ),
        )
        orphan.wait_staged()
        assert one.stop_at(spark, "commit.0.before") == 0
        assert two.stop_at(spark, "commit.0.after") == 1500
        spark.kill()
    publish(given, 4000, 1000)

    with driver(tmp_path / "second") as spark:
        jobs = [query.start(spark) for query in (one, two)]
        assert jobs[0].result()["batches"] == [0, 1, 2], (
            "it began with the batch that was not committed"
        )
        batches = jobs[1].result()["batches"]
    assert batches[0] == 0, "Spark repeated the batch that was committed"
    exactly_once(broker.ipc, filed.name, range(6000), SIZE)
    exactly_once(broker.ipc, copied.name, range(5000), SIZE)
    ends = json.loads((tmp_path / "two/offsets" / str(batches[-1])).read_text().splitlines()[-1])
    assert "5000" in json.dumps(ends), "the checkpoint says how far the source was read"

    assert orphan.head() == 0
    for topic in (filed, copied, orphan):
        topic.no_stage_left(KEPT_S + 20)
    assert orphan.head() == 0
