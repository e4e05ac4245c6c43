"""Tests of streams on a real Spark and a real broker: exactly once over restarts, in batches of the
requested size.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from support.broker import Broker, wait_for
from support.topic import Topic

import zsq
from zsq.apps.spark import register
from zsq.apps.spark.sink import BATCH_ID, QUERY_ID

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# If pytest's time-out ended one test, the connection to the JVM would break, and all tests after it
# would fail.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
]


def read(spark: SparkSession, topic: Topic, **options: str) -> DataFrame:
    return (
        spark.readStream.format("zsq")
        .options(**topic.options)
        .options(**{"startingOffsets": "earliest", **options})
        .load()
    )


def start(
    rows: DataFrame, topic: Topic, checkpoint: Path, now: bool = True, /, **options: str
) -> StreamingQuery:
    writer = rows.select("value").writeStream.format("zsq").options(**topic.options, **options)
    writer = writer.option("checkpointLocation", str(checkpoint))
    return (writer.trigger(availableNow=True) if now else writer).start()


def run(rows: DataFrame, topic: Topic, checkpoint: Path, **options: str) -> list[int]:
    """Run the query up to the topic's present end, and return how many rows each
    micro-batch had.
    """
    query = start(rows, topic, checkpoint, True, **options)
    assert query.awaitTermination(200)
    return [step["numInputRows"] for step in query.recentProgress if step["numInputRows"]]


def error_of(query: StreamingQuery) -> str:
    from pyspark.errors import StreamingQueryException

    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(120)
    return str(caught.value)


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % i for i in range(first, last)]


def test_a_restart_goes_on_from_the_checkpoint(
    spark: SparkSession, topic: Topic, other: Topic, checkpoint: Path
) -> None:
    topic.put(*numbers(0, 1000))
    run(read(spark, topic), other, checkpoint)
    assert other.bodies() == numbers(0, 1000)
    run(read(spark, topic), other, checkpoint)
    topic.put(*numbers(1000, 1500))
    run(read(spark, topic, startingOffsets="latest"), other, checkpoint)
    assert other.bodies() == numbers(0, 1500), "startingOffsets is for new queries"


def test_a_batch_that_spark_repeats_is_stored_once(
    spark: SparkSession, topic: Topic, other: Topic, checkpoint: Path
) -> None:
    """Spark repeats the batch, as it does if the driver dies between the broker's commit and
    Spark's own.
    """
    topic.put(*numbers(0, 300))
    assert run(read(spark, topic, maxOffsetsPerTrigger="100"), other, checkpoint) == [100, 100, 100]
    for name in ("2", ".2.crc"):
        (checkpoint / "commits" / name).unlink()
    topic.put(*numbers(300, 400))
    assert run(read(spark, topic, maxOffsetsPerTrigger="100"), other, checkpoint) == [100, 100], (
        "batch 2 ran again"
    )
    assert other.bodies() == numbers(0, 400)


def test_the_checkpoint_holds_offset_and_uuid_of_each_topic(
    spark: SparkSession, topic: Topic, other: Topic, checkpoint: Path
) -> None:
    topic.put(*numbers(0, 10))
    run(read(spark, topic), other, checkpoint)
    place = json.loads((checkpoint / "offsets" / "0").read_text().splitlines()[-1])
    with zsq.Reader(topic.name, url=topic.url) as reader:
        assert place == {
            "version": 1,
            "topics": {topic.name: {"0": 10}},
            "uuids": {topic.name: reader.uuid()},
        }
    assert place["uuids"][topic.name]


def test_available_now_reads_everything_in_steps(
    spark: SparkSession, topic: Topic, other: Topic, checkpoint: Path
) -> None:
    topic.put(*numbers(0, 250))
    assert run(read(spark, topic, maxOffsetsPerTrigger="100"), other, checkpoint) == [100, 100, 50]
    assert other.bodies() == numbers(0, 250)


def test_a_limit_in_bytes_cuts_a_stream_into_steps(
    spark: SparkSession, topic: Topic, other: Topic, checkpoint: Path
) -> None:
    for first in range(0, 1000, 100):
        # Each put makes a block of 100 KB.
        topic.put(*[b"%04d" % i * 250 for i in range(first, first + 100)])
    steps = run(read(spark, topic, maxBytesPerTrigger="256k"), other, checkpoint)
    assert sum(steps) == 1000
    assert 4 <= len(steps) <= 10, steps
    assert len(other.bodies()) == 1000


def test_one_stream_reads_several_topics(
    spark: SparkSession, topic: Topic, other: Topic, broker: Broker, checkpoint: Path
) -> None:
    topic.put(*numbers(0, 100))
    other.put(*numbers(100, 120))
    target = Topic(broker, "joined")
    rows = (
        spark.readStream.format("zsq")
        .option("url", topic.url)
        .option("subscribe", f"{topic.name},{other.name}")
    )
    stream = rows.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "60").load()
    assert run(stream, target, checkpoint) == [60, 60]
    assert sorted(target.bodies(), key=int) == numbers(0, 120)


@pytest.fixture
def running(spark: SparkSession) -> Iterator[None]:
    """Start a query that ends with the test, even if the test leaves it running."""
    yield
    for query in spark.streams.active:
        query.stop()


@pytest.mark.usefixtures("running")
def test_latest_is_where_a_new_query_begins(
    spark: SparkSession, topic: Topic, other: Topic, checkpoint: Path
) -> None:
    topic.put(*numbers(0, 50))
    query = start(
        spark.readStream.format("zsq").options(**topic.options).load(), other, checkpoint, False
    )
    wait_for(
        lambda: (
            (checkpoint / "offsets").exists()
            or query.status["isDataAvailable"]
            or query.lastProgress
        ),
        60,
        "the query's start",
    )
    wait_for(lambda: query.lastProgress is not None, 60, "its first look")
    topic.put(*numbers(50, 60))
    wait_for(lambda: other.made() and other.head() == 10, 60, "what came after it began")
    assert other.bodies() == numbers(50, 60)

    def reported() -> int:
        [source] = json.loads(query.lastProgress.json if query.lastProgress else "{}")["sources"]
        return int(source["latestOffset"]["topics"][topic.name]["0"])

    wait_for(lambda: reported() == 60, 30, "how far the source says that the topic reaches")


@pytest.mark.usefixtures("running")
def test_a_channel_shows_how_far_the_stream_has_read(
    spark: SparkSession, topic: Topic, other: Topic, checkpoint: Path
) -> None:
    topic.put(*numbers(0, 100))
    query = start(read(spark, topic, channel="spark"), other, checkpoint, False)
    wait_for(lambda: other.made() and other.head() == 100, 60, "the first batch")
    topic.put(*numbers(100, 150))
    wait_for(lambda: other.head() == 150, 60, "the second batch")
    wait_for(
        lambda: topic.channel("spark")["depth"] == 0,
        60,
        "the question what comes after the second one",
    )
    query.stop()
    topic.put(*numbers(150, 160))
    assert topic.channel("spark")["depth"] == 10


def test_a_channel_begins_where_the_query_does(
    spark: SparkSession, topic: Topic, other: Topic, checkpoint: Path
) -> None:
    topic.put(*numbers(0, 100))
    run(
        read(spark, topic, channel="spark", startingOffsets=f'{{"{topic.name}": 40}}'),
        other,
        checkpoint,
    )
    assert other.bodies() == numbers(40, 100)
    assert topic.channel("spark")["depth"] == 0, "it has passed the last batch"


def test_a_channel_does_not_pass_a_batch_that_failed(
    spark: SparkSession, topic: Topic, checkpoint: Path
) -> None:
    topic.put(*numbers(0, 100))

    def fails(rows: DataFrame, batch: int) -> None:
        rows.count()
        raise ValueError("no good")

    writer = (
        read(spark, topic, channel="spark")
        .writeStream.foreachBatch(fails)
        .option("checkpointLocation", str(checkpoint))
    )
    assert "no good" in error_of(writer.trigger(availableNow=True).start())
    assert topic.channel("spark")["depth"] == 100


def test_register_says_where_it_was_not_needed(caplog: pytest.LogCaptureFixture) -> None:
    from pyspark.errors import AnalysisException

    def found_already(source: type) -> None:
        raise AnalysisException("[DATA_SOURCE_ALREADY_EXISTS] Data source 'zsq' already exists.")

    def session(register: Callable[[type], None]) -> Any:
        return SimpleNamespace(dataSource=SimpleNamespace(register=register))

    with caplog.at_level(logging.INFO, "zsq.spark"):
        assert register(session(lambda source: None)) is True
        assert "not needed" not in caplog.text
        assert register(session(found_already)) is False
    assert "register() was not needed" in caplog.text


def test_a_topic_made_again_stops_the_query(
    spark: SparkSession, topic: Topic, other: Topic, checkpoint: Path
) -> None:
    topic.put(*numbers(0, 10))
    run(read(spark, topic), other, checkpoint)
    topic.delete()
    topic.put(*numbers(100, 110))
    text = error_of(start(read(spark, topic), other, checkpoint))
    assert f"topic {topic.name} was deleted and created again" in text
    assert "failOnDataLoss" in text
    assert other.head() == 10
    run(read(spark, topic, failOnDataLoss="false"), other, checkpoint)
    assert other.bodies() == [*numbers(0, 10), *numbers(100, 110)]
    run(read(spark, topic), other, checkpoint)


def test_a_topic_that_is_gone_stops_the_query(
    spark: SparkSession, topic: Topic, other: Topic, checkpoint: Path
) -> None:
    topic.put(*numbers(0, 10))
    run(read(spark, topic), other, checkpoint)
    topic.delete()
    text = error_of(start(read(spark, topic), other, checkpoint))
    assert f"topic {topic.name} does not exist" in text
    assert f"zsq topic create {topic.name}" in text


def test_a_batch_with_the_users_version_is_written_once(
    spark: SparkSession, topic: Topic, other: Topic, checkpoint: Path
) -> None:
    topic.put(*numbers(0, 200))

    def twice(rows: DataFrame, batch: int) -> None:
        for _ in range(2):
            writer = (
                rows.select("value").write.format("zsq").mode("append").options(**other.options)
            )
            writer.option("txnAppId", "twice").option("txnVersion", str(batch)).save()

    rows = read(spark, topic, maxOffsetsPerTrigger="100")
    query = (
        rows.writeStream.foreachBatch(twice)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(200)
    assert other.bodies() == numbers(0, 200)


def test_a_checkpoint_of_another_source_is_refused(
    spark: SparkSession, topic: Topic, other: Topic, checkpoint: Path
) -> None:
    topic.put(*numbers(0, 10))
    run(read(spark, topic), other, checkpoint)
    offsets = checkpoint / "offsets" / "0"
    shutil.rmtree(checkpoint / "commits")
    (offsets.parent / ".0.crc").unlink()
    lines = offsets.read_text().splitlines()
    offsets.write_text("\n".join([*lines[:-1], '{"clicks": {"0": 3}}']))
    assert "give the query its own checkpointLocation" in error_of(
        start(read(spark, topic), other, checkpoint)
    )


def test_the_keys_that_spark_keeps_to_itself(
    spark: SparkSession, topic: Topic, checkpoint: Path
) -> None:
    """The sink reads query and batch from the task's local properties, which are not a public
    interface. This test notices if they change.
    """
    topic.put(*numbers(0, 10))
    keys = (QUERY_ID, BATCH_ID)

    def told(key: str) -> Any:
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        return context.getLocalProperty(key)

    from pyspark.sql import functions as f

    rows = read(spark, topic, maxOffsetsPerTrigger="5").select(
        *[f.udf(told, "string", useArrow=False)(f.lit(key)).alias(key) for key in keys]
    )
    writer = (
        rows.writeStream.format("memory")
        .queryName("told")
        .option("checkpointLocation", str(checkpoint))
    )
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(200)
    assert {tuple(row) for row in spark.table("told").collect()} == {
        (query.id, "0"),
        (query.id, "1"),
    }
