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

import zsq
from zsq.apps.spark import Behind, behind, logs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)


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


@pytest.mark.usefixtures("running")
def test_progress_says_how_far_a_query_is_behind(
    spark: SparkSession, topic: Topic, checkpoint: Path
) -> None:
    from pyspark.sql.streaming.listener import (
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryListener,
    )

    told: list[Behind | None] = []

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: QueryStartedEvent) -> None:
            pass

        def onQueryProgress(self, event: QueryProgressEvent) -> None:
            told.append(behind(event.progress))

        def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
            pass

    topic.put(*(b"x" * 1000 for _ in range(100)))
    listener = Listener()
    spark.streams.addListener(listener)
    try:
        query = (
            spark.readStream.format("zsq")
            .options(**topic.options, startingOffsets="earliest", maxOffsetsPerTrigger="40")
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(200)
        found = [behind(one) for one in query.recentProgress]
        rows = [one and one.rows for one in found]
        assert rows[:3] == [60, 20, 0]
        assert found[0] is not None
        assert found[0].bytes > 30_000
        wait_for(lambda: len(told) >= len(found), 60, "the listener")
        assert told[: len(found)] == found
        assert behind(query.lastProgress) == Behind(0, 0)
        with zsq.Reader(topic.name, url=topic.url) as reader:
            place = json.loads((checkpoint / "offsets" / "0").read_text().splitlines()[-1])
            assert place["uuids"] == {topic.name: reader.uuid()}
        assert "behind" not in place, "the checkpoint has positions only"
    finally:
        spark.streams.removeListener(listener)
