"""Tests of manifests: the newest counts, expired objects are removed whatever interrupts, and two
writers with the same data notice each other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from zsq.storage.bucket.archive.archive_format import (
    Manifest,
    chunk_object,
    decode_manifest,
    encode_manifest,
    index_object,
    manifest_object,
    objects_of,
)
from zsq.storage.bucket.archive.manifests import Manifests, Superseded
from zsq.storage.bucket.bucket import Bucket, BucketAway, BucketRefuses, ObjectExists
from zsq.storage.bucket.bucket_url import parse_bucket_url
from zsq.storage.bucket.folder_bucket import FolderBucket
from zsq.storage.files import Files
from zsq.storage.log.chunk import ArchivedChunk

UUID = "00112233445566778899aabbccddeeff"


def chunk(base: int, crc: int = 7) -> ArchivedChunk:
    return ArchivedChunk(base, base + 10, 1000, base, base + 5, base, 99, 0, crc)


def manifest(
    *bases: int, start: int = 0, end: int = 1000, writer: str = "run-1", epoch: int = 0
) -> Manifest:
    chunks = tuple(chunk(base) for base in bases)
    return Manifest("clicks", UUID, "broker", writer, 5, start, end, chunks, epoch)


@pytest.fixture
def bucket(tmp_path: Path) -> FolderBucket:
    made = FolderBucket(Files(), parse_bucket_url(f"file://{tmp_path}"))
    for base in (0, 10, 20, 30):
        made.create(chunk_object(UUID, base, 7), b"chunk")
        made.create(index_object(UUID, base, 7), b"index")
    return made


def objects(bucket: Bucket) -> set[str]:
    return set(bucket.names(f"chunk/{UUID}/"))


def numbers(bucket: Bucket) -> list[str]:
    return sorted(bucket.names(f"manifest/{UUID}/"))


def test_only_the_newest_manifest_stays(bucket: FolderBucket) -> None:
    manifests = Manifests(bucket)
    assert manifests.newest(UUID) is None
    assert [manifests.write(manifest(0)), manifests.write(manifest(0, 10))] == [1, 2]
    assert numbers(bucket) == [manifest_object(UUID, 2)]
    assert manifests.newest(UUID) == manifest(0, 10)
    assert Manifests(bucket).write(manifest(0, 10, 20, writer="run-2")) == 3


def test_objects_of_expired_chunks_are_removed(bucket: FolderBucket) -> None:
    manifests = Manifests(bucket)
    manifests.write(manifest(0, 10, 20))
    manifests.write(manifest(20, start=20))
    assert objects(bucket) == objects_of(UUID, [chunk(20), chunk(30)])


def test_expired_objects_stay_until_they_are_removable(bucket: FolderBucket) -> None:
    """A broker that is restored may not know yet that the chunks expired."""
    manifests = Manifests(bucket)
    before = objects(bucket)
    manifests.write(manifest(0, 10, 20), removable=0)
    manifests.write(manifest(20, start=20), removable=0)
    manifests.write(manifest(20, 30, start=20), removable=0)
    assert objects(bucket) == before
    assert manifest_object(UUID, 1) in numbers(bucket), "the next process finds them by it"
    manifests.write(manifest(20, start=20), removable=10)
    assert objects(bucket) == objects_of(UUID, [chunk(10), chunk(20), chunk(30)])
    manifests.write(manifest(20, start=20), removable=20)
    assert objects(bucket) == objects_of(UUID, [chunk(20), chunk(30)])
    assert numbers(bucket) == [manifest_object(UUID, 5)]


def test_a_new_process_removes_nothing_before_it_is_removable(bucket: FolderBucket) -> None:
    before = objects(bucket)
    manifests = Manifests(bucket)
    manifests.write(manifest(20, start=20), removable=10)
    assert objects(bucket) == before
    manifests.write(manifest(20, start=20), removable=20)
    assert objects(bucket) == objects_of(UUID, [chunk(20), chunk(30)])


def test_chunks_that_are_not_expired_stay_even_if_they_are_not_named(bucket: FolderBucket) -> None:
    """A state store that was rebuilt may have forgotten them."""
    manifests = Manifests(bucket)
    before = objects(bucket)
    manifests.write(manifest(0, 10, 20))
    manifests.write(manifest(0))
    assert objects(bucket) == before


class Dies(FolderBucket):
    """A bucket whose process dies at the n-th write."""

    left = 1_000

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt

    def create(self, name: str, data: Any) -> None:
        self._count()
        super().create(name, data)

    def remove(self, names: Any) -> None:
        for name in names:
            self._count()
            super().remove([name])


def test_a_removal_that_is_interrupted_anywhere_is_finished_by_the_next_process(
    tmp_path: Path,
) -> None:
    for at in range(8):
        folder = tmp_path / str(at)
        folder.mkdir()
        dies = Dies(Files(), parse_bucket_url(f"file://{folder}"))
        for base in (0, 10, 20):
            dies.create(chunk_object(UUID, base, 7), b"chunk")
            dies.create(index_object(UUID, base, 7), b"index")
        manifests = Manifests(dies)
        manifests.write(manifest(0, 10, 20))
        dies.left = at
        with pytest.raises(KeyboardInterrupt) if at < 6 else contextlib.nullcontext():
            manifests.write(manifest(20, start=20))
        dies.left = 1_000
        Manifests(dies).write(manifest(20, start=20, writer="run-2"))
        assert objects(dies) == objects_of(UUID, [chunk(20)]), at
        assert len(numbers(dies)) == 1


def test_a_lost_reply_is_no_other_writer(
    bucket: FolderBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifests = Manifests(bucket)
    manifests.write(manifest(0))
    plain: Callable[[str, Any], None] = bucket.create

    def lose(name: str, data: Any) -> None:
        plain(name, data)
        raise BucketAway("no reply")

    monkeypatch.setattr(bucket, "create", lose)
    with pytest.raises(BucketAway):
        manifests.write(manifest(0, 10))
    monkeypatch.setattr(bucket, "create", plain)
    assert manifests.write(manifest(0, 10, 20)) == 3
    assert numbers(bucket) == [manifest_object(UUID, 3)]


def test_a_manifest_of_another_run_stops_the_archive(bucket: FolderBucket) -> None:
    first, second = Manifests(bucket), Manifests(bucket)
    first.write(manifest(0, writer="run-1"))
    second.write(manifest(0, 10, writer="run-2"))
    for _ in range(2):
        with pytest.raises(Superseded, match=r"another run.*same data.*stop one of them"):
            first.write(manifest(0, 20, start=20, writer="run-1"))
    assert decode_manifest(bucket.read(manifest_object(UUID, 2))) == manifest(0, 10, writer="run-2")
    assert len(objects(bucket)) == 8


def test_a_former_primary_does_not_follow_the_manifest_of_its_successor(
    bucket: FolderBucket,
) -> None:
    """Its archive actor was started again, and does not know yet that it is replaced."""
    former, successor = Manifests(bucket), Manifests(bucket)
    former.write(manifest(0, writer="old", epoch=2))
    successor.write(manifest(0, writer="new", epoch=3))
    for late in (former, Manifests(bucket)):
        with pytest.raises(Superseded, match="another"):
            late.write(manifest(0, 10, writer="old", epoch=2))
    assert successor.write(manifest(0, 20, writer="new", epoch=3)) == 3
    assert Manifests(bucket).write(manifest(0, 20, writer="without a log of ticks")) == 4


def test_a_late_manifest_of_a_former_primary_is_passed(bucket: FolderBucket) -> None:
    """It may be created before the former primary learns that it is replaced."""
    successor = Manifests(bucket)
    successor.write(manifest(0, writer="new", epoch=3))
    late = manifest(0, 10, writer="old", epoch=2)
    bucket.create(manifest_object(UUID, 2), encode_manifest(late))
    assert successor.write(manifest(0, 20, writer="new", epoch=3)) == 3
    assert Manifests(bucket).newest(UUID) == manifest(0, 20, writer="new", epoch=3)


def test_a_late_manifest_of_the_process_before_is_passed(bucket: FolderBucket) -> None:
    """A request may arrive after its sender is dead, and before the next process writes."""
    manifests = Manifests(bucket)
    plain: Callable[[str, Any], None] = bucket.create
    late = [manifest_object(UUID, 1)]

    def create(name: str, data: Any) -> None:
        if name in late:
            late.remove(name)
            Manifests(FolderBucket(Files(), bucket.url)).write(manifest(0, writer="dead"))
            raise ObjectExists(name)
        plain(name, data)

    bucket.create = create  # type: ignore[method-assign]
    assert manifests.write(manifest(0, 10, writer="run-2")) == 2


@pytest.mark.parametrize(
    ("newest", "found", "why"),
    [
        (manifest(0, 10), manifest(0, 10, end=15), "up to offset 20.*ends at 15"),
        (manifest(0, 10), manifest(0, end=20), ""),
        (manifest(0, 10), manifest(10, start=10, end=20), ""),
        (
            manifest(0, 10)._replace(chunks=(chunk(0), chunk(10, crc=8))),
            manifest(0, 10, 20),
            "other messages.*from offset 10 to 20",
        ),
        (
            manifest(0, 15),
            manifest(0, 10, 20),
            "other messages.*from offset 15 to 25",
        ),
    ],
)
def test_an_older_copy_of_the_data_does_not_write(
    bucket: FolderBucket, newest: Manifest, found: Manifest, why: str
) -> None:
    Manifests(bucket).write(newest)
    later = Manifests(bucket)
    if not why:
        assert later.write(found._replace(writer="run-2")) == 2
        return
    for _ in range(2):
        with pytest.raises(Superseded, match=rf"{why}.*older copy"):
            later.write(found._replace(writer="run-2"))
    assert numbers(bucket) == [manifest_object(UUID, 1)]
    assert len(objects(bucket)) == 8


def test_a_deleted_topic_leaves_nothing(bucket: FolderBucket, tmp_path: Path) -> None:
    manifests = Manifests(bucket)
    manifests.write(manifest(0, 10))
    manifests.forget(UUID)
    manifests.forget(UUID)
    assert not objects(bucket)
    assert not numbers(bucket)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_chunks_that_expired_before_a_manifest_named_them_are_removed(
    bucket: FolderBucket,
) -> None:
    manifests = Manifests(bucket)
    manifests.write(manifest(20, start=20))
    bucket.create(chunk_object(UUID, 0, 9), b"late")
    bucket.create(index_object(UUID, 0, 9), b"late")
    manifests.write(manifest(20, start=20), [chunk(0, crc=9)])
    assert objects(bucket) == objects_of(UUID, [chunk(20), chunk(30)])


def test_a_new_process_removes_what_no_manifest_named(bucket: FolderBucket) -> None:
    Manifests(bucket).write(manifest(10, 20, start=15))
    assert objects(bucket) == objects_of(UUID, [chunk(10), chunk(20), chunk(30)])


def test_a_damaged_manifest_is_named_and_an_older_damaged_one_is_removed(
    bucket: FolderBucket, tmp_path: Path
) -> None:
    manifests = Manifests(bucket)
    manifests.write(manifest(0))
    newest = tmp_path / manifest_object(UUID, 1)
    newest.write_text("garbage")
    with pytest.raises(BucketRefuses, match=f"{newest.name}: .*damaged; check the bucket with zsq"):
        Manifests(bucket).write(manifest(0, 10))
    assert len(numbers(bucket)) == 1
    assert manifests.write(manifest(0, 10)) == 2
    assert numbers(bucket) == [manifest_object(UUID, 2)]
