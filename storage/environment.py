"""LMDB environment: opens it, reads and commits, and enlarges its map.

`Environment` is the base of the stores of a topic. It knows no rows. Each process has an
environment open at most once, and one thread at a time uses it: there is no lock file, because the
lock of the topic's directory already excludes other processes. So no thread may read while another
one commits. Otherwise LMDB could overwrite pages that the reader still reads.

LMDB does its own file operations, without `files.py`. It reports a full disk, but not whether the
commit in which it noticed this took effect. `Environment` finds this out, and raises the errors of
this package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import lmdb

from ..transport.memory import untouched_memory
from .errors import Damaged, DiskFull, ForeignDirectory, StoreFailed
from .row_changes import BATCH_BYTES, Change, RecordingTransaction, Row, row_batches

DATA_NAME: Final = "data.mdb"
# The initial address space of an environment, which is doubled when it is full. It takes no memory
# and no disk space.
MAP_BYTES: Final = 16 * 1024 * 1024
MAP_BYTES_MAX: Final = 1 << 42
# Texts of the system. The Python binding of LMDB reports the text, but not the errno.
_FULL: Final = ("No space left", "Disk quota exceeded")
_UNREADABLE: Final = (
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.InvalidError,
    lmdb.VersionMismatchError,
    lmdb.PageFullError,
)

_Result = TypeVar("_Result")


class Environment:
    """An open LMDB environment in the folder `path`.

    A read-only environment is read as a whole, so the system may read ahead. Without `sync`, only
    `sync` makes commits durable.
    """

    def __init__(
        self,
        path: str,
        map_bytes: int = MAP_BYTES,
        *,
        create: bool = False,
        readonly: bool = False,
        sync: bool = True,
    ) -> None:
        """Open the environment.

        Raises `ForeignDirectory` if it does not exist, and `Damaged` if LMDB cannot read it.
        """
        self.path = path
        self.on_changes: Callable[[list[Change]], None] | None = None
        """A function that gets the rows that each commit changed, after the commit.

        The method that commits raises its errors. The commit has taken effect then, so the
        environment must be closed.
        """
        self._open(map_bytes, create=create, readonly=readonly, sync=sync)

    def _open(
        self, map_bytes: int, *, create: bool = False, readonly: bool = False, sync: bool = True
    ) -> None:
        with translated(self.path), untouched_memory():
            self._env = lmdb.open(
                self.path,
                map_size=map_bytes,
                max_dbs=0,
                lock=False,
                create=create,
                readonly=readonly,
                readahead=readonly,
                sync=sync,
            )
        self.map_bytes = int(self._env.info()["map_size"])

    def close(self) -> None:
        self._env.close()

    def sync(self) -> None:
        """Make all commits durable. The name of a new environment is not synced."""
        with translated(self.path):
            self._env.sync(True)

    def copy(self, folder: str, *, compact: bool = False) -> None:
        """Copy all committed rows as an environment into the empty `folder`, without a sync.

        Commits wait during the copy.
        """
        with translated(self.path):
            self._env.copy(folder, compact=compact)

    @contextmanager
    def reading(self) -> Iterator[Any]:
        """Begin a transaction that reads."""
        with translated(self.path), self._env.begin() as txn:
            yield txn

    def dump(self, max_bytes: int = BATCH_BYTES) -> Iterator[list[Row]]:
        """Yield keys and values of all rows as stored, in lists of about 1 MiB, without a check.

        No commit may run before the iterator ends or is closed.
        """
        with self.reading() as txn:
            yield from row_batches(txn, max_bytes)

    def write(self, work: Callable[[Any], _Result]) -> _Result:
        """Call `work` with a transaction, commit, and return its result.

        If LMDB's map is full, this doubles it and repeats the work. Raises `DiskFull` if nothing
        changed. Raises `StoreFailed` if the result is unknown. The process must then end and
        recover.
        """
        while True:
            try:
                with translated(self.path), self._env.begin(write=True) as txn:
                    recorder = RecordingTransaction(txn) if self.on_changes is not None else None
                    result = work(recorder or txn)
                break
            except lmdb.MapFullError as error:
                if self.map_bytes * 2 > MAP_BYTES_MAX:
                    raise DiskFull(
                        f"{self.path} has reached its limit of {MAP_BYTES_MAX} bytes"
                    ) from error
                self.map_bytes *= 2
                self._env.set_mapsize(self.map_bytes)
            except DiskFull as error:
                self._check_usable(error)
                raise
        if recorder is not None and self.on_changes is not None:
            self.on_changes(recorder.changes())
        return result

    def _check_usable(self, error: DiskFull) -> None:
        """Raise `StoreFailed` if the disk was full when LMDB wrote the head of its file.

        In this case the head on disk may be the new one or the old one, and LMDB accepts no more
        writes. This can happen only on file systems that write to a new place when a page is
        overwritten.
        """
        try:
            self._env.begin(write=True).abort()
        except lmdb.Error as second:
            raise StoreFailed(
                f"{error}; it is not known whether that commit was stored ({second})"
            ) from error


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Convert errors of LMDB, except a full map, to errors of this package."""
    try:
        yield
    except lmdb.MapFullError:
        raise
    except lmdb.Error as error:
        # LMDB includes the path in some errors.
        text = str(error) if str(error).startswith(path) else f"{path}: {error}"
        if isinstance(error, lmdb.DiskError) or any(sentence in text for sentence in _FULL):
            raise DiskFull(text) from error
        if "No such file" in text:
            raise ForeignDirectory(
                f"{text}; zsq does not create it again: mount or restore it"
            ) from error
        # LMDB reports a wrong version in a head with the text in the next line.
        if isinstance(error, _UNREADABLE) or "is not supported by this build" in text:
            raise Damaged(text) from error
        raise StoreFailed(text) from error
    # `Cursor.delete` of the binding loses the error if the row after the deleted one is unreadable.
    except SystemError as error:
        raise Damaged(f"{path}: {error.__cause__ or error}") from error
