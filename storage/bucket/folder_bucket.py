"""Folder bucket: a bucket in a folder, for URLs that begin with file://.

A new object is written to a temporary file, synced, and then linked to its name. A link fails if
the name is taken, so exactly one of several writers wins, also on NFS. Rejected: obstore's store
for folders, because it syncs neither the file nor the folder.
"""

from __future__ import annotations

import contextlib
import errno
import os.path
from collections.abc import Iterator, Sequence
from typing import Final

from ..files import Files
from ..foreign import path_of
from .bucket import (
    BucketAway,
    BucketError,
    BucketRefuses,
    BucketUnfit,
    Bytes,
    ObjectExists,
    ObjectMissing,
)
from .bucket_url import BucketUrl

COPY_BYTES: Final = 8 * 1024 * 1024
_TEMPORARY: Final = ".tmp-"
# Linux returns EPERM for a link on a file system without links.
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP})
_FOR_GOOD: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR})


class FolderBucket:
    def __init__(self, files: Files, url: BucketUrl) -> None:
        self.url = url
        self._files = files
        self._folder = url.folder
        self._made: set[str] = set()

    def create(self, name: str, data: Bytes) -> None:
        with self._failing(name):
            temporary = self._temporary(name)
            fd = self._files.open_new(temporary)
            try:
                try:
                    self._files.writev(fd, [data], 0)
                    self._files.sync(fd)
                finally:
                    self._files.close(fd)
                self._link(temporary, self._path(name))
            finally:
                with contextlib.suppress(FileNotFoundError):
                    self._files.remove(temporary)
            self._files.sync_folder(os.path.dirname(self._path(name)))

    def _link(self, temporary: str, path: str) -> None:
        try:
            self._files.link(temporary, path)
        except OSError as error:
            if error.errno in _NO_LINKS:
                raise BucketUnfit(
                    f"{self.url}: this file system has no hard links ({error.strerror}), by which "
                    "ZSQ creates an object only once"
                ) from error
            raise

    def upload(self, name: str, path: str) -> None:
        source = self._files.open_read(path)
        try:
            with self._failing(name):
                self._copy(source, name)
        finally:
            self._files.close(source)

    def _copy(self, source: int, name: str) -> None:
        temporary = self._temporary(name)
        fd = self._files.open_new(temporary)
        try:
            try:
                position = 0
                while part := self._files.pread(source, COPY_BYTES, position):
                    self._files.writev(fd, [part], position)
                    position += len(part)
                self._files.sync(fd)
            finally:
                self._files.close(fd)
            self._files.rename(temporary, self._path(name))
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                self._files.remove(temporary)
            raise
        self._files.sync_folder(os.path.dirname(self._path(name)))

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        with self._failing(name):
            fd = self._files.open_read(self._path(name))
            try:
                rest = max(0, self._files.size(fd) - start)
                size = rest if length is None else min(length, rest)
                return self._files.pread(fd, size, start) if size else b""
            finally:
                self._files.close(fd)

    def size(self, name: str) -> int:
        with self._failing(name):
            return self._files.size_of(self._path(name))

    def names(self, below: str) -> Iterator[str]:
        assert below.endswith("/")
        with self._failing(below):
            yield from self._below(below)

    def _below(self, below: str) -> Iterator[str]:
        try:
            entries = self._files.list(f"{self._folder}/{below}")
        except FileNotFoundError:
            return
        for entry in entries:
            if self._files.is_folder(f"{self._folder}/{below}{entry}"):
                yield from self._below(f"{below}{entry}/")
            elif not entry.startswith(_TEMPORARY):
                yield f"{below}{entry}"

    def remove(self, names: Sequence[str]) -> None:
        failures: list[BucketError] = []
        for name in names:
            try:
                with self._failing(name), contextlib.suppress(FileNotFoundError):
                    self._files.remove(self._path(name))
            except BucketError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def remove_folder(self, below: str) -> None:
        path = self._path(below.rstrip("/"))
        self._made.discard(path)
        # Another process may use the folder, or has just made another one in it.
        with contextlib.suppress(OSError):
            if not self._files.list(path):
                self._files.remove_tree(path)

    def _path(self, name: str) -> str:
        try:
            return f"{self._folder}/{path_of(name)}"
        except ValueError as error:
            raise BucketRefuses(f"{self.url}: {error}") from None

    def _temporary(self, name: str) -> str:
        """Return the path of a temporary file in the object's folder, and make that folder."""
        folder = os.path.dirname(self._path(name))
        self._make(folder)
        return f"{folder}/{_TEMPORARY}{self._files.random_seed():08x}-{os.path.basename(name)}"

    def _make(self, folder: str) -> None:
        """Make a folder below the bucket's, and sync its name once in this process.

        Another process may have made it and not synced it yet. The bucket's own folder must exist:
        it may be the place of a file system that is not mounted now.
        """
        if folder == self._folder:
            if not self._files.exists(folder):
                raise BucketRefuses(f"{self.url}: the folder does not exist; create or mount it")
            return
        if folder in self._made:
            return
        parent = os.path.dirname(folder)
        self._make(parent)
        with contextlib.suppress(FileExistsError):
            self._files.make_folder(folder)
        self._files.sync_folder(parent)
        self._made.add(folder)

    @contextlib.contextmanager
    def _failing(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileExistsError:
            raise ObjectExists(f"{self.url}/{name} exists already") from None
        except FileNotFoundError:
            if not self._files.exists(self._folder):
                raise BucketAway(
                    f"{self.url}: the folder does not exist; create or mount it"
                ) from None
            raise ObjectMissing(f"{self.url}/{name} does not exist") from None
        except OSError as error:
            kind = BucketRefuses if error.errno in _FOR_GOOD else BucketAway
            raise kind(f"{self.url}/{name}: {error.strerror or error}") from error
