"""Tests that the blocks of some pages of the documentation work as they stand."""

from __future__ import annotations

import contextlib
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
        ("http.md", 5),
        ("lifetimes.md", 5),
        ("nsqd.md", 1),
        ("dedupe.md", 6),
        ("schedules.md", 5),
        ("testing.md", 6),
        ("tracing.md", 5),
    ],
)
def test_each_block_of_the_page_works(page: str, count: int, reader: Reader) -> None:
    assert reader.walk(ROOT / "docs" / page) == count


def test_each_block_of_the_pages_about_spark_works(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The reference reads what the other page has written. Both pages use one session of Spark,
    because its start takes most of the time.
    """
    # The 200 partitions of the default take half a minute in a query that counts.
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.sql.shuffle.partitions 2\nspark.ui.enabled false\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    with contextlib.closing(Reader(tmp_path)) as reader:
        assert reader.walk(ROOT / "docs" / "spark.md") == 5
        assert reader.walk(ROOT / "docs" / "spark-reference.md") == 3


def test_the_example_with_two_clients_works(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The reader waits for the broker as one of its clients. The blocks name their keys themselves.
    monkeypatch.setenv("ZSQ_KEY_FILE", str(reader.folder / "publisher.key"))
    assert reader.walk(ROOT / "docs" / "security.md") == 6


def test_a_wrong_block_of_a_session_fails(reader: Reader, tmp_path: Path) -> None:
    block = "<!-- test: in one session -->\n```python\n{}\n```\n"
    page = tmp_path / "page.md"
    page.write_text(
        block.format("number = 7") + block.format("print(number)") + "```text\n7\n```\n"
    )
    assert reader.walk(page) == 3
    for wrong in ("print(unknown)", "assert number == 8", "raise SystemExit(0)", "def"):
        page.write_text(block.format(wrong))
        with pytest.raises(AssertionError, match=r"page\.md:2: it wrote"):
            reader.walk(page)
