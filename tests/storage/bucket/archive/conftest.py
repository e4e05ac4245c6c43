"""Fixtures of this folder: a topic whose chunks are archived in a folder bucket, in segments of 512
bytes, so that each chunk has several.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.archive_harness import SEGMENT_BYTES, ArchiveHarness

from zsq.storage.bucket.archive import archive_format, archive_reader, chunk_cache, chunk_objects


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ArchiveHarness]:
    for module in (archive_format, archive_reader, chunk_cache, chunk_objects):
        monkeypatch.setattr(module, "SEGMENT_BYTES", SEGMENT_BYTES)
    monkeypatch.setattr(chunk_cache, "CACHE_BYTES_MIN", 8 * SEGMENT_BYTES)
    monkeypatch.setattr(chunk_cache, "SEQUENTIAL_BYTES", 256)
    made = ArchiveHarness(tmp_path)
    made.open()
    yield made
    made.abandon()
