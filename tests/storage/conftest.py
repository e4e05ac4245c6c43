"""Desks for the tests of this folder: see `support/desk.py`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.desk import GROUPS as GROUPS
from support.desk import IDENTITY as IDENTITY
from support.desk import SMALL as SMALL
from support.desk import Desk as Desk

from zsq.storage.files import Files


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """In memory where there is such a folder: the disk that forgets is a model, and LMDB's real syncs would be most of the time."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path_factory.mktemp("disk")
        return
    with tempfile.TemporaryDirectory(prefix="zsq-test-", dir=memory) as folder:
        yield Path(folder)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    made.open()
    yield made
    made.abandon()


@pytest.fixture
def group_desk(tmp_path: Path) -> Iterator[Desk]:
    """With sizes that make some groups appended, some adopted, some both."""
    (tmp_path / "groups").mkdir()
    made = Desk(tmp_path / "groups", GROUPS)
    made.open()
    yield made
    made.abandon()


@pytest.fixture
def files() -> Files:
    return Files()
