"""Test that the tutorial works as it is written, from the first block to the last."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .walking import ROOT, Reader

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    reader.close()


def test_each_step_of_the_tutorial_works(reader: Reader) -> None:
    assert reader.walk(ROOT / "docs" / "tutorial.md") >= 25
