"""A bucket and worker threads for tests of the shipper. Calls succeed, fail or take effect late
when the test says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from zsq.storage.bucket.bucket import BucketAway, Bytes, ObjectExists, ObjectMissing
from zsq.storage.bucket.bucket_url import BucketUrl, parse_bucket_url


class FakeBucket:
    """Objects in memory.

    `fate` is asked for the fate of each `create`: "ok", "away" (nothing happens), "lost" (it takes
    effect, and the answer is lost) or "late" (the answer is lost, and it takes effect in `arrive`).
    """

    def __init__(self) -> None:
        self.url: BucketUrl = parse_bucket_url("s3://fake/prefix")
        self.objects: dict[str, bytes] = {}
        self.fate: Callable[[str], str] = lambda name: "ok"
        self.is_away = False
        self.tried: list[tuple[str, bytes]] = []
        self._late: list[tuple[str, bytes]] = []

    def arrive(self) -> None:
        """Let late requests take effect, if their names are still free."""
        late, self._late = self._late, []
        for name, data in late:
            self.objects.setdefault(name, data)

    def _check(self) -> None:
        if self.is_away:
            raise BucketAway("the bucket does not answer")

    def create(self, name: str, data: Bytes) -> None:
        self._check()
        fate = self.fate(name)
        self.tried.append((name, bytes(data)))
        if fate == "away":
            raise BucketAway(f"{name}: the bucket does not answer")
        if fate == "late":
            self._late.append((name, bytes(data)))
            raise BucketAway(f"{name}: the bucket does not answer")
        if name in self.objects:
            raise ObjectExists(name)
        self.objects[name] = bytes(data)
        if fate == "lost":
            raise BucketAway(f"{name}: the answer was lost")

    def upload(self, name: str, path: str) -> None:
        self._check()
        with open(path, "rb") as file:
            self.objects[name] = file.read()

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        self._check()
        if name not in self.objects:
            raise ObjectMissing(name)
        data = self.objects[name]
        return data[start:] if length is None else data[start : start + length]

    def size(self, name: str) -> int:
        return len(self.read(name))

    def names(self, below: str) -> Iterator[str]:
        self._check()
        yield from [name for name in self.objects if name.startswith(below)]

    def remove(self, names: Sequence[str]) -> None:
        self._check()
        for name in names:
            self.objects.pop(name, None)

    def remove_folder(self, below: str) -> None:
        self._check()


class FakeThread:
    """A worker thread whose jobs run, and whose results arrive, when the test says so."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.jobs: deque[tuple[Callable[[Any], None], Callable[[], Any]]] = deque()
        self.done: deque[tuple[Callable[[Any], None], Any]] = deque()

    @property
    def pending(self) -> int:
        return len(self.jobs) + len(self.done)

    def submit(self, tag: Callable[[Any], None], job: Callable[[], Any]) -> None:
        self.jobs.append((tag, job))

    def run(self) -> bool:
        """Run the next job. Return False if there is none."""
        if not self.jobs:
            return False
        tag, job = self.jobs.popleft()
        try:
            value = job()
        except Exception as error:
            value = error
        self.done.append((tag, value))
        return True

    def deliver(self) -> bool:
        """Let the next result arrive. Return False if there is none."""
        if not self.done:
            return False
        tag, value = self.done.popleft()
        tag(value)
        return True
