"""Databases for tests: SQLite in a file, and a PostgreSQL server that a test run starts."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from support.broker import wait_for


class Database(NamedTuple):
    """A database by its address. It can be sent to another process."""

    kind: str
    address: str

    def connect(self) -> Any:
        if self.kind == "sqlite":
            return sqlite3.connect(self.address, timeout=60)
        import psycopg

        return psycopg.connect(self.address, autocommit=True)

    def alone(self) -> Any:
        """Return a connection that commits each statement, unless a transaction was begun."""
        if self.kind == "sqlite":
            return sqlite3.connect(self.address, timeout=60, isolation_level=None)
        return self.connect()


@contextlib.contextmanager
def begun(db: Any) -> Iterator[None]:
    """Run the block in a transaction, as a user of the driver does."""
    with db.transaction() if hasattr(db, "transaction") else db:
        yield


def rows(db: Any, query: str) -> list[Any]:
    """Return the rows of a query, with the transaction ended."""
    with begun(db):
        cursor = db.cursor()
        cursor.execute(query)
        return list(cursor.fetchall())


def programs() -> Path | None:
    """Return the folder with PostgreSQL's programs: those on PATH, or Debian's newest."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return debian[-1].parent if debian else None


class Postgres:
    """A PostgreSQL server on a socket in a temporary folder. It does not run as root."""

    def __init__(self, bin_dir: Path) -> None:
        self._bin = bin_dir
        self.folder = Path(tempfile.mkdtemp(prefix="zsq-pg-"))
        self._who: dict[str, Any] = {}
        if os.geteuid() == 0:
            names = {one.pw_name for one in pwd.getpwall()}
            user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
            self._who = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            os.chown(self.folder, user.pw_uid, user.pw_gid)
        self._process: subprocess.Popen[bytes] | None = None
        self._schemas = 0

    def start(self) -> Postgres:
        data = str(self.folder / "data")
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
        subprocess.run(
            [self._bin / "initdb", "-D", data, "-U", "zsq", "-A", "trust", "-N", "-E", "UTF8"],
            check=True, capture_output=True, timeout=120, env=environment, cwd="/", **self._who,
        )  # fmt: skip
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [self._bin / "postgres", "-D", data, "-k", str(self.folder), "-c", "fsync=off",
                 "-c", "listen_addresses=", "-c", "max_connections=30"],
                stdout=log, stderr=log, env=environment, cwd="/", **self._who,
            )  # fmt: skip
        wait_for(self._answers, 120, "the answer of PostgreSQL")
        return self

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.address("public")).close()
        except psycopg.OperationalError:
            return False
        return True

    def address(self, schema: str) -> str:
        place = f"host={self.folder} user=zsq dbname=postgres"
        return f"{place} options='-c search_path={schema}'"

    def new(self) -> Database:
        """Return an empty schema of this server."""
        self._schemas += 1
        name = f"test_{self._schemas}"
        database = Database("postgres", self.address(name))
        with contextlib.closing(database.connect()) as db:
            db.execute(f"create schema {name}")
        return database

    def new_in_ascii(self) -> Database:
        """Return a database without an encoding. psycopg returns its texts as bytes."""
        create = "create database plain encoding 'SQL_ASCII' template template0"
        with contextlib.closing(Database("postgres", self.address("public")).connect()) as db:
            db.execute(create)
        return Database("postgres", f"host={self.folder} user=zsq dbname=plain")

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()  # the children are told, and transactions are rolled back
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
            self._process.kill()
            self._process.wait(20)
        shutil.rmtree(self.folder, ignore_errors=True)
