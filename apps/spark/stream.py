"""Streaming reads in every PySpark 4: first position, micro-batches, and following channel."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from ...transport.client.blocking.client import Admin
from ...transport.errors import NotFound, ZsqError
from ...transport.wire.credentials import KeyFile
from .archived import Archives
from .logs import LOGGER, Logs, TopicLogs
from .options import SourceOptions
from .planning import StreamPlan, StreamPosition
from .source import partitions_of, read_range

__all__ = ["FollowingChannel", "FollowingReader", "PlainStreamReader"]

CHANNEL_TIMEOUT_S: Final = 10.0  # seconds; a channel that cannot be moved must not delay the query


class FollowingChannel:
    """The channel that follows a query and so shows the query's backlog.

    Spark's checkpoint decides where the query continues, so no error here fails the query. Moving
    the channel clears its messages. The channel must therefore belong to this query only.
    """

    def __init__(
        self, url: str, name: str, key_file: KeyFile = None, transport: str | None = None
    ) -> None:
        self._name = name
        self._admin = Admin(url, timeout=CHANNEL_TIMEOUT_S, key_file=key_file, transport=transport)
        self._ready: set[str] = set()
        self._told: dict[str, int] = {}

    def begin(self, place: StreamPosition, logs: Logs, *, new: bool) -> None:
        """Create the channel at this position, once for each topic, if it does not exist.

        `new` is True if the query has no checkpoint.
        """
        for topic in sorted(place.offsets.keys() - self._ready):
            try:
                # Creating a channel also creates its topic, so look first. A recreated topic does
                # not have this offset.
                if logs.extent(topic).uuid != place.uuids[topic]:
                    continue
                if self._admin.create_channel(topic, self._name).get("existed"):
                    self._check(topic, new)
                else:
                    self._admin.seek(topic, self._name, place.offsets[topic], clamp=True)
                self._ready.add(topic)
            except ZsqError as error:
                LOGGER.warning(
                    (
                        "channel %s/%s could not be created; the query continues without it for "
                        "now: %s"
                    ),
                    topic,
                    self._name,
                    error,
                )

    def _check(self, topic: str, new: bool) -> None:
        """Warn if an existing channel does not seem to belong to this query."""
        channels = [
            channel
            for topic_row in self._admin.stats(topic, self._name)["topics"]
            for channel in topic_row["channels"]
        ]
        consumers = sum(channel.get("client_count", 0) for channel in channels)
        if new or consumers:
            text = (
                "channel %s/%s %s. The query's commits move the channel on and discard what "
                "waits in it: give the query its own channel"
            )
            LOGGER.warning(
                text,
                topic,
                self._name,
                f"has {consumers} consumers" if consumers else "existed before this query began",
            )

    def advance(self, offsets: Mapping[str, int]) -> None:
        """Move the channel to these offsets, because Spark has processed all messages before them.

        No offset is sent twice, because an idle query calls this many times a second.
        """
        for topic in sorted(offsets.keys() & self._ready):
            if self._told.get(topic) == offsets[topic]:
                continue
            try:
                self._admin.seek(topic, self._name, offsets[topic], forward=True, clamp=True)
                self._told[topic] = offsets[topic]
            except ZsqError as error:
                if isinstance(error, NotFound):
                    self._ready.discard(topic)
                    self._told.pop(topic, None)
                LOGGER.warning(
                    "channel %s/%s could not be moved on; the next batch moves it: %s",
                    topic,
                    self._name,
                    error,
                )

    def close(self) -> None:
        with contextlib.suppress(ZsqError, OSError):
            self._admin.close()


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
            options = self._options
            self._logs = TopicLogs(options.url, options.timeout_s, options.keys, options.transport)
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
            topic: offset for topic, offset in place.offsets.items() if self._options.reads(topic)
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

    Limits therefore count from the last position that this process returned or received. These
    versions ask a query with a checkpoint first to plan an empty batch at the end of its last one,
    and a new query first for the end of its first batch.

    They run Trigger.AvailableNow as a single batch, and do not say so. A limit would leave the rest
    of the messages unread, run after run. So the first batch of each run has no limit. A second one
    shows that the query has another trigger.
    """

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._at: StreamPosition | None = None  # the end of the last batch
        self._is_underway = False  # True as soon as this run has planned a batch

    def latestOffset(self) -> dict[str, object]:  # type: ignore[override]
        offsets_max, max_bytes = self._options.offsets_max, self._options.max_bytes
        is_underway = self._is_underway
        if not is_underway and (offsets_max or max_bytes):
            LOGGER.warning(
                "maxOffsetsPerTrigger and maxBytesPerTrigger do not limit the first micro-batch of "
                "this run, because with PySpark 4.0 and 4.1 Trigger.AvailableNow would leave the "
                "rest unread; use PySpark 4.2 or later to limit all micro-batches"
            )
            offsets_max = max_bytes = 0
        self._is_underway = True
        if self._at is None:
            self._at = self._plan.first_end()
        else:
            self._at = self._plan.latest(
                self._at, offsets_max=offsets_max, max_bytes=max_bytes, may_wait=is_underway
            )
        # The channel is not created here. It must be created at the start of a batch, and only the
        # batch's end is known here.
        return self._at.as_json()

    def partitions(
        self, start: dict[str, object], end: dict[str, object]
    ) -> Sequence[InputPartition]:
        begun, ended = StreamPosition.from_json(start), StreamPosition.from_json(end)
        self._plan.check_start(begun)
        if self._at is None:
            self._at = ended
        if begun == ended:
            return []
        if not self._is_underway:
            LOGGER.warning(
                "the query repeats the micro-batch that it had not committed when it ended. With "
                "PySpark 4.0 and 4.1, a run of Trigger.AvailableNow ends after it: start the query "
                "once more to read the messages after this batch"
            )
            self._is_underway = True
        return super().partitions(start, end)
