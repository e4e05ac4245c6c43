"""Parts of a document that a benchmark writes, each between two comments with its name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click


class NoMarks(ValueError):
    """The document does not have exactly one pair of the marks, in order."""


def marks(name: str) -> tuple[str, str]:
    return f"<!-- bench {name}: begin -->", f"<!-- bench {name}: end -->"


def replaced(document: str, name: str, text: str) -> str:
    """Return the document with `text` between the marks."""
    begin, end = marks(name)
    if (
        document.count(begin) != 1
        or document.count(end) != 1
        or document.index(begin) > document.index(end)
    ):
        raise NoMarks(f"the file must have one {begin}, followed by one {end}")
    before, _, rest = document.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{text.strip()}\n{end}{after}"


def between(document: str, name: str) -> str:
    begin, end = marks(name)
    return document.partition(begin)[2].partition(end)[0].strip()


def checked(path: Path, names: Sequence[str]) -> None:
    """Refuse a document without one of the marks, before the measurements take minutes."""
    document = path.read_text()
    try:
        for name in names:
            replaced(document, name, "")
    except NoMarks as error:
        raise click.BadParameter(str(error), param_hint="--docs") from error
