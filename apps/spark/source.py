"""Batch reads: the driver plans them, and executors read each partition as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from ...transport.arrow.batches import BatchMaker
from ...transport.errors import E_BAD_ARGUMENT, UsageError
from ...transport.names import part_of
from .archived import ArchiveLogs, Archives, TaskBlocks
from .logs import LOGGER, TopicLogs
from .options import ALWAYS, SourceOptions
from .planning import BatchPlan, OffsetRange
from .pushdown import Bounds, Comparison

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter  # since PySpark 4.1

__all__ = ["BatchReader", "FilteringReader", "RangePartition", "partitions_of", "read_range"]


# Spark's classes of filters that say something about offsets, times or topics.
OPERATORS: Final = {
    "EqualTo": "=", "EqualNullSafe": "=", "GreaterThan": ">", "GreaterThanOrEqual": ">=",
    "LessThan": "<", "LessThanOrEqual": "<=", "In": "in",
}  # fmt: skip


class RangePartition(InputPartition):
    """One task: the offsets of `span`.

    The span's uuid guards against a topic that was recreated under the same name after the
    planning.
    """

    def __init__(self, span: OffsetRange) -> None:
        super().__init__((span.topic, span.start, span.stop, span.uuid))
        self.span = span


def partitions_of(spans: Sequence[OffsetRange]) -> list[RangePartition]:
    return [RangePartition(span) for span in spans]


def read_range(options: SourceOptions, part: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the partition's messages in order, on an executor.

    Storage, or the bucket's threads, read ahead while Spark processes a batch.
    """
    # Spark passes a placeholder if no partition was planned.
    if not isinstance(part, RangePartition):
        return
    span = part.span
    blocks = TaskBlocks(options, span)
    topic, number = part_of(span.topic) or (span.topic, 0)
    maker = BatchMaker(topic, options.columns, number)
    yield from maker.batches(blocks, span.start, span.stop)
    if blocks.lost:
        LOGGER.warning(
            (
                "%d messages of topic %s are lost and were skipped; first offset and count of "
                "each gap: %s"
            ),
            blocks.lost,
            span.topic,
            blocks.gaps[:20],
        )


class BatchReader(DataSourceReader):
    """Reader of `spark.read.format("zsq")`."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._bounds = Bounds()

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        if options.from_bucket:
            return self._of_archive(options.url)
        logs = TopicLogs(options.url, options.timeout_s, options.keys, options.transport)
        try:
            if options.bucket == ALWAYS:
                topics = BatchPlan(options, logs).topics()
                if not topics:
                    LOGGER.warning("no topic matches subscribePattern %r", options.pattern)
                    return []
                archive = logs.archive(logs.names(topics[0])[0])
                if archive is None:
                    raise UsageError(
                        E_BAD_ARGUMENT,
                        f"option 'bucket' is 'always', and the broker at {options.url} has no "
                        "bucket: leave it out, or start the broker with --bucket",
                    )
                return self._of_archive(archive.url)
            spans = BatchPlan(options, logs, self._bounds).partitions()
            return partitions_of(Archives(options.bucket, logs.archive).cut(spans))
        finally:
            logs.close()

    def _of_archive(self, url: str) -> Sequence[InputPartition]:
        logs = ArchiveLogs(url)
        return partitions_of(logs.cut(BatchPlan(self._options, logs, self._bounds).partitions()))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, partition)


class FilteringReader(BatchReader):
    """Reader with option `filterPushdown`, for PySpark 4.1 and later.

    It is a class of its own, because Spark refuses each reader that has `pushFilters` if
    `spark.sql.python.filterPushdown.enabled` is false.
    """

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        """Note what the filters say, and let Spark evaluate all of them."""
        for item in filters:
            operator = OPERATORS.get(type(item).__name__)
            path: tuple[str, ...] = getattr(item, "attribute", ())
            if operator is not None and len(path) == 1:
                self._bounds.add(Comparison(path[0], operator, getattr(item, "value", None)))
        return filters
