"""Test that each block of docs/dataframes.md runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.broker import Broker
from support.pages import ROOT, run_page

from zsq.apps.export import Span, files_of
from zsq.transport.arrow.batches import COLUMNS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def test_each_block_of_dataframes_md_runs(broker: Broker, tmp_path: Path) -> None:
    said = run_page("dataframes.md", tmp_path, ZSQ_URL=broker.ipc)
    assert "2 ['offset', 'timestamp', 'key', 'tag', 'value', 'headers']" in said[0]
    assert all("7" in one for one in said[1:4])
    assert "2 messages" in said[4]
    assert said[-1] == "2 rows\n0 rows the second time\n0 2\n"
    assert (tmp_path / "clicks.parquet").is_file()
    assert [*files_of(tmp_path / "archive", "clicks")] == [Span(0, 2)]


def test_dataframes_md_lists_all_columns() -> None:
    text = (ROOT / "docs" / "dataframes.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \| ", text, re.MULTILINE)) == set(COLUMNS)
