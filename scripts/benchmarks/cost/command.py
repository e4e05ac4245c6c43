"""`bench scaling`: runs the sweeps in turn, draws them, and writes them into the documentation."""

from __future__ import annotations

import functools
import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..harness.marked import checked, replaced
from ..harness.turns import about, command_line, finish, in_turn, interruptible
from . import piles, sweeps
from .plot import Plot, markdown, short
from .sweeps import Load

SWEEPS: Final[dict[str, Callable[[Load], list[Plot]]]] = {
    "size": sweeps.sizes,
    "block": sweeps.blocks,
    "channels": sweeps.channels,
    "consumers": sweeps.consumers,
    "producers": sweeps.producers,
    "topics": sweeps.topics,
    "backlog": piles.backlog,
    "delayed": piles.delayed,
    "sync": sweeps.syncs,
}
MARK: Final = "scaling"
DEFAULTS: Final[dict[str, Any]] = {
    "rounds": 1,
    "scale": 1.0,
    "waiting": 10_000_000,
    "delayed": 1_000_000,
}
PICTURES: Final = "pictures"


def mark(name: str) -> str:
    """Return a sweep's mark. Each sweep has one, so that it can be measured again alone."""
    return f"{MARK} {name}"


@click.command("scaling")
@click.option(
    "--only",
    type=click.Choice(list(SWEEPS)),
    multiple=True,
    help="Only this sweep. Repeatable.",
)
@click.option("--rounds", type=click.IntRange(1, 50), default=DEFAULTS["rounds"])
@click.option(
    "--scale",
    type=click.FloatRange(0.001, 10),
    default=DEFAULTS["scale"],
    help="Seconds of the load at each point.",
)
@click.option(
    "--waiting",
    type=click.IntRange(20_000, 1_000_000_000),
    default=DEFAULTS["waiting"],
    help="Largest number of messages of the backlog.",
)
@click.option(
    "--delayed",
    type=click.IntRange(20_000, 100_000_000),
    default=DEFAULTS["delayed"],
    help="Largest number of delayed messages.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(0.1, 600),
    default=15.0,
    help="Seconds after which no further part begins.",
)
@click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory in which data directories are made.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table.")
@click.option(
    "--pictures",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Write the plots (SVG) to this directory.",
)
@click.option(
    "--docs",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=(
        "Put pictures and figures into this document, between its marks; the pictures into "
        f"{PICTURES}/ beside it."
    ),
)
def scaling(
    only: tuple[str, ...],
    minutes: float,
    folder: Path | None,
    as_json: bool,
    pictures: Path | None,
    docs: Path | None,
    **options: Any,
) -> None:
    """Measure how costs grow with sizes, blocks, channels, consumers, producers, topics, waiting
    and delayed messages, and slower syncs.
    """
    names = [name for name in SWEEPS if not only or name in only]
    if docs is not None:
        checked(docs, [MARK, *map(mark, names)])
    if (docs is not None or pictures is not None) and importlib.util.find_spec(
        "matplotlib"
    ) is None:
        raise click.UsageError(
            "--docs and --pictures need matplotlib, which is not installed: pip install -e "
            "'.[bench]'"
        )
    with interruptible():
        told = about(command_line("scaling", only, options, DEFAULTS), folder)
        load = Load(folder=folder, **options)
        turns = in_turn(
            {name: functools.partial(SWEEPS[name], load) for name in names}, minutes * 60
        )
    told["took"] = f"{turns.minutes:.1f} minutes"
    if pictures is not None:
        draw(turns.results, pictures)
    if docs is not None:
        document(docs, turns.results, told)
    if as_json:
        plots = [plot.as_dict() for found in turns.results.values() for plot in found]
        click.echo(
            json.dumps(
                {
                    "benchmark": "scaling",
                    "about": told,
                    "plots": plots,
                    "notes": turns.notes,
                    "failed": turns.failed,
                },
                indent=2,
            )
        )
    else:
        _show(told, turns.results, turns.notes)
    finish(turns.failed)


def draw(results: dict[str, list[Plot]], folder: Path) -> None:
    from .drawing import drawing  # it needs matplotlib, which is an extra

    for plots in results.values():
        for plot in plots:
            (folder / plot.file).write_text(drawing(plot))


def document(docs: Path, results: dict[str, list[Plot]], told: dict[str, str]) -> None:
    """Replace the measured sweeps in the document.

    The other sweeps keep their pictures and numbers, which may come from another machine.
    """
    (docs.parent / PICTURES).mkdir(exist_ok=True)
    draw(results, docs.parent / PICTURES)
    text = replaced(
        docs.read_text(), MARK, "\n".join(f"- {name}: {value}" for name, value in told.items())
    )
    for name, plots in results.items():
        text = replaced(text, mark(name), markdown(plots, PICTURES))
    docs.write_text(text)


def _show(told: dict[str, str], results: dict[str, list[Plot]], notes: list[str]) -> None:
    console = Console() if sys.stdout.isatty() else Console(width=170)
    for name, value in told.items():
        console.print(Text(f"{name}: {value}", style="dim"))
    for plots in results.values():
        for plot in plots:
            table = Table(
                plot.x.label,
                title=f"{plot.title}: {plot.y.label}",
                title_justify="left",
                box=box.SIMPLE_HEAD,
            )
            for name in plot.curves:
                table.add_column(name, justify="right")
            for x in sorted({x for curve in plot.curves.values() for x in curve.values}):
                medians = [dict(curve.points).get(x) for curve in plot.curves.values()]
                table.add_row(
                    short(x), *("" if value is None else short(value) for value in medians)
                )
            console.print(table)
    for note in notes:
        console.print(Text(note))
