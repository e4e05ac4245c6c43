"""Planning of a query's reads: batches and micro-batches as offset ranges, admission, data loss.

This module does not import Spark.

Data loss means that Spark has planned offsets that the topic no longer has. Either the topic was
deleted and recreated (its uuid differs), or retention removed its oldest messages, or the log ends
before the planned end. Then the query fails, or with failOnDataLoss=false continues with the
messages that exist.

Spark's checkpoint keeps a stream's position in its topics as JSON:

    {"version": 1, "topics": {"clicks": {"0": 1234}}, "uuids": {"clicks": "6f…"}}

"0" is the only partition of a topic. The Kafka connector writes offsets in the same form. The uuid
distinguishes a recreated topic from the topic that was read. Spark compares positions as text, so
the same position always gives the same text.

A topic with parts has a partition for each of them. Then the version is 2, and each part has a uuid
of its own:

    {"version": 2, "topics": {"clicks": {"0": 12, "1": 7}}, "uuids": {"clicks#0": …, "clicks#1": …}}

New parts join at the next micro-batch, and are read from their first message on. So do new topics
that a pattern matches (`subscribePattern`). A topic that it matched and that does not exist any
more leaves the position, and so does a part that was removed. This is data loss, unless the broker
knows that the topic or the part ended where the query has read up to.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

from ...storage.log.chunk import ArchivedChunk
from ...transport.errors import (
    E_BAD_ARGUMENT,
    E_CLOSING,
    E_DATA_LOSS,
    DataLoss,
    NotFound,
    Refused,
    UsageError,
)
from ...transport.names import base_of, part_name, part_of
from ...transport.wire.spread import HasParts
from .logs import LOGGER, Extent, Logs
from .options import EARLIEST, EVERY, Point, SourceOptions
from .progress import BEHIND, Behind, behind_as_json
from .pushdown import Bounds
from .trigger_delay import TriggerDelay

__all__ = [
    "PARTITIONS_MAX",
    "PARTITION_BYTES",
    "BatchPlan",
    "OffsetRange",
    "StreamPlan",
    "StreamPosition",
    "admit",
    "split",
]


VERSION: Final = 2
_NAMES_SHOWN: Final = 10
PARTITION_BYTES: Final = 64 * 1024 * 1024  # a smaller task takes longer to start than to read
BORDERS_MAX: Final = 256  # the most borders between blocks that are asked for, in each log
PARTITIONS_MAX: Final = 10_000  # the largest number of partitions of one batch


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """A stream's position: the next offset of each log, and the uuids of the logs."""

    offsets: Mapping[str, int]
    uuids: Mapping[str, str]

    def as_json(self) -> dict[str, object]:
        topics: dict[str, dict[str, int]] = {}
        for name in sorted(self.offsets, key=by_number):
            topic, number = part_of(name) or (name, 0)
            topics.setdefault(topic, {})[str(number)] = self.offsets[name]
        return {
            "version": 2 if any(map(part_of, self.offsets)) else 1,
            "topics": topics,
            "uuids": {name: self.uuids[name] for name in sorted(self.offsets, key=by_number)},
        }

    @classmethod
    def from_json(cls, read: Any) -> StreamPosition:
        """Read a position from an object or its JSON text.

        Raises `UsageError` (E_BAD_ARGUMENT) if this version cannot have written it.
        """
        try:
            position = json.loads(read) if isinstance(read, str) else read
            version = position["version"]
            if type(version) is not int or version > VERSION:
                text = (
                    f"the checkpoint has offsets of version {version!r}, and this zsq reads "
                    f"versions up to {VERSION}; use a newer zsq"
                )
                raise UsageError(E_BAD_ARGUMENT, text)
            offsets = {
                name if name in position["uuids"] else part_name(name, int(number)): offset
                for name, value in position["topics"].items()
                for number, offset in value.items()
                if number == "0" or name not in position["uuids"]
            }
            uuids = {name: str(position["uuids"][name]) for name in offsets}
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError):
            text = (
                f"the checkpoint does not hold offsets of zsq but {repr(read)[:200]}: give the "
                "query its own checkpointLocation"
            )
            raise UsageError(E_BAD_ARGUMENT, text) from None
        if not all(type(offset) is int and offset >= 0 for offset in offsets.values()):
            raise UsageError(
                E_BAD_ARGUMENT,
                (
                    f"the checkpoint holds offsets that are not valid: {repr(read)[:200]}; use a "
                    "new checkpoint"
                ),
            )
        return cls(offsets, uuids)


def by_number(name: str) -> tuple[str, int]:
    """Return a sort key for names of logs, with which part 2 comes before part 10."""
    return part_of(name) or (name, 0)


class OffsetRange(NamedTuple):
    """Offsets `start` to `stop` (exclusive) of a topic, with about `size_bytes` of messages.

    `uuid` is the topic's uuid at the time of planning. If `chunks` of the bucket with the URL
    `bucket` contain all messages, a task can read them there.
    """

    topic: str
    start: int
    stop: int
    size_bytes: int = 0
    uuid: str = ""
    bucket: str = ""
    chunks: tuple[ArchivedChunk, ...] = ()


def admit(waiting: Mapping[str, int], most: int) -> dict[str, int]:
    """Return how many messages of each topic to admit, about `most` in total.

    Each topic gets its share of the waiting messages, rounded down, but at least 1. So a small
    topic beside a busy one does not starve. This is the Kafka connector's rule.
    """
    total = sum(waiting.values())
    if total <= most:
        return dict(waiting)
    return {topic: min(count, max(1, count * most // total)) for topic, count in waiting.items()}


# It returns the offset up to which a range has about so many bytes.
Border = Callable[[OffsetRange, int], int]


def split(
    spans: Sequence[OffsetRange],
    partitions_min: int = 0,
    partition_bytes: int = PARTITION_BYTES,
    border: Border | None = None,
) -> list[OffsetRange]:
    """Cut spans into partitions of about `partition_bytes`.

    The result has at least `partitions_min` partitions if there are as many messages. Those of a
    span have about as many bytes, as far as its blocks permit. Without `border`, they have as many
    messages.
    """
    spans = [span for span in spans if span.stop > span.start]
    total_bytes = sum(span.size_bytes for span in spans)
    total = sum(span.stop - span.start for span in spans)
    parts = []
    for span in spans:
        count = span.stop - span.start
        share, span_total = (span.size_bytes, total_bytes) if total_bytes else (count, total)
        by_bytes = -(-span.size_bytes // partition_bytes)
        # This rounds up, because `partitions_min` is a minimum.
        by_wish = -(-partitions_min * share // span_total)
        pieces = min(count, max(1, by_bytes, by_wish), PARTITIONS_MAX)
        parts += _pieces(span, pieces, border)
    return _at_least(parts, min(partitions_min, total))


def _pieces(span: OffsetRange, pieces: int, border: Border | None) -> list[OffsetRange]:
    """Cut a span at borders of blocks, where that makes pieces of about the same bytes.

    Where a block is larger than a piece, it is cut by the number of its messages.
    """
    steps = min(pieces, BORDERS_MAX) if border is not None else 1
    edges = [span.start]
    for step in range(1, steps):
        assert border is not None
        offset = border(span, max(1, span.size_bytes * step // steps))
        edges.append(min(max(offset, edges[-1]), span.stop))
    edges.append(span.stop)
    weights: dict[tuple[int, int], int] = {}  # the steps of each run of blocks
    waiting = 0
    for start, stop in pairwise(edges):
        waiting += 1
        if stop > start:
            weights[start, stop], waiting = waiting, 0
    last = next(reversed(weights))
    weights[last] += waiting
    parts = []
    for (start, stop), weight in weights.items():
        number = min(stop - start, max(1, round(weight * pieces / steps)))
        size = span.size_bytes * weight // steps
        parts += _even(span._replace(start=start, stop=stop, size_bytes=size), number)
    return parts


def _even(span: OffsetRange, pieces: int) -> list[OffsetRange]:
    """Cut a span into pieces with as many messages."""
    count = span.stop - span.start
    edges = [span.start + count * i // pieces for i in range(pieces + 1)]
    return [
        OffsetRange(span.topic, start, stop, span.size_bytes // pieces, span.uuid)
        for start, stop in pairwise(edges)
    ]


def _at_least(parts: list[OffsetRange], least: int) -> list[OffsetRange]:
    """Halve the partitions with the most messages until there are enough."""
    while len(parts) < least:
        most = max(range(len(parts)), key=lambda at: parts[at].stop - parts[at].start)
        parts[most : most + 1] = _even(parts[most], 2)
    return parts


class _Plan:
    _advice: str  # what to do if a range ends below its start

    def __init__(self, options: SourceOptions, logs: Logs) -> None:
        self._options = options
        self.logs = logs

    def _resolve(self, topic: str, point: Point, extent: Extent) -> int:
        if point.kind == "offset":
            return point.value
        if point.kind == "time":
            return self.logs.offset_at(topic, point.value)
        return extent.start if point.kind == "earliest" else extent.head

    def topics(self) -> Sequence[str]:
        """Return the topics that the query reads now."""
        pattern = self._options.pattern
        return self.logs.matching(pattern) if pattern else self._options.topics

    def names(self) -> list[str]:
        """Return the logs of all topics that the query reads."""
        return [name for topic in self.topics() for name in self.logs.names(topic)]

    def _extents(self) -> dict[str, Extent]:
        """Return the logs that the query reads now, with their extents."""
        extents: dict[str, Extent] = {}
        for topic in self.topics():
            try:
                extents.update(self._extents_of(topic))
            except (NotFound, HasParts):
                if not self._options.pattern:
                    raise
                # It was deleted after the topics were listed, or was created again with parts. The
                # next list has what there is now, and `unlisted` says what the query has lost.
                LOGGER.info("topic %s was listed, and has changed since", topic)
        return extents

    def _extents_of(self, topic: str) -> dict[str, Extent]:
        """Return the logs of one topic with their extents.

        A part may have been removed after the parts were listed. `unlisted` says what is lost.
        """
        extents: dict[str, Extent] = {}
        for name in self.logs.names(topic):
            try:
                extents[name] = self.logs.extent(name)
            except NotFound:
                if not self._is_removed(name):
                    raise
        return extents

    def _is_removed(self, name: str) -> bool:
        """Return True if this is a part that was removed from its topic, which still exists."""
        return part_of(name) is not None and self.logs.ended(name) is not None

    def _check_named(self, points: Mapping[str, Point], side: str, extents: Iterable[str]) -> None:
        """Check that points for topics by name are for exactly those that the pattern matches.

        This is the rule of Kafka's connector. Without it, a topic would be read from an unexpected
        place. Raises `UsageError` (E_BAD_ARGUMENT).
        """
        if not self._options.pattern or EVERY in points:
            return
        existing, named = set(map(base_of, extents)), set(map(base_of, points))
        if existing != named:
            lacks = ", ".join(sorted(existing - named)[:_NAMES_SHOWN])
            more = ", ".join(sorted(named - existing)[:_NAMES_SHOWN])
            problems = [f"it does not name {lacks}"] if lacks else []
            problems += [f"it names {more}, which do not exist"] if more else []
            raise UsageError(
                E_BAD_ARGUMENT,
                f"the {side} offsets must name each topic that subscribePattern "
                f"{self._options.pattern[:80]!r} matches now: {', and '.join(problems)}",
            )

    def _point(self, points: Mapping[str, Point], name: str) -> Point:
        """Return the point of a log: its own one, or that of its topic.

        Raises `UsageError` if an option gives one offset for several parts, or leaves out a part.
        """
        topic = base_of(name)
        point = points.get(name) or points.get(topic) or points.get(EVERY)
        several = name != topic and (bool(self._options.pattern) or topic in self._options.topics)
        if point is None or (
            several and name not in points and point.kind == "offset" and
            len(self.logs.names(topic)) > 1
        ):  # fmt: skip
            logs = self.logs.names(topic)
            if logs == [topic]:
                text = f"topic {topic} has no parts: give one offset, such as"
                raise UsageError(E_BAD_ARGUMENT, f'{text} {{"{topic}": 17}}')
            example = ", ".join(f'"{n}": 17' for n in range(len(logs)))
            text = f"topic {topic} has parts: give an offset for each, such as"
            raise UsageError(E_BAD_ARGUMENT, f'{text} {{"{topic}": {{{example}}}}}')
        return point

    def _lost(self, text: str) -> None:
        """Raise `DataLoss` (E_DATA_LOSS), or only log it if failOnDataLoss is false."""
        if self._options.fail_on_data_loss:
            advice = (
                "If you expected this, set option 'failOnDataLoss' to 'false' to continue with "
                "the remaining messages,"
                " or start with a new checkpoint"
            )
            raise DataLoss(E_DATA_LOSS, f"{text}. {advice}")
        LOGGER.warning(
            "%s. The query continues with the remaining messages, because failOnDataLoss is false",
            text,
        )

    def _within(self, topic: str, start: int, stop: int, extent: Extent) -> tuple[int, int]:
        """Return the part of the range that the topic still keeps. A missing part is data loss."""
        if stop > start and start < extent.start:
            gone = min(stop, extent.start)
            self._lost(
                f"offsets {start} to {gone - 1} of topic {topic} do not exist any more: the "
                f"topic now begins at {extent.start}"
            )
        if max(start, stop) > extent.head:
            text = (
                f"before offset {max(start, stop)}, up to which the query has read or has to read"
            )
            self._lost(f"topic {topic} ends at offset {extent.head}, {text}")
        stop = min(stop, extent.head)
        return min(max(start, extent.start), stop), stop

    def _range(self, topic: str, start: int | None, stop: int, extent: Extent) -> OffsetRange:
        """Return the part of a topic to read: from `start`, or its oldest message, to `stop`.

        Every read passes here: batches, micro-batches, and reads from a bucket. An end below its
        start is refused, because a query that continued from such an end would read messages again.

        Raises `UsageError` (E_BAD_ARGUMENT) for such an end.
        """
        if start is None:
            start = extent.start
            if stop < start:
                self._lost(
                    f"offsets before {stop} of topic {topic} do not exist any more: the topic now "
                    f"begins at {start}"
                )
                stop = start
        # If the topic itself ends below the start, its messages are lost, which `_within` reports.
        if stop < start <= extent.head:
            raise UsageError(
                E_BAD_ARGUMENT,
                f"topic {topic} cannot be read from offset {start} to offset {stop}, because the "
                f"end is below the start: {self._advice}",
            )
        start, stop = self._within(topic, start, stop, extent)
        size_bytes = self.logs.measure(topic, start, stop).bytes if stop > start else 0
        return OffsetRange(topic, start, stop, size_bytes, extent.uuid)

    def _split(self, spans: list[OffsetRange]) -> list[OffsetRange]:
        def border(span: OffsetRange, size_bytes: int) -> int:
            return self.logs.measure(span.topic, span.start, span.stop, size_bytes).offset

        return split(spans, self._options.partitions_min, border=border)


class BatchPlan(_Plan):
    """The plan of one read from the starting to the ending points, within the query's bounds.

    Planning resolves both points.
    """

    _advice = "compare the query's starting and ending options"

    def __init__(self, options: SourceOptions, logs: Logs, bounds: Bounds | None = None) -> None:
        super().__init__(options, logs)
        self._bounds = bounds or Bounds()

    def partitions(self) -> list[OffsetRange]:
        spans = []
        extents = self._extents()
        self._check_named(self._options.starting, "starting", extents)
        self._check_named(self._options.ending, "ending", extents)
        if not extents:
            LOGGER.warning(
                "no topic matches subscribePattern %r, so there is nothing to read",
                self._options.pattern,
            )
        for topic, extent in extents.items():
            if not self._bounds.reads(topic):
                continue
            first = self._point(self._options.starting, topic)
            start = None if first == EARLIEST else self._resolve(topic, first, extent)
            stop = self._resolve(topic, self._point(self._options.ending, topic), extent)
            begin = extent.start if start is None else start
            low, high = self._limits(topic)
            if begin <= stop and (low > begin or high < stop):
                start, stop = max(begin, low), min(stop, high)
                if start >= stop:
                    continue
            spans.append(self._range(topic, start, stop, extent))
        return self._split(spans)

    def _limits(self, log: str) -> tuple[int, int]:
        """Return the offsets between which the query's bounds are."""
        bounds = self._bounds
        low, high = bounds.offset_min, bounds.offset_max
        if bounds.time_min_ms is not None:
            low = max(low, self.logs.offset_at(log, bounds.time_min_ms))
        if bounds.time_max_ms is not None:
            high = min(high, self.logs.offset_at(log, bounds.time_max_ms))
        return low, high


class StreamPlan(_Plan):
    """The plan of a query's micro-batches.

    Spark keeps the position. This object keeps the target of Trigger.AvailableNow, and the start of
    a query without a checkpoint. PySpark 4.2 and later ask for this start before and after the end
    of the first batch, 4.0 and 4.1 only after it. The topics grow between these requests. So start
    and end are planned from one snapshot. Otherwise a query that starts at `latest` could start
    after its first end.
    """

    _advice = (
        "start the query with a new checkpoint, and with startingOffsets at the first offset that "
        "it has not read"
    )

    def __init__(self, options: SourceOptions, logs: Logs) -> None:
        super().__init__(options, logs)
        self._target: Mapping[str, Extent] | None = None
        # The topics, as long as only one of start and first end is planned from them.
        self._snapshot: Mapping[str, Extent] | None = None
        self._initial: StreamPosition | None = None
        self._delay = TriggerDelay(options.offsets_min, options.delay_s)

    def initial(self) -> StreamPosition:
        """Return the position at which a query without a checkpoint begins."""
        if self._initial is None:
            extents, self._snapshot = self._snapshot, None
            if extents is None:
                extents = self._snapshot = self._extents()
            self._check_named(self._options.starting, "starting", extents)
            offsets = {}
            for topic, extent in extents.items():
                point = self._point(self._options.starting, topic)
                start = self._resolve(topic, point, extent)
                if point.kind == "time":
                    start = min(start, extent.head)  # messages may have come since then
                offsets[topic] = self._within(topic, start, extent.head, extent)[0]
            self._initial = StreamPosition(offsets, self._position(extents).uuids)
        return self._initial

    def first_end(self) -> StreamPosition:
        """Return the end of a run's first batch, whose start is not known yet, without limits.

        `initial` or `check_start` follows, when Spark has said which of them the start is.
        """
        self._snapshot = self._extents()
        return self._position(self._snapshot)

    def check_start(self, start: StreamPosition) -> None:
        """Check for data loss between `start` and the end that `first_end` returned before."""
        extents, self._snapshot = self._snapshot, None
        if extents is None:
            return
        for name, extent in extents.items():
            self._first(name, start, extent)
        unlisted = self.unlisted(start, extents)
        if unlisted:
            raise Refused(
                E_CLOSING,
                f"the broker did not list topic {min(unlisted)} although it exists: start the "
                "query again",
            )

    def head(self) -> StreamPosition:
        """Return the present end of each topic."""
        return self._position(self._extents())

    def _position(self, extents: Mapping[str, Extent]) -> StreamPosition:
        return StreamPosition(
            {topic: extent.head for topic, extent in extents.items()},
            {topic: extent.uuid for topic, extent in extents.items()},
        )

    def report(self, planned: StreamPosition) -> dict[str, object]:
        """Return the present end of each topic as JSON, and what waits there after `planned`.

        This asks each topic for its extent, and each topic with a backlog for its size. Storage
        answers both from the index.
        """
        extents = self._extents()
        return {
            **self._position(extents).as_json(),
            BEHIND: behind_as_json(
                (base_of(name), self._behind(name, extent, planned))
                for name, extent in extents.items()
            ),
        }

    def _behind(self, name: str, extent: Extent, planned: StreamPosition) -> Behind:
        first = extent.start
        if planned.uuids.get(name) == extent.uuid:
            first = max(first, planned.offsets[name])
        if first >= extent.head:
            return Behind(0, 0)
        measured = self.logs.measure(name, first, extent.head)
        return Behind(measured.messages, measured.bytes)

    def stop_at_present_head(self) -> None:
        """Exclude all later messages from this run (Trigger.AvailableNow)."""
        self._target = self._extents()

    def latest(
        self,
        start: StreamPosition,
        *,
        offsets_max: int = 0,
        max_bytes: int = 0,
        may_wait: bool = False,
    ) -> StreamPosition:
        """Return the end of the next micro-batch: `start` if no messages wait. 0 means no limit.

        With `may_wait`, this is also `start` if too few messages wait (minOffsetsPerTrigger). A run
        of Trigger.AvailableNow never waits, because no more messages can come.
        """
        extents = dict(self._snapshot_of(start) or self._extents())
        extents |= self.unlisted(start, extents)
        offsets, waiting = {}, {}
        for topic, extent in extents.items():
            first = self._first(topic, start, extent)
            last = extent.head
            if self._target is not None:
                # A part that is newer than the target has nothing to read in this run.
                target = self._target.get(topic, Extent(0, 0, ""))
                last = min(last, target.head) if target.uuid == extent.uuid else extent.start
            offsets[topic] = first
            waiting[topic] = max(0, last - first)
        if may_wait and self._target is None and self._delay.waits(sum(waiting.values())):
            waiting = dict.fromkeys(waiting, 0)
        if offsets_max:
            waiting = admit(waiting, offsets_max)
        if max_bytes:
            waiting = self._by_bytes(offsets, waiting, max_bytes)
        ends = {topic: offsets[topic] + waiting[topic] for topic in offsets}
        return StreamPosition(ends, {topic: extent.uuid for topic, extent in extents.items()})

    def _snapshot_of(self, start: StreamPosition) -> Mapping[str, Extent] | None:
        """Return the snapshot from which only `start` was planned, once."""
        if start != self._initial:
            return None
        extents, self._snapshot = self._snapshot, None
        return extents

    def unlisted(self, place: StreamPosition, listed: Collection[str]) -> dict[str, Extent]:
        """Return the logs of `place` that exist although the list of topics or parts lacks them.

        The list may lack a topic, for example while the broker reads the directory of its cluster.
        So the topic itself is asked. If it does not exist, it was deleted. That is data loss,
        unless the broker knows that it ended at the query's offset. Messages that came after the
        last look would otherwise be lost without notice.
        """
        unlisted: dict[str, Extent] = {}
        for name, offset in place.offsets.items():
            if name in listed or not self._options.reads(name):
                continue
            if not self._options.pattern and part_of(name) is None:
                continue  # it has parts now
            try:
                unlisted[name] = self.logs.extent(name)
            except (NotFound, HasParts):
                ended = self.logs.ended(name)
                if ended == offset:
                    LOGGER.info("topic %s was deleted after all of it was read", name)
                    continue
                end = "it may have had more messages" if ended is None else f"it ended at {ended}"
                self._lost(
                    f"topic {name} was deleted after it was read up to offset {offset}, and {end}"
                )
        return unlisted

    def _first(self, topic: str, place: StreamPosition, extent: Extent) -> int:
        """Return the offset at which the query continues in a topic after `place`.

        A topic that the query has not read before begins at its oldest message.
        """
        if topic not in place.offsets:
            return extent.start
        first = place.offsets[topic]
        if place.uuids[topic] != extent.uuid:
            self._lost(
                f"topic {topic} was deleted and created again after it was read up to offset "
                f"{first} (uuid {place.uuids[topic]})"
            )
            return extent.start
        return self._within(topic, first, extent.head, extent)[0]

    def _by_bytes(
        self, offsets: Mapping[str, int], waiting: Mapping[str, int], max_bytes: int
    ) -> dict[str, int]:
        """Limit the messages as `admit` does, but by bytes.

        Each topic gets its share, and at least the smallest amount that storage can measure.
        """
        some = {topic: count for topic, count in waiting.items() if count}
        sizes = {
            topic: max(1, self.logs.measure(topic, offsets[topic], offsets[topic] + count).bytes)
            for topic, count in some.items()
        }
        admitted = dict(waiting)
        for topic, size in admit(sizes, max_bytes).items():
            if size < sizes[topic]:
                stop = self.logs.measure(
                    topic, offsets[topic], offsets[topic] + some[topic], size
                ).offset
                admitted[topic] = min(some[topic], stop - offsets[topic])
        return admitted

    def partitions(self, start: StreamPosition, end: StreamPosition) -> list[OffsetRange]:
        """Return the ranges of the micro-batch's tasks.

        The same positions give the same messages, and so does a range. The ranges may be cut
        elsewhere if the index of a file was made again in the meantime.
        """
        spans = []
        for topic, stop in end.offsets.items():
            if not self._options.reads(topic):
                LOGGER.warning(
                    "topic %s is in the checkpoint, but the query does not read it any more", topic
                )
                continue
            first = start.offsets.get(topic, 0)
            try:
                extent = self.logs.extent(topic)
            except (NotFound, HasParts):
                if not self._options.pattern and not self._is_removed(topic):
                    raise
                if stop > first:
                    self._lost(
                        f"topic {topic} was deleted before its messages up to offset {stop} were "
                        "read"
                    )
                continue
            if end.uuids[topic] != extent.uuid:
                text = f"its messages up to offset {stop} are lost (uuid {end.uuids[topic]})"
                self._lost(f"topic {topic} was deleted and created again: {text}")
            elif start.uuids.get(topic) != extent.uuid:
                # The topic is new, or it was recreated and `latest` has reported that.
                spans.append(self._range(topic, None, stop, extent))
            else:
                if start == self._initial:
                    # Spark repeats the first batch of a query, and asks for its start again.
                    first = min(first, stop)
                spans.append(self._range(topic, first, stop, extent))
        return self._split(spans)
