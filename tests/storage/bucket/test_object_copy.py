"""Tests of copies between buckets: folders, one store, and a store that cannot copy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.s3_server import BUCKET, seaweedfs

from zsq.storage.bucket import object_copy
from zsq.storage.bucket.bucket import Bucket, BucketRefuses, ObjectMissing
from zsq.storage.bucket.bucket_url import parse_bucket_url
from zsq.storage.bucket.object_copy import ObjectCopier
from zsq.storage.bucket.object_store import ObjectStore, open_bucket
from zsq.storage.files import Files

obstore = pytest.importorskip("obstore")
LARGE = bytes(range(256)) * 40_000  # more than one read


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as environment:
        yield dict(environment)


@pytest.fixture(
    params=["folders", "memory", pytest.param("s3", marks=pytest.mark.slow), "memory to folder"]
)
def buckets(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Bucket, Bucket]:
    if request.param == "s3":
        for name, value in request.getfixturevalue("server").items():
            monkeypatch.setenv(name, value)
        one, other = (open_bucket(parse_bucket_url(f"s3://{BUCKET}/{name}")) for name in "ab")
        return one, other
    found: list[Bucket] = []
    for name in ("a", "b"):
        if request.param == "folders" or (request.param == "memory to folder" and name == "b"):
            (tmp_path / name).mkdir()
            found.append(open_bucket(parse_bucket_url(f"file://{tmp_path}/{name}")))
        else:  # two stores, so none of them can copy to the other one
            url = parse_bucket_url(f"s3://memory-{name}/prefix")
            found.append(ObjectStore(url, obstore, obstore.store.MemoryStore()))
    return found[0], found[1]


def test_objects_are_copied_and_copied_again(
    buckets: tuple[Bucket, Bucket], tmp_path: Path
) -> None:
    source, target = buckets
    source.create("chunk/t/small", b"small")
    source.create("chunk/t/large", LARGE)
    source.create("chunk/t/empty", b"")
    copier = ObjectCopier(Files(), source, target, f"{tmp_path}/scratch-")
    for _ in range(2):
        for name, data in (("small", b"small"), ("large", LARGE), ("empty", b"")):
            copier.copy(f"chunk/t/{name}")
            assert target.read(f"chunk/t/{name}") == data
            assert source.read(f"chunk/t/{name}") == data
    with pytest.raises(ObjectMissing):
        copier.copy("chunk/t/none")
    assert sorted(target.names("chunk/")) == ["chunk/t/empty", "chunk/t/large", "chunk/t/small"]
    assert not list(tmp_path.glob("scratch-*"))


class CopyingStore(ObjectStore):
    """A store of two prefixes in one bucket, which counts what it copies."""

    refuses = False

    def copy(self, source: str, target: str) -> None:
        copied.append((source, target))
        if self.refuses:
            raise BucketRefuses("501 Not Implemented")
        super().copy(source, target)


copied: list[tuple[str, str]] = []


@pytest.mark.parametrize("refuses", [False, True])
def test_a_store_copies_within_one_bucket_by_itself_if_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: bool
) -> None:
    copied.clear()
    memory = obstore.store.MemoryStore()
    url = parse_bucket_url("s3://one/")
    root = CopyingStore(url, obstore, memory)
    root.refuses = refuses
    monkeypatch.setattr(object_copy, "open_bucket", lambda url: root)

    class Prefixed:
        """The objects of the store below a prefix."""

        def __init__(self, prefix: str) -> None:
            self.url = parse_bucket_url(f"s3://one/{prefix}")
            self._prefix = prefix

        def __getattr__(self, name: str) -> Any:
            method = getattr(root, name)
            return lambda first, *rest: method(f"{self._prefix}/{first}", *rest)

    source: Any = Prefixed("a")
    target: Any = Prefixed("b/c")
    source.create("chunk/x", b"data")
    copier = ObjectCopier(Files(), source, target, f"{tmp_path}/scratch-")
    copier.copy("chunk/x")
    assert target.read("chunk/x") == b"data"
    assert copied == [("a/chunk/x", "b/c/chunk/x")]
    with pytest.raises(ObjectMissing):
        copier.copy("chunk/none")
