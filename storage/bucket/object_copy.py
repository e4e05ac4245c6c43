"""Copies of objects from one bucket to another one, by the store itself where it can.

Stores copy an object between two prefixes of the same bucket without sending its bytes to anybody.
Otherwise, the object is read, piece by piece, into a file, and the file is uploaded.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Final

from ..files import Files
from .bucket import Bucket, BucketError, ObjectMissing
from .object_store import ObjectStore, open_bucket

READ_BYTES: Final = 8 * 1024 * 1024


class ObjectCopier:
    """Copies objects from `source` to `target`, under the same names.

    `scratch` is the path that files for it begin with. Any number of threads may use it.
    """

    def __init__(self, files: Files, source: Bucket, target: Bucket, scratch: str) -> None:
        self._files = files
        self._source = source
        self._target = target
        self._scratch = scratch
        self._store: ObjectStore | None = None
        one, other = source.url, target.url
        if one.scheme != "file" and (one.scheme, one.bucket) == (other.scheme, other.bucket):
            root = open_bucket(replace(one, prefix=""))
            self._store = root if isinstance(root, ObjectStore) else None

    def copy(self, name: str) -> None:
        """Copy an object. One of this name in the target is replaced.

        So the caller chooses names that contain the checksum of the content. Raises `ObjectMissing`
        if the source has none, or another `BucketError`.
        """
        if self._source.url.scheme == "file":
            with contextlib.suppress(FileNotFoundError):
                self._target.upload(name, f"{self._source.url.folder}/{name}")
                return
            raise ObjectMissing(f"{self._source.url}/{name} does not exist")
        if self._store is not None:
            try:
                self._store.copy(_full(self._source, name), _full(self._target, name))
                return
            except ObjectMissing:
                raise
            except BucketError:
                pass  # some servers cannot copy; if the store is away, reading says so
        self._through_file(name)

    def _through_file(self, name: str) -> None:
        path = f"{self._scratch}{name.replace('/', '-')}"
        with contextlib.suppress(FileNotFoundError):
            self._files.remove(path)
        fd = self._files.open_new(path)
        try:
            try:
                position, size = 0, self._source.size(name)
                while position < size:
                    part = self._source.read(name, position, min(READ_BYTES, size - position))
                    if not part:
                        raise BucketError(f"{self._source.url}/{name} ends at byte {position}")
                    self._files.writev(fd, [part], position)
                    position += len(part)
            finally:
                self._files.close(fd)
            self._target.upload(name, path)
        finally:
            self._files.remove(path)


def _full(bucket: Bucket, name: str) -> str:
    prefix = bucket.url.prefix
    return f"{prefix}/{name}" if prefix else name
