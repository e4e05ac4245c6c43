"""Building a store again: a new LMDB environment from frames of changed rows.

This is the same for the state store and for the store of delayed messages, because rows are written
and removed as they are. `StateStore.walk` and `check_delayed` find out whether the result is right.

The environment is written without syncs and synced once at the end. So after a crash, or after any
error, its folder is worth nothing. The caller builds it under a temporary name, renames it when
`finish` has returned, and syncs the folder above.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from ..environment import MAP_BYTES, Environment
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

# A commit has about this many bytes and rows. LMDB keeps the pages that a commit changes in memory,
# and removals in random order may change a page each.
COMMIT_BYTES: Final = 4 * 1024 * 1024
COMMIT_ROWS: Final = 10_000

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
        self._map_bytes = map_bytes
        self._environment: Environment | None = None
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
        if self._environment is None:
            raise Damaged(f"{self._path} cannot be built: changes come before the dump of all rows")
        for change in frame.changes:
            self._changes.append(change)
            self._bytes += len(change[0]) + len(change[1] or b"")
            if self._bytes >= COMMIT_BYTES or len(self._changes) >= COMMIT_ROWS:
                self.flush()

    def finish(self) -> bool:
        """Write the rest, and sync the environment and its folder.

        Return False if the topic has no such store. In this case there is no folder. Raises
        `Damaged` if no frame said which rows the store has, and the errors of `take`.
        """
        if not self._begun:
            raise Damaged(f"{self._path} cannot be built: there is no dump of all rows")
        if self._environment is None:
            return False
        self.flush()
        self._environment.sync()
        self.close()
        with self._translated():
            self._files.sync_folder(self._path)
        return True

    def flush(self) -> None:
        """Write what was taken so far. It is not synced."""
        if self._environment is not None and self._changes:
            self._environment.write(self._write_changes)
            self._changes, self._bytes = [], 0

    def close(self) -> None:
        """Close the environment. It may be incomplete if `finish` was not called."""
        if self._environment is not None:
            self._environment.close()
            self._environment = None

    def _make(self) -> None:
        with self._translated():
            self._files.make_folder(self._path)
        self._environment = Environment(self._path, self._map_bytes, create=True, sync=False)

    def _discard(self) -> None:
        """Remove the environment that this builder has made, if it has made one."""
        self._changes, self._bytes = [], 0
        if self._environment is not None:
            self.close()
            with self._translated():
                self._files.remove_tree(self._path)

    def _write_changes(self, txn: Any) -> None:
        for key, value in self._changes:
            if value is None:
                txn.delete(key)
            else:
                txn.put(key, value)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if is_full(error):
                raise DiskFull(f"no space to build {self._path}: {error}") from error
            raise StoreFailed(f"{self._path} could not be built: {error}") from error
