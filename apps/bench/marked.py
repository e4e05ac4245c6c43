"""Parts of a document that a benchmark writes: what stands between two comments that name it; pure."""

from __future__ import annotations


class NoMarks(ValueError):
    """The document has not exactly one pair of the marks, in order."""


def marks(name: str) -> tuple[str, str]:
    return f"<!-- bench {name}: begin -->", f"<!-- bench {name}: end -->"


def replaced(document: str, name: str, text: str) -> str:
    """The document with `text` between the marks in place of what was there."""
    begin, end = marks(name)
    if document.count(begin) != 1 or document.count(end) != 1 or document.index(begin) > document.index(end):
        raise NoMarks(f"it needs one {begin} and one {end} behind it")
    before, _, rest = document.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{text.strip()}\n{end}{after}"


def between(document: str, name: str) -> str:
    begin, end = marks(name)
    return document.partition(begin)[2].partition(end)[0].strip()
