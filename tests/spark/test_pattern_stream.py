"""Tests of subscribePattern and of the backlog in a query's progress, on a real Spark and a real
broker.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.broker import Broker, wait_for
from support.topic import Topic

from zsq.apps.spark import logs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def running(spark: SparkSession) -> Iterator[None]:
    """End the queries that a test leaves running."""
    yield
    for query in spark.streams.active:
        query.stop()


@pytest.mark.usefixtures("running")
def test_a_stream_reads_topics_that_come_and_outlives_those_that_go(
    spark: SparkSession, broker: Broker, checkpoint: Path
) -> None:
    assert logs.TOPICS_ASKED_S <= 10, "the test waits this long for a new topic"
    topic = Topic(broker, "life-1")
    Topic(broker, "my-life").put(b"not this one")
    given = {"url": topic.url, "subscribePattern": "life-.*"}
    assert spark.read.format("zsq").options(**given).load().count() == 0
    query = (
        spark.readStream.format("zsq")
        .options(**given)
        .load()
        .selectExpr("topic", "cast(value as string) value")
        .writeStream.format("memory")
        .queryName("life")
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime="1 second")
        .start()
    )

    def rows() -> list[tuple[str, str]]:
        assert query.exception() is None
        return sorted((row.topic, row.value) for row in spark.table("life").collect())

    wait_for(
        lambda: query.status["message"].startswith("Waiting"), 60, "a query that waits for topics"
    )
    topic.put(b"1", b"2")
    wait_for(lambda: len(rows()) == 2, 60, "the rows of a topic that came")
    assert rows() == [("life-1", "1"), ("life-1", "2")]
    topic.delete()

    def position() -> dict[str, Any]:
        newest = max(checkpoint.joinpath("offsets").glob("[0-9]*"), key=lambda one: int(one.name))
        found: dict[str, Any] = json.loads(newest.read_text().splitlines()[-1])["topics"]
        return found

    wait_for(lambda: position() == {}, 60, "a position without the topic that went")
    assert query.exception() is None
