"""Tests of what every kind of bucket promises: a folder, obstore's store in memory, and a real
SeaweedFS, also through the fault proxy without faults.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fault_proxy import FaultProxy, Faults
from support.s3_server import BUCKET, seaweedfs

from zsq.storage.bucket import object_store
from zsq.storage.bucket.bucket import (
    Bucket,
    BucketAway,
    BucketRefuses,
    BucketUnfit,
    ObjectExists,
    ObjectMissing,
)
from zsq.storage.bucket.bucket_url import parse_bucket_url
from zsq.storage.bucket.folder_bucket import FolderBucket
from zsq.storage.bucket.object_store import ObjectStore, ObstoreMissing, open_bucket
from zsq.storage.bucket.probe import probe
from zsq.storage.files import Files

obstore = pytest.importorskip("obstore")
LARGE = 20 * 1024 * 1024 + 7


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as environment:
        yield dict(environment)


@pytest.fixture(scope="module")
def proxied(server: dict[str, str]) -> Iterator[dict[str, str]]:
    with FaultProxy(server["AWS_ENDPOINT_URL"], Faults(0)) as proxy:
        yield proxy.environment(server)


@pytest.fixture(
    params=[
        "folder",
        "memory",
        pytest.param("server", marks=pytest.mark.slow, id="seaweedfs"),
        pytest.param("proxied", marks=pytest.mark.slow, id="proxied"),
    ]
)
def bucket(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Bucket:
    if request.param == "folder":
        (tmp_path / "bucket/prefix").mkdir(parents=True)
        return open_bucket(parse_bucket_url(f"file://{tmp_path}/bucket/prefix"))
    if request.param == "memory":
        url = parse_bucket_url("s3://memory/prefix")
        return ObjectStore(url, obstore, obstore.store.MemoryStore())
    for name, value in request.getfixturevalue(request.param).items():
        monkeypatch.setenv(name, value)
    prefix = "".join(one for one in request.node.name if one.isalnum())
    return open_bucket(parse_bucket_url(f"s3://{BUCKET}/{prefix}"))


def test_an_object_is_created_once(bucket: Bucket) -> None:
    bucket.create("log/1", b"first")
    with pytest.raises(ObjectExists, match="log/1"):
        bucket.create("log/1", b"second")
    assert bucket.read("log/1") == b"first"


def test_parts_of_an_object_are_read(bucket: Bucket) -> None:
    bucket.create("a", bytes(range(100)))
    assert bucket.size("a") == 100
    assert bucket.read("a", 10, 5) == bytes(range(10, 15))
    assert bucket.read("a", 90) == bytes(range(90, 100))
    assert bucket.read("a", 100) == b""
    assert bucket.read("a", 50, 0) == b""
    assert bucket.read("a", 98, 2) == bytes([98, 99])
    assert bucket.read("a", 98, 20) == bytes([98, 99])
    assert bucket.read("a", 100, 5) == bucket.read("a", 200, 5) == b""


def test_what_does_not_exist_is_missing(bucket: Bucket) -> None:
    for call in (
        lambda: bucket.read("none"),
        lambda: bucket.size("none"),
        lambda: bucket.read("none", 2, 3),
    ):
        with pytest.raises(ObjectMissing):
            call()
    assert list(bucket.names("none/")) == []
    bucket.remove(["none"])


def test_names_below_a_folder_are_listed(bucket: Bucket) -> None:
    # A name is never the folder of another one, because some servers keep objects in folders.
    names = ["log/10", "log/2", "log/3-b", "log/3/c", "log/30", "other/1", "log2/1"]
    for name in names:
        bucket.create(name, name.encode())
    assert sorted(bucket.names("log/")) == ["log/10", "log/2", "log/3-b", "log/3/c", "log/30"]
    bucket.remove(["log/10", "log/2"])
    assert sorted(bucket.names("log/")) == ["log/3-b", "log/3/c", "log/30"]


def test_a_large_file_is_uploaded_in_parts(bucket: Bucket, tmp_path: Path) -> None:
    path = tmp_path / "chunk"
    content = os.urandom(1024) * (LARGE // 1024) + b"z" * (LARGE % 1024)
    path.write_bytes(content)
    bucket.upload("chunk/1", str(path))
    assert bucket.size("chunk/1") == LARGE
    assert bucket.read("chunk/1", LARGE - 64) == content[-64:]
    assert bucket.read("chunk/1") == content
    bucket.upload("chunk/1", str(path))
    assert bucket.size("chunk/1") == LARGE


def test_the_probe_accepts_it_and_leaves_nothing(bucket: Bucket, tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(os.urandom(9 * 1024 * 1024))
    report = probe(bucket, Files(), str(path))
    assert report.create_ms > 0
    assert list(bucket.names("probe/")) == []


class Broken(Files):
    """A disk on which one call fails."""

    def __init__(self, error: OSError, call: str) -> None:
        self.error = error
        self.call = call

    def __getattribute__(self, name: str) -> Any:
        if name == object.__getattribute__(self, "call"):
            raise object.__getattribute__(self, "error")
        return object.__getattribute__(self, name)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EACCES, BucketRefuses),
        (errno.EROFS, BucketRefuses),
        (errno.EIO, BucketAway),
        (errno.ESTALE, BucketAway),
        (errno.ENOSPC, BucketAway),
    ],
)
@pytest.mark.parametrize("call", ["open_new", "writev", "sync", "link", "sync_folder"])
def test_a_folder_that_fails_says_how_and_keeps_no_half_object(
    number: int, kind: type[Exception], call: str, tmp_path: Path
) -> None:
    (tmp_path / "b").mkdir()
    url = parse_bucket_url(f"file://{tmp_path}/b")
    broken = FolderBucket(Broken(OSError(number, os.strerror(number)), call), url)
    with pytest.raises(kind, match=os.strerror(number)):
        broken.create("one", b"content")
    left = [path.name for path in (tmp_path / "b").iterdir()]
    assert left == (["one"] if call == "sync_folder" else [])


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_hard_links_is_not_fit(number: int, tmp_path: Path) -> None:
    url = parse_bucket_url(f"file://{tmp_path}")
    broken = FolderBucket(Broken(OSError(number, os.strerror(number)), "link"), url)
    with pytest.raises(BucketUnfit, match="no hard links"):
        broken.create("one", b"content")


def test_a_folder_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    bucket = open_bucket(parse_bucket_url(f"file://{tmp_path}/not-mounted"))
    with pytest.raises(BucketRefuses, match="create or mount it"):
        bucket.create("one", b"content")
    assert list(tmp_path.iterdir()) == []


def test_a_removal_goes_on_after_names_without_an_object(bucket: Bucket) -> None:
    names = [f"log/{number}" for number in range(30)]
    for name in names:
        bucket.create(name, b"")
    bucket.remove(["log/none", *names, "log/none-either"])
    assert list(bucket.names("log/")) == []


def test_a_folder_in_use_is_not_removed(tmp_path: Path) -> None:
    bucket = open_bucket(parse_bucket_url(f"file://{tmp_path}"))
    bucket.create("probe/one/a", b"")
    (tmp_path / "probe/two").mkdir()  # another process is about to write into it
    bucket.remove(["probe/one/a"])
    for below in ("probe/one/", "probe/", "probe/one/"):
        bucket.remove_folder(below)
    assert [path.name for path in (tmp_path / "probe").iterdir()] == ["two"]
    bucket.create("probe/one/a", b"")  # makes the folder again
    assert list(bucket.names("probe/")) == ["probe/one/a"]


def test_a_missing_file_is_no_error_of_the_bucket(bucket: Bucket, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        bucket.upload("one", str(tmp_path / "none"))
    assert list(bucket.names("chunk/")) == []


class Failing:
    """obstore, whose calls raise."""

    exceptions = obstore.exceptions

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def put(self, *_: Any, **__: Any) -> None:
        raise self.error

    def get(self, *_: Any, **__: Any) -> None:
        raise self.error


class PanicException(BaseException):
    """Named and derived as the library's."""


STATUS = "Generic S3 error: Server returned non-2xx status code: "


@pytest.mark.parametrize(
    ("error", "writing", "reading"),
    [
        (obstore.exceptions.AlreadyExistsError("x"), ObjectExists, ObjectExists),
        (obstore.exceptions.NotFoundError("x"), BucketRefuses, ObjectMissing),
        (FileNotFoundError("x"), BucketRefuses, ObjectMissing),
        (obstore.exceptions.PermissionDeniedError("x"), BucketRefuses, BucketRefuses),
        (obstore.exceptions.GenericError("x"), BucketAway, BucketAway),
        (obstore.exceptions.JoinError("x"), BucketAway, BucketAway),
        (obstore.exceptions.GenericError(f"{STATUS}400 Bad"), BucketRefuses, BucketRefuses),
        (obstore.exceptions.GenericError(f"{STATUS}408 Late"), BucketAway, BucketAway),
        (obstore.exceptions.GenericError(f"{STATUS}429 Slow"), BucketAway, BucketAway),
        (obstore.exceptions.GenericError(f"{STATUS}503 Slow"), BucketAway, BucketAway),
        (obstore.exceptions.GenericError("Received non-partial response"), BucketUnfit, BucketUnfit),
        (obstore.exceptions.GenericError("GET http://169.254.169.254/x"), BucketRefuses, BucketRefuses),
        (PanicException("relative URL"), BucketRefuses, BucketRefuses),
        (KeyboardInterrupt(), KeyboardInterrupt, KeyboardInterrupt),
    ],
)  # fmt: skip
def test_each_failure_of_the_library_has_its_class(
    error: BaseException, writing: type[BaseException], reading: type[BaseException]
) -> None:
    bucket = ObjectStore(parse_bucket_url("s3://events/a"), Failing(error), None)
    with pytest.raises(BaseException) as caught:
        bucket.create("x", b"")
    assert type(caught.value) is writing
    with pytest.raises(BaseException) as caught:
        bucket.read("x")
    assert type(caught.value) is reading


@pytest.mark.parametrize(
    "endpoint", ["localhost:8333", "http://me:hunter2@127.0.0.1:9", "x", "ftp://h"]
)
def test_a_wrong_endpoint_is_refused_and_not_repeated(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(BucketRefuses, match="AWS_ENDPOINT_URL must be http://HOST:PORT") as caught:
        open_bucket(parse_bucket_url("s3://events/a"))
    assert "hunter2" not in str(caught.value)


def test_a_server_that_does_not_answer_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "RETRIES_MAX", 0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "top-secret")
    with pytest.raises(BucketAway) as caught:
        open_bucket(parse_bucket_url("s3://events/a")).create("x", b"")
    assert "s3://events/a/x" in str(caught.value)
    assert "top-secret" not in str(caught.value)


def test_a_missing_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore", None)
    with pytest.raises(ObstoreMissing, match=r"pip install 'zsq\[bucket\]'"):
        open_bucket(parse_bucket_url("s3://events/a"))
    open_bucket(parse_bucket_url("file:///tmp/events"))
