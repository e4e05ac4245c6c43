"""Fixtures of this folder: topics from `support/storage_harness.py`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.storage_harness import GROUPS as GROUPS
from support.storage_harness import IDENTITY as IDENTITY
from support.storage_harness import SMALL as SMALL
from support.storage_harness import StorageHarness as StorageHarness

from zsq.storage.files import Files


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder in memory, if there is such a file system. The fake disk is a model, and
    LMDB's real syncs would take most of the time.
    """
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path_factory.mktemp("disk")
        return
    with tempfile.TemporaryDirectory(prefix="zsq-test-", dir=memory) as folder:
        yield Path(folder)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[StorageHarness]:
    made = StorageHarness(tmp_path)
    made.open()
    yield made
    made.abandon()


@pytest.fixture
def group_case(tmp_path: Path) -> Iterator[StorageHarness]:
    """Make a topic with sizes that make some groups appended, some adopted, and some both."""
    (tmp_path / "groups").mkdir()
    made = StorageHarness(tmp_path / "groups", GROUPS)
    made.open()
    yield made
    made.abandon()


@pytest.fixture
def files() -> Files:
    return Files()
