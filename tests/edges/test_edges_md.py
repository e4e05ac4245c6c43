"""Tests that the tables in docs/edges.md are those that the programs are compared with.

Run this file to write them again: python -m tests.edges.test_edges_md
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from .broker_events import EVENT_TABLE
from .handlers import HANDLER_TABLE
from .outcomes import TABLES
from .servers import SERVER_TABLE

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "edges.md"
# The first table of the page is about something else.
TABLE: Final = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)


def test_the_tables_are_current() -> None:
    assert TABLE.findall(PAGE.read_text())[1:] == [
        *TABLES,
        EVENT_TABLE,
        HANDLER_TABLE,
        SERVER_TABLE,
    ], "run this file"


if __name__ == "__main__":
    text = PAGE.read_text()
    first, *_ = TABLE.findall(text)
    tables = iter((first, *TABLES, EVENT_TABLE, HANDLER_TABLE, SERVER_TABLE))
    PAGE.write_text(TABLE.sub(lambda found: next(tables), text))
