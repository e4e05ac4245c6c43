"""Tests that docs/configuration.md agrees with the command line: its table is generated from
click's parameters, and its examples are read.

Run this file to write the table again: python tests/apps/cli/run/test_configuration_md.py
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import click

from zsq.apps.cli.quantities import BoundedSeconds, BoundedSize, Count, Seconds, SizeType
from zsq.apps.cli.run.config import as_text, usual
from zsq.apps.cli.run.config_options import kind, options_of, read
from zsq.apps.cli.run.option_table import RELOADABLE, SECRETS
from zsq.apps.cli.run.serve import serve

DOCUMENT: Final = Path(__file__).resolve().parents[4] / "docs" / "configuration.md"
PART: Final = re.compile(r"(<!-- options: drawn from the code -->\n).*?(<!-- end -->)", re.DOTALL)


def table() -> str:
    lines = ["| option | value | default | | meaning |", "|---|---|---|---|---|"]
    for option in options_of(serve):
        usual_name = f"ZSQ_SERVE_{str(option.name).upper()}"
        assert usual_name in (option.envvar or ()), "the page gives the rule of the names"
        others = "".join(f", `{name}`" for name in option.envvar or () if name != usual_name)
        live = "live" if option.name in RELOADABLE else ""
        default = _default(option)
        lines.append(
            f"| `{option.opts[0]}`{others} | {_value(option)} | {default} | {live} | "
            f"{_meaning(option, default)} |"
        )
    return "\n".join(lines)


def _meaning(option: click.Option, default: str) -> str:
    """Return the help of an option without what the other columns say."""
    text = " ".join((option.help or "").split()).replace("|", "\\|")
    text = re.sub(r" Default: .*?\.(?= [A-Z]|$)| Repeatable\.", "", text)
    return text.replace(f" ({default})", "")


def _value(option: click.Option) -> str:
    of = option.type
    if isinstance(of, BoundedSize):
        return f"size, {of.bounds}"
    if isinstance(of, BoundedSeconds):
        return f"time, {of.bounds}, none"
    named = f"{of.name}, none" if isinstance(of, (Seconds, SizeType, Count)) else None
    if option.is_flag:
        text = "true, false"
    elif isinstance(of, click.Choice):
        text = ", ".join(f"`{one}`" for one in of.choices)
    elif isinstance(of, (click.IntRange, click.FloatRange)):
        text = kind(option)[1].removeprefix("use a ").removeprefix("whole ")
    else:
        text = str(named or option.metavar or "text")
    return f"{text}, any number of them" if option.multiple else text


def _default(option: click.Option) -> str:
    if option.required:
        return "must be given"
    value = option.get_default(click.Context(serve))
    if option.is_flag:
        return "false"
    # If there is no default, click returns a marker object, which is no value.
    value = (
        value if isinstance(value, (str, int, float)) and value != "" else usual(str(option.name))
    )
    return "" if value is None else as_text(option, value)


def drawn(text: str) -> str:
    assert len(PART.findall(text)) == 1
    return PART.sub(lambda found: f"{found[1]}{table()}\n{found[2]}", text)


def test_the_table_is_current() -> None:
    text = DOCUMENT.read_text()
    assert drawn(text) == text, "run python tests/apps/cli/run/test_configuration_md.py"


def test_the_examples_are_taken(tmp_path: Path) -> None:
    examples = re.findall(r"```toml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    folder = tmp_path / "tls"
    folder.mkdir()
    for name in ("broker.pem", "broker.key"):
        (folder / name).touch()
    found = []
    for text in examples:
        path = tmp_path / "zsq.toml"
        path.write_text(text)
        found.append(read(path, click.Context(serve)))
    assert len(found) == 3
    assert found[0] == found[1]
    assert found[0]["nsq_tls_cert"] == str(folder / "broker.pem")


def test_each_secret_is_told() -> None:
    text = DOCUMENT.read_text()
    assert all(f"`{name}`" in text and f"`{name}_FILE`" in text for name in SECRETS)


def test_every_reloadable_name_is_an_option() -> None:
    assert {str(option.name) for option in options_of(serve)} >= RELOADABLE


if __name__ == "__main__":
    DOCUMENT.write_text(drawn(DOCUMENT.read_text()))
