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

    def watch(self, store: Environment) -> None:
        store.on_changes = self._changed

    def dump(self, store: Environment, max_bytes: int) -> None:
        """Begin anew with all rows of the store."""
        self.rows.clear()
        self._take(BEGIN[self.kind], ())
        for batch in store.dump(max_bytes=max_bytes):
            self._take(self.kind, batch)

    def rebuild(self, path: Path) -> list[Row]:
        """Build the store from the frames. Return its rows."""
        assert build_store(Files(), str(path), self.kind, decode_frames(self.stream))
        return stored_rows(str(path))

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
