"""Options of `zsq serve`: who may come in. What they name are files, so that no secret is on a command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from ...actors.security_options import SecurityOptions

Command = TypeVar("Command", bound=Callable[..., Any])


def with_security(command: Command) -> Command:
    file: dict[str, Any] = {"metavar": "FILE", "type": click.Path(exists=True, dir_okay=False, path_type=Path)}
    rows: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("--insecure", {"is_flag": True}, "Listen beyond this machine although anybody who gets there may do anything."),
        (
            "--curve-key",
            file,
            "The broker's key pair for ZeroMQ clients, from `zsq keys server`: they must have keys, and all is encrypted.",
        ),
        ("--access", file, "Who may do what, by key or token: one TOML file for ZeroMQ, NSQ and HTTP (docs/security.md)."),
    )
    for name, more, text in rows:
        command = click.option(name, help=text, **more)(command)
    return command


def given_security(options: Mapping[str, Any]) -> SecurityOptions:
    """What was said, checked: files that cannot be used shall be known before the broker starts. Needs `no_listen` too."""
    from ...actors.access import Access, AccessError
    from ...actors.doors import Doors, check
    from ...actors.security_options import SecurityOptions

    access, key = ("" if options[name] is None else str(options[name].absolute()) for name in ("access", "curve_key"))
    found = SecurityOptions(access, key, bool(options["insecure"]))
    try:
        if not options["no_listen"]:
            Doors(found)
        elif access:
            Access.load(access)
        if key and not access:
            check(found, None)
    except AccessError as error:
        raise click.UsageError(str(error)) from None
    return found
