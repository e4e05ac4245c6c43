"""Tests that the glossary has each term once, and that the places that it names exist."""

from __future__ import annotations

import re

from .walking import ROOT

TEXT = (ROOT / "docs" / "glossary.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.splitlines()
    if line.startswith("| ")
]


def test_each_term_stands_there_once() -> None:
    terms = [row[0] for row in ROWS if row[0] != "term"]
    assert len(terms) > 40
    assert sorted(terms) == sorted(set(terms))


def test_every_place_in_the_code_exists() -> None:
    cells = [row[2] for row in ROWS if len(row) > 2]
    places = [place for cell in cells for place in re.findall(r"`([a-zA-Z_./]+)`", cell)]
    assert len(places) > 15
    assert [place for place in places if not (ROOT / place).exists()] == []
