"""Fixture: folders in memory for the crash tests, because these tests simulate the loss of unsynced
data themselves.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path_factory.mktemp("compat")
        return
    with tempfile.TemporaryDirectory(prefix="zsq-test-", dir=memory) as folder:
        yield Path(folder)
