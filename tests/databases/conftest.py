"""Fixtures: a broker for all tests of this folder, and an empty database for each test.

Tests with `database` run with SQLite, and with a real PostgreSQL server. Continuous integration
must have one. Elsewhere these tests are skipped without it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.broker import Broker
from support.databases import Database, Postgres, programs
from support.topic import Topic


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("zsq") / "data") as broker:
        yield broker


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> Topic:
    """Return a topic that does not exist yet."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower()).strip("-")
    return Topic(broker, name[-60:].strip("-"))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    bin_dir = programs()
    if bin_dir is None or find_spec("psycopg") is None:
        missing = "PostgreSQL's initdb" if bin_dir is None else "psycopg (the extra test-data)"
        if "CI" in os.environ and os.environ.get("ZSQ_TEST_SUITE") != "fast":
            pytest.fail(f"{missing} is missing: continuous integration must have it")
        pytest.skip(f"{missing} is missing: apt-get install postgresql")
    server = Postgres(bin_dir)
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return Database("sqlite", str(tmp_path / "app.db"))
    server: Postgres = request.getfixturevalue("postgres")
    return server.new()


@pytest.fixture
def db(database: Database) -> Iterator[Any]:
    """Return a connection."""
    one = database.connect()
    yield one
    one.close()
