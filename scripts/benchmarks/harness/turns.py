"""Parts of a long benchmark, run one after the other, with a time limit and progress output.

A part that fails does not affect the others.
"""

from __future__ import annotations

import contextlib
import datetime
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Generic, TypeVar

import click

from local_setup.broker import BrokerFailed
from zsq.transport.errors import ZsqError

from . import machine
from .crew import MemberFailed

FAILURES: Final = (
    BrokerFailed,
    MemberFailed,
    ZsqError,
    OSError,
    ValueError,
    AssertionError,
    subprocess.SubprocessError,
)
Result = TypeVar("Result")


@dataclass(slots=True)
class Turns(Generic[Result]):
    """The results of the measured parts, the reasons for missing ones, and the total minutes."""

    results: dict[str, Result] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    minutes: float = 0.0


def in_turn(parts: Mapping[str, Callable[[], Result]], seconds: float) -> Turns[Result]:
    """Run the parts in turn. No part begins after `seconds`."""
    turns: Turns[Result] = Turns()
    begin = time.monotonic()
    for name, part in parts.items():
        started = time.monotonic()
        if started - begin > seconds:
            turns.notes.append(f"{name}: left out; the time limit was reached")
            continue
        click.echo(f"{name} ...", err=True, nl=False)
        try:
            turns.results[name] = part()
        except Exception as error:
            if not isinstance(
                error, FAILURES
            ):  # a defect of the benchmark, not of what it measures
                click.echo(f"\n{traceback.format_exc()}", err=True, nl=False)
            turns.failed.append(f"{name}: {str(error).strip() or type(error).__name__}")
            turns.notes.append(f"{name}: could not be measured")
            click.echo(" failed,", err=True, nl=False)
        click.echo(f" {time.monotonic() - started:.0f} s", err=True)
    turns.minutes = (time.monotonic() - begin) / 60
    return turns


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that brokers and directories are removed in both cases.

    Then exit with code 1 and one line.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        sys.exit("bench: interrupted")
    finally:
        signal.signal(signal.SIGTERM, before)


def finish(failed: list[str]) -> None:
    """Exit with code 1 if a part could not be measured."""
    if failed:
        click.echo("bench: not measured: " + "; ".join(failed), err=True)
        sys.exit(1)


def about(command: str, folder: Path | None) -> dict[str, str]:
    """Return the command, the date and the machine, without the paths of directories and peers."""
    with tempfile.TemporaryDirectory(prefix="zsq-bench-", dir=folder) as place:
        found = machine.describe(Path(place))
    for peer in machine.PEERS:
        found.pop(peer)
    return {
        "command": f"`{command}`",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        **found,
    }


def command_line(
    name: str, only: tuple[str, ...], options: Mapping[str, object], defaults: Mapping[str, object]
) -> str:
    """Return the command that repeats the run, with the options that differ from the defaults."""
    words = [f"--only {part}" for part in only]
    words += [
        f"--{option} {value}" for option, value in options.items() if value != defaults[option]
    ]
    return " ".join([f"scripts/bench {name}", *words])
