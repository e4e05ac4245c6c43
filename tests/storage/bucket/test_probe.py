"""Tests of the probe: each broken promise of a store is found, and the error names it."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support.s3_server import BUCKET, rclone

from zsq.storage.bucket.bucket import (
    BucketAway,
    BucketUnfit,
    Bytes,
    ObjectExists,
    ObjectMissing,
)
from zsq.storage.bucket.bucket_url import parse_bucket_url
from zsq.storage.bucket.object_store import open_bucket
from zsq.storage.bucket.probe import WRITERS, WRITERS_OF_DOCTOR, probe
from zsq.storage.files import Files


class Memory:
    """A bucket that keeps all promises."""

    url = parse_bucket_url("s3://memory")

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.lock = threading.Lock()

    def create(self, name: str, data: Bytes) -> None:
        with self.lock:
            if name in self.objects:
                raise ObjectExists(name)
            self.objects[name] = bytes(data)

    def upload(self, name: str, path: str) -> None:
        self.objects[name] = Path(path).read_bytes()

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        if name not in self.objects:
            raise ObjectMissing(name)
        found = self.objects[name]
        return found[start:] if length is None else found[start : start + length]

    def size(self, name: str) -> int:
        return len(self.read(name))

    def names(self, below: str) -> Iterator[str]:
        return iter(sorted(name for name in self.objects if name.startswith(below)))

    def remove(self, names: Sequence[str]) -> None:
        for name in names:
            self.objects.pop(name, None)

    def remove_folder(self, below: str) -> None:
        pass


class Overwrites(Memory):
    """Ignores the condition of a write."""

    def create(self, name: str, data: Bytes) -> None:
        self.objects[name] = bytes(data)


class Races(Memory):
    """Checks the condition first and writes later, so several writers win."""

    def __init__(self) -> None:
        super().__init__()
        self.together = threading.Barrier(WRITERS)

    def create(self, name: str, data: Bytes) -> None:
        if name in self.objects:
            raise ObjectExists(name)
        if "sample" not in name:
            self.together.wait(20)
        self.objects[name] = bytes(data)


class Refuses(Memory):
    """Refuses a write and carries it out all the same."""

    def create(self, name: str, data: Bytes) -> None:
        before = name in self.objects
        self.objects[name] = bytes(data)
        if before:
            raise ObjectExists(name)


class Swaps(Memory):
    """Keeps the object of a writer that was refused, but only in a race."""

    def create(self, name: str, data: Bytes) -> None:
        with self.lock:
            if name in self.objects:
                if "sample" not in name:
                    self.objects[name] = bytes(data)
                raise ObjectExists(name)
            self.objects[name] = bytes(data)


class Stale(Memory):
    """A list does not see what was just written."""

    def names(self, below: str) -> Iterator[str]:
        return iter(list(super().names(below))[:-1])


class Parts(Memory):
    """Ignores the range of a read."""

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        return super().read(name)


class Cuts(Memory):
    """Loses the end of a large upload."""

    def upload(self, name: str, path: str) -> None:
        self.objects[name] = Path(path).read_bytes()[:-1]


class Keeps(Memory):
    """Does not remove."""

    def remove(self, names: Sequence[str]) -> None:
        for name in names[1:]:
            self.objects.pop(name, None)


class Lists(Memory):
    """Removes an object and lists it all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def create(self, name: str, data: Bytes) -> None:
        super().create(name, data)
        self.seen.add(name)

    def names(self, below: str) -> Iterator[str]:
        return iter(sorted(self.seen))


class Nobody(Memory):
    """Refuses all writers of a race."""

    def create(self, name: str, data: Bytes) -> None:
        if "race" in name:
            raise ObjectExists(name)
        super().create(name, data)


class Damages(Memory):
    """Changes a byte in the middle of a large upload."""

    def upload(self, name: str, path: str) -> None:
        content = bytearray(Path(path).read_bytes())
        content[len(content) // 2] ^= 1
        self.objects[name] = bytes(content)


class Queues(Memory):
    """Answers one writer of a race after the other, a second each. A call may take 5 s."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()

    def create(self, name: str, data: Bytes) -> None:
        with self.lock:
            self.asked[name] += 1
            if self.asked[name] > 5:
                raise BucketAway(f"{name}: no answer in 5 s")
        super().create(name, data)


class Repeats(Memory):
    """Carries out a write, and reports that it existed, as after a lost reply."""

    def create(self, name: str, data: Bytes) -> None:
        with self.lock:
            before = name in self.objects
            self.objects.setdefault(name, bytes(data))
            if before or "sample-0" in name:
                raise ObjectExists(name)


class Away(Memory):
    """Does not answer from the call `after` on, except for removals."""

    def __init__(self, after: int, error: BaseException) -> None:
        super().__init__()
        self.left = after
        self.error = error
        self.removals = 0

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        self.left -= 1
        if self.left < 0:
            raise self.error
        return super().read(name, start, length)

    def create(self, name: str, data: Bytes) -> None:
        if self.left <= 0:
            raise self.error
        super().create(name, data)

    def remove(self, names: Sequence[str]) -> None:
        self.removals += 1
        super().remove(names)


class Forgets(Memory):
    """Returns old bytes."""

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        super().read(name)
        return b""


@pytest.fixture
def large(tmp_path: Path) -> str:
    path = tmp_path / "large"
    path.write_bytes(bytes(range(256)) * 64)
    return str(path)


def test_a_store_that_keeps_its_promises_is_accepted(large: str) -> None:
    bucket = Memory()
    times = itertools.count()
    report = probe(bucket, Files(), large, lambda: next(times) * 0.001)
    assert bucket.objects == {}
    assert (round(report.create_ms), round(report.read_ms)) == (1, 1)


def test_a_lost_reply_is_no_broken_promise(large: str) -> None:
    bucket = Repeats()
    probe(bucket, Files(), large)
    assert bucket.objects == {}


def test_at_a_start_a_store_has_time_to_answer_all_writers_of_a_race(large: str) -> None:
    """SeaweedFS does this. A start that found the store away would try again only after 10 s."""
    probe(Queues(), Files(), large)
    with pytest.raises(BucketAway):
        probe(Queues(), Files(), large, writers=WRITERS_OF_DOCTOR)


@pytest.mark.parametrize("after", range(1, 14))
@pytest.mark.parametrize("error", [BucketAway("no answer"), KeyboardInterrupt()])
def test_a_probe_that_is_cut_off_leaves_nothing(
    after: int, error: BaseException, large: str
) -> None:
    bucket = Away(after, error)
    with pytest.raises(type(error)):
        probe(bucket, Files(), large)
    assert bucket.objects == {}


def test_nothing_is_removed_if_nothing_could_be_written(large: str) -> None:
    """A removal would only wait for another time-out."""
    bucket = Away(0, BucketAway("no answer"))
    with pytest.raises(BucketAway):
        probe(bucket, Files(), large)
    assert bucket.removals == 0


def test_a_probe_of_a_slow_store_ends(large: str) -> None:
    bucket = Memory()
    times = itertools.count()
    with pytest.raises(BucketAway, match="took more than 60 s"):
        probe(bucket, Files(), large, lambda: next(times) * 9.0)
    assert bucket.objects == {}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Overwrites, "created an object that existed already"),
        (Races, f"{WRITERS} of {WRITERS} writers create the same object"),
        (Refuses, "refused a write, and changed the object"),
        (Swaps, "kept the object of a writer that was refused"),
        (Stale, "listed 7 of 8 objects"),
        (Parts, "wrong parts"),
        (Cuts, "uploaded in parts"),
        (Damages, "uploaded in parts"),
        (Keeps, "just removed"),
        (Lists, "lists 8 objects that were just removed"),
        (Nobody, f"let none of {WRITERS} writers"),
        (Forgets, "other bytes"),
    ],
)
def test_a_broken_promise_is_found(kind: type[Memory], text: str, large: str) -> None:
    bucket = kind()
    with pytest.raises(BucketUnfit, match=text):
        probe(bucket, Files(), large)
    assert bucket.objects == {} or kind is Keeps, "it removes what it wrote"


@pytest.mark.slow
def test_a_real_server_without_conditional_writes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rclone(tmp_path / "rclone") as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(BucketUnfit):
            probe(open_bucket(parse_bucket_url(f"s3://{BUCKET}/a")), Files())
