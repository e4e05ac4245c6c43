"""Fake topics for tests of what a query of Spark plans."""

from __future__ import annotations

from zsq.apps.spark.logs import Extent
from zsq.apps.spark.pattern import matching
from zsq.transport.client.blocking.client import Measured
from zsq.transport.errors import E_NOT_FOUND, NotFound
from zsq.transport.names import base_of

MESSAGE_BYTES = 100


class MadeUp:
    """Fake topics, given by their extents (oldest offset, next offset, uuid). Each message has 100
    bytes, and is stored one millisecond after the one before.
    """

    def __init__(self, **extents: tuple[int, int] | tuple[int, int, str]) -> None:
        self.extents: dict[str, Extent] = {}
        for topic, extent in extents.items():
            uuid = extent[2] if len(extent) == 3 else ""
            self.set(topic, extent[0], extent[1], uuid)
        self.ends: dict[str, int] = {}

    def set(self, topic: str, start: int, head: int, uuid: str = "") -> None:
        self.extents[topic] = Extent(start, head, uuid or "u-" + topic)

    def delete(self, topic: str, *, known: bool = True) -> None:
        """Delete the topic. If it is `known`, the broker remembers where it ended."""
        extent = self.extents.pop(topic)
        if known:
            self.ends[topic] = extent.head

    def matching(self, pattern: str) -> list[str]:
        return matching(pattern, sorted({base_of(name) for name in self.extents}))

    def ended(self, topic: str) -> int | None:
        return self.ends.get(topic)

    def names(self, topic: str) -> list[str]:
        """Return the topic, or its parts if it has some."""
        parts = [name for name in self.extents if base_of(name) == topic != name]
        return sorted(parts) or [topic]

    def extent(self, topic: str) -> Extent:
        if topic not in self.extents:
            raise NotFound(E_NOT_FOUND, f"topic {topic} does not exist")
        return self.extents[topic]

    def archive(self, topic: str) -> None:
        """Return None: there is no bucket."""

    def offset_at(self, topic: str, time_ms: int) -> int:
        extent = self.extent(topic)
        return min(max(time_ms, extent.start), extent.head)

    def measure(
        self, topic: str, start: int, stop: int, max_bytes: int = (1 << 63) - 1
    ) -> Measured:
        assert start < stop
        size = (stop - start) * MESSAGE_BYTES
        return Measured(
            size,
            start + max(1, min(stop - start, max_bytes // MESSAGE_BYTES)),
            *self.extent(topic)[:2],
            stop - start,
        )

    def close(self) -> None:
        """Do nothing: nothing is open."""
