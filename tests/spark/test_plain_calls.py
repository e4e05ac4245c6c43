"""Tests of streams in the order of calls of PySpark 4.0 and 4.1, with a real broker and without a
JVM. `tests/spark_versions` runs the real versions.
"""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from support.spark_calls import Failed, PlainCalls
from support.topic import Topic

from zsq.apps.spark.admission import AdmittingReader
from zsq.apps.spark.options import SourceOptions, source_options
from zsq.apps.spark.source import BatchReader
from zsq.apps.spark.stream import PlainStreamReader
from zsq.transport.errors import UsageError

ROWS = 1000


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%04d" % number for number in range(first, last)]


def options(topic: Topic, **given: str) -> SourceOptions:
    return source_options({**topic.options, "columns": "value", **given}, "", streaming=True)


def query(topic: Topic, **given: str) -> PlainCalls:
    return PlainCalls(lambda: PlainStreamReader(options(topic, **given)))


def fill(topic: Topic, first: int, last: int) -> None:
    """Publish in blocks of 50 messages, so that a limit in bytes has where to cut."""
    for at in range(first, last, 50):
        topic.put(*numbers(at, min(at + 50, last)))


@pytest.mark.parametrize("limit", [{"maxOffsetsPerTrigger": "100"}, {"maxBytesPerTrigger": "2k"}])
def test_a_new_query_with_a_limit_reads_each_message_once(
    topic: Topic, limit: dict[str, str]
) -> None:
    fill(topic, 0, ROWS)
    stream = query(topic, startingOffsets="earliest", **limit)
    assert stream.run() == [ROWS]
    assert stream.rows == numbers(0, ROWS)


@pytest.mark.parametrize("limit", [{"maxOffsetsPerTrigger": "100"}, {"maxBytesPerTrigger": "2k"}])
def test_available_now_leaves_nothing_unread(topic: Topic, limit: dict[str, str]) -> None:
    stream = query(topic, startingOffsets="earliest", **limit)
    for night in range(3):
        fill(topic, night * ROWS, (night + 1) * ROWS)
        assert stream.run(now=True) == [ROWS]
    assert stream.rows == numbers(0, 3 * ROWS)


def test_limits_hold_from_the_second_batch_of_each_run(
    topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    fill(topic, 0, 200)
    stream = query(topic, startingOffsets="earliest", maxOffsetsPerTrigger="100")
    later = [200, 450]

    def publish_more() -> None:
        if later:
            first = later.pop(0)
            fill(topic, first, first + 250)

    stream.after_batch = publish_more
    with caplog.at_level(logging.WARNING, "zsq.spark"):
        assert stream.run() == [200, 100, 100, 100, 100, 100]
    assert "do not limit the first micro-batch of this run" in caplog.text
    fill(topic, 700, 900)
    assert stream.run() == [200], "it is not known whether this run has a second batch"
    assert stream.rows == numbers(0, 900)


def test_a_run_that_repeats_a_batch_continues_with_limits(
    topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    fill(topic, 0, 200)
    stream = query(topic, startingOffsets="earliest", maxOffsetsPerTrigger="100")
    assert stream.run() == [200]
    fill(topic, 200, 450)
    with pytest.raises(Failed):
        stream.run(now=True, fails=True)
    fill(topic, 450, 600)
    with caplog.at_level(logging.WARNING, "zsq.spark"):
        assert stream.run(now=True) == [250], "Spark ends the run after the repeated batch"
    assert "start the query once more" in caplog.text
    assert stream.run(now=True) == [150]
    fill(topic, 600, 800)
    with pytest.raises(Failed):
        stream.run(fails=True)
    fill(topic, 800, 1000)
    assert stream.run() == [200, 100, 100]
    assert stream.rows == numbers(0, 1000)


def test_a_query_from_latest_on_begins_at_its_first_end(topic: Topic) -> None:
    """Messages that come between Spark's two questions belong to the second batch."""
    fill(topic, 0, 100)
    stream = query(topic, maxOffsetsPerTrigger="100")
    stream.before_start = lambda: fill(topic, 100, 150)
    assert stream.run() == [0, 50]
    assert stream.rows == numbers(100, 150)


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_first_batch_that_is_repeated_loses_nothing(topic: Topic, start: str) -> None:
    """Its start is not in the checkpoint, so Spark asks for it again."""
    fill(topic, 0, 100)
    stream = query(topic, startingOffsets=start)
    stream.before_start = lambda: fill(topic, 100, 150)
    with pytest.raises(Failed):
        stream.run(fails=True)
    stream.before_start = lambda: fill(topic, 150, 200)
    stream.run()
    assert stream.rows == numbers(0 if start == "earliest" else 100, 200)


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": "10"}])
def test_newer_versions_plan_start_and_first_end_from_one_snapshot(
    topic: Topic, limit: dict[str, str]
) -> None:
    """PySpark 4.2 and later ask for the start before and after the first end."""
    fill(topic, 0, 100)
    reader = AdmittingReader(options(topic, **limit))
    start = reader.initialOffset()
    fill(topic, 100, 150)
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert end == start, "a first batch that fails and is repeated has no rows to lose"
    fill(topic, 150, 200)
    assert reader.initialOffset() == start
    assert not reader.partitions(start, end)
    second = reader.latestOffset(end, reader.getDefaultReadLimit())
    [task] = reader.partitions(end, second)
    rows = [row for batch in reader.read(task) for row in batch.column(0).to_pylist()]
    assert rows == numbers(100, 110 if limit else 200)
    reader.stop()

    again = AdmittingReader(options(topic, **limit))
    assert again.initialOffset() != start, "the topic has grown since"
    assert not again.partitions(again.initialOffset(), end), "the repeated batch has no rows either"
    again.stop()


def test_an_end_below_its_start_is_refused(topic: Topic) -> None:
    fill(topic, 0, 100)
    for kind in (PlainStreamReader, AdmittingReader):
        reader: Any = kind(options(topic, startingOffsets="earliest", failOnDataLoss="false"))
        end = reader.initialOffset()
        start = json.loads(json.dumps(end).replace('"0": 0', '"0": 60'))
        with pytest.raises(UsageError, match="cannot be read from offset 60 to offset 0"):
            reader.partitions(start, end)
        reader.stop()
    given = {
        "startingOffsets": f'{{"{topic.name}": 60}}',
        "endingOffsets": f'{{"{topic.name}": 20}}',
    }
    batch = BatchReader(source_options({**topic.options, **given}, "", streaming=False))
    with pytest.raises(UsageError, match="compare the query's starting and ending options"):
        batch.partitions()
