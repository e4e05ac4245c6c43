"""What commands print for programs. One convention: `--json` makes it JSON on stdout, notes for people stay on stderr.

One object of several lines for one answer; one object a line (JSON lines) where it is a list that may be long or has no end.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def json_option(command: Command) -> Command:
    """`--json`, for an answer that is one object; the command takes `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="As one JSON object.")(command)


def json_lines_option(command: Command) -> Command:
    """`--json`, for a list; the command takes `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")(command)


def tell(found: Any) -> None:
    """One answer."""
    click.echo(json.dumps(found, indent=2, default=str))


def tell_line(found: Any) -> None:
    """One of a list."""
    click.echo(json.dumps(found, default=str))
