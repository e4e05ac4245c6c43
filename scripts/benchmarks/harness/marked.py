"""Parts of a document that a benchmark writes: what stands between two comments that name it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click


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


def checked(path: Path, names: Sequence[str]) -> None:
    """Before minutes are spent: a document that has nowhere to put one of them is refused."""
    document = path.read_text()
    try:
        for name in names:
            replaced(document, name, "")
    except NoMarks as error:
        raise click.BadParameter(str(error), param_hint="--docs") from error
