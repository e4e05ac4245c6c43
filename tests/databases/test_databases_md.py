"""Test that each block of docs/databases.md runs, with a broker, SQLite and PostgreSQL."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
from support.broker import Broker
from support.databases import Postgres
from support.pages import ROOT, run_page

from zsq.outbox import Outbox

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def test_each_block_of_databases_md_runs(
    broker: Broker, postgres: Postgres, tmp_path: Path
) -> None:
    database = postgres.new()
    said = run_page("databases.md", tmp_path, ZSQ_URL=broker.ipc, DATABASE_URL=database.address)
    assert said == ["[(17, 5)]\n", "(12,)\n", "1 published\n", "", "1 published\n"]


def test_the_tables_for_other_databases_have_the_columns_of_the_others(postgres: Postgres) -> None:
    text = (ROOT / "docs" / "databases.md").read_text()
    shown = re.search(r"create table zsq_outbox \((.*?)index", text, re.DOTALL)
    assert shown is not None
    names = [re.split(r"\s+", one.strip())[0] for one in shown[1].strip().rstrip(",").split(",")]
    with contextlib.closing(postgres.new().connect()) as db:
        Outbox().create(db)
        cursor: Any = db.execute("select * from zsq_outbox")
        assert names == [one.name for one in cursor.description]
