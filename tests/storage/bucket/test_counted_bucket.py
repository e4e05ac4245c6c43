"""Tests of what a counted bucket counts, and that it passes everything on."""

from __future__ import annotations

from pathlib import Path

import pytest

from zsq.storage.bucket import counted_bucket
from zsq.storage.bucket.bucket import ObjectExists, ObjectMissing
from zsq.storage.bucket.bucket_url import parse_bucket_url
from zsq.storage.bucket.counted_bucket import BucketCounts, CountedBucket
from zsq.storage.bucket.folder_bucket import FolderBucket
from zsq.storage.files import Files


@pytest.fixture
def bucket(tmp_path: Path) -> CountedBucket:
    (tmp_path / "bucket").mkdir()
    url = parse_bucket_url(f"file://{tmp_path}/bucket")
    return CountedBucket(Files(), FolderBucket(Files(), url))


def test_each_call_is_counted_as_a_store_charges_for_it(
    bucket: CountedBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counted_bucket, "PART_BYTES", 100)
    monkeypatch.setattr(counted_bucket, "LISTED_MAX", 2)
    bucket.create("a/1", b"12345")
    assert bucket.counts == BucketCounts(write_requests=1, sent_bytes=5)
    with pytest.raises(ObjectExists):
        bucket.create("a/1", b"12345")
    for name, size, writes in (("a/2", 100, 1), ("a/3", 101, 2 + 2), ("a/4", 0, 0 + 1)):
        (tmp_path / "file").write_bytes(bytes(size))
        before = bucket.counts.write_requests
        bucket.upload(name, str(tmp_path / "file"))
        assert bucket.counts.write_requests - before == writes
    assert bucket.counts.sent_bytes == 5 + 5 + 201
    assert bucket.read("a/1", 1, 2) == b"23"
    assert bucket.size("a/3") == 101
    with pytest.raises(ObjectMissing):
        bucket.read("a/9")
    assert (bucket.counts.read_requests, bucket.counts.received_bytes) == (3, 2)
    before = bucket.counts.write_requests
    assert sorted(bucket.names("a/")) == ["a/1", "a/2", "a/3", "a/4"]
    assert bucket.counts.write_requests - before == 3, "one more page may follow"
    bucket.remove(["a/1", "a/2", "a/3"])
    assert bucket.counts.remove_requests == 2
    bucket.remove(["a/4"])
    bucket.remove_folder("a/")
    assert list(bucket.names("a/")) == []
    assert str(bucket.url).startswith("file:///")
