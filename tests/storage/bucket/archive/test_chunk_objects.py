"""Tests of chunks as objects: an upload is verified, and wrong bytes of a store are noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.archive_harness import SEGMENT_BYTES, ArchiveHarness, fill

from zsq.storage.bucket.archive.archive_format import INDEX, chunk_object, index_object
from zsq.storage.bucket.archive.chunk_objects import ChunkObjects, SegmentDamaged
from zsq.storage.bucket.archive.claim import claim
from zsq.storage.bucket.bucket import BucketRefuses, BucketUnfit, ObjectMissing
from zsq.storage.bucket.folder_bucket import FolderBucket
from zsq.storage.errors import Damaged
from zsq.storage.log.log_format import chunk_name


def path_of(archive: ArchiveHarness, name: str) -> Path:
    return Path(f"{archive.bucket.url.folder}/{name}")


def test_an_object_is_the_same_bytes_as_the_file(archive: ArchiveHarness) -> None:
    fill(archive)
    row = archive.upload(0)
    name = chunk_object(archive.uuid, 0, row.crc)
    file = f"{archive.directory}/{chunk_name(0)}"
    assert archive.bucket.read(name) == archive.files.read_file(file, 1 << 20)
    assert row.size == archive.files.size_of(file)
    assert (row.base_offset, row.next_offset) == (0, archive.log.chunks[1])
    parts = [archive.objects.read_segment(archive.uuid, row, n) for n in range(2)]
    assert b"".join(parts) == archive.bucket.read(name)[: 2 * SEGMENT_BYTES]


def test_an_upload_may_be_repeated(archive: ArchiveHarness) -> None:
    fill(archive)
    first = archive.upload(0)
    before = sorted(archive.bucket.names("chunk/"))
    assert archive.upload(0) == first
    assert sorted(archive.bucket.names("chunk/")) == before
    assert before == [
        chunk_object(archive.uuid, 0, first.crc),
        index_object(archive.uuid, 0, first.crc),
    ]


def test_a_chunk_that_still_grows_is_not_archived(archive: ArchiveHarness) -> None:
    fill(archive)
    with pytest.raises(Damaged, match="no valid footer"):
        archive.upload(archive.log.chunks[-1])
    assert not list(archive.bucket.names("chunk/"))


class Lies(FolderBucket):
    """A bucket that stores something else than it was given."""

    at = 0

    def upload(self, name: str, path: str) -> None:
        super().upload(name, path)
        stored = Path(f"{self.url.folder}/{name}")
        data = bytearray(stored.read_bytes())
        if self.at == 1 << 20:
            data.append(0)
        else:
            data[self.at] ^= 1
        stored.write_bytes(bytes(data))


@pytest.mark.parametrize("at", [0, 127, -1, -64, 1 << 20])
def test_an_upload_whose_ends_are_stored_wrongly_is_refused(
    archive: ArchiveHarness, at: int
) -> None:
    fill(archive)
    lies = Lies(archive.bucket._files, archive.bucket.url)
    lies.at = at
    archive.objects = ChunkObjects(archive.files, lies)
    with pytest.raises(BucketUnfit, match="is not what was uploaded"):
        archive.upload(0)


def test_a_segment_that_is_stored_wrongly_is_noticed_in_one_upload_of_a_few(
    archive: ArchiveHarness,
) -> None:
    """One segment of each chunk is read back. So a store that always stores the second one wrongly
    is noticed after a few chunks.
    """
    fill(archive, chunks=12)
    lies = Lies(archive.bucket._files, archive.bucket.url)
    lies.at = SEGMENT_BYTES + 1
    archive.objects = ChunkObjects(archive.files, lies)
    refused = 0
    for base in archive.log.chunks[:-1]:
        try:
            archive.upload(base)
        except BucketUnfit:
            refused += 1
    assert 1 <= refused <= 11


def test_a_damaged_segment_and_a_damaged_index_are_never_returned(
    archive: ArchiveHarness,
) -> None:
    fill(archive)
    row = archive.upload(0)
    for name, number in ((chunk_object, 1), (index_object, INDEX)):
        stored = path_of(archive, name(archive.uuid, 0, row.crc))
        good = stored.read_bytes()
        assert archive.objects.read_segment(archive.uuid, row, number)
        for at in (SEGMENT_BYTES,) if number >= 0 else (0, 33, len(good) - 1):
            stored.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
            fresh = ChunkObjects(archive.files, archive.bucket)
            with pytest.raises(SegmentDamaged):
                fresh.read_segment(archive.uuid, row, number)
        stored.write_bytes(good)


def test_an_index_of_another_chunk_is_refused(archive: ArchiveHarness) -> None:
    fill(archive)
    row, other = archive.upload(0), archive.upload(archive.log.chunks[1])
    stored = path_of(archive, index_object(archive.uuid, 0, row.crc))
    second = path_of(archive, index_object(archive.uuid, other.base_offset, other.crc))
    stored.write_bytes(second.read_bytes())
    with pytest.raises(SegmentDamaged, match="do not match the chunk's"):
        ChunkObjects(archive.files, archive.bucket).read_segment(archive.uuid, row, 0)


def test_a_missing_object_is_an_error_of_the_bucket(archive: ArchiveHarness) -> None:
    fill(archive)
    row = archive.upload(0)
    archive.bucket.remove([chunk_object(archive.uuid, 0, row.crc)])
    with pytest.raises(ObjectMissing):
        archive.objects.read_segment(archive.uuid, row, 0)


def test_a_prefix_belongs_to_the_first_broker(archive: ArchiveHarness) -> None:
    first, second = "a" * 32, "b" * 32
    made = claim(archive.bucket, first, "", "id-1")
    assert (made.claim.archive, made.writes) == ("id-1", True)
    assert claim(archive.bucket, first, "", "id-2") == made
    assert claim(archive.bucket, first, "id-0", "id-2") == made, "it used another one meanwhile"
    with pytest.raises(BucketRefuses, match=f"another broker, with uuid {first}.*{second[:8]}"):
        claim(archive.bucket, second, "", "id-2")
    with pytest.raises(BucketRefuses, match="another broker"):
        claim(archive.bucket, second, "id-2", "id-3")


def test_a_copy_of_a_brokers_data_may_only_read_its_archive(archive: ArchiveHarness) -> None:
    made = claim(archive.bucket, "a" * 32, "", "id-1")
    assert claim(archive.bucket, "b" * 32, "id-1", "id-2") == (made.claim, False)


def test_an_empty_prefix_is_refused_if_the_broker_has_an_archive(archive: ArchiveHarness) -> None:
    """The store may not be mounted, or the URL may be wrong."""
    with pytest.raises(BucketRefuses, match="if the store is not mounted, mount it"):
        claim(archive.bucket, "a" * 32, "id-1", "id-2")
    assert not path_of(archive, "broker.json").exists()


def test_a_damaged_claim_is_refused(archive: ArchiveHarness) -> None:
    archive.bucket.create("broker.json", b"{}")
    with pytest.raises(BucketRefuses, match=r"broker\.json: the broker object is damaged"):
        claim(archive.bucket, "a" * 32, "", "id-1")
