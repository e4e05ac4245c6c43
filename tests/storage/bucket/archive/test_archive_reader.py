"""Tests of the reader that needs no broker: it gives what the log gives, and fetches only what a
range needs.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest
from support.archive_harness import SEGMENT_BYTES, ArchiveHarness, fill

from zsq.storage.bucket.archive import chunk_cache, chunk_objects
from zsq.storage.bucket.archive.archive_format import Manifest, chunk_object, encode_manifest
from zsq.storage.bucket.archive.archive_format import manifest_object as name_of
from zsq.storage.bucket.archive.archive_reader import AHEAD, KEPT, ArchiveReader, topics_of
from zsq.storage.bucket.archive.chunk_objects import SegmentDamaged
from zsq.storage.bucket.archive.manifests import newest_manifest
from zsq.storage.bucket.bucket import BucketRefuses, ObjectMissing
from zsq.storage.log import chunk as log_chunk
from zsq.storage.log.chunk import ArchivedChunk
from zsq.transport.block.block import DISK_MAGIC, Block


class CountingBucket:
    """A bucket that counts the reads of each object."""

    def __init__(self, bucket: Any) -> None:
        self._bucket = bucket
        self.reads: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bucket, name)

    def read(self, name: str, *given: int) -> bytes:
        self.reads[name] += 1
        found: bytes = self._bucket.read(name, *given)
        return found


def shown(block: Block) -> tuple[Any, ...]:
    return block.header, *(tuple(column.values()) for column in (block.body, block.key) if column)


def read(archive: ArchiveHarness, rows: list[ArchivedChunk], start: int, stop: int) -> list[Any]:
    with ArchiveReader(archive.bucket, archive.uuid, rows, start, stop) as reader:
        return [shown(block) for block in reader]


def test_every_range_gives_the_blocks_of_the_log(archive: ArchiveHarness) -> None:
    fill(archive)
    blocks = archive.read_all()
    rows = archive.archive()
    assert len(rows) > 3
    end = rows[-1].next_offset
    for start in range(end):
        for stop in {start + 1, start + 2, start + 7, end - 3, end} - set(range(start + 1)):
            wanted = [
                shown(block)
                for block in blocks
                if block.first_offset < min(stop, end) and block.next_offset > start
            ]
            assert read(archive, rows, start, stop) == wanted, (start, stop)


def test_only_the_segments_of_the_range_are_fetched(
    archive: ArchiveHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_chunk, "HEADERS_BYTES", 64)
    monkeypatch.setattr(log_chunk, "READ_BYTES_MIN", 64)
    fill(archive)
    rows = archive.archive()
    row = max(rows, key=lambda one: one.size)
    assert row.size > SEGMENT_BYTES
    counting = CountingBucket(archive.bucket)
    bucket: Any = counting
    with ArchiveReader(bucket, archive.uuid, rows, row.base_offset, row.base_offset + 1) as reader:
        assert len(list(reader)) == 1
    name = chunk_object(archive.uuid, row.base_offset, row.crc)
    assert counting.reads == {name: 1, f"{name}.index": 1}
    counting.reads.clear()
    with ArchiveReader(bucket, archive.uuid, rows, 0, rows[-1].next_offset) as reader:
        blocks = iter(reader)
        next(blocks)
        assert len(reader._fetching) <= AHEAD
        list(blocks)
    for one in rows:
        name = chunk_object(archive.uuid, one.base_offset, one.crc)
        assert counting.reads[name] == -(-one.size // SEGMENT_BYTES), "each segment once"
        assert counting.reads[f"{name}.index"] == 1


def test_what_is_kept_in_memory_is_bounded(
    archive: ArchiveHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_objects, "SUMS_KEPT", 2)
    monkeypatch.setattr(chunk_cache, "OPEN_MAX", 2)
    fill(archive)
    rows = archive.archive()
    cache = archive.cache
    assert cache is not None
    archive.read_all()
    assert 0 < len(cache._open) <= 2
    with ArchiveReader(archive.bucket, archive.uuid, rows, 0, rows[-1].next_offset) as reader:
        list(reader)
        assert len(reader._objects._sums) == 2
        assert len(reader._kept) <= KEPT


def test_times_are_found_as_in_the_log(archive: ArchiveHarness) -> None:
    fill(archive)
    times = sorted({header.time_ns for header, _ in archive.log.headers(0)})
    asked = [times[0] - 1, *times, *(time_ns + 1 for time_ns in times)]
    wanted = [archive.log.reader.offset_at(time_ns) for time_ns in asked]
    rows = archive.archive()
    end = rows[-1].next_offset
    for time_ns, offset in zip(asked, wanted, strict=True):
        with ArchiveReader(archive.bucket, archive.uuid, rows, 0, end) as reader:
            found = reader.offset_at(time_ns)
        assert found == (offset if offset is not None and offset < end else None)


def test_wrong_bytes_are_noticed_before_a_block_is_made_of_them(archive: ArchiveHarness) -> None:
    fill(archive)
    rows = archive.archive()
    name = chunk_object(archive.uuid, rows[1].base_offset, rows[1].crc)
    path = f"{archive.bucket.url.folder}/{name}"
    with open(path, "r+b") as file:
        file.seek(SEGMENT_BYTES + 100)
        byte = file.read(1)
        file.seek(SEGMENT_BYTES + 100)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(SegmentDamaged, match="checksum of segment 1"):
        read(archive, rows, 0, rows[-1].next_offset)
    assert read(archive, rows, 0, rows[0].next_offset)
    os.truncate(path, SEGMENT_BYTES + 7)
    with pytest.raises(SegmentDamaged, match="segment 1 has 7 bytes, not"):
        read(archive, rows, 0, rows[-1].next_offset)
    archive.bucket.remove([f"{name}.index"])
    with pytest.raises(SegmentDamaged, match="it has the checksums of the chunk"):
        read(archive, rows, 0, rows[-1].next_offset)
    archive.bucket.remove([name])
    with pytest.raises(ObjectMissing):
        read(archive, rows, 0, rows[-1].next_offset)


@pytest.mark.parametrize("part", ["header", "body"])
def test_messages_that_were_damaged_on_the_disk_are_left_out(
    archive: ArchiveHarness, part: str
) -> None:
    fill(archive)
    blocks = archive.read_all()
    base = archive.log.chunks[1]
    bad = next(block for block in blocks if block.first_offset > base)
    path = f"{archive.directory}/{base:020d}.chunk"
    with open(path, "r+b") as file:
        content = file.read()
        at = content.index(bytes(next(iter(bad.body.values())) or b""))
        if part == "header":
            at = content.rindex(DISK_MAGIC, 0, at) + 9
        file.seek(at)
        file.write(bytes([content[at] ^ 1]))
    rows = archive.archive()
    end = rows[-1].next_offset
    good = [
        one for one in blocks if one.next_offset <= end and one.first_offset != bad.first_offset
    ]
    for start in (0, base, bad.first_offset, bad.next_offset):
        for stop in (bad.first_offset + 1, bad.next_offset, bad.next_offset + 1, end):
            wanted = [
                shown(one) for one in good if one.first_offset < stop and one.next_offset > start
            ]
            if stop > start:
                assert read(archive, rows, start, stop) == wanted, (start, stop)


def test_the_topics_of_a_bucket_are_found_by_their_names(archive: ArchiveHarness) -> None:
    assert topics_of(archive.bucket) == {}

    def put(uuid: str, number: int, topic: str, time_ns: int) -> Manifest:
        made = Manifest(topic, uuid, "b", "w", time_ns, 0, 9, ())
        archive.bucket.create(name_of(uuid, number), encode_manifest(made))
        return made

    put("a" * 32, 1, "clicks", 5)
    clicks = put("a" * 32, 2, "clicks", 6)
    put("b" * 32, 7, "clicks", 4)  # deleted, and its objects were left
    orders = put("c" * 32, 3, "orders", 1)
    assert topics_of(archive.bucket) == {"clicks": clicks, "orders": orders}
    assert newest_manifest(archive.bucket, "d" * 32) is None
    archive.bucket.create(name_of("c" * 32, 4), b"{}")
    with pytest.raises(BucketRefuses, match="zsq fsck"):
        topics_of(archive.bucket)


def test_a_manifest_that_is_replaced_while_it_is_read_is_read_again(
    archive: ArchiveHarness,
) -> None:
    made = Manifest("clicks", "a" * 32, "b", "w", 1, 0, 9, ())
    archive.bucket.create(name_of(made.uuid, 1), encode_manifest(made))

    class Replacing(CountingBucket):
        def read(self, name: str, *given: int) -> bytes:
            if not self.reads:
                later = made._replace(time_ns=2)
                archive.bucket.create(name_of(made.uuid, 2), encode_manifest(later))
                archive.bucket.remove([name])
            return super().read(name, *given)

    bucket: Any = Replacing(archive.bucket)
    assert newest_manifest(bucket, made.uuid) == made._replace(time_ns=2)
