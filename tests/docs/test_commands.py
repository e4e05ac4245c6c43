"""Tests that every `zsq` command in the documentation exists, with the options that it shows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from zsq.apps.cli.app import app

from .walking import ROOT

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
_LINE = re.compile(r"^(?:    |\$ )?(?:.*[|&;(] *)?(zsq [a-z].*)$", re.MULTILINE)
_INLINE = re.compile(r"`(zsq [a-z][^`\n]*)`")
_GIVEN_BY_PEOPLE = re.compile(r"^-{1,2}[a-z]")


def shown(text: str) -> Iterator[str]:
    """Yield the commands in code blocks, on separate lines, and in the middle of a sentence."""
    code = (
        "\n".join(re.findall(r"^```(?:sh|console)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
        + "\n"
    )
    code += "\n".join(line for line in text.splitlines() if line.startswith("    "))
    yield from _LINE.findall(code)
    yield from _INLINE.findall(text)


def words_of(line: str) -> list[str]:
    """Return the words of a command, without a comment, brackets for optional parts, and the rest
    of a pipe.
    """
    line = (
        re.split(r"\s#|[|;&>]| \.\.\.|…|→", re.sub(r"\|(?=[a-zA-Z])", "/", line))[0]
        .replace("[", " ")
        .replace("]", " ")
    )
    try:
        return shlex.split(line)[1:]
    except ValueError:  # the apostrophe belongs to a sentence
        return line.split()[1:]


def missing(words: list[str]) -> str:
    """Return the words of the command that do not exist, or "" if all exist."""
    command: click.Command = app
    context = click.Context(app)
    options = set(_options(app, context))
    for word in words:
        if isinstance(command, click.Group) and not word.startswith("-"):
            for name in word.split("/"):
                found = command.get_command(context, name.rstrip(".,:"))
                if found is None:
                    return f"there is no command {name!r}" if re.fullmatch(r"[a-z-]+", name) else ""
            assert found is not None
            command = found
            options |= set(_options(command, context))
        elif _GIVEN_BY_PEOPLE.match(word):
            name = word.split("=")[0].rstrip(".,:")
            if not any(one in options or one.endswith("-") for one in name.split("/")):
                return f"{command.name} has no option {name}"
    return ""


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.get_params(context):
        yield from (*parameter.opts, *parameter.secondary_opts)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_the_documentation_exist_with_their_options(page: Path) -> None:
    wrong = {line: why for line in shown(page.read_text()) if (why := missing(words_of(line)))}
    assert wrong == {}


def test_the_check_finds_what_is_not_there() -> None:
    assert missing(words_of("zsq serve --no-such DIR")) == "serve has no option --no-such"
    assert missing(words_of("zsq topic carve NAME")) == "there is no command 'carve'"
    assert sum(len(list(shown(page.read_text()))) for page in PAGES) > 120
