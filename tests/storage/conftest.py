"""Fixtures of this folder: topics from `support/storage_harness.py`.

The tests of this folder use these terms:

- Harness: a topic's store on a simulated disk, and a record of what was acknowledged.
- Loss: the rule that says which unsynced changes a power cut takes (`support/faulty_files.py`).
- Group: the blocks of one transaction. A commit appends small parts to the log, and adopts the
  files of large parts as chunks.
- Mark: the record in the log that ends a group and names its transaction.
- Rescue: after damage in the delayed messages, the readable ones are copied to a new LMDB
  environment.
- Mending: the repair of one of the two meta pages ("heads") of LMDB's file.
"""

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
    """Return a folder in a memory file system, if there is one. The tests simulate power cuts with
    a fake disk, so real syncs are not needed, and LMDB's syncs would take most of the time.
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
    """Make a topic with size limits at which some groups are appended to the log, some are adopted
    as chunks of their own, and some are both.
    """
    (tmp_path / "groups").mkdir()
    made = StorageHarness(tmp_path / "groups", GROUPS)
    made.open()
    yield made
    made.abandon()


@pytest.fixture
def files() -> Files:
    return Files()
