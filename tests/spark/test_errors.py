"""Tests of what a Spark user reads when something is wrong: the exception that Spark raises, with
advice on what to do.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.broker import Broker, free_port
from support.topic import Topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# If pytest's time-out ended one test, the connection to the JVM would break, and all tests after it
# would fail.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
]


def said(action: Callable[[], Any]) -> str:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as caught:
        action()
    return str(caught.value)


def load(spark: SparkSession, topic: Topic | None, **options: str) -> Callable[[], Any]:
    given = {**(topic.options if topic else {}), **options}
    return lambda: spark.read.format("zsq").options(**given).load().collect()


def test_options_are_checked_at_load(spark: SparkSession, topic: Topic) -> None:
    assert "no topic is given: use .option('topic', NAME)" in said(
        lambda: spark.read.format("zsq").load()
    )
    assert "no topic is given" in said(lambda: spark.readStream.format("zsq").load())
    assert "did you mean 'startingOffsets'" in said(load(spark, topic, startingOffset="earliest"))
    assert "write tcp://HOST:PORT" in said(load(spark, topic, url="localhost"))
    assert "use spark.readStream" in said(load(spark, topic.create(), channel="c"))


def test_an_unknown_topic_is_refused_with_the_command_that_creates_it(
    spark: SparkSession, topic: Topic
) -> None:
    text = said(load(spark, topic))
    assert f"topic {topic.name} does not exist at {topic.url}" in text
    assert f"`zsq topic create {topic.name}`" in text


def test_a_schema_chooses_columns_and_is_refused_otherwise(
    spark: SparkSession, topic: Topic
) -> None:
    topic.put(b"1")
    rows = spark.read.format("zsq").options(**topic.options)
    assert "leave out .schema(...)" in said(lambda: rows.schema("value int").load().collect())
    same = (
        spark.read.format("zsq")
        .options(**topic.options, columns="value,offset")
        .schema("value binary, offset long")
        .load()
    )
    assert same.collect() == [(b"1", 0)]
    assert rows.schema("offset long, topic string").load().collect() == [(0, topic.name)]
    other = rows.option("columns", "value").schema("offset long")
    assert "leave out .schema(...)" in said(lambda: other.load().collect())


def test_offsets_beyond_the_end_are_reported_as_data_loss(
    spark: SparkSession, topic: Topic
) -> None:
    topic.put(b"1")
    text = said(load(spark, topic, endingOffsets=f'{{"{topic.name}": 5}}'))
    assert "E_DATA_LOSS" in text
    assert f"topic {topic.name} ends at offset 1, before offset 5" in text
    assert "'failOnDataLoss' to 'false'" in text


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("select 1 as value", "column 'value' is of type int; the sink takes binary or string"),
        ("select named_struct('a', 1) as value", "to_json"),
        ("select 'x' as key", "needs a column 'value'"),
        ("select 'x' as value, 1L as offset", "no column 'offset' (bigint)"),
        ("select 'x' as value, array('a') as headers", "column 'headers' is of type array<string>"),
        ("select cast(null as string) as value", "column 'value' is null in 1 rows"),
        (
            "select repeat('x', 1048577) as value",
            "message of 1048577 bytes is over the limit of 1048576 bytes",
        ),
    ],
)
def test_each_wrong_row_is_refused_with_what_to_write(
    spark: SparkSession, topic: Topic, query: str, text: str
) -> None:
    assert text in said(
        lambda: spark.sql(query).write.format("zsq").mode("append").options(**topic.options).save()
    )


def test_overwrite_is_refused_with_what_to_use_instead(spark: SparkSession, topic: Topic) -> None:
    rows = spark.sql("select 'x' as value")
    text = said(lambda: rows.write.format("zsq").mode("overwrite").options(**topic.options).save())
    assert 'mode("append")' in text
    assert "zsq topic delete" in text


def test_a_write_to_no_topic_or_to_an_invalid_one_is_refused(
    spark: SparkSession, broker: Broker, topic: Topic
) -> None:
    def save(query: str) -> Callable[[], Any]:
        return lambda: (
            spark.sql(query).write.format("zsq").mode("append").option("url", topic.url).save()
        )

    assert "no topic is given" in said(save("select 'x' as value"))
    invalid = "select 'x' as value, if(id = 0, 'a0', 'a b') as topic from range(0, 2, 1, 1)"
    assert "a b" in said(save(invalid))
    assert Topic(broker, "a0").head() == 0, "nothing of it can be seen"


def test_an_unreachable_broker_is_reported_with_advice(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    away = f"tcp://127.0.0.1:{free_port()}"
    advice = "Check that `zsq serve` runs there"
    assert advice in said(load(spark, topic, url=away, timeout="1"))
    options = {**topic.options, "url": away, "timeout": "1"}
    assert advice in said(
        lambda: (
            spark.sql("select 'x' as value")
            .write.format("zsq")
            .mode("append")
            .options(**options)
            .save()
        )
    )

    def stream() -> None:
        writer = spark.readStream.format("zsq").options(**options).load().writeStream.format("noop")
        writer.option("checkpointLocation", str(tmp_path / "c")).trigger(
            availableNow=True
        ).start().awaitTermination(120)

    assert advice in said(stream)


def test_a_stream_does_not_take_a_transaction(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    rows = spark.readStream.format("rate").load().selectExpr("cast(value as string) as value")
    writer = rows.writeStream.format("zsq").options(**topic.options, txnAppId="a", txnVersion="1")
    text = said(
        lambda: (
            writer.option("checkpointLocation", str(tmp_path / "c")).start().awaitTermination(120)
        )
    )
    assert "foreachBatch" in text


def test_sql_reads_a_view_and_reads_and_writes_tables_with_options_in_each_statement(
    spark: SparkSession, topic: Topic
) -> None:
    topic.put(b"1", b"2")
    pairs = ", ".join(f"{name} '{value}'" for name, value in topic.options.items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW zsq_view USING zsq OPTIONS ({pairs})")
    assert spark.sql("SELECT count(*) AS n FROM zsq_view").collect()[0].n == 2
    spark.sql(f"CREATE TABLE zsq_table USING zsq OPTIONS ({pairs})")
    try:
        assert "use CREATE TEMPORARY VIEW" in said(
            lambda: spark.sql("SELECT * FROM zsq_table").collect()
        )
        found = spark.sql(f"SELECT count(*) AS n FROM zsq_table WITH ({pairs})").collect()
        assert found[0].n == 2
        spark.sql("CREATE TABLE zsq_sink (value string) USING zsq")
        assert "in SQL INSERT INTO TABLE WITH (topic 'NAME')" in said(
            lambda: spark.sql("INSERT INTO zsq_sink VALUES ('3')")
        )
        spark.sql(f"INSERT INTO zsq_sink WITH ({pairs}) VALUES ('3')")
        assert topic.bodies() == [b"1", b"2", b"3"]
    finally:
        spark.sql("DROP TABLE zsq_table")
        spark.sql("DROP TABLE IF EXISTS zsq_sink")
