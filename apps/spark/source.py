"""Batch reads: the driver plans them, and executors read each partition as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from ...transport.client.blocking.range_reader import RangeReader
from .columns import BatchMaker
from .options import SourceOptions
from .planning import LOGGER, BatchPlan, OffsetRange, TopicLogs

__all__ = ["BatchReader", "RangePartition", "partitions_of", "read_range"]


class RangePartition(InputPartition):
    """One task: offsets `start` to `stop` (exclusive) of a topic.

    `uuid` guards against a topic that was recreated under the same name after the planning.
    """

    def __init__(self, topic: str, start: int, stop: int, uuid: str) -> None:
        super().__init__((topic, start, stop, uuid))
        self.topic = topic
        self.start = start
        self.stop = stop
        self.uuid = uuid


def partitions_of(spans: Sequence[OffsetRange]) -> list[RangePartition]:
    return [RangePartition(span.topic, span.start, span.stop, span.uuid) for span in spans]


def read_range(options: SourceOptions, part: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the partition's messages in order, on an executor.

    Storage reads ahead while Spark processes a batch.
    """
    # Spark passes a placeholder if no partition was planned.
    if not isinstance(part, RangePartition):
        return
    with RangeReader(
        options.url, part.topic, part.start, part.stop,
        timeout=options.timeout_s, fail_on_data_loss=options.fail_on_data_loss, uuid=part.uuid, key_file=options.keys,
    ) as blocks:  # fmt: skip
        yield from BatchMaker(part.topic, options.columns).batches(blocks, part.start, part.stop)
        if blocks.lost:
            LOGGER.warning(
                (
                    "%d messages of topic %s are lost and were skipped; first offset and count of "
                    "each gap: %s"
                ),
                blocks.lost,
                part.topic,
                blocks.gaps[:20],
            )


class BatchReader(DataSourceReader):
    """Reader of `spark.read.format("zsq")`."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        logs = TopicLogs(self._options.url, self._options.timeout_s, self._options.keys)
        try:
            return partitions_of(BatchPlan(self._options, logs).partitions())
        finally:
            logs.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, partition)
