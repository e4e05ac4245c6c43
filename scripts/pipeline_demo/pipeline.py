"""Spark's side of the demo. It pushes the CSV to a topic, and a stream of sums to a second topic.

The stream reads the first topic. Both topics get their messages exactly once.

The driver is this process. Spark's executors (here threads of one JVM) pass rows to Python workers,
which are the PUSH producers. `local[2,4]` runs two tasks at a time and tries each up to four times.
So if a worker is killed, Spark tries its task again and the job continues.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from . import work
from .flights import COLUMNS

MASTER: Final = "local[2,4]"
BATCH_MESSAGES_MAX: Final = 40_000
MINUTES: Final = (
    "case when arr_delay in ('NA', '') then null else cast(cast(arr_delay as double) as int) end"
)


def push(spark: SparkSession, url: str, csv: Path) -> None:
    """Run the batch job, which publishes each row of the CSV as a message.

    The key is the carrier, and the tag is the airport of departure. All messages become visible at
    once, when the job is done.
    """
    flights = spark.read.csv(str(csv), header=True).repartition(4)
    flights.select(
        f.concat_ws(",", *(f.coalesce(f.col(name), f.lit("")) for name in flights.columns)).alias(
            "value"
        ),
        f.col("carrier").alias("key"),
        f.col("origin").alias("tag"),
    ).write.format("zsq").option("url", url).option("topic", work.TOPIC).mode("append").save()


def stream(spark: SparkSession, url: str, checkpoint: Path) -> Any:
    """Start the streaming query. It writes the sums of each micro-batch to the second topic.

    The sums are flights and minutes of delay, by hour and carrier. The consumer adds up the sums of
    all micro-batches. If a sum came twice or was lost, the totals would be wrong. Because of
    `txnAppId` and `txnVersion`, a batch that Spark repeats counts only once. A stream that writes
    directly to ZSQ needs neither of these options.
    """

    def write(batch: DataFrame, number: int) -> None:
        by_hour(batch).write.format("zsq").options(
            url=url, topic=work.HOURS, txnAppId="by-hour", txnVersion=number
        ).mode("append").save()

    source = (
        spark.readStream.format("zsq")
        .option("url", url)
        .option("subscribe", work.TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", BATCH_MESSAGES_MAX)
        .load()
    )
    return (
        source.writeStream.queryName("by-hour")
        .option("checkpointLocation", str(checkpoint))
        .foreachBatch(write)
        .start()
    )


def by_hour(flights: DataFrame) -> DataFrame:
    """Return the sums of a micro-batch.

    `value` is JSON with hour, carrier, flights, arrived and delay (total minutes). `key` is the
    hour and the carrier.
    """
    fields = f.split(f.col("value").cast("string"), ",")
    rows = flights.select(*(fields[number].alias(name) for number, name in enumerate(COLUMNS)))
    scheduled = f.expr("make_timestamp(year, month, day, sched_dep_time div 100, 0, 0)")
    summed = (
        rows.withColumn("scheduled", scheduled)
        .withColumn("minutes", f.expr(MINUTES))
        .groupBy(f.window("scheduled", "1 hour"), "carrier")
        .agg(
            f.count("*").alias("flights"),
            f.count("minutes").alias("arrived"),
            f.coalesce(f.sum("minutes"), f.lit(0)).alias("delay"),
        )
        .withColumn("hour", f.date_format("window.start", "yyyy-MM-dd HH"))
    )
    return summed.select(
        f.concat_ws("|", "hour", "carrier").alias("key"),
        f.to_json(f.struct("hour", "carrier", "flights", "arrived", "delay")).alias("value"),
    )
