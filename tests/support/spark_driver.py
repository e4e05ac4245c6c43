"""A Spark driver as a program. It reads commands as lines of JSON from stdin and writes answers to
stdout, so that a test can kill it like any other process.

Rows are numbers: the value of number n is its twelve digits, a colon and SIZE times one letter
(`support.spark_rows.value_of`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import traceback
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from support.spark_chaos import NAME, chaotic

VALUE = (
    "cast(concat(lpad(cast(id as string), 12, '0'), ':', repeat(char(cast(65 + id % 26 as "
    "int)), {size})) as binary) as value"
)


class Program:
    """Each public method is a command. It runs in a separate thread, and its result is the
    answer.
    """

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    def write(
        self,
        first: int,
        count: int,
        partitions: int,
        size: int,
        options: dict[str, str],
        poison: int = -1,
    ) -> None:
        """Write the rows first .. first + count - 1 as one job. The row `poison` makes each attempt
        of its task fail.
        """
        numbers = self.spark.range(first, first + count, 1, partitions)
        if poison >= 0:
            numbers = numbers.selectExpr(
                f"if(id = {poison}, cast(raise_error('poisoned') as bigint), id) as id"
            )
        rows = numbers.selectExpr(VALUE.format(size=size))
        rows.write.format(NAME).mode("append").options(**options).save()

    def stream(
        self,
        source: dict[str, str],
        checkpoint: str,
        size: int,
        options: dict[str, str],
        now: bool = True,
        topic: str = "",
    ) -> dict[str, Any]:
        """Write all data that is available now into a topic, in micro-batches. If `source` is
        {"format": "json", "path"}, each line of its files is a range of numbers. Otherwise `source`
        has the options of the data source, and the values are passed on unchanged. Without `now`,
        the query has Spark's default trigger, and is stopped when nothing is left. `topic` is an
        expression for a column `topic`.
        """
        query = self._start(source, checkpoint, size, options, now, topic)
        try:
            if now:
                query.awaitTermination()
            else:
                query.processAllAvailable()
        finally:
            query.stop()
        failed = query.exception()
        if failed is not None:
            raise failed
        steps = [row for row in query.recentProgress if row["numInputRows"] or now]
        return {
            "id": query.id,
            "batches": [row["batchId"] for row in steps],
            "rows": [row["numInputRows"] for row in steps if row["numInputRows"]],
        }

    def _start(
        self,
        source: dict[str, str],
        checkpoint: str,
        size: int,
        options: dict[str, str],
        now: bool,
        topic: str,
    ) -> StreamingQuery:
        stream = self.spark.readStream.format(source.pop("format"))
        if "path" in source:
            ranges = stream.schema("first long, last long").options(**source).load()
            rows = ranges.selectExpr("explode(sequence(first, last)) as id").selectExpr(
                VALUE.format(size=size)
            )
        else:
            rows = stream.options(**source).load().select("value")
        if topic:
            rows = rows.selectExpr("value", f"{topic} as topic")
        writer = rows.writeStream.format(NAME).option("checkpointLocation", checkpoint)
        if now:
            writer = writer.trigger(availableNow=True)
        return writer.options(**options).start()

    def read(
        self, options: dict[str, str], format: str = "zsq", where: str = "true"
    ) -> dict[str, Any]:
        """Return counts and a digest of the rows in a range that `where` chooses. The result does
        not depend on which executor read which rows.
        """
        rows: DataFrame = self.spark.read.format(format).options(**options).load().where(where)
        kept = rows.selectExpr(
            "count(*) as rows",
            "count(distinct offset) as offsets",
            "min(offset) as first",
            "max(offset) as last",
            (
                "cast(sum(cast(xxhash64(key, value, topic, offset, timestamp, timestampType, tag) "
                "as decimal(38,0))) as string) as digest"
            ),
            "count(distinct substr(cast(value as string), 1, 12)) as numbers",
        )
        return kept.first().asDict()  # type: ignore[union-attr]

    def conf(self, key: str, value: str) -> None:
        self.spark.conf.set(key, value)


def session(arguments: argparse.Namespace) -> SparkSession:
    builder = SparkSession.builder.master(arguments.master).appName("zsq-tests")
    for pair in arguments.conf:
        key, _, value = pair.partition("=")
        builder = builder.config(key, value)
    return builder.getOrCreate()


def register(spark: SparkSession, folder: str) -> None:
    from zsq.apps.spark import register
    from zsq.apps.spark.data_source import ZsqDataSource

    register(spark)
    spark.dataSource.register(chaotic(ZsqDataSource, folder))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--master", required=True)
    parser.add_argument("--chaos", required=True, help="the folder of rules")
    parser.add_argument("--conf", action="append", default=[])
    arguments = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # the output of Spark goes to the log
    lock = threading.Lock()

    def answer(words: dict[str, Any]) -> None:
        with lock:
            answers.write(json.dumps(words) + "\n")

    spark = session(arguments)
    register(spark, arguments.chaos)
    java: Any = spark._jvm
    answer(
        {
            "id": 0,
            "result": {
                "pid": os.getpid(),
                "jvm": java.java.lang.ProcessHandle.current().pid(),
                "version": spark.version,
            },
        }
    )
    program = Program(spark)

    def run(words: dict[str, Any]) -> None:
        try:
            # Each thread needs its own active session; without it no registered source is found.
            java.SparkSession.setActiveSession(spark._jsparkSession)
            answer(
                {
                    "id": words["id"],
                    "result": getattr(program, words["command"])(**words["arguments"]),
                }
            )
        except Exception as error:
            traceback.print_exc()
            answer({"id": words["id"], "error": f"{type(error).__name__}: {error}"})

    for line in sys.stdin:
        threading.Thread(target=run, args=(json.loads(line),), daemon=True).start()
    spark.stop()


if __name__ == "__main__":
    main()
