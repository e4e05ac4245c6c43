"""Fastest Spark data sources in Python, which do as little as possible, for comparisons."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    InputPartition,
    WriterCommitMessage,
)

SCHEMA: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp "
    "timestamp, timestampType int, tag string"
)
ARROW: Final = pa.schema(
    [
        ("key", pa.binary()), ("value", pa.binary()), ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")), ("timestampType", pa.int32()), ("tag", pa.string()),
    ]
)  # fmt: skip


class ThrowAway(DataSource):
    """Sink that discards Arrow batches."""

    @classmethod
    def name(cls) -> str:
        return "zsq-bench-throw-away"

    def writer(self, schema: Any, overwrite: bool) -> _ThrowAwayWriter:
        return _ThrowAwayWriter()

    def streamWriter(self, schema: Any, overwrite: bool) -> _ThrowAwayStreamWriter:
        return _ThrowAwayStreamWriter()


def _count(batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
    for batch in batches:
        assert batch.num_rows >= 0
    return WriterCommitMessage()


class _ThrowAwayWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _count(iterator)


class _ThrowAwayStreamWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _count(iterator)


class Prebuilt(DataSource):
    """Source of prebuilt rows with the columns of ZSQ.

    Options: `rows`, `size` (of a value), `batch` (rows of an Arrow batch), `partitions`, `how`
    (arrow or tuples).
    """

    @classmethod
    def name(cls) -> str:
        return "zsq-bench-prebuilt"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: Any) -> _PrebuiltReader:
        return _PrebuiltReader(self.options)


class _PrebuiltReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self.rows, self.size, self.batch, self.count = (
            int(options[name]) for name in ("rows", "size", "batch", "partitions")
        )
        self.how = options["how"]

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self.rows // self.count) for _ in range(self.count)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        rows = int(partition.value)
        return self._arrow(rows) if self.how == "arrow" else self._tuples(rows)

    def _arrow(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the same batch again and again. It is made only once."""
        count = self.batch
        now = time.time_ns() // 1000
        columns = [
            pa.nulls(count, pa.binary()),
            pa.array([b"x" * self.size] * count, pa.binary()),
            pa.array(["topic"] * count, pa.string()),
            pa.array([0] * count, pa.int32()),
            pa.array(range(count), pa.int64()),
            pa.array([now] * count, pa.timestamp("us", "UTC")),
            pa.array([1] * count, pa.int32()),
            pa.nulls(count, pa.string()),
        ]
        made = pa.record_batch(columns, schema=ARROW)
        for first in range(0, rows, count):
            yield made if rows - first >= count else made.slice(0, rows - first)

    def _tuples(self, rows: int) -> Iterator[tuple[Any, ...]]:
        body = b"x" * self.size
        now = datetime.datetime.now(datetime.UTC)
        for number in range(rows):
            yield (None, body, "topic", 0, number, now, 1, None)
