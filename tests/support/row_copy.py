"""A copy of a store that is kept by a dump and by the changes of the later commits."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Final

import lmdb

from zsq.storage.environment import Environment
from zsq.storage.files import Files
from zsq.storage.row_changes import (
    DELAYED,
    DELAYED_BEGIN,
    STATE,
    STATE_BEGIN,
    Change,
    Frame,
    Row,
    decode_frames,
    encode_frames,
)
from zsq.storage.state.store_builder import StoreBuilder

BEGIN: Final = {STATE: STATE_BEGIN, DELAYED: DELAYED_BEGIN}
FRAME_BYTES: Final = 150


def stored_rows(path: str) -> list[Row]:
    """Return all rows of an environment."""
    with lmdb.open(path, lock=False, readonly=True) as env, env.begin() as txn:
        return [(bytes(key), bytes(value)) for key, value in txn.cursor()]


def rows_now(store: Environment) -> list[Row]:
    """Return all rows of an open store."""
    with store.reading() as txn:
        return [(bytes(key), bytes(value)) for key, value in txn.cursor()]


def build_store(files: Files, path: str, kind: int, frames: Iterable[Frame]) -> bool:
    """Build a store from all its frames. Return False if the topic has no such store."""
    with closing(StoreBuilder(files, path, kind)) as builder:
        for frame in frames:
            builder.take(frame)
        return builder.finish()


class RowCopy:
    """The frames of one store, and the rows that they add up to."""

    def __init__(self, kind: int) -> None:
        self.kind = kind
        self.stream = b""
        self.rows: dict[bytes, bytes] = {}
        self.commits = 0
        self._after: bytes | None = None
        self.is_whole = False
        """True if the stream has all rows."""

    def watch(self, store: Environment) -> None:
        store.on_changes = self._changed

    def dump(self, store: Environment, bytes_max: int) -> None:
        """Begin anew with all rows of the store."""
        self._begin()
        for batch in store.dump(bytes_max=bytes_max):
            self._take(self.kind, batch)
        self.is_whole = True
        self._after = None

    def dump_some(self, store: Environment, bytes_max: int) -> None:
        """Take the next rows of a dump that is divided by commits, or begin one."""
        if self._after is None:
            self._begin()
        dump = store.dump(self._after or b"", bytes_max)
        batch = next(dump, None)
        dump.close()  # type: ignore[attr-defined]
        if batch is None:
            self.is_whole = True
            self._after = None
        else:
            self._take(self.kind, batch)
            self._after = batch[-1][0]

    def finish_dump(self, store: Environment, bytes_max: int) -> None:
        """Take the other rows of a dump that is divided by commits."""
        while self._after is not None:
            self.dump_some(store, bytes_max)

    def rebuild(self, path: Path) -> list[Row]:
        """Build the store from the frames. Return its rows."""
        assert build_store(Files(), str(path), self.kind, decode_frames(self.stream))
        return stored_rows(str(path))

    def _begin(self) -> None:
        self.is_whole = False
        self._after = b""
        self.rows.clear()
        self._take(BEGIN[self.kind], ())

    def _changed(self, changes: list[Change]) -> None:
        self.commits += 1
        if self.stream:  # changes before the first dump are not needed
            self._take(self.kind, changes)

    def _take(self, kind: int, changes: Iterable[Change]) -> None:
        changes = list(changes)
        self.stream += b"".join(encode_frames(kind, changes, FRAME_BYTES))
        for key, value in changes:
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value
