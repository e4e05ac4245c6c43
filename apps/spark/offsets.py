"""A stream's place in its topics as Spark's checkpoint keeps it, and arithmetic on offset ranges. Pure.

    {"version": 1, "topics": {"clicks": {"0": 1234}}, "uuids": {"clicks": "6f…"}}

"0" is the partition: a topic has one log as yet, and the Kafka connector writes it so. The uuid tells a topic that was deleted and
made again from the one that was read. Spark compares places as text, so the same place is always written the same way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

from ...transport.errors import E_BAD_ARGUMENT, UsageError

__all__ = ["PARTITIONS_MAX", "PARTITION_BYTES", "Place", "Span", "admit", "split"]

VERSION: Final = 1
PARTITION_BYTES: Final = 64 * 1024 * 1024  # a task that reads less spends its time on being started
PARTITIONS_MAX: Final = 10_000  # of one batch


@dataclass(frozen=True, slots=True)
class Place:
    """The next offset of each topic, and the topics' uuids."""

    offsets: Mapping[str, int]
    uuids: Mapping[str, str]

    def as_json(self) -> dict[str, Any]:
        names = sorted(self.offsets)
        return {
            "version": VERSION,
            "topics": {name: {"0": self.offsets[name]} for name in names},
            "uuids": {name: self.uuids[name] for name in names},
        }

    @classmethod
    def from_json(cls, read: Any) -> Place:
        """`UsageError` for what this version did not write; also takes its text."""
        try:
            found = json.loads(read) if isinstance(read, str) else read
            version = found["version"]
            if type(version) is not int or version > VERSION:
                text = f"the checkpoint was written by a later zsq (offsets of version {version!r}, known is {VERSION}): upgrade this one"
                raise UsageError(E_BAD_ARGUMENT, text)
            offsets = {str(name): value["0"] for name, value in found["topics"].items()}
            uuids = {name: str(found["uuids"][name]) for name in offsets}
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError):
            text = f"the checkpoint does not hold offsets of zsq but {repr(read)[:200]}: a query needs a checkpointLocation of its own"
            raise UsageError(E_BAD_ARGUMENT, text) from None
        if not all(type(offset) is int and offset >= 0 for offset in offsets.values()):
            raise UsageError(E_BAD_ARGUMENT, f"the checkpoint holds offsets that cannot be: {repr(read)[:200]}")
        return cls(offsets, uuids)


class Span(NamedTuple):
    """Offsets `start` to `stop` (exclusive) of a topic, about `size_bytes` of them; `uuid`: of the topic when this was planned."""

    topic: str
    start: int
    stop: int
    size_bytes: int = 0
    uuid: str = ""


def admit(waiting: Mapping[str, int], most: int) -> dict[str, int]:
    """How many of `waiting` may go, about `most` in all: each topic its share of what waits, rounded down, but at least 1, so that
    a small topic beside a busy one does not starve (the Kafka connector's rule)."""
    total = sum(waiting.values())
    if total <= most:
        return dict(waiting)
    return {topic: min(count, max(1, count * most // total)) for topic, count in waiting.items()}


def split(spans: Sequence[Span], partitions_min: int = 0, partition_bytes: int = PARTITION_BYTES) -> list[Span]:
    """Cut spans into partitions of about `partition_bytes`, and into at least `partitions_min` where there are so many messages."""
    spans = [span for span in spans if span.stop > span.start]
    total = sum(span.stop - span.start for span in spans)
    parts = []
    for span in spans:
        count = span.stop - span.start
        by_bytes = -(-span.size_bytes // partition_bytes)
        by_wish = -(-partitions_min * count // total)  # rounded up: the wish is a minimum
        pieces = min(count, max(1, by_bytes, by_wish), PARTITIONS_MAX)
        edges = [span.start + count * i // pieces for i in range(pieces + 1)]
        parts += [Span(span.topic, start, stop, span.size_bytes // pieces, span.uuid) for start, stop in pairwise(edges)]
    return parts
