"""Tests of the trigger delay: which micro-batches wait for more messages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.spark_logs import MadeUp
from support.topic import Topic

from zsq.apps.spark.options import source_options
from zsq.apps.spark.planning import StreamPlan, StreamPosition
from zsq.apps.spark.trigger_delay import TriggerDelay
from zsq.transport.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_batch_waits_for_enough_messages_or_for_its_time() -> None:
    clock = Clock()
    delay = TriggerDelay(10, 60, clock)
    assert not delay.waits(1), "the first batch of a run"
    assert delay.waits(9)
    assert not delay.waits(10)
    clock.now_s += 59
    assert delay.waits(1)
    clock.now_s += 1
    assert not delay.waits(0), "nothing begins, and the time goes on"
    assert not delay.waits(1)
    assert delay.waits(1)


def test_without_a_minimum_no_batch_waits() -> None:
    delay = TriggerDelay(0, 60, Clock())
    assert not any(delay.waits(count) for count in (0, 1, 0, 1))


def options_of(**options: str) -> StreamPlan:
    logs = MadeUp(a=(0, 5), b=(0, 0))
    given = source_options({"topic": "a,b", **options}, "tcp://h:1", streaming=True)
    return StreamPlan(given, logs)


def test_messages_of_all_topics_count() -> None:
    plan = options_of(startingOffsets="earliest", minOffsetsPerTrigger="10")
    logs = plan.logs
    assert isinstance(logs, MadeUp)

    def ends(place: StreamPosition) -> StreamPosition:
        return plan.latest(place, may_wait=True)

    place = ends(plan.initial())
    assert place.offsets == {"a": 5, "b": 0}
    logs.set("a", 0, 9)
    logs.set("b", 0, 5)
    assert ends(place) == place
    assert plan.latest(place).offsets == {"a": 9, "b": 5}, "Trigger.Once"
    logs.set("b", 0, 6)
    place = ends(place)
    assert place.offsets == {"a": 9, "b": 6}
    logs.set("a", 0, 10)
    assert ends(place) == place
    plan.stop_at_present_head()
    assert ends(place).offsets == {"a": 10, "b": 6}, "Trigger.AvailableNow"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("15m", 900), ("2h", 7200), ("500ms", 0.5), ("7", 7), ("1 min", 60)],
)
def test_a_delay_is_a_time_in_the_form_of_spark(text: str, seconds: float) -> None:
    given = {"topic": "a", "minOffsetsPerTrigger": "5", "maxTriggerDelay": text}
    assert source_options(given, "tcp://h:1", streaming=True).delay_s == seconds


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"maxTriggerDelay": "5m"}, "no effect without minOffsetsPerTrigger"),
        ({"minOffsetsPerTrigger": "5", "maxTriggerDelay": "soon"}, "such as 90s, 15m or 2h"),
        ({"minOffsetsPerTrigger": "5", "maxTriggerDelay": "5 weeks"}, "such as 90s, 15m or 2h"),
        (
            {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
            "at most maxOffsetsPerTrigger",
        ),
    ],
)
def test_options_that_contradict_each_other_are_refused(given: dict[str, str], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        source_options({"topic": "a", **given}, "tcp://h:1", streaming=True)


def test_they_are_for_streams() -> None:
    with pytest.raises(UsageError, match=r"use spark\.readStream"):
        source_options({"topic": "a", "minOffsetsPerTrigger": "5"}, "tcp://h:1", streaming=False)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_query_of_spark_waits_for_messages(
    spark: SparkSession, topic: Topic, checkpoint: Path
) -> None:
    def put(count: int) -> None:
        topic.put(*[b"x"] * count)

    put(4)
    options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": "10", "maxTriggerDelay": "1h"}
    query = (
        spark.readStream.format("zsq")
        .options(**topic.options, **options)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    try:
        for count in (0, 9, 1, 5):
            if count:
                put(count)
            query.processAllAvailable()
        rows = [row["numInputRows"] for row in query.recentProgress if row["numInputRows"]]
    finally:
        query.stop()
    assert rows == [4, 10], "the first batch did not wait, the last five messages do"
