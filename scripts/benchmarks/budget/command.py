"""`bench all`: runs all groups in turn and writes a table, JSON, or Markdown for the docs."""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..harness import machine
from ..harness.marked import checked, replaced
from ..harness.report import Report
from ..harness.turns import about, command_line, finish, in_turn, interruptible
from . import costs, rates, waits
from .lines import Line, Verdict, markdown, tally
from .work import Found, Work

GROUPS: Final[dict[str, Callable[[Work], Found]]] = {
    "e2e": rates.e2e,
    "e2e-200": rates.e2e_200,
    "publish": rates.publish,
    "single": rates.singly,
    "storage": rates.kilobytes,
    "fanout": rates.fanout,
    "latency": waits.latency,
    "clients": rates.clients,
    "sync": waits.syncs,
    "topics": costs.topics,
    "channel": costs.channel,
    "backlog": costs.backlog,
    "spark": costs.spark,
    "nsq": rates.nsq,
    "console": costs.console,
    "startup": waits.startup,
    "thousand": costs.thousand,
}
MARK: Final = "all"
DEFAULTS: Final[dict[str, Any]] = {"rounds": 3, "scale": 1.0, "waiting": 10_000_000}
STYLES: Final = {Verdict.MET: "green", Verdict.UNMET: "bold red", Verdict.NOT_COMPARED: "dim"}
NO_BUDGET_NAMES: Final = "nats-server"


@dataclasses.dataclass(slots=True)
class Outcome:
    """The result of all selected groups."""

    about: dict[str, str]
    lines: list[Line]
    reports: dict[str, Report]
    notes: list[str]
    failed: list[str]

    def as_json(self) -> str:
        groups = {name: json.loads(report.as_json()) for name, report in self.reports.items()}
        rows = [line.as_dict() for line in self.lines]
        whole = {
            "benchmark": "all",
            "about": self.about,
            "rows": rows,
            "notes": self.notes,
            "failed": self.failed,
            "groups": groups,
        }
        return json.dumps(whole, indent=2)

    def as_markdown(self) -> str:
        return markdown(self.lines, self.about, self.notes)


def measured(names: list[str], work: Work, seconds: float, about: dict[str, str]) -> Outcome:
    turns = in_turn({name: functools.partial(GROUPS[name], work) for name in names}, seconds)
    lines = [line for found in turns.results.values() for line in found.lines.found]
    reports = {name: found.report for name, found in turns.results.items()}
    return Outcome(
        about | {"took": f"{turns.minutes:.1f} minutes"}, lines, reports, turns.notes, turns.failed
    )


@click.command("all")
@click.option(
    "--only",
    type=click.Choice(list(GROUPS)),
    multiple=True,
    help="Only this group of rows. Repeatable.",
)
@click.option("--rounds", type=click.IntRange(1, 50), default=DEFAULTS["rounds"])
@click.option(
    "--scale",
    type=click.FloatRange(0.001, 10),
    default=DEFAULTS["scale"],
    help="Factor for all loads; the budgets are for 1.",
)
@click.option(
    "--waiting",
    type=click.IntRange(100_000, 1_000_000_000),
    default=DEFAULTS["waiting"],
    help="Messages of the backlog; the budget is for 100 million.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(0.1, 600),
    default=30.0,
    help="Minutes after which no further part begins. The table says what was left out.",
)
@click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory in which data directories are made.",
)
@click.option("--details", is_flag=True, help="Print all measures of each group behind the table.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table.")
@click.option(
    "--markdown",
    "markdown_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the table to this file as Markdown.",
)
@click.option(
    "--docs",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Put the table into this document, between its marks.",
)
def every(
    only: tuple[str, ...],
    minutes: float,
    folder: Path | None,
    details: bool,
    as_json: bool,
    markdown_file: Path | None,
    docs: Path | None,
    **options: Any,
) -> None:
    """Measure every budget of the design, beside the machine's limits and the peers on PATH. Values
    are medians of interleaved rounds.

    A budget that is not met is a finding, not a failure: the exit code is 1 only where something
    could not be measured.
    """
    if docs is not None:
        checked(docs, [MARK])
    names = [name for name in GROUPS if not only or name in only]
    with interruptible():
        told = (
            about(command_line("all", only, options, DEFAULTS), folder)
            | _peers()
            | _how(options["rounds"])
        )
        outcome = measured(names, Work(folder=folder, **options), minutes * 60, told)
    if markdown_file is not None:
        markdown_file.write_text(outcome.as_markdown())
    if docs is not None:
        docs.write_text(replaced(docs.read_text(), MARK, outcome.as_markdown()))
    if as_json:
        click.echo(outcome.as_json())
    else:
        _show(outcome, details=details)
    finish(outcome.failed)


def _peers() -> dict[str, str]:
    here = "found, but no budget names it"
    found = {
        peer: "compared" if shutil.which(peer) else "not on PATH: not compared"
        for peer in machine.PEERS
    }
    return found | ({NO_BUDGET_NAMES: here} if found[NO_BUDGET_NAMES] == "compared" else {})


def _how(rounds: int) -> dict[str, str]:
    text = f"{rounds}, interleaved; a figure is their median, in brackets the least and the most"
    return {"durability": "always: answered after fdatasync", "rounds": text}


def _show(outcome: Outcome, *, details: bool) -> None:
    console = Console() if sys.stdout.isatty() else Console(width=170)
    for name, value in outcome.about.items():
        console.print(Text(f"{name}: {value}", style="dim"))
    table = Table("", "measured", "budget", "", box=box.SIMPLE_HEAD)
    group = ""
    for line in outcome.lines:
        if line.group != group:
            group = line.group
            table.add_row(Text(group, style="bold"))
        verdict = Text(str(line.verdict), style=STYLES.get(line.verdict, ""))
        table.add_row(Text(f"  {line.what}"), Text(line.measured), Text(line.budget), verdict)
    console.print(table)
    for note in (tally(outcome.lines), *outcome.notes):
        console.print(Text(note))
    for report in outcome.reports.values() if details else ():
        report.show(console)
