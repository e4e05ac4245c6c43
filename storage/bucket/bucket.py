"""Bucket: what ZSQ needs of an object store, and the errors of its calls.

ZSQ decides by one primitive only: `create` stores an object if its name is free. Objects are never
changed. So a store must have strongly consistent reads, and a `create` that exactly one of several
writers wins. `probe.py` checks both.

The calls block. The actor that uses a bucket calls them in its threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from ..errors import StorageError
from .bucket_url import BucketUrl

Bytes = bytes | bytearray | memoryview


class BucketError(StorageError):
    """The root of the errors of a bucket."""


class ObjectExists(BucketError):
    """The name is taken. Nothing was stored.

    After a lost reply, the object may be the caller's own. So a caller compares the content.
    """


class ObjectMissing(BucketError):
    """The bucket has no object of this name."""


class BucketRefuses(BucketError):
    """The store refuses: no permission, no such bucket, wrong credentials or settings.

    The same call fails again until a person changes something.
    """


class BucketAway(BucketError):
    """The store did not answer, or with a failure of its own.

    A write may or may not have taken effect. The same call may succeed later.
    """


class BucketUnfit(BucketError):
    """The store does not keep a promise that ZSQ needs."""


class Bucket(Protocol):
    """The objects below the prefix of one URL. Names are relative to that prefix."""

    @property
    def url(self) -> BucketUrl: ...

    def create(self, name: str, data: Bytes) -> None:
        """Store an object whose name is free. Raises `ObjectExists` if it is not."""

    def upload(self, name: str, path: str) -> None:
        """Store a file, in several parts if it is large.

        An object of this name is replaced. So the caller chooses a name that only it writes, and
        always with the same content.
        """

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Return `length` bytes from `start` on, fewer at the object's end, or all of them."""
        ...

    def size(self, name: str) -> int:
        """Return the number of bytes of an object."""
        ...

    def names(self, below: str) -> Iterator[str]:
        """Yield the names that begin with `below`, which ends with a slash, in any order.

        S3 lists in ascending order, but SeaweedFS and S3 Express have other orders.
        """
        ...

    def remove(self, names: Sequence[str]) -> None:
        """Remove these objects. Names without an object are ignored.

        If one cannot be removed, the first failure is raised after the others were tried. If the
        store refuses or does not answer, the others may be left.
        """

    def remove_folder(self, below: str) -> None:
        """Remove the folder `below` if it is empty. A store without folders does nothing."""
