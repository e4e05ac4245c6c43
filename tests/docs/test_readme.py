"""Tests that the README works as it is written: one command starts a broker, and each following
block works.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .walking import ROOT, Reader, blocks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    reader.close()


def test_each_block_of_the_readme_works(reader: Reader) -> None:
    assert reader.walk(ROOT / "README.md") == 3


def test_a_block_that_is_not_run_says_why() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for block in blocks(page):
            assert (
                not block.said.startswith("not run") or len(block.said) > len("not run, ") + 10
            ), f"{page.name}:{block.line}"
