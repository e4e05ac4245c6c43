"""Engines of `sqlite_delayed.py`: LMDB as the product uses it, and SQLite with LMDB's interface."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any, Final, Self

import lmdb

from zsq.storage.delayed.delayed import DelayedStore
from zsq.storage.delayed.delayed import translated as errors_translated
from zsq.storage.state.state import StateStore

CACHE_KB: Final = 2_000
UUID: Final = bytes(range(16))


def translated(error: sqlite3.Error) -> lmdb.Error:
    """Return the error of LMDB that means the same to the stores."""
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith("SQLITE_FULL"):
        return lmdb.DiskError(f"{name}: {error}")
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return lmdb.CorruptedError(f"{name}: {error}")
    return lmdb.Error(f"{name}: {error}")


class SqliteEnvironment:
    """One table of keys and values in a SQLite file."""

    def __init__(self, path: str, journal: str, cache_kb: int = CACHE_KB) -> None:
        self.connection = sqlite3.connect(f"{path}/data.sqlite", isolation_level=None)
        try:
            for pragma in (
                "page_size=4096", "locking_mode=EXCLUSIVE", f"journal_mode={journal}", "synchronous=FULL", "mmap_size=0",
                f"cache_size=-{cache_kb}", "cell_size_check=ON", "secure_delete=OFF",
            ):  # fmt: skip
                self.run(f"PRAGMA {pragma}").fetchall()
            self.run(
                "CREATE TABLE IF NOT EXISTS rows (k BLOB PRIMARY KEY, v BLOB NOT NULL) WITHOUT "
                "ROWID"
            )
        except BaseException:
            self.connection.close()
            raise

    def run(self, statement: str, *values: Any) -> sqlite3.Cursor:
        try:
            return self.connection.execute(statement, values)
        except sqlite3.Error as error:
            raise translated(error) from error

    def begin(self, write: bool = False) -> SqliteTransaction:
        self.run("BEGIN IMMEDIATE" if write else "BEGIN")
        return SqliteTransaction(self)

    def info(self) -> dict[str, int]:
        return {"map_size": 0}

    def close(self) -> None:
        self.connection.close()


class SqliteTransaction:
    def __init__(self, environment: SqliteEnvironment) -> None:
        self._environment = environment
        self.run = environment.run

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            try:
                self.run("COMMIT")
                return
            except lmdb.Error:
                self.abort()
                raise
        self.abort()

    def abort(self) -> None:
        if self._environment.connection.in_transaction:
            self.run("ROLLBACK")

    def get(self, key: bytes, default: bytes | None = None) -> bytes | None:
        found = self.run("SELECT v FROM rows WHERE k = ?", key).fetchone()
        return found[0] if found else default

    def put(self, key: bytes, value: bytes) -> None:
        self.run("INSERT OR REPLACE INTO rows VALUES (?, ?)", key, value)

    def pop(self, key: bytes) -> bytes | None:
        found = self.run("DELETE FROM rows WHERE k = ? RETURNING v", key).fetchall()
        return found[0][0] if found else None

    def delete(self, key: bytes) -> None:
        self.run("DELETE FROM rows WHERE k = ?", key)

    def stat(self) -> dict[str, int]:
        return {"entries": self.run("SELECT count(*) FROM rows").fetchone()[0]}

    def cursor(self) -> SqliteCursor:
        return SqliteCursor(self)


class SqliteCursor:
    """A position between the keys. An iteration from this position is one SQL statement."""

    def __init__(self, transaction: SqliteTransaction) -> None:
        self._txn = transaction
        self._key = b""
        self._value: bytes | None = None

    def _go(self, condition: str, *values: bytes) -> bool:
        found = self._txn.run(f"SELECT k FROM rows {condition} LIMIT 1", *values).fetchone()
        self._key, self._value = (found[0] if found else b""), None
        return found is not None

    def first(self) -> bool:
        return self._go("ORDER BY k")

    def last(self) -> bool:
        return self._go("ORDER BY k DESC")

    def set_range(self, key: bytes) -> bool:
        return self._go("WHERE k >= ? ORDER BY k", key)

    def prev(self) -> bool:
        return self._go("WHERE k < ? ORDER BY k DESC", self._key)

    def key(self) -> bytes:
        return self._key

    def value(self) -> bytes:
        if self._value is None:
            self._value = self._txn.get(self._key, b"")
        assert self._value is not None
        return self._value

    def delete(self) -> bool:
        self._txn.delete(self._key)
        self.set_range(self._key)
        return True

    def _rows(self, order: str, columns: str = "k, v") -> Iterator[tuple[bytes, bytes]]:
        try:
            for row in self._txn.run(f"SELECT {columns} FROM rows WHERE k {order}", self._key):
                # One flipped bit can turn a value into NULL or a number.
                if any(type(one) is not bytes for one in row):
                    raise lmdb.CorruptedError(f"a row of {row!r:.60}")
                self._key, self._value = row[0], row[-1] if len(row) > 1 else None
                yield row[0], row[-1]
        except sqlite3.Error as error:
            raise translated(error) from error

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return self._rows(">= ? ORDER BY k")

    def iterprev(self) -> Iterator[tuple[bytes, bytes]]:
        return self._rows("<= ? ORDER BY k DESC")

    def iternext(self, keys: bool = True, values: bool = True) -> Iterator[bytes]:
        assert keys
        assert not values
        return (key for key, _ in self._rows(">= ? ORDER BY k", "k"))


class SqliteDelayed(DelayedStore):
    journal = "wal"
    cache_kb = CACHE_KB

    def _open(self, map_bytes: int, create: bool) -> None:
        with errors_translated(self.path):
            self._env: Any = SqliteEnvironment(self.path, self.journal, self.cache_kb)
        self._map_bytes = map_bytes


class SqliteState(StateStore):
    def __init__(self, path: str, journal: str, cache_kb: int = CACHE_KB) -> None:
        self._path, self._map_bytes, self.garbage = path, 0, False
        self.on_committed = self.on_changes = None
        self._env: Any = SqliteEnvironment(path, journal, cache_kb)


def open_delayed(
    engine: str, path: str, *, create: bool = False, cache_kb: int = CACHE_KB
) -> DelayedStore:
    if engine == "lmdb":
        return DelayedStore(path, UUID, create=create)
    kind = type("SqliteDelayed", (SqliteDelayed,), {"journal": engine, "cache_kb": cache_kb})
    store: DelayedStore = kind(path, UUID, create=create)
    return store


def open_state(
    engine: str, path: str, *, create: bool = False, cache_kb: int = CACHE_KB
) -> StateStore:
    store = (
        StateStore(path, create=create) if engine == "lmdb" else SqliteState(path, engine, cache_kb)
    )
    if create:
        store.create(UUID, 0)
    return store
