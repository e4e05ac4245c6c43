"""Tests that the glossary has each term once, and that the places that it names exist."""

from __future__ import annotations

import re

import zsq

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
    places = [place for row in ROWS for place in re.findall(r"`([a-zA-Z_./]+)`", row[2])]
    assert len(places) > 25
    for place in places:
        if place.startswith("zsq."):
            assert hasattr(zsq, place.removeprefix("zsq.")), place
        else:
            assert (ROOT / place).exists(), place
