"""Tests of writes whose column `topic` names several topics, on a real Spark and a real broker."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.topic import Topic

import zsq

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

THREE = 3


def topics_of(topic: Topic) -> list[Topic]:
    return [Topic(topic.broker, f"{topic.name[:50]}-{number}") for number in range(THREE)]


def spread(rows: DataFrame, topic: Topic) -> DataFrame:
    """Return rows whose `id` chooses the topic."""
    name = f"concat('{topic.name[:50]}-', id % {THREE}) as topic"
    return rows.selectExpr("cast(id as string) as value", "cast(id % 7 as string) as key", name)


def numbers_in(spark: SparkSession, topic: Topic) -> list[int]:
    rows = spark.read.format("zsq").options(**topic.options).load()
    return sorted(int(row.value) for row in rows.collect())


def test_a_batch_goes_to_the_topics_of_its_rows(spark: SparkSession, topic: Topic) -> None:
    """The transaction is committed once in each of them."""
    topics = topics_of(topic)

    def write(version: int) -> None:
        spread(spark.range(0, 30_000, 1, 4), topic).write.format("zsq").options(
            url=topic.url, txnAppId="spread", txnVersion=version
        ).mode("append").save()

    write(1)
    write(1)
    for number, each in enumerate(topics):
        assert numbers_in(spark, each) == list(range(number, 30_000, THREE))
    write(2)
    assert [each.head() for each in topics] == [20_000] * THREE


def test_a_failed_job_leaves_nothing_in_any_topic(spark: SparkSession, topic: Topic) -> None:
    topics = topics_of(topic)
    rows = spark.range(0, 30_000, 1, 2).selectExpr(
        "if(id = 29999, cast(raise_error('poisoned') as bigint), id) as id"
    )
    with pytest.raises(Exception, match="poisoned"):
        spread(rows, topic).write.format("zsq").option("url", topic.url).mode("append").save()
    for each in topics:
        # The job may fail before a task has opened each topic.
        with contextlib.suppress(zsq.NotFound):
            assert each.head() == 0


def test_a_stream_writes_each_batch_once_to_its_topics(
    spark: SparkSession, topic: Topic, checkpoint: Path
) -> None:
    """The second run begins with the last batch of the first one, as after a kill of the driver
    before Spark noted that the batch was committed.
    """
    topic.put(*[str(number).encode() for number in range(900)])
    topics = topics_of(topic)

    def run() -> None:
        source = spark.readStream.format("zsq").options(
            **topic.options, startingOffsets="earliest", maxOffsetsPerTrigger="300"
        )
        rows = source.load().selectExpr("cast(cast(value as string) as bigint) as id")
        query = (
            spread(rows, topic)
            .writeStream.format("zsq")
            .option("url", topic.url)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    for name in (f"{last}", f".{last}.crc"):
        (checkpoint / "commits" / name).unlink()
    run()
    for number, each in enumerate(topics):
        assert numbers_in(spark, each) == list(range(number, 900, THREE))
