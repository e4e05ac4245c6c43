"""`bench all`: every group in turn, a table for people, JSON for machines, Markdown for the documentation."""

from __future__ import annotations

import dataclasses
import datetime
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ....transport.errors import ZsqError
from ...broker import BrokerFailed
from .. import machine
from ..crew import MemberFailed
from ..marked import replaced
from ..redis import RedisFailed
from ..report import Report
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
    "channel": costs.channel,
    "backlog": costs.backlog,
    "spark": costs.spark,
    "nsq": rates.nsq,
    "console": costs.console,
    "startup": waits.startup,
}
FAILURES: Final = (BrokerFailed, MemberFailed, RedisFailed, ZsqError, OSError, ValueError, AssertionError, subprocess.SubprocessError)
MARK: Final = "all"
STYLES: Final = {Verdict.MET: "green", Verdict.UNMET: "bold red", Verdict.NOT_COMPARED: "dim"}


@dataclasses.dataclass(slots=True)
class Outcome:
    """Of all groups that were asked for."""

    about: dict[str, str]
    lines: list[Line] = dataclasses.field(default_factory=list)
    reports: dict[str, Report] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    failed: list[str] = dataclasses.field(default_factory=list)

    def as_json(self) -> str:
        groups = {name: json.loads(report.as_json()) for name, report in self.reports.items()}
        rows = [line.as_dict() for line in self.lines]
        return json.dumps(
            {"benchmark": "all", "about": self.about, "rows": rows, "notes": self.notes, "failed": self.failed, "groups": groups}, indent=2
        )

    def as_markdown(self) -> str:
        return markdown(self.lines, self.about, self.notes)


@click.command("all")
@click.option("--only", type=click.Choice(list(GROUPS)), multiple=True, help="Only these groups of rows; may be said again.")
@click.option("--rounds", type=click.IntRange(1, 50), default=3)
@click.option("--scale", type=click.FloatRange(0.001, 10), default=1.0, help="Of all loads; the budgets are for 1.")
@click.option(
    "--waiting",
    type=click.IntRange(100_000, 1_000_000_000),
    default=10_000_000,
    help="Messages of the backlog; the budget is for 100 million.",
)
@click.option(
    "--minutes", type=click.FloatRange(0.1, 600), default=15.0, help="What has not begun by then is left out, and the table says so."
)
@click.option("--folder", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Where data directories are made.")
@click.option("--json", "as_json", is_flag=True, help="JSON in place of the table.")
@click.option("--markdown", "markdown_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the table there as Markdown.")
@click.option("--docs", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Put it into this document, between its marks.")
def every(only: tuple[str, ...], minutes: float, as_json: bool, markdown_file: Path | None, docs: Path | None, **options: Any) -> None:
    """Every budget of the design, with its ratio: medians of interleaved rounds, beside the machine's limits and the peers on PATH.

    A budget that is not met is a finding, not a failure: the exit code is 1 only where something could not be measured.
    """
    if docs is not None:
        _checked(docs)
    work = Work(options["folder"], options["rounds"], options["scale"], options["waiting"])
    names = [name for name in GROUPS if not only or name in only]
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it cleans up as on Ctrl-C
    try:
        outcome = measured(names, work, minutes * 60, _about(only, work))
    except KeyboardInterrupt:
        sys.exit("bench: interrupted")
    finally:
        signal.signal(signal.SIGTERM, before)
    if markdown_file is not None:
        markdown_file.write_text(outcome.as_markdown())
    if docs is not None:
        docs.write_text(replaced(docs.read_text(), MARK, outcome.as_markdown()))
    click.echo(outcome.as_json()) if as_json else _show(outcome)
    if outcome.failed:
        click.echo("bench: not measured: " + "; ".join(outcome.failed), err=True)
        sys.exit(1)


def measured(names: Sequence[str], work: Work, seconds: float, about: dict[str, str]) -> Outcome:
    """The groups, one after the other; one that fails does not take the others with it."""
    outcome = Outcome(about)
    begin = time.monotonic()
    for name in names:
        if time.monotonic() - begin > seconds:
            outcome.notes.append(f"{name}: left out, the time was over")
            continue
        started = time.monotonic()
        click.echo(f"{name} ...", err=True, nl=False)
        try:
            found = GROUPS[name](work)
        except FAILURES as error:
            outcome.failed.append(f"{name}: {str(error).strip() or type(error).__name__}")
            outcome.notes.append(f"{name}: could not be measured")
            click.echo(f" failed after {time.monotonic() - started:.0f} s", err=True)
            continue
        outcome.lines += found.lines.found
        outcome.reports[name] = found.report
        click.echo(f" {time.monotonic() - started:.0f} s", err=True)
    outcome.about["took"] = f"{(time.monotonic() - begin) / 60:.1f} minutes"
    return outcome


def _checked(docs: Path) -> None:
    """Before minutes are spent: a document that has nowhere to put it is refused."""
    try:
        replaced(docs.read_text(), MARK, "")
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--docs") from error


def command_line(only: Sequence[str], work: Work) -> str:
    """What would do it again; where the data directories are is nobody's business."""
    default = Work(None, 3)
    words = [f"--only {name}" for name in only]
    words += [f"--{name} {getattr(work, name)}" for name in ("rounds", "scale", "waiting") if getattr(work, name) != getattr(default, name)]
    return " ".join(["scripts/bench all", *words])


def _about(only: Sequence[str], work: Work) -> dict[str, str]:
    with tempfile.TemporaryDirectory(prefix="zsq-bench-", dir=work.folder) as folder:
        found = machine.describe(Path(folder))
    peers = {name: "not on PATH" if found.pop(name) == "not found" else "compared" for name in machine.PEERS}
    if peers["nats-server"] == "compared":
        peers["nats-server"] = "here, but no budget names it"
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    rounds = f"{work.rounds}, interleaved; a figure is their median, in brackets the least and the most"
    return {
        "command": f"`{command_line(only, work)}`",
        "date": today,
        **found,
        **peers,
        "durability": "always, answered after fdatasync",
        "rounds": rounds,
    }


def _show(outcome: Outcome) -> None:
    console = Console() if sys.stdout.isatty() else Console(width=170)
    for name, value in outcome.about.items():
        console.print(Text(f"{name}: {value}", style="dim"))
    table = Table("", "measured", "budget", "", box=box.SIMPLE_HEAD)
    group = ""
    for line in outcome.lines:
        if line.group != group:
            group = line.group
            table.add_row(Text(group, style="bold"))
        table.add_row(
            Text(f"  {line.what}"), Text(line.measured), Text(line.budget), Text(str(line.verdict), style=STYLES.get(line.verdict, ""))
        )
    console.print(table)
    for note in (tally(outcome.lines), *outcome.notes):
        console.print(Text(note))
