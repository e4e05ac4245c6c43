"""Building a store again: a new LMDB environment from frames of changed rows.

This is the same for the state store and for the store of delayed messages, because rows are written
and removed as they are. `StateStore.walk` and `check_delayed` find out whether the result is right.

The environment is written without syncs and synced once at the end. So after a crash, or after any
error, its folder is worth nothing. The caller builds it under a temporary name, renames it when
`finish` has returned, and syncs the folder above.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import lmdb

from ..errors import Damaged, DiskFull, StoreFailed, is_full
from ..files import Files
from ..row_changes import (
    DELAYED,
    DELAYED_BEGIN,
    DELAYED_NONE,
    STATE,
    STATE_BEGIN,
    Change,
    Frame,
)
from .state import MAP_BYTES, translate

# A commit has about this many bytes and rows. LMDB keeps the pages that a commit changes in memory,
# and removals in random order may change a page each.
COMMIT_BYTES: Final = 4 * 1024 * 1024
COMMIT_ROWS: Final = 10_000
MAP_BYTES_MAX: Final = 1 << 42  # the larger limit of the two stores

_BEGIN: Final = {STATE: STATE_BEGIN, DELAYED: DELAYED_BEGIN}


class StoreBuilder:
    """A store that is built again. It takes the frames of its topic in the order of their commits.

    `path` is the folder of the environment. It must not exist, and is made when a frame with BEGIN
    arrives. `kind` is STATE or DELAYED. Frames of the other store are ignored, so one stream can
    feed two builders.
    """

    def __init__(self, files: Files, path: str, kind: int, map_bytes: int = MAP_BYTES) -> None:
        assert kind in _BEGIN
        self._files = files
        self._path = path
        self._kind = kind
        self._first_map_bytes = map_bytes
        self._map_bytes = map_bytes
        self._env: Any = None
        self._changes: list[Change] = []
        self._bytes = 0
        self._begun = False

    def take(self, frame: Frame) -> None:
        """Apply a frame.

        Raises `Damaged` if changes of the store come before its BEGIN, `DiskFull`, or
        `StoreFailed`, for example if the folder exists. The builder must then be closed.
        """
        if frame.kind == _BEGIN[self._kind]:
            self._discard()
            self._make()
            self._begun = True
        elif frame.kind == DELAYED_NONE and self._kind == DELAYED:
            self._discard()
            self._begun = True
            return
        elif frame.kind != self._kind:
            return
        if self._env is None:
            raise Damaged(f"{self._path} cannot be built: changes come before the dump of all rows")
        for change in frame.changes:
            self._changes.append(change)
            self._bytes += len(change[0]) + len(change[1] or b"")
            if self._bytes >= COMMIT_BYTES or len(self._changes) >= COMMIT_ROWS:
                self._flush()

    def finish(self) -> bool:
        """Write the rest, and sync the environment and its folder.

        Return False if the topic has no such store. In this case there is no folder. Raises
        `Damaged` if no frame said which rows the store has, and the errors of `take`.
        """
        if not self._begun:
            raise Damaged(f"{self._path} cannot be built: there is no dump of all rows")
        if self._env is None:
            return False
        self._flush()
        with self._translated():
            self._env.sync(True)
            self.close()
            self._files.sync_folder(self._path)
        return True

    def flush(self) -> None:
        """Write what was taken so far. It is not synced."""
        if self._env is not None:
            self._flush()

    def close(self) -> None:
        """Close the environment. It may be incomplete if `finish` was not called."""
        if self._env is not None:
            self._env.close()
            self._env = None

    def _make(self) -> None:
        self._map_bytes = self._first_map_bytes
        with self._translated():
            self._files.make_folder(self._path)
            self._env = lmdb.open(
                self._path,
                map_size=self._map_bytes,
                max_dbs=0,
                lock=False,
                create=True,
                readahead=False,
                sync=False,
            )

    def _discard(self) -> None:
        """Remove the environment that this builder has made, if it has made one."""
        self._changes, self._bytes = [], 0
        if self._env is not None:
            self.close()
            with self._translated():
                self._files.remove_tree(self._path)

    def _flush(self) -> None:
        while self._changes:
            try:
                with self._translated(), self._env.begin(write=True) as txn:
                    for key, value in self._changes:
                        if value is None:
                            txn.delete(key)
                        else:
                            txn.put(key, value)
                self._changes, self._bytes = [], 0
            except lmdb.MapFullError as error:
                if self._map_bytes * 2 > MAP_BYTES_MAX:
                    raise DiskFull(
                        f"{self._path} has reached its limit of {MAP_BYTES_MAX} bytes"
                    ) from error
                self._map_bytes *= 2
                self._env.set_mapsize(self._map_bytes)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except lmdb.MapFullError:
            raise
        except lmdb.Error as error:
            raise translate(error, self._path) from error
        except OSError as error:
            if is_full(error):
                raise DiskFull(f"no space to build {self._path}: {error}") from error
            raise StoreFailed(f"{self._path} could not be built: {error}") from error


def rebuild_store(files: Files, path: str, kind: int, frames: Iterable[Frame]) -> bool:
    """Build a store from all its frames. See `StoreBuilder`.

    Return False if the topic has no such store. In this case there is no folder. Raises the errors
    of `StoreBuilder.finish`, and the errors of `frames`.
    """
    builder = StoreBuilder(files, path, kind)
    try:
        for frame in frames:
            builder.take(frame)
        return builder.finish()
    finally:
        builder.close()
