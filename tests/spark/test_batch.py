"""Tests of batches on a real Spark and a real broker: every row that was written is read exactly
once.
"""

from __future__ import annotations

import datetime
import pickle
import time
from typing import TYPE_CHECKING, Any

import pytest
from support.topic import Topic

import zsq
from zsq.apps.spark.options import source_options
from zsq.apps.spark.source import BatchReader
from zsq.transport.errors import DataLoss

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# If pytest's time-out ended one test, the connection to the JVM would break, and all tests after it
# would fail.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

NUMBERS = "cast(cast(id as string) as binary) as value"


def read(spark: SparkSession, topic: Topic, **options: str) -> DataFrame:
    return spark.read.format("zsq").options(**topic.options, **options).load()


def write(rows: DataFrame, topic: Topic, **options: str) -> None:
    rows.write.format("zsq").mode("append").options(**topic.options, **options).save()


def values(rows: DataFrame) -> list[bytes]:
    return [bytes(row.value) for row in rows.orderBy("offset").collect()]


def test_all_columns_come_back(spark: SparkSession, topic: Topic) -> None:
    schema = "value binary, key binary, tag string, headers array<struct<key:string,value:binary>>"
    rows: list[tuple[Any, ...]] = [
        (b"v0", b"k0", "red", [("a", b"1"), ("b", None)]),
        (b"", b"", "", []),
        (b"v2", None, None, None),
        ("ü".encode() * 50, b"\x00\xff", "grün", [("x", b"")]),
    ]
    before = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    write(spark.createDataFrame(rows, schema).coalesce(1), topic)
    found = read(spark, topic, includeHeaders="true").orderBy("offset").collect()
    assert [(bytes(row.value), row.key, row.tag, row.headers) for row in found] == rows
    assert [(row.topic, row.partition, row.offset, row.timestampType) for row in found] == [
        (topic.name, 0, i, 1) for i in range(4)
    ]
    assert len({row.timestamp for row in found}) == 1
    assert before <= found[0].timestamp <= datetime.datetime.now(datetime.UTC).replace(tzinfo=None)


def test_text_columns_and_maps_are_taken(spark: SparkSession, topic: Topic) -> None:
    write(
        spark.sql(
            "select 'text' as value, 'k' as key, cast('t' as binary) as tag, map('a', 'b') as "
            "headers"
        ),
        topic,
    )
    [row] = read(spark, topic, includeHeaders="true").collect()
    assert (row.value, row.key, row.tag, row.headers) == (b"text", b"k", "t", [("a", b"b")])
    write(spark.sql("select 'text' as value, null as key, null as tag"), topic)
    assert [
        (row.key, row.tag)
        for row in read(spark, topic, startingOffsets=f'{{"{topic.name}": 1}}').collect()
    ] == [(None, None)]


def test_columns_in_capital_letters_are_the_same_columns(spark: SparkSession, topic: Topic) -> None:
    struct = "array(named_struct('KEY', 'h', 'VALUE', cast('x' as binary)))"
    write(spark.sql(f"select 'v' as VALUE, 'k' as Key, 'T' as TAG, {struct} as Headers"), topic)
    found = read(spark, topic, includeHeaders="true").select("VALUE", "KEY", "TAG", "HEADERS")
    [row] = found.collect()
    assert tuple(row) == (b"v", b"k", "T", [("h", b"x")])
    from pyspark.errors import PySparkException

    both = "occurs twice, in small or capital letters"
    with pytest.raises(PySparkException, match=both):
        write(spark.sql("select 'a' as value, 'b' as VALUE"), topic)


def test_each_row_is_written_and_read_once_in_any_partitions(
    spark: SparkSession, topic: Topic
) -> None:
    write(spark.range(0, 100_000, 1, 7).selectExpr(NUMBERS), topic)
    assert sorted(map(int, topic.bodies())) == list(range(100_000))
    found = read(spark, topic, minPartitions="5")
    assert found.rdd.getNumPartitions() == 5
    counted = found.selectExpr(
        "count(*)", "count(distinct value)", "count(distinct offset)", "min(offset)", "max(offset)"
    ).first()
    assert tuple(counted or ()) == (100_000, 100_000, 100_000, 0, 99_999)


def test_a_write_without_rows_makes_no_topic(spark: SparkSession, topic: Topic) -> None:
    write(spark.range(0).selectExpr(NUMBERS), topic)
    with pytest.raises(zsq.NotFound):
        topic.head()


@pytest.mark.parametrize("large", ["true", "false"])
def test_rows_are_written_with_both_widths_of_arrow(
    spark: SparkSession, topic: Topic, large: str
) -> None:
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", large)
    try:
        write(
            spark.range(100)
            .selectExpr(
                NUMBERS, "cast(id as string) as key", "'t' as tag", "map('h', 'x') as headers"
            )
            .coalesce(1),
            topic,
        )
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")
    assert topic.bodies() == [b"%d" % i for i in range(100)]


def test_spark_reads_what_producers_publish(spark: SparkSession, topic: Topic) -> None:
    topic.put(b"a", b"b", keys=[b"k", None], tags=["t", None], headers=[{"n": 1, "s": "x"}, None])
    first, second = read(spark, topic, includeHeaders="true").orderBy("offset").collect()
    assert (first.value, first.key, first.tag, first.headers) == (
        b"a",
        b"k",
        "t",
        [("n", b"1"), ("s", b"x")],
    )
    assert (second.value, second.key, second.tag, second.headers) == (b"b", None, None, None)


def test_a_column_names_the_topic(spark: SparkSession, topic: Topic) -> None:
    rows = spark.range(10).selectExpr(NUMBERS, f"'{topic.name}' as topic").coalesce(1)
    rows.write.format("zsq").mode("append").option("url", topic.url).save()
    write(rows.selectExpr("value", "'elsewhere' as topic"), topic)
    assert topic.bodies() == [b"%d" % i for i in range(10)] * 2


def test_a_named_transaction_is_stored_once(spark: SparkSession, topic: Topic) -> None:
    rows = spark.range(1000).selectExpr(NUMBERS)
    for version in ("1", "1", "2", "1", "2"):
        write(rows, topic, txnAppId="loader", txnVersion=version)
    assert topic.head() == 2000
    write(rows, topic)
    write(rows, topic)
    assert topic.head() == 4000, "jobs without a name are each their own"


def test_an_empty_version_counts(spark: SparkSession, topic: Topic) -> None:
    rows = spark.range(1000).selectExpr(NUMBERS)
    write(rows.limit(0), topic, txnAppId="loader", txnVersion="1")
    assert not topic.made(), "no topic is made for nothing"
    for version, wanted in (
        ("1", rows),
        ("2", rows.limit(0)),
        ("2", rows),
        ("3", rows.where("value is null")),
        ("3", rows),
        ("4", rows),
    ):
        write(wanted, topic, txnAppId="loader", txnVersion=version)
    assert topic.head() == 2000, "of versions 1 and 4"


def test_a_batch_reads_only_the_given_range_and_columns(spark: SparkSession, topic: Topic) -> None:
    topic.put(*[b"%d" % i for i in range(5000)])
    part = read(
        spark,
        topic,
        startingOffsets=f'{{"{topic.name}": {{"0": 1234}}}}',
        endingOffsets=f'{{"{topic.name}": 3210}}',
        columns="offset,value",
    )
    assert part.columns == ["offset", "value"]
    assert [tuple(row) for row in part.orderBy("offset").collect()] == [
        (i, b"%d" % i) for i in range(1234, 3210)
    ]
    assert read(spark, topic, columns="tag").count() == 5000


def test_a_batch_reads_only_the_given_range_of_time(spark: SparkSession, topic: Topic) -> None:
    topic.put(b"early")
    between = time.time_ns() // 1_000_000 + 1
    while time.time_ns() // 1_000_000 <= between:
        pass
    topic.put(b"late")
    assert values(read(spark, topic, startingTimestamp=str(between))) == [b"late"]
    assert values(read(spark, topic, endingTimestamp=str(between))) == [b"early"]
    assert values(read(spark, topic, startingTimestamp="0")) == [b"early", b"late"]
    assert (
        values(
            read(
                spark,
                topic,
                startingOffsetsByTimestamp=f'{{"{topic.name}": {between + 3_600_000}}}',
            )
        )
        == []
    )


def test_one_batch_reads_several_topics(spark: SparkSession, topic: Topic, other: Topic) -> None:
    topic.put(b"a", b"b")
    other.put(b"c")
    rows = (
        spark.read.format("zsq")
        .option("url", topic.url)
        .option("subscribe", f"{topic.name}, {other.name}")
        .load()
    )
    assert sorted((row.topic, row.offset, bytes(row.value)) for row in rows.collect()) == sorted(
        [(topic.name, 0, b"a"), (topic.name, 1, b"b"), (other.name, 0, b"c")]
    )


def test_a_range_reads_the_same_each_time(spark: SparkSession, topic: Topic) -> None:
    """The rows are the same even if other clients write meanwhile, and however the range is
    divided.
    """
    topic.put(*[b"%d" % (i * 7919 % 1000) for i in range(3000)])
    digest = "sum(cast(xxhash64(value, offset, timestamp) as decimal(38,0)))"
    found = set()
    for pieces in ("1", "3", "50"):
        part = read(spark, topic, endingOffsets=f'{{"{topic.name}": 3000}}', minPartitions=pieces)
        found.add(tuple(part.selectExpr("count(*)", digest).first() or ()))
        topic.put(b"more", b"and more")
    assert len(found) == 1


def test_a_topic_made_again_after_planning_is_not_read(topic: Topic) -> None:
    """This is an error even with failOnDataLoss=false, because a task would mix two topics. If the
    query is tried again, it makes a new plan.
    """
    topic.put(b"old", b"old")
    reader = BatchReader(
        source_options({**topic.options, "failondataloss": "false"}, topic.url, streaming=False)
    )
    [part] = reader.partitions()
    assert sum(batch.num_rows for batch in reader.read(pickle.loads(pickle.dumps(part)))) == 2
    topic.delete()
    topic.put(b"new", b"new")
    with pytest.raises(DataLoss, match="deleted and created again"):
        list(reader.read(part))
    [part] = reader.partitions()
    assert sum(batch.num_rows for batch in reader.read(part)) == 2


def test_batches_are_written_and_read_over_tcp(spark: SparkSession, topic: Topic) -> None:
    topic.url = topic.broker.tcp
    write(spark.range(20_000).selectExpr(NUMBERS), topic)
    found = read(spark, topic).selectExpr("count(distinct value)", "max(offset)").first()
    assert tuple(found or ()) == (20_000, 19_999)
