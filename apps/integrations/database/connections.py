"""Connections of DB-API drivers: placeholders, transactions, and what differs between databases."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

from ....transport.errors import E_BAD_ARGUMENT, E_UNSUPPORTED, UsageError

__all__ = [
    "DatabaseConnection",
    "Dialect",
    "bytes_of",
    "check_begun",
    "dialect_of",
    "execute",
    "identifier",
    "text_of",
    "transaction",
]

SQLITE: Final = "sqlite"
POSTGRES: Final = "postgres"
OTHER: Final = "other"
IDLE: Final = 0  # the status of a connection without a transaction, in PostgreSQL's library
UNDEFINED: Final = "42P01"  # in PostgreSQL
MYSQL_UNDEFINED: Final = 1146
SQLITE_UNDEFINED: Final = "no such table"
LOST: Final = 4  # the status of a connection that is closed or broken
_KINDS: Final = {"sqlite3": SQLITE, "psycopg": POSTGRES, "psycopg2": POSTGRES}
_MARKERS: Final = {"qmark": "?", "format": "%s", "pyformat": "%s", "numeric": ":", "named": ":"}
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}", re.ASCII)


class DatabaseConnection(Protocol):
    """A connection of a DB-API 2.0 driver."""

    def cursor(self) -> Any: ...

    def commit(self) -> Any: ...

    def rollback(self) -> Any: ...


class Dialect(NamedTuple):
    """The kind of a database, and the placeholder of its driver."""

    kind: str
    marker: str

    def sql(self, text: str) -> str:
        """Return a statement with the driver's placeholders in place of `?`."""
        if self.marker == ":":
            pieces = text.split("?")
            numbered = [f":{number}{piece}" for number, piece in enumerate(pieces[1:], 1)]
            return pieces[0] + "".join(numbered)
        return text.replace("?", self.marker)


def dialect_of(db: Any) -> Dialect:
    """Return the dialect of a connection.

    Raises `UsageError` for an asynchronous connection, or one that is not of a DB-API driver.
    """
    db = driver_of(db)
    root = type(db).__module__.partition(".")[0]
    style = getattr(sys.modules.get(root), "paramstyle", None)
    if style not in _MARKERS or not hasattr(db, "cursor"):
        name = f"{type(db).__module__}.{type(db).__qualname__}"
        text = f"{name} is not a connection of a DB-API driver, such as psycopg or sqlite3"
        raise UsageError(E_BAD_ARGUMENT, text)
    if type(db).__name__.startswith("Async"):
        text = f"{type(db).__name__} is asynchronous; use a blocking connection, in a thread"
        raise UsageError(E_UNSUPPORTED, text)
    return Dialect(_KINDS.get(root, OTHER), _MARKERS[style])


def driver_of(db: Any) -> Any:
    """Return the driver's connection. SQLAlchemy's connections wrap it."""
    for name in ("driver_connection", "dbapi_connection"):
        inner = getattr(db, name, None)
        if inner is not None:
            return inner
    return db


def execute(db: Any, text: str, values: Sequence[Any] = ()) -> Any:
    """Execute a statement with `?` as placeholders, and return its cursor."""
    cursor = driver_of(db).cursor()
    try:
        cursor.execute(dialect_of(db).sql(text), tuple(values))
    except Exception as error:
        if not _is_undefined(error):
            raise
        why = " ".join(str(error).split())
        raise UsageError(E_BAD_ARGUMENT, f"{why}; call create(db) once") from error
    return cursor


def _is_undefined(error: Exception) -> bool:
    """Return True if a driver reports that a table does not exist, each in its way."""
    for name in ("sqlstate", "pgcode"):
        if getattr(error, name, None) == UNDEFINED:
            return True
    if type(error).__module__ == "sqlite3":
        return str(error).startswith(SQLITE_UNDEFINED)
    return bool(error.args) and error.args[0] == MYSQL_UNDEFINED


@contextlib.contextmanager
def transaction(db: Any) -> Iterator[None]:
    """Run the block in a transaction: commit it at the end, or roll it back after an error.

    Raises `UsageError` if the connection is in a transaction. In it, the commit of the block would
    also commit what the user has begun, or would not be durable.
    """
    kind, db = dialect_of(db).kind, driver_of(db)
    _check_idle(kind, db)
    if hasattr(db, "transaction"):  # psycopg 3, also with autocommit
        with db.transaction():
            yield
        return
    if kind == SQLITE:
        # The write lock is taken here. A lock that is taken after a read may be refused at once.
        db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        # With autocommit, the methods of sqlite3 do nothing.
        db.execute("ROLLBACK") if kind == SQLITE else db.rollback()
        raise
    db.execute("COMMIT") if kind == SQLITE else db.commit()


def check_begun(db: Any, operation: str) -> None:
    """Raise `UsageError` if the connection would commit the next statement at once.

    Then the note of a message would be committed before its work. If the work failed, the message
    would count as handled, and be lost. A driver that is not known is not checked.
    """
    kind, db = dialect_of(db).kind, driver_of(db)
    if kind == SQLITE:
        # Python 3.12 has `autocommit`: True, False, or -1, with which `isolation_level` counts.
        mode = getattr(db, "autocommit", -1)
        alone = mode is True or (mode is not False and db.isolation_level is None)
        alone = alone and not db.in_transaction
    elif kind == POSTGRES:
        alone = db.autocommit and _status(db) == IDLE
    else:
        alone = False
    if alone:
        how = 'db.execute("begin")' if kind == SQLITE else "with db.transaction():"
        text = f"{operation} needs a transaction, and this connection commits each statement"
        text = f"{text}; begin one first, such as by `{how}`"
        raise UsageError(E_BAD_ARGUMENT, text)


def _status(db: Any) -> int:
    """Return the status that PostgreSQL's library reports for a connection."""
    return int(getattr(getattr(db, "info", None), "transaction_status", IDLE))


def _check_idle(kind: str, db: Any) -> None:
    status = IDLE if kind == SQLITE else _status(db)
    if status == LOST:
        text = "the connection to the database is closed or lost; make a new one"
        raise UsageError(E_BAD_ARGUMENT, text)
    if status != IDLE or (kind == SQLITE and db.in_transaction):
        text = "the connection is in a transaction; commit it first, or use another connection"
        raise UsageError(E_BAD_ARGUMENT, text)
    if not hasattr(db, "transaction") and kind != SQLITE and getattr(db, "autocommit", 0) is True:
        text = "the connection commits each statement; turn autocommit off"
        raise UsageError(E_BAD_ARGUMENT, text)


def text_of(value: Any) -> str:
    """Return a text of a row. In a database without an encoding (SQL_ASCII), it comes as bytes."""
    return bytes(value).decode() if isinstance(value, bytes | memoryview) else str(value)


def bytes_of(value: Any) -> bytes:
    """Return the bytes of a row. In SQLite, a text or a number in a column of bytes stays one."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    return str(value).encode()


def identifier(name: str) -> str:
    """Return the name of a table. Raises `UsageError` if it is not a plain name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        text = "a table's name must have at most 40 letters, digits and _"
        raise UsageError(E_BAD_ARGUMENT, f"{text}, not {name!r:.60}")
    return name
