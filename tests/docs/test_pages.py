"""Tests that the blocks of some pages of the documentation work as they stand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .walking import ROOT, Reader

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    reader.close()


@pytest.mark.parametrize(
    ("page", "count"),
    [
        ("http.md", 7),
        ("lifetimes.md", 5),
        ("nsqd.md", 1),
        ("dedupe.md", 6),
        ("schedules.md", 5),
        ("testing.md", 9),
        ("tracing.md", 5),
    ],
)
def test_each_block_of_the_page_works(page: str, count: int, reader: Reader) -> None:
    assert reader.walk(ROOT / "docs" / page) == count


def test_each_block_of_the_pages_about_spark_works(reader: Reader) -> None:
    """The reference reads what the other page has written."""
    assert reader.walk(ROOT / "docs" / "spark.md") == 5
    assert reader.walk(ROOT / "docs" / "spark-reference.md") == 3


def test_the_example_with_two_clients_works(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The reader waits for the broker as one of its clients. The blocks name their keys themselves.
    monkeypatch.setenv("ZSQ_KEY_FILE", str(reader.folder / "publisher.key"))
    assert reader.walk(ROOT / "docs" / "security.md") == 6
