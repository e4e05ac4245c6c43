"""Output of commands. `--json` prints JSON on stdout, while notes for users stay on stderr.

A single answer is one object over several lines. A list that may be long or endless has one object
per line (JSON lines).

The first columns of a table are names (topic, channel, consumer), with at least `NAME_MIN`
characters each. If a terminal is too narrow for all columns, numbers are rounded, some columns are
left out, and the others continue in a second table with the same names.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from ...actors.runtime.logs import escaped

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Command = TypeVar("Command", bound=Callable[..., Any])

NAME_MIN: Final = 20
# The largest width of a text column that is not a name; longer texts are wrapped.
TEXT_MAX: Final = 40
# The width if stdout is not a terminal: a table cut to 80 columns is of no use in a file.
FILE_COLUMNS: Final = 160
GAP: Final = 2


def json_option(command: Command) -> Command:
    """Add `--json` for an answer that is one object. The command takes `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(command)


def json_lines_option(command: Command) -> Command:
    """Add `--json` for a list. The command takes `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")(
        command
    )


def tell(answer: Any) -> None:
    """Print one answer as JSON."""
    click.echo(json.dumps(answer, indent=2, default=str))


def tell_line(row: Any) -> None:
    """Print one object of a list as JSON."""
    click.echo(json.dumps(row, default=str))


def say(text: str, *, err: bool = False) -> None:
    """Print lines for users, with control characters escaped: they may come from messages."""
    click.echo(escaped(text, keep="\n"), err=err)


def say_prose(text: str, indent: int = 2) -> None:
    """Print lines for users. A terminal gets no line that it would break within a word."""
    say(folded(text, columns_of_text(), indent))


def say_facts(text: str) -> None:
    """Print lines that begin with a label of ten characters, as `describe` makes them."""
    say_prose(text, 11)


def columns_of_text() -> int:
    """Return the width that lines must not exceed, or 0: a file, or `grep`, gets whole lines."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() or _columns_set() else 0


def _columns_set() -> int:
    width = os.environ.get("COLUMNS", "")
    return int(width) if width.isdecimal() else 0


def folded(text: str, columns: int, indent: int = 2) -> str:
    """Return lines that are broken between words, with what continues one indented. Pure."""
    if not columns:
        return text
    lines = (
        textwrap.wrap(
            line,
            columns,
            subsequent_indent=" " * indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in text.split("\n")
    )
    return "\n".join("\n".join(parts) for parts in lines)


def body_for(out: IO[bytes]) -> Callable[[bytes], bytes]:
    """Return the function that prepares a message's body for `out`.

    A file gets the body unchanged. For a terminal, control characters are escaped.
    """
    return shown_body if out.isatty() else bytes


def shown_body(body: bytes) -> bytes:
    """Return a body as text that is safe for a terminal. Tabs and line ends stay."""
    return escaped(body.decode(errors="backslashreplace"), keep="\t\n").encode()


def wide_console(columns: int = FILE_COLUMNS) -> Console:
    """Return the console on stdout.

    If stdout is not a terminal, the width is that of the environment variable COLUMNS, else
    `columns`.
    """
    from rich.console import Console

    console = Console()
    return console if console.is_terminal or _columns_set() else Console(width=columns)


class Heading(NamedTuple):
    """A column's title. `is_text` columns are aligned left, numbers right.

    A column that `is_optional` is left out where the columns do not fit side by side.
    """

    title: str
    is_text: bool = False
    is_optional: bool = False


class Figure(NamedTuple):
    """A number in a cell: exactly, and rounded for a terminal that is too narrow for that."""

    exact: str
    rounded: str


UNITS: Final = ("", "k", "M", "G", "T")
EXACT_BELOW: Final = 10_000


def figure(value: int, unit: str = "") -> Figure:
    """Return a number with its unit, such as "1,234,567 B" and "1.23 MB"."""
    gap = " " if unit else ""
    exact = f"{value:,}{gap}{unit}"
    if abs(value) < EXACT_BELOW:
        return Figure(exact, exact)
    number, prefix = float(value), 0
    while abs(number) >= 999.5 and prefix < len(UNITS) - 1:
        number, prefix = number / 1000, prefix + 1
    digits = 2 if abs(number) < 9.995 else 1 if abs(number) < 99.95 else 0
    return Figure(exact, f"{number:,.{digits}f}{gap}{UNITS[prefix]}{unit}")


class Layout(NamedTuple):
    """The layout of a table: its cells, the width of the names, and the columns of each page."""

    is_rounded: bool
    left_out: tuple[str, ...]
    names: list[int]
    pages: list[list[ColumnPlace]]


class Grid:
    """A table for any width. The first columns are names.

    The other columns stand side by side. If they do not fit, numbers are rounded, and optional
    columns are left out, which the title says. If that is not enough, the rest continue below.
    """

    def __init__(self, title: str, names: Sequence[str], others: Sequence[str | Heading]) -> None:
        self._title = escaped(title)
        self._names = tuple(names)
        self._others = tuple(
            heading if isinstance(heading, Heading) else Heading(heading) for heading in others
        )
        self._rows: list[tuple[Figure, ...]] = []

    def add(self, *cells: str | Figure) -> None:
        """Add a row: the cells of the name columns, then all others."""
        assert len(cells) == len(self._names) + len(self._others)
        figures = (cell if isinstance(cell, Figure) else Figure(cell, cell) for cell in cells)
        self._rows.append(tuple(Figure(*map(escaped, cell)) for cell in figures))

    def tables(self, width: int) -> Iterator[Table]:
        """Yield one table, or several with the same names, for a terminal of `width` columns.

        Yield none if there are no rows.
        """
        if not self._rows:
            return
        layouts = (
            self._layout(width, is_rounded=is_rounded, has_optional=has_optional)
            for is_rounded, has_optional in ((False, True), (True, True), (True, False))
        )
        layout = min(layouts, key=lambda one: len(one.pages))  # the first of equal ones
        title = f"{self._title}, rounded" if layout.is_rounded else self._title
        if layout.left_out:
            title += f", without {', '.join(layout.left_out)}"
        for number, page in enumerate(layout.pages):
            yield self._table(
                f"{title} ({number + 1} of {len(layout.pages)})"
                if len(layout.pages) > 1
                else title,
                layout,
                page,
            )

    def _layout(self, width: int, *, is_rounded: bool, has_optional: bool) -> Layout:
        shown = [
            at for at, heading in enumerate(self._others) if has_optional or not heading.is_optional
        ]
        first = len(self._names)
        names, pages = laid_out(
            width,
            [self._wide(at, is_rounded) for at in range(first)],
            [
                min(self._wide(first + at, is_rounded), TEXT_MAX)
                if self._others[at].is_text
                else self._wide(first + at, is_rounded)
                for at in shown
            ],
        )
        left_out = [heading.title for at, heading in enumerate(self._others) if at not in shown]
        return Layout(
            is_rounded and any(cell.exact != cell.rounded for row in self._rows for cell in row),
            tuple(left_out),
            names,
            [[ColumnPlace(shown[place.at], place.width) for place in page] for page in pages],
        )

    def _wide(self, at: int, is_rounded: bool) -> int:
        from rich.cells import cell_len

        titles = (*self._names, *(heading.title for heading in self._others))
        return max(
            cell_len(text) for text in (titles[at], *(row[at][is_rounded] for row in self._rows))
        )

    def _table(self, title: str, layout: Layout, page: Sequence[ColumnPlace]) -> Table:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(
            title=Text(title),
            title_justify="left",
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            show_edge=False,
        )
        for name, width in zip(self._names, layout.names, strict=True):
            table.add_column(name, width=width, overflow="fold")
        for at, width in page:
            heading = self._others[at]
            table.add_column(
                heading.title,
                width=width,
                justify="left" if heading.is_text else "right",
                overflow="fold",
            )
        first = len(layout.names)
        for row in self._rows:
            cells = (*row[:first], *(row[first + at] for at, _ in page))
            table.add_row(*(Text(cell[layout.is_rounded]) for cell in cells))
        return table


class ColumnPlace(NamedTuple):
    """A column's place on a page: its index among the columns other than names, and its width."""

    at: int
    width: int


def laid_out(
    width: int, names: Sequence[int], others: Sequence[int]
) -> tuple[list[int], list[list[ColumnPlace]]]:
    """Return the widths of the name columns, and the other columns of each page. Pure.

    `names` and `others` are the widths of their longest cells. Names get the width they need if
    that leaves half of the terminal for the other columns. Otherwise they are cut to an equal share
    of one half, or to `NAME_MIN` where that saves a page. Width that no page uses goes back to the
    names.
    """
    share = max(NAME_MIN, (width // 2) // max(1, len(names)) - GAP)
    widths, room, pages = min(
        (_paged(width, names, others, name_max) for name_max in (share, NAME_MIN)),
        key=lambda layout: len(layout[2]),  # the first of equal ones
    )
    spare = max(0, room - max(sum(place.width + GAP for place in page) for page in pages))
    for at, wish in enumerate(names):
        more = min(wish - widths[at], spare)
        widths[at] += more
        spare -= more
    return widths, pages


def _paged(
    width: int, names: Sequence[int], others: Sequence[int], name_max: int
) -> tuple[list[int], int, list[list[ColumnPlace]]]:
    """Return the widths of the names, what is left beside them, and the pages."""
    widths = [min(wish, name_max) for wish in names]
    room = width - sum(wish + GAP for wish in widths) + 1
    pages: list[list[ColumnPlace]] = [[]]
    left = room
    for at, wanted in enumerate(others):
        taken = min(wanted, max(1, room - GAP))
        if pages[-1] and taken + GAP > left:
            pages.append([])
            left = room
        pages[-1].append(ColumnPlace(at, taken))
        left -= taken + GAP
    return widths, room, pages
