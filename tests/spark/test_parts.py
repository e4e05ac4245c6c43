"""Tests of Spark with a topic that has parts at two real brokers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.cluster import Cluster, running

import zsq
from zsq.transport.wire.spread import KeyParts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTS = 4
ROWS = 2_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster")) as made:
        yield made


def test_spark_writes_and_reads_all_parts(
    cluster: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    with zsq.Admin(cluster.url) as admin:
        for topic in ("clicks", "copy"):
            admin.create_topic(topic, parts=PARTS)
    rows = spark.range(ROWS).selectExpr("cast(id as string) value", "cast(id % 50 as string) key")
    given = {"url": cluster.url, "topic": "clicks"}
    rows.write.format("zsq").options(**given).mode("append").save()
    # The same transaction again stores nothing.
    for _ in range(2):
        rows.write.format("zsq").options(**given, txnAppId="again", txnVersion=1).mode(
            "append"
        ).save()
    read = spark.read.format("zsq").options(**given).load()
    found = read.selectExpr(
        "cast(key as string) k", "cast(value as string) v", "partition"
    ).collect()
    assert Counter(row.v for row in found) == {str(number): 2 for number in range(ROWS)}
    parts = KeyParts(PARTS)
    assert all(row.partition == parts.of(row.k.encode()) for row in found)
    assert {row.partition for row in found} == set(range(PARTS))
    mixed = rows.selectExpr("value", "key", "if(value % 2 = 0, 'clicks', 'plain') as topic")
    for _ in range(2):
        mixed.write.format("zsq").options(url=cluster.url, txnAppId="mixed", txnVersion=1).mode(
            "append"
        ).save()
    plain = spark.read.format("zsq").options(url=cluster.url, topic="plain").load()
    assert plain.count() == ROWS // 2
    given = {"url": cluster.url, "subscribePattern": "cli.*"}
    assert spark.read.format("zsq").options(**given).load().count() == 2 * ROWS + ROWS // 2, (
        "all parts are read, also those of the other broker"
    )
    query = (
        spark.readStream.format("zsq").option("url", cluster.url).option("subscribe", "clicks")
        .option("startingOffsets", "earliest").load().select("key", "value")
        .writeStream.format("zsq").option("url", cluster.url).option("topic", "copy")
        .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    try:
        assert query.awaitTermination(100)
    finally:
        query.stop()
    copied = spark.read.format("zsq").options(url=cluster.url, topic="copy").load()
    values = Counter(bytes(row.value).decode() for row in copied.select("value").collect())
    assert values == {str(number): 2 + (number % 2 == 0) for number in range(ROWS)}


def test_a_query_goes_on_after_a_part_was_removed(
    cluster: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    """It fails only if messages of the part were not read, and then names them."""
    checkpoints = [str(tmp_path / name) for name in ("read", "late")]

    def run(checkpoint: str, **given: str) -> None:
        query = (
            spark.readStream.format("zsq").option("url", cluster.url).options(**given)
            .option("subscribe", "small").option("startingOffsets", "earliest").load()
            .writeStream.format("noop").option("checkpointLocation", checkpoint)
            .trigger(availableNow=True).start()
        )  # fmt: skip
        try:
            assert query.awaitTermination(100)
        finally:
            query.stop()

    keys = [b"%d" % number for number in range(40)]
    mine = sum(KeyParts(2).of(key) == 1 for key in keys)
    with zsq.Admin(cluster.url) as admin, zsq.Producer(cluster.url) as producer:
        admin.create_topic("small", parts=2)
        admin.create_channel("small", "c")
        producer.publish_many("small", keys, keys=keys)
        for checkpoint in checkpoints:
            run(checkpoint)
        producer.publish_many("small", keys, keys=keys)
        run(checkpoints[0])
        admin.close_topic("small#1")
        admin.seek("small", "c", "latest")
        assert admin.remove_part("small#1") == {"end": 2 * mine}
    run(checkpoints[0])
    with pytest.raises(Exception, match=f"small#1 was deleted .* it ended at {2 * mine}"):
        run(checkpoints[1])
    run(checkpoints[1], failOnDataLoss="false")
