"""Tests of the generated pages of the documentation site, and that its navigation names existing
pages. ./scripts/docs builds the site.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import pytest
import yaml

import zsq
from docs_site.api import PUBLIC, with_directives
from docs_site.commands import commands_page
from zsq.apps.cli.app import app

from .walking import ROOT

GENERATED: Final = {"docs/commands.md", "docs/http-api.md"}
PLACE: Final = re.compile(
    r"`((?:actors|aio|apps|docs|pyspark_zsq|scripts|testing|"
    r"storage|tests|transport|\.ci|\.github)/[\w./-]*)`"
)
PAGES: Final = ("docs/architecture.md", "HACKING.md", "CONTRIBUTING.md", "SECURITY.md")


class Loader(yaml.SafeLoader):  # type: ignore[misc]
    """A loader for mkdocs.yml, whose tags name Python functions."""


def _named(loader: Any, suffix: str, node: Any) -> str:
    return suffix


Loader.add_multi_constructor("tag:yaml.org,2002:python/", _named)


def navigation() -> list[str]:
    found = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)["nav"]
    return [
        page
        for section in found
        for pages in section.values()
        for one in pages
        for page in one.values()
    ]


def test_every_page_is_in_the_navigation_once() -> None:
    pages = navigation()
    assert len(set(pages)) == len(pages)
    files = {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} | {
        path.name for path in ROOT.glob("*.md")
    }
    assert set(pages) == files | GENERATED | {"storage/FORMAT.md", "transport/PROTOCOL.md"}


def commands(group: click.Group, context: click.Context) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        yield inner.command_path
        if isinstance(command, click.Group):
            yield from commands(command, inner)


def test_the_page_of_commands_has_each_command_with_its_options() -> None:
    page = commands_page()
    names = list(commands(app, click.Context(app, info_name="zsq")))
    assert len(names) > 40
    for name in names:
        assert re.search(rf"^###+ {name}$", page, re.MULTILINE), name
    assert "--data-dir" in page
    assert re.findall(r"^#+ .*$", page, re.MULTILINE)[0] == "# Commands"


def test_the_page_of_the_api_has_a_directive_for_each_public_name() -> None:
    page = with_directives((ROOT / "docs" / "api.md").read_text())
    directives = set(re.findall(r"^::: zsq\.(\w+)$", page, re.MULTILINE))
    assert directives == PUBLIC
    asynchronous = set(re.findall(r"^::: zsq\.aio\.(\w+)$", page, re.MULTILINE))
    assert (
        {"run", "Producer", "Consumer", "Admin", "Reader"} <= asynchronous <= set(zsq.aio.__all__)
    )
    assert "::: zsq.apps.spark.register" in page


@pytest.mark.parametrize("name", PAGES)
def test_files_and_folders_that_a_page_names_exist(name: str) -> None:
    places = PLACE.findall((ROOT / name).read_text())
    assert [place for place in places if not (ROOT / place).exists()] == []


def test_enough_places_are_named() -> None:
    assert [
        len(PLACE.findall((ROOT / name).read_text())) >= least
        for name, least in zip(PAGES, (50, 40, 3, 0), strict=True)
    ] == [True] * 4


def test_the_steps_of_the_architecture_page_are_numbered_on() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    numbers = [int(one) for one in re.findall(r"^(\d+)\. ", text, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))


def test_the_workflow_and_the_hooks_run_what_exists() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert [step["run"] for step in steps if "run" in step][-1] == "bash .ci/run"
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [one["repo"] for one in hooks] == ["local"]
    for hook in hooks[0]["hooks"]:
        assert (ROOT / Path(hook["entry"].split()[0])).is_file(), hook["entry"]
