"""Tests that the tables of settings in docs/channel-reference.md and docs/retention.md agree with
the code.

Run this file to write them again: python tests/docs/test_settings_tables.py
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest

from zsq.transport.durations import spelled
from zsq.transport.settings import CHANNEL, TOPIC, Kind, Setting

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
TABLES: Final = {"channel-reference.md": CHANNEL, "retention.md": TOPIC}
HEAD: Final = "| setting | option | default | meaning |\n|---|---|---|---|\n"
TABLE: Final = re.compile(re.escape(HEAD) + r"(?:\|.*\n)+")


def drawn(rows: tuple[Setting, ...]) -> str:
    return HEAD + "".join(
        _line(f"`{row.name}`", f"`{row.option}`", _default(row), row.help) for row in rows
    )


def _line(*cells: str) -> str:
    escaped = [cell.replace("|", r"\|") for cell in cells]
    return f"| {' | '.join(escaped)} |\n"


def _default(row: Setting) -> str:
    value: Any = row.default
    if value is None:
        return "as set for the broker"
    if row.none_label and value in (row.no_bound, "", False):
        return (
            row.none_label
            if row.kind in (Kind.TEXT, Kind.TOPIC, Kind.FLAG)
            else f"{value}: {row.none_label}"
        )
    if row.kind is Kind.SECONDS:
        return spelled(value)
    return f"{value >> 20} MiB" if row.kind is Kind.BYTES else f"`{value}`"


@pytest.mark.parametrize("name", TABLES)
def test_the_table_is_current(name: str) -> None:
    assert TABLE.findall((DOCS / name).read_text()) == [drawn(TABLES[name])], "run this file"


if __name__ == "__main__":
    for one, of in TABLES.items():
        path = DOCS / one
        before = path.read_text()
        path.write_text(before.replace(TABLE.findall(before)[0], drawn(of)))
