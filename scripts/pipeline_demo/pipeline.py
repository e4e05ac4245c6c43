"""The demo's Spark side: the CSV into a topic, exactly once; the topic back as a stream, summed up into a second topic, exactly once.

The driver is this process; Spark's executors (here: threads of one JVM) hand rows to Python workers, which are the PUSH producers.
`local[2,4]`: two tasks at a time, each tried up to four times, so that a killed worker costs a retry and not the job.
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
MINUTES: Final = "case when arr_delay in ('NA', '') then null else cast(cast(arr_delay as double) as int) end"


def push(spark: SparkSession, url: str, csv: Path) -> None:
    """The batch job: each row of the CSV a message, keyed by carrier, tagged with the airport; visible all at once when it returns."""
    flights = spark.read.csv(str(csv), header=True).repartition(4)
    flights.select(
        f.concat_ws(",", *(f.coalesce(f.col(name), f.lit("")) for name in flights.columns)).alias("value"),
        f.col("carrier").alias("key"),
        f.col("origin").alias("tag"),
    ).write.format("zsq").option("url", url).option("topic", work.TOPIC).mode("append").save()


def stream(spark: SparkSession, url: str, checkpoint: Path) -> Any:
    """The streaming query, started: of each micro-batch flights and delays by scheduled hour and carrier, into the second topic.

    Sums of each micro-batch, to be added up by whoever consumes them: if one came twice, or was lost, the totals would be wrong.
    `txnAppId` and `txnVersion` make a batch that Spark tries again count once; a stream that writes itself needs neither.
    """

    def write(batch: DataFrame, number: int) -> None:
        by_hour(batch).write.format("zsq").options(url=url, topic=work.HOURS, txnAppId="by-hour", txnVersion=number).mode("append").save()

    source = (
        spark.readStream.format("zsq")
        .option("url", url)
        .option("subscribe", work.TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", BATCH_MESSAGES_MAX)
        .load()
    )
    return source.writeStream.queryName("by-hour").option("checkpointLocation", str(checkpoint)).foreachBatch(write).start()


def by_hour(flights: DataFrame) -> DataFrame:
    """`value`: JSON with hour, carrier, flights, arrived, delay (minutes in all); `key`: hour and carrier."""
    fields = f.split(f.col("value").cast("string"), ",")
    rows = flights.select(*(fields[number].alias(name) for number, name in enumerate(COLUMNS)))
    scheduled = f.expr("make_timestamp(year, month, day, sched_dep_time div 100, 0, 0)")
    summed = (
        rows.withColumn("scheduled", scheduled)
        .withColumn("minutes", f.expr(MINUTES))
        .groupBy(f.window("scheduled", "1 hour"), "carrier")
        .agg(f.count("*").alias("flights"), f.count("minutes").alias("arrived"), f.coalesce(f.sum("minutes"), f.lit(0)).alias("delay"))
        .withColumn("hour", f.date_format("window.start", "yyyy-MM-dd HH"))
    )
    return summed.select(
        f.concat_ws("|", "hour", "carrier").alias("key"),
        f.to_json(f.struct("hour", "carrier", "flights", "arrived", "delay")).alias("value"),
    )
