"""Streaming reads in every PySpark 4: first position, micro-batches, and following channel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from ...transport.names import base_of
from .archived import Archives
from .options import SourceOptions
from .planning import LOGGER, FollowingChannel, StreamPlan, StreamPosition, TopicLogs
from .source import partitions_of, read_range

__all__ = ["FollowingReader", "PlainStreamReader"]


class FollowingReader(DataSourceStreamReader):
    """The part of `spark.readStream.format("zsq")` that all versions of Spark share.

    On the driver, this object is in one Python process as long as the query runs, and it keeps its
    connections. Spark also pickles it for `read` on executors, before the first connection is made.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._logs: TopicLogs | None = None
        self._made: StreamPlan | None = None
        self._archives: Archives | None = None
        self._channel: FollowingChannel | None = None

    @property
    def _plan(self) -> StreamPlan:
        if self._made is None:
            given = self._options
            self._logs = TopicLogs(given.url, given.timeout_s, given.keys, given.transport)
            self._made = StreamPlan(self._options, self._logs)
        return self._made

    def _follow(self, place: StreamPosition, *, new: bool = False) -> FollowingChannel | None:
        """Return the channel, and create it at the query's start if it does not exist.

        Call this after planning, because the planning finds out whether the topics exist.
        """
        if not self._options.channel:
            return None
        if self._channel is None:
            self._channel = FollowingChannel(
                self._options.url,
                self._options.channel,
                self._options.keys,
                self._options.transport,
            )
        known = {
            topic: offset
            for topic, offset in place.offsets.items()
            if topic in self._options.topics or base_of(topic) in self._options.topics
        }
        self._channel.begin(StreamPosition(known, place.uuids), self._plan.logs, new=new)
        return self._channel

    def initialOffset(self) -> dict[str, object]:
        place = self._plan.initial()
        self._follow(place, new=True)
        return place.as_json()

    def partitions(
        self, start: dict[str, object], end: dict[str, object]
    ) -> Sequence[InputPartition]:
        begun = StreamPosition.from_json(start)
        planned = self._plan.partitions(begun, StreamPosition.from_json(end))
        if self._archives is None:
            assert self._logs is not None
            self._archives = Archives(self._options.bucket, self._logs.archive)
        planned = self._archives.cut(planned)
        self._follow(begun)
        return partitions_of(planned)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, partition)

    def commit(self, end: dict[str, object]) -> None:
        place = StreamPosition.from_json(end)
        channel = self._follow(place)
        if channel is not None:
            channel.advance(place.offsets)

    def stop(self) -> None:
        if self._logs is not None:
            self._logs.close()
        if self._channel is not None:
            self._channel.close()
        self._logs = self._made = self._channel = self._archives = None


class PlainStreamReader(FollowingReader):
    """Reader for PySpark 4.0 and 4.1, whose `latestOffset` does not get the query's position.

    Limits therefore count from the last position that this process returned or received. After a
    restart from a checkpoint without an unfinished batch, the process knows no position. Then the
    first micro-batch takes all messages. The only micro-batch of Trigger.AvailableNow does the
    same.
    """

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._at: StreamPosition | None = None

    def initialOffset(self) -> dict[str, object]:
        found = super().initialOffset()
        self._at = StreamPosition.from_json(found)
        return found

    def latestOffset(self) -> dict[str, object]:  # type: ignore[override]
        limited = self._options.offsets_max or self._options.bytes_max
        if self._at is None:
            if limited:
                LOGGER.warning(
                    "maxOffsetsPerTrigger and maxBytesPerTrigger apply from the second "
                    "micro-batch on;"
                    " use PySpark 4.2 or later to limit the first one too"
                )
            self._at = self._plan.head()
        else:
            self._at = self._plan.latest(
                self._at, offsets_max=self._options.offsets_max, bytes_max=self._options.bytes_max
            )
        # The channel is not created here. It must be created at the start of a batch, and only the
        # batch's end is known here.
        return self._at.as_json()

    def partitions(
        self, start: dict[str, object], end: dict[str, object]
    ) -> Sequence[InputPartition]:
        if self._at is None:
            # Spark repeats a batch from before the restart.
            self._at = StreamPosition.from_json(end)
        return super().partitions(start, end)
