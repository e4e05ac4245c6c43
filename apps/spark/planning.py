"""What a query reads next: batches and micro-batches as offset ranges, admission, and what counts as data loss. No Spark in here.

Data loss is that offsets which Spark was promised are not there: a topic was deleted and made again (its uuid tells), retention took
the oldest, or the log ends before the promised end. Then a query fails, or with failOnDataLoss=false goes on with what is there.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...transport.errors import E_DATA_LOSS, DataLoss
from .logs import LOGGER, Extent, Logs
from .offsets import Place, Span, admit, split
from .options import Point, SourceOptions

__all__ = ["BatchPlan", "StreamPlan"]


class _Plan:
    def __init__(self, options: SourceOptions, logs: Logs) -> None:
        self._options = options
        self.logs = logs

    def _resolve(self, topic: str, point: Point, extent: Extent) -> int:
        if point.kind == "offset":
            return point.value
        if point.kind == "time":
            return self.logs.offset_at(topic, point.value)
        return extent.start if point.kind == "earliest" else extent.head

    def _lost(self, text: str) -> None:
        """Offsets are not there: fail, or say so and go on."""
        if self._options.fail_on_data_loss:
            advice = "If that is right, set option 'failOnDataLoss' to 'false' to go on with what is there, or begin with a new checkpoint"
            raise DataLoss(E_DATA_LOSS, f"{text}. {advice}")
        LOGGER.warning("%s. The query goes on with what is there, as failOnDataLoss is false", text)

    def _within(self, topic: str, start: int, stop: int, extent: Extent) -> tuple[int, int]:
        """The range as far as it is kept; what is not is data loss."""
        if stop > start and start < extent.start:
            gone = min(stop, extent.start)
            self._lost(f"offsets {start} to {gone - 1} of topic {topic} are not kept any more: it now begins at {extent.start}")
        if max(start, stop) > extent.head:
            self._lost(f"topic {topic} ends at offset {extent.head}, before {max(start, stop)}, which was to be read or was read before")
        stop = min(stop, extent.head)
        return min(max(start, extent.start), stop), stop

    def _measured(self, topic: str, start: int, stop: int, uuid: str) -> Span:
        size_bytes = self.logs.measure(topic, start, stop).bytes if stop > start else 0
        return Span(topic, start, max(start, stop), size_bytes, uuid)

    def _split(self, spans: list[Span]) -> list[Span]:
        return split(spans, self._options.partitions_min)


class BatchPlan(_Plan):
    """One read from the starting to the ending points, as the topics are when it is planned."""

    def partitions(self) -> list[Span]:
        spans = []
        for topic in self._options.topics:
            extent = self.logs.extent(topic)
            start = self._resolve(topic, self._options.starting[topic], extent)
            stop = self._resolve(topic, self._options.ending[topic], extent)
            spans.append(self._measured(topic, *self._within(topic, start, stop, extent), extent.uuid))
        return self._split(spans)


class StreamPlan(_Plan):
    """A query's micro-batches. Spark keeps the place; what is kept here is only the target of Trigger.AvailableNow."""

    def __init__(self, options: SourceOptions, logs: Logs) -> None:
        super().__init__(options, logs)
        self._target: Mapping[str, Extent] | None = None

    def _extents(self) -> dict[str, Extent]:
        return {topic: self.logs.extent(topic) for topic in self._options.topics}

    def initial(self) -> Place:
        """Where a query without a checkpoint begins."""
        extents = self._extents()
        offsets = {}
        for topic, extent in extents.items():
            start = self._resolve(topic, self._options.starting[topic], extent)
            offsets[topic] = self._within(topic, start, extent.head, extent)[0]
        return Place(offsets, {topic: extent.uuid for topic, extent in extents.items()})

    def head(self) -> Place:
        """How far the topics reach now."""
        extents = self._extents()
        return Place({topic: extent.head for topic, extent in extents.items()}, {topic: extent.uuid for topic, extent in extents.items()})

    def stop_at_present_head(self) -> None:
        """Trigger.AvailableNow: what comes after this call is not for this run."""
        self._target = self._extents()

    def latest(self, start: Place, *, offsets_max: int = 0, bytes_max: int = 0) -> Place:
        """The end of the next micro-batch; 0 is no limit. `start` itself where nothing waits."""
        extents = self._extents()
        offsets, waiting = {}, {}
        for topic, extent in extents.items():
            first = self._first(topic, start, extent)
            last = extent.head
            if self._target is not None:
                target = self._target[topic]
                last = min(last, target.head) if target.uuid == extent.uuid else extent.start
            offsets[topic] = first
            waiting[topic] = max(0, last - first)
        if offsets_max:
            waiting = admit(waiting, offsets_max)
        if bytes_max:
            waiting = self._by_bytes(offsets, waiting, bytes_max)
        ends = {topic: offsets[topic] + waiting[topic] for topic in offsets}
        return Place(ends, {topic: extent.uuid for topic, extent in extents.items()})

    def _first(self, topic: str, place: Place, extent: Extent) -> int:
        """Where reading of a topic goes on after `place`; a topic that the query did not read before begins at its oldest message."""
        if topic not in place.offsets:
            return extent.start
        first = place.offsets[topic]
        if place.uuids[topic] != extent.uuid:
            self._lost(f"topic {topic} was deleted and made again since it was read up to offset {first} (uuid {place.uuids[topic]})")
            return extent.start
        return self._within(topic, first, extent.head, extent)[0]

    def _by_bytes(self, offsets: Mapping[str, int], waiting: Mapping[str, int], bytes_max: int) -> dict[str, int]:
        """As `admit`, by bytes: each topic its share, and at least what storage can tell apart."""
        some = {topic: count for topic, count in waiting.items() if count}
        sizes = {topic: max(1, self.logs.measure(topic, offsets[topic], offsets[topic] + count).bytes) for topic, count in some.items()}
        admitted = dict(waiting)
        for topic, size in admit(sizes, bytes_max).items():
            if size < sizes[topic]:
                stop = self.logs.measure(topic, offsets[topic], offsets[topic] + some[topic], size).offset
                admitted[topic] = min(some[topic], stop - offsets[topic])
        return admitted

    def partitions(self, start: Place, end: Place) -> list[Span]:
        """The micro-batch's tasks. The same places give the same ranges, and a range gives the same messages."""
        spans = []
        for topic, stop in end.offsets.items():
            if topic not in self._options.topics:
                LOGGER.warning("topic %s is in the checkpoint, but the query does not read it any more", topic)
                continue
            extent = self.logs.extent(topic)
            if end.uuids[topic] != extent.uuid:
                self._lost(f"topic {topic} was deleted and made again: what it held up to offset {stop} is gone (uuid {end.uuids[topic]})")
                first, stop = max(extent.start, start.offsets.get(topic, 0)), min(stop, extent.head)
            elif start.uuids.get(topic) != extent.uuid:
                first, stop = self._within(topic, extent.start, stop, extent)  # new to the query, or made again and told so before
            else:
                first, stop = self._within(topic, start.offsets[topic], stop, extent)
            spans.append(self._measured(topic, first, stop, extent.uuid))
        return self._split(spans)
