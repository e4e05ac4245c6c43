"""Page of all commands, made from click: usage, help, arguments and options of each."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Final

import click

from zsq.apps.cli.app import app

HEAD: Final = """# Commands

This page is generated from the command line itself: each text is what `zsq COMMAND --help` prints.
[The command line](command-line.md) has the rules that all commands keep: where the broker is, exit codes, and `--json`.
"""


def commands_page() -> str:
    """Return the page as Markdown."""
    lines = [HEAD, *_options(app, click.Context(app, info_name="zsq"))]
    for title, section in app.sections.items():
        lines += [f"## {title}", ""]
        for name in section:
            lines += _command(name, app, click.Context(app, info_name="zsq"), 3)
    return "\n".join(lines)


def _command(name: str, group: click.Group, above: click.Context, level: int) -> Iterator[str]:
    command = group.get_command(above, name)
    assert command is not None, name
    context = click.Context(command, info_name=name, parent=above)
    yield from (f"{'#' * level} {context.command_path}", "")
    yield from ("```text", command.get_usage(context).removeprefix("Usage: "), "```", "")
    yield from (_help(command), "")
    yield from _options(command, context)
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            yield from _command(inner, command, context, level + 1)


def _help(command: click.Command) -> str:
    """Return the help as Markdown.

    A paragraph that click prints unchanged (after `\\b`) becomes a block of text.
    """
    parts = []
    for paragraph in inspect.cleandoc(command.help or "").split("\f")[0].split("\n\n"):
        first, _, rest = paragraph.partition("\n")
        parts.append(
            f"```text\n{rest}\n```" if first == "\b" else _plain(" ".join(paragraph.split()))
        )
    return "\n\n".join(parts)


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    rows = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            rows.append(f"| `{_cell(record[0])}` | {_cell(_plain(record[1]))} |")
    if rows:
        yield from ("| option | meaning |", "|---|---|", *rows, "")


def _plain(text: str) -> str:
    """Return the text with the special characters of Markdown escaped, except in code spans."""
    pieces = text.split("`")
    pieces[::2] = [
        piece.replace("<", "&lt;").replace("*", r"\*").replace("_", r"\_").replace("[", r"\[")
        for piece in pieces[::2]
    ]
    return "`".join(pieces)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")
