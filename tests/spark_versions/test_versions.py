"""Tests of streaming queries on each supported version of Spark: limits, restarts, AvailableNow,
killed Python workers. No row may be missing or come twice, and no run may leave rows unread.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pytest
from support.broker import kill
from support.spark_chaos import Gate
from support.spark_cluster import Job, SparkDriver, SparkFailed, met
from support.spark_rows import exactly_once, value_of
from support.spark_topic import Topic

import zsq

pytestmark = [pytest.mark.timeout(1200)]

SIZE: Final = 200
ROWS: Final = 3000
BLOCK: Final = 250  # rows that are published together: a limit in bytes cuts between blocks
LIMITS: Final = {
    "offsets": {"maxOffsetsPerTrigger": "1000"},
    "bytes": {"maxBytesPerTrigger": "200k"},
}
LATEST: Final = {"startingOffsets": "latest"}
NOT_BEGUN: Final = re.compile("failed to connect back.*Current State: INITIALIZING", re.DOTALL)
STEP_MAX: Final = 1000  # rows of a limited batch; 200 KiB are fewer


def publish(topic: Topic, first: int, count: int = ROWS) -> None:
    with zsq.Producer(topic.broker.ipc) as producer:
        for at in range(first, first + count, BLOCK):
            values = [value_of(number, SIZE) for number in range(at, at + BLOCK)]
            producer.publish_many(topic.name, values)


class Query:
    """A streaming query from one topic to another."""

    def __init__(self, spark: SparkDriver, source: Topic, target: Topic, folder: Path) -> None:
        self.spark, self.source, self.target = spark, source, target
        self._checkpoint = str(folder / "checkpoint")
        # These versions run Trigger.AvailableNow as one batch, and do not say so.
        self.is_old = spark.version.startswith(("4.0.", "4.1."))

    def submit(self, options: Mapping[str, str], *, now: bool) -> Job:
        url = self.source.broker.ipc
        source = {"format": "zsq_chaos", "url": url, "topic": self.source.name}
        return self.spark.submit(
            "stream",
            source={**source, "startingOffsets": "earliest", **options},
            checkpoint=self._checkpoint,
            size=SIZE,
            options={"url": url, "topic": self.target.name},
            now=now,
        )

    def run(
        self,
        options: Mapping[str, str] = MappingProxyType({}),
        *,
        now: bool = True,
        gate: Gate | None = None,
        tries: int = 5,
    ) -> list[int]:
        """Run the query until nothing is left, and return how many rows each batch had. If a
        `gate` is given, kill the process that reaches it.

        On a busy machine, Spark may give up its Python process before the query has begun.
        """
        try:
            job = self.submit(options, now=now)
            if gate is not None:
                kill(met(gate, job)["pid"])
            rows: list[int] = job.result(240)["rows"]
        except SparkFailed as error:
            if NOT_BEGUN.search(str(error)) is None or tries == 1:
                raise
            return self.run(options, now=now, gate=gate, tries=tries - 1)
        return rows

    def has(self, rows: range) -> None:
        exactly_once(self.target.broker.ipc, self.target.name, rows, SIZE)


@pytest.fixture
def query(spark: SparkDriver, source: Topic, topic: Topic, tmp_path: Path) -> Query:
    return Query(spark, source, topic, tmp_path)


def test_this_version_runs(spark: SparkDriver, request: pytest.FixtureRequest) -> None:
    version = request.node.callspec.params["spark"]
    assert version in {"installed", spark.version}


@pytest.mark.parametrize(
    ("limit", "triggers"),
    [("offsets", (False, False, True)), ("bytes", (True, True, False))],
    ids=["offsets", "bytes"],
)
def test_each_run_reads_all_rows_once(query: Query, limit: str, triggers: tuple[bool, ...]) -> None:
    """The first run has a new checkpoint. The others continue from it. Each has Spark's default
    trigger or Trigger.AvailableNow.
    """
    for run, now in enumerate(triggers):
        publish(query.source, run * ROWS)
        steps = query.run(LIMITS[limit], now=now)
        query.has(range((run + 1) * ROWS))
        assert sum(steps) == ROWS
        if query.is_old:
            assert steps == [ROWS], "the first batch of a run has no limit"
        else:
            assert len(steps) >= ROWS / STEP_MAX
            assert max(steps) <= STEP_MAX


@pytest.mark.parametrize("point", ["read.0.end", "write.0.end"])
def test_a_killed_python_worker_costs_no_row(query: Query, point: str) -> None:
    publish(query.source, 0)
    topic = query.source if point.startswith("read") else query.target
    gate = query.spark.gate(topic.name, point)
    assert sum(query.run(LIMITS["offsets"], gate=gate)) == ROWS
    query.has(range(ROWS))


def test_a_batch_that_failed_is_repeated(query: Query) -> None:
    publish(query.source, 0)
    query.run()
    publish(query.source, ROWS)
    query.spark.gate(query.target.name, "commit.1.before", "raise")
    with pytest.raises(SparkFailed, match="raised on purpose"):
        query.run()
    publish(query.source, 2 * ROWS)
    query.run()
    query.has(range((2 if query.is_old else 3) * ROWS))
    query.run()
    query.has(range(3 * ROWS))


def test_a_query_that_begins_at_latest_misses_nothing_after_that(query: Query) -> None:
    """A producer publishes all the time. The first batch fails, and the start is not yet in the
    checkpoint then.
    """
    stop = threading.Event()

    def produce() -> None:
        for number in range(0, 1_000_000, BLOCK):
            publish(query.source, number, BLOCK)
            if stop.wait(0.05):
                return

    producing = threading.Thread(target=produce)
    producing.start()
    try:
        query.spark.gate(query.target.name, "commit.0.before", "raise")
        with pytest.raises(SparkFailed, match="raised on purpose"):
            query.run(LATEST)
        begun = query.source.head()
        query.run(LATEST)
    finally:
        stop.set()
        producing.join()
    query.run(LATEST)
    end = query.source.head()
    first = end - query.target.head()
    assert first <= begun
    query.has(range(first, end))


def test_rows_go_to_the_topics_that_they_name(query: Query, tmp_path: Path) -> None:
    publish(query.source, 0)
    url, name = query.source.broker.ipc, query.target.name[:50]
    for _ in range(2):
        query.spark.submit(
            "stream",
            source={
                "format": "zsq", "url": url, "topic": query.source.name,
                "startingOffsets": "earliest",
            },
            checkpoint=str(tmp_path / "spread"),
            size=SIZE,
            options={"url": url},
            topic=f"concat('{name}-', cast(substr(cast(value as string), 1, 12) as bigint) % 2)",
        ).result(240)  # fmt: skip
    for number in range(2):
        exactly_once(url, f"{name}-{number}", range(number, ROWS, 2), SIZE)


@pytest.mark.parametrize("pushed", [False, True])
def test_filters_choose_the_rows(query: Query, pushed: bool) -> None:
    """Without the option, the switch of Spark pushes nothing to this source."""
    publish(query.source, 0)
    key = "spark.sql.python.filterPushdown.enabled"
    query.spark.submit("conf", key=key, value="true").result(60)
    options = {"url": query.source.broker.ipc, "topic": query.source.name}
    if pushed:
        options["filterPushdown"] = "true"
    where = "offset >= 500 and offset < 700 and timestamp > timestamp '2020-01-01'"
    job = query.spark.submit("read", options=options, where=where)
    if pushed and query.spark.version.startswith("4.0."):
        with pytest.raises(SparkFailed, match=r"needs PySpark 4\.1"):
            job.result(120)
        return
    found = job.result(120)
    assert (found["rows"], found["first"], found["last"]) == (200, 500, 699)
