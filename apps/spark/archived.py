"""Archived messages: which ranges the tasks read from the bucket itself, and how.

With option `bucket` = `auto`, the driver asks the broker up to which offset the bucket is complete,
and reads the topic's manifest. A range that archived chunks contain becomes a task that reads these
chunks. If the driver or a task cannot use the bucket, the messages come through the broker. With
`always`, nothing else than the bucket is used: the manifest says which offsets exist.

The rows are the same in both cases, because a chunk in the bucket is the same file as on the disk.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final

from ...storage.bucket.archive.archive_format import Manifest
from ...storage.bucket.archive.archive_reader import ArchiveReader, index_of, topics_of
from ...storage.bucket.archive.chunk_objects import SegmentDamaged
from ...storage.bucket.archive.manifests import newest_manifest
from ...storage.bucket.bucket import Bucket, ObjectMissing
from ...storage.bucket.bucket_url import parse_bucket_url
from ...storage.bucket.object_store import open_bucket
from ...storage.errors import StorageError
from ...storage.log.chunk import ArchivedChunk
from ...storage.log.index import Index
from ...transport.block.block import Block
from ...transport.client.blocking.client import Archive, Measured
from ...transport.client.blocking.range_reader import GAPS_MAX, RangeReader
from ...transport.errors import (
    E_BUCKET,
    E_DATA_LOSS,
    E_NOT_FOUND,
    DataLoss,
    NotFound,
    Refused,
    UsageError,
)
from ...transport.names import base_of, part_of
from ...transport.units import NS_PER_MS
from .logs import LOGGER, Extent
from .options import ALWAYS, NEVER, SourceOptions
from .pattern import matching
from .planning import OffsetRange

__all__ = ["ArchiveLogs", "Archives", "TaskBlocks", "cut"]

ASKED_S: Final = 30.0  # how long the broker's answer about a topic's archive is used
AWAY_S: Final = 60.0  # after a failure, the bucket is not tried again for this time
_NAMES_SHOWN: Final = 10


@lru_cache(maxsize=8)
def _bucket(url: str) -> Bucket:
    """Return the bucket. Its connections are used by all tasks of a Python process."""
    return open_bucket(parse_bucket_url(url))


def refused(error: StorageError) -> Refused:
    return Refused(E_BUCKET, str(error))


# The driver


def cut(span: OffsetRange, url: str, chunks: Sequence[ArchivedChunk]) -> list[OffsetRange]:
    """Cut a range into parts that are in consecutive chunks, and parts that are in no chunk.

    `chunks` are ascending.
    """
    parts: list[OffsetRange] = []
    at = span.start
    run: list[ArchivedChunk] = []

    def end_run() -> None:
        if run:
            start = max(span.start, run[0].base_offset)
            parts.append(span._replace(start=start, stop=at, bucket=url, chunks=tuple(run)))
            run.clear()

    first = max(bisect_right(chunks, span.start, key=lambda row: row.base_offset) - 1, 0)
    for row in chunks[first:]:
        if row.next_offset <= at:
            continue
        if row.base_offset >= span.stop:
            break
        if row.base_offset > at:
            end_run()
            parts.append(span._replace(start=at, stop=row.base_offset))
        run.append(row)
        at = min(span.stop, row.next_offset)
    end_run()
    if at < span.stop or not parts:
        parts.append(span._replace(start=at))
    return parts


class _KnownArchive:
    """The driver's knowledge of the archive of one topic."""

    __slots__ = ("archive", "asked_s", "manifest", "uuid")

    def __init__(self, uuid: str, archive: Archive | None) -> None:
        self.uuid = uuid
        self.archive = archive
        self.asked_s = time.monotonic()
        self.manifest: Manifest | None = None


class Archives:
    """The archives of a query's topics. `ask` asks the broker for one."""

    def __init__(self, mode: str, ask: Callable[[str], Archive | None]) -> None:
        self._mode = mode
        self._ask = ask
        self._known: dict[str, _KnownArchive] = {}
        self._away_s = -AWAY_S

    def cut(self, spans: Iterable[OffsetRange]) -> list[OffsetRange]:
        """Return the ranges, cut so that each is in the bucket as a whole or not at all."""
        return [part for span in spans for part in self._parts(span)]

    def _parts(self, span: OffsetRange) -> list[OffsetRange]:
        if self._mode == NEVER or span.start >= span.stop:
            return [span]
        known = self._known.get(span.topic)
        if known is None or known.uuid != span.uuid or time.monotonic() - known.asked_s > ASKED_S:
            known = self._known[span.topic] = _KnownArchive(span.uuid, self._ask(span.topic))
        if known.archive is None or span.start >= known.archive.end:
            return [span]
        if known.manifest is None and time.monotonic() - self._away_s > AWAY_S:
            try:
                known.manifest = newest_manifest(_bucket(known.archive.url), span.uuid)
            except (StorageError, UsageError) as error:
                self._away_s = time.monotonic()
                LOGGER.warning(
                    "archived messages are read through the broker, because the driver cannot use "
                    "the bucket: %s",
                    error,
                )
        if known.manifest is None:
            return [span]
        return cut(span, known.archive.url, known.manifest.chunks)


class ArchiveLogs:
    """`Logs` of a bucket, without a broker.

    A topic ends where its last archived chunk ends. All methods raise `Refused` (E_BUCKET) if the
    bucket refuses or does not answer.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._topics: dict[str, Manifest] | None = None
        self._last: tuple[tuple[str, ArchivedChunk], Index | None] | None = None

    def _known(self) -> dict[str, Manifest]:
        if self._topics is None:
            try:
                self._topics = topics_of(_bucket(self.url))
            except StorageError as error:
                raise refused(error) from error
        return self._topics

    def matching(self, pattern: str) -> list[str]:
        """Return the topics in this bucket that the pattern matches, sorted."""
        return matching(pattern, sorted(set(map(base_of, self._known()))))

    def ended(self, topic: str) -> int | None:
        """Return None: only streams ask this, and they have a broker."""

    def names(self, topic: str) -> list[str]:
        """Return the topic itself, or its parts that are in this bucket."""
        known = self._known()
        parts = [] if topic in known else [name for name in known if base_of(name) == topic]
        return sorted(parts, key=lambda name: part_of(name) or (name, 0)) or [topic]

    def manifest(self, topic: str) -> Manifest:
        known = self._known()
        if topic not in known:
            names = sorted(known)[:_NAMES_SHOWN]
            has = f"it has {', '.join(names)}" if names else "it has no topics at all"
            raise NotFound(E_NOT_FOUND, f"topic {topic} is not in the bucket {self.url}: {has}")
        return known[topic]

    def extent(self, topic: str) -> Extent:
        manifest = self.manifest(topic)
        if not manifest.chunks:
            return Extent(manifest.start, manifest.start, manifest.uuid)
        start = max(manifest.start, manifest.chunks[0].base_offset)
        return Extent(start, manifest.chunks[-1].next_offset, manifest.uuid)

    def offset_at(self, topic: str, time_ms: int) -> int:
        manifest, extent = self.manifest(topic), self.extent(topic)
        try:
            with ArchiveReader(
                _bucket(self.url), manifest.uuid, manifest.chunks, extent.start, extent.head
            ) as reader:
                offset = reader.offset_at(time_ms * NS_PER_MS)
        except StorageError as error:
            raise refused(error) from error
        return extent.head if offset is None else max(offset, extent.start)

    def measure(
        self, topic: str, start: int, stop: int, max_bytes: int = (1 << 63) - 1
    ) -> Measured:
        """Estimate the size from the manifest: messages of one chunk count as equally large.

        The border within a chunk comes from the chunk's index.
        """
        manifest, extent = self.manifest(topic), self.extent(topic)
        size, messages, border = 0.0, 0, stop
        for row in manifest.chunks:
            low, high = max(start, row.base_offset), min(stop, row.next_offset)
            if low >= high:
                continue
            part = row.size * (high - low) / (row.next_offset - row.base_offset)
            if border == stop and size + part > max_bytes:
                border = self._border(manifest.uuid, row, low, high, (max_bytes - size) / part)
            messages += high - low
            size += part
        return Measured(int(size), border, extent.start, extent.head, messages)

    def _border(self, uuid: str, row: ArchivedChunk, low: int, high: int, share: float) -> int:
        """Return the offset between `low` and `high` before which this share of the bytes is."""
        index = self._index(uuid, row)
        if index is None:
            return low + int((high - low) * share)
        base = row.base_offset
        edges = [index.by_offset(offset - base) for offset in (low, high)]
        begin = edges[0].position if edges[0] is not None else 0
        end = edges[1].position if edges[1] is not None and high < row.next_offset else row.size
        entry = index.by_position(begin + int((end - begin) * share))
        return min(max(low, base + entry.offset), high) if entry is not None else low

    def _index(self, uuid: str, row: ArchivedChunk) -> Index | None:
        """Return the index of a chunk, or None if the bucket does not return it.

        The last one is kept, because several borders may be in one chunk.
        """
        if self._last is None or self._last[0] != (uuid, row):
            try:
                index = index_of(_bucket(self.url), uuid, row)
            except StorageError as error:
                LOGGER.info("partitions are cut without the index of a log file: %s", error)
                index = None
            self._last = (uuid, row), index
        return self._last[1]

    def cut(self, spans: Iterable[OffsetRange]) -> list[OffsetRange]:
        """Return the ranges, cut where chunks are missing. Each range names the bucket."""
        return [
            part._replace(bucket=self.url)
            for span in spans
            for part in cut(span, self.url, self.manifest(span.topic).chunks)
        ]

    def close(self) -> None:
        """Do nothing: other queries of the process use the same connections."""


# Tasks

_away_s: dict[str, float] = {}


def _is_away(url: str) -> bool:
    return time.monotonic() - _away_s.get(url, -AWAY_S) < AWAY_S


class TaskBlocks:
    """Iterate once over the blocks of a task's range, in order, from the bucket or the broker.

    `lost` and `gaps` are as those of `RangeReader`.
    """

    def __init__(self, options: SourceOptions, span: OffsetRange) -> None:
        self._options = options
        self._span = span
        self._at = span.start
        self.lost = 0
        self.gaps: list[tuple[int, int]] = []

    def __iter__(self) -> Iterator[Block]:
        span, only = self._span, self._options.bucket == ALWAYS
        if only or (span.chunks and not _is_away(span.bucket)):
            try:
                yield from self._from_bucket(skip=only)
                return
            except StorageError as error:
                if only:
                    raise refused(error) from error
                # A missing or damaged object says nothing about the other ones.
                if not isinstance(error, (ObjectMissing, SegmentDamaged)):
                    _away_s[span.bucket] = time.monotonic()
                LOGGER.warning(
                    "offsets %d to %d of topic %s are read through the broker, because they cannot "
                    "be read from the bucket: %s",
                    self._at,
                    span.stop - 1,
                    span.topic,
                    error,
                )
        yield from self._from_broker()

    def _from_broker(self) -> Iterator[Block]:
        options, span = self._options, self._span
        bodies = "value" in options.columns
        with RangeReader(
            span.topic, self._at, span.stop, url=options.url, bodies=bodies,
            timeout=options.timeout_s, on_data_loss="fail" if options.fail_on_data_loss else "ignore",
            uuid=span.uuid, key_file=options.keys,
            transport=options.transport,
        ) as blocks:  # fmt: skip
            yield from blocks
            self.lost += blocks.lost
            self.gaps += blocks.gaps

    def _from_bucket(self, *, skip: bool) -> Iterator[Block]:
        """Yield the blocks that the bucket has. With `skip`, a missing object is a gap."""
        span = self._span
        chunks = span.chunks
        while chunks:
            reader = ArchiveReader(_bucket(span.bucket), span.uuid, chunks, self._at, span.stop)
            try:
                with reader:
                    for block in reader:
                        if block.next_offset <= self._at:
                            continue
                        self._note(block.first_offset)
                        yield block
                        self._at = block.next_offset
                chunks = ()
            except ObjectMissing as error:
                if not skip:
                    raise
                missing = next(row for row in chunks if row.next_offset > self._at)
                self._note(min(missing.next_offset, span.stop), str(error))
                chunks = tuple(row for row in chunks if row.base_offset >= missing.next_offset)
        self._note(span.stop)

    def _note(self, stop: int, why: str = "") -> None:
        """Note that the offsets before `stop` that were not yielded do not exist."""
        if self._at >= stop:
            return
        if self._options.bucket != ALWAYS:
            # The broker knows whether they are lost, or skipped because it was restored.
            raise SegmentDamaged(f"it has no offsets {self._at} to {stop - 1}")
        first, self._at = self._at, stop
        if self._options.fail_on_data_loss:
            why = why or (
                "they were damaged before they were archived, or their log file is not archived yet"
            )
            text = (
                f"offsets {first} to {stop - 1} of topic {self._span.topic} are not in the bucket "
                f"{self._span.bucket}: {why}. To leave them out, set option 'failOnDataLoss' to "
                "'false'"
            )
            raise DataLoss(E_DATA_LOSS, text)
        self.lost += stop - first
        if len(self.gaps) < GAPS_MAX:
            self.gaps.append((first, stop - first))
