"""Tests of filters that Spark pushes down: bounds and plans without Spark, then a real one."""

from __future__ import annotations

import datetime
import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import datasource as d
from pyspark.sql.types import LongType, StructField, StructType
from support.spark_logs import MadeUp
from support.topic import Topic

from zsq.apps.spark.data_source import ZsqDataSource
from zsq.apps.spark.options import source_options
from zsq.apps.spark.planning import BatchPlan
from zsq.apps.spark.pushdown import INT64_MAX, Bounds, Comparison
from zsq.apps.spark.source import BatchReader, FilteringReader
from zsq.transport.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SWITCH = "spark.sql.python.filterPushdown.enabled"


def at(ms: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC)


def bounds_of(*comparisons: tuple[Any, ...]) -> Bounds:
    bounds = Bounds()
    for comparison in comparisons:
        bounds.add(Comparison(*comparison))
    return bounds


@pytest.mark.parametrize(
    ("operator", "value", "first", "stop"),
    [
        ("=", 7, 7, 8),
        (">", 7, 8, INT64_MAX),
        (">=", 7, 7, INT64_MAX),
        ("<", 7, 0, 7),
        ("<=", 7, 0, 8),
        ("in", (9, 7), 7, 10),
        ("in", (), 0, INT64_MAX),
        ("=", None, 0, INT64_MAX),
        (">", 7.5, 0, INT64_MAX),
    ],
)
def test_a_filter_of_offsets_bounds_them(operator: str, value: Any, first: int, stop: int) -> None:
    bounds = bounds_of(("offset", operator, value))
    assert (bounds.offset_min, bounds.offset_max) == (first, stop)


def test_all_filters_hold() -> None:
    bounds = bounds_of(("offset", ">", 3), ("offset", ">=", 2), ("offset", "<", 9))
    assert (bounds.offset_min, bounds.offset_max) == (4, 9)


def test_a_timestamp_is_a_bound_below_and_above_only_for_the_time_of_storing() -> None:
    """A message with a delay is stored after its timestamp."""
    both = [("timestamp", ">", at(5)), ("timestamp", "<=", at(9))]
    bounds = bounds_of(*both)
    assert (bounds.time_min_ms, bounds.time_max_ms) == (5, None)
    bounds = bounds_of(*both, ("timestampType", "=", 1))
    assert (bounds.time_min_ms, bounds.time_max_ms) == (5, 10)
    assert bounds_of(*both, ("timestampType", "in", (0, 1))).time_max_ms is None
    assert bounds_of(("timestamp", ">", datetime.datetime(2026, 1, 1))).time_min_ms is None


def test_topics_and_partitions_choose_logs() -> None:
    bounds = bounds_of(("topic", "in", ("a", "b")), ("topic", "=", "b"), ("partition", "=", 1))
    assert [log for log in ("a", "b", "a#1", "b#1", "b#2") if bounds.reads(log)] == ["b#1"]
    assert bounds_of(("partition", "=", 0)).reads("a")
    assert bounds_of(("topic", ">", "a"), ("value", "=", b"x")) == Bounds()


def spans(bounds: Bounds, **options: str) -> list[tuple[str, int, int]]:
    """Plan a read of two topics. A fake log's times in ms are its offsets."""
    logs = MadeUp(a=(10, 1000), b=(0, 50))
    plan = BatchPlan(
        source_options({"topic": "a,b", **options}, "tcp://h:1", streaming=False), logs, bounds
    )
    return [(span.topic, span.start, span.stop) for span in plan.partitions()]


def test_a_plan_has_only_what_the_filters_need() -> None:
    assert spans(Bounds()) == [("a", 10, 1000), ("b", 0, 50)]
    assert spans(bounds_of(("offset", ">=", 40))) == [("a", 40, 1000), ("b", 40, 50)]
    assert spans(bounds_of(("offset", "<", 5))) == [("b", 0, 5)]
    assert spans(bounds_of(("offset", ">", 2000))) == []
    assert spans(bounds_of(("timestamp", ">=", at(60)))) == [("a", 60, 1000)]
    assert spans(bounds_of(("topic", "=", "b"))) == [("b", 0, 50)]
    assert spans(bounds_of(("topic", "=", "c"))) == []
    offsets = {"startingOffsets": '{"a": 20, "b": 0}', "endingOffsets": '{"a": 30, "b": 9}'}
    assert spans(bounds_of(("offset", ">=", 25)), **offsets) == [("a", 25, 30)]


def test_a_reader_notes_the_filters_and_leaves_them_to_spark() -> None:
    options = source_options({"topic": "a"}, "tcp://h:1", streaming=False)
    reader = FilteringReader(options)
    filters = [
        d.GreaterThan(("offset",), 5),
        d.EqualTo(("value",), b"x"),
        d.Not(d.EqualTo(("offset",), 9)),
        d.EqualTo(("offset", "deep"), 9),
        d.IsNull(("key",)),
    ]
    assert reader.pushFilters(filters) is filters
    assert pickle.loads(pickle.dumps(reader)).pushFilters([]) == []


def test_filters_are_pushed_only_where_the_option_says_so() -> None:
    def reader(**options: str) -> type:
        source = ZsqDataSource({"topic": "a", "columns": "offset", **options})
        return type(source.reader(StructType([StructField("offset", LongType())])))

    assert reader() is BatchReader
    assert reader(filterPushdown="true") is FilteringReader
    with pytest.raises(UsageError, match="use startingTimestamp"):
        source_options({"topic": "a", "filterPushdown": "true"}, "tcp://h:1", streaming=True)


# On a real Spark


@pytest.fixture
def pushed(spark: SparkSession) -> Iterator[SparkSession]:
    spark.conf.set(SWITCH, "true")
    yield spark
    spark.conf.set(SWITCH, "false")


def load(spark: SparkSession, topic: Topic, **options: str) -> DataFrame:
    return spark.read.format("zsq").options(**topic.options, **options).load()


def scanned(rows: DataFrame) -> int:
    """Return how many rows the scan gave to Spark."""
    rows.collect()
    plan: Any = rows._jdf.queryExecution().executedPlan()
    while plan.children().size():
        plan = plan.children().head()
    return int(plan.metrics().apply("numOutputRows").value())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_spark_reads_only_what_its_filters_need(pushed: SparkSession, topic: Topic) -> None:
    for number in range(20):
        topic.put(*[b"%d" % number] * 50)
    rows = load(pushed, topic, filterPushdown="true")
    times = [row.timestamp for row in rows.select("timestamp").orderBy("offset").collect()]
    middle = times[500]
    literal = f"timestamp_micros({int(middle.replace(tzinfo=datetime.UTC).timestamp() * 1e6)})"
    for where, expected, read in (
        ("offset >= 100 AND offset < 130", 30, 30),
        ("offset IN (7, 9)", 2, 50),
        (f"timestamp >= {literal}", 500, 600),
        (f"timestamp < {literal}", 500, 1000),
        (f"timestamp < {literal} AND timestampType = 1", 500, 600),
        ("offset > 10000", 0, 0),
        (f"topic = '{topic.name}' AND partition = 0", 1000, 1000),
        ("partition = 1", 0, 0),
        ("value = '7'", 50, 1000),
    ):
        chosen = load(pushed, topic, filterPushdown="true").where(where)
        assert chosen.count() == expected, where
        assert scanned(load(pushed, topic, filterPushdown="true").where(where)) <= read, where


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_data_frame_with_several_filters_has_the_right_rows(
    pushed: SparkSession, topic: Topic
) -> None:
    """Spark 4.3 gives all scans of one DataFrame the filters that were pushed last. So the switch
    alone pushes none, and with the option each scan needs a `load` of its own.
    """
    topic.put(*[b"x"] * 100)

    def offsets(rows: DataFrame) -> list[int]:
        return sorted(row.offset for row in rows.collect())

    wanted = [*range(10), *range(95, 100)]
    rows = load(pushed, topic)
    assert offsets(rows.where("offset < 10").union(rows.where("offset >= 95"))) == wanted
    assert rows.count() == 100
    parts = [
        load(pushed, topic, filterPushdown="true").where(where)
        for where in ("offset < 10", "offset >= 95")
    ]
    assert offsets(parts[0].union(parts[1])) == wanted


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_option_without_the_switch_is_refused(spark: SparkSession, topic: Topic) -> None:
    topic.put(b"x")
    with pytest.raises(Exception, match=SWITCH):
        load(spark, topic, filterPushdown="true").collect()
