"""Counted bucket: a bucket that counts its requests and bytes, because requests cost money.

It counts what a store with S3's interface charges for: a write is a request that stores, lists or
completes something, and a read fetches bytes or asks for a size. The library's own repetitions
after a failure are not counted. Removals are free at the large stores, and are counted apart.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..files import Files
from .bucket import Bucket, Bytes
from .bucket_url import BucketUrl
from .object_store import PART_BYTES

LISTED_MAX = 1_000  # names in one request, of a list or of a removal


class BucketCounts(NamedTuple):
    """Requests and bytes since a process began."""

    write_requests: int = 0
    read_requests: int = 0
    remove_requests: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


class CountedBucket:
    """Passes all calls on. Any number of threads may use it."""

    def __init__(self, files: Files, bucket: Bucket) -> None:
        self._files = files
        self._bucket = bucket
        self._lock = threading.Lock()
        self._counts = [BucketCounts()]

    @property
    def counts(self) -> BucketCounts:
        return self._counts[0]

    @counts.setter
    def counts(self, counts: BucketCounts) -> None:
        self._counts[0] = counts

    def counts_of(self, other: CountedBucket) -> None:
        """Count together with another bucket object from now on."""
        self._lock, self._counts = other._lock, other._counts

    def _count(
        self,
        *,
        writes: int = 0,
        reads: int = 0,
        removals: int = 0,
        sent: int = 0,
        received: int = 0,
    ) -> None:
        with self._lock:
            before = self.counts
            self.counts = BucketCounts(
                before.write_requests + writes,
                before.read_requests + reads,
                before.remove_requests + removals,
                before.sent_bytes + sent,
                before.received_bytes + received,
            )

    @property
    def url(self) -> BucketUrl:
        return self._bucket.url

    def create(self, name: str, data: Bytes) -> None:
        self._count(writes=1, sent=len(data))
        self._bucket.create(name, data)

    def upload(self, name: str, path: str) -> None:
        fd = self._files.open_read(path)
        try:
            size = self._files.size(fd)
        finally:
            self._files.close(fd)
        parts = -(-size // PART_BYTES)
        # An upload in parts also has a request that begins it, and one that completes it.
        self._count(writes=parts + 2 if parts > 1 else 1, sent=size)
        self._bucket.upload(name, path)

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        self._count(reads=1)
        data = self._bucket.read(name, start, length)
        self._count(received=len(data))
        return data

    def size(self, name: str) -> int:
        self._count(reads=1)
        return self._bucket.size(name)

    def names(self, below: str) -> Iterator[str]:
        self._count(writes=1)
        for number, name in enumerate(self._bucket.names(below), 1):
            if number % LISTED_MAX == 0:
                self._count(writes=1)
            yield name

    def remove(self, names: Sequence[str]) -> None:
        self._count(removals=-(-len(names) // LISTED_MAX))
        self._bucket.remove(names)

    def remove_folder(self, below: str) -> None:
        self._bucket.remove_folder(below)
