"""Tests of the table of settings: each setting has one row, there is no other list of settings, and
a new row is enough for everything that is derived from it.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, get_type_hints

import pytest

from zsq.storage.retention import changed, resolve
from zsq.transport import settings
from zsq.transport.errors import E_BAD_ARGUMENT, UsageError
from zsq.transport.records import Record
from zsq.transport.settings import (
    CHANNEL,
    TOPIC,
    ChannelOptions,
    ChannelSettings,
    Retention,
    TopicOptions,
)

ROOT: Final = Path(__file__).resolve().parents[2]
TABLE: Final = "transport/settings.py"
NAMED_MAX: Final = 3  # settings of one table that a file may name because its code obeys them
# These words also name the tags of a message, ordinary lists, and an option of the broker.
WORDS: Final = frozenset({"tags", "ordered", "archive", "own_process"})


@pytest.mark.parametrize(
    ("of", "options"), [(ChannelSettings, ChannelOptions), (Retention, TopicOptions)]
)
def test_callers_are_told_the_same_types(of: type[Record], options: type) -> None:
    told, hints = get_type_hints(options), get_type_hints(of)
    held = {field.name: hints[field.name] for field in fields(of)}
    assert [*told] == [*held]
    of_choice = {
        "when_full",
        "archive",
        "own_process",
        "fair_by",
    }  # the type for callers names their values
    for name in {*held} - of_choice:
        assert told[name] == held[name] | None, name


def test_no_other_file_lists_settings() -> None:
    """A new setting changes the table and the code that obeys it. So each other file names only a
    few settings.
    """
    for rows in (CHANNEL, TOPIC):
        names = {row.name for row in rows} - WORDS
        for path in [
            *(
                file
                for layer in ("actors", "apps", "storage", "transport")
                for file in (ROOT / layer).rglob("*.py")
            )
        ]:
            source = path.read_text()
            if len(names & {*re.findall(r"\w+", source)}) <= NAMED_MAX:
                continue  # saves the time for parsing it
            named = names & {*_words(source)}
            assert len(named) <= NAMED_MAX or path == ROOT / TABLE, (
                f"{path} lists the settings {sorted(named)}: take the rows of {TABLE}"
            )
        for path in (ROOT / "apps/console").rglob("*.js"):
            named = names & {*re.findall(r"\w+", path.read_text())}
            assert len(named) <= NAMED_MAX, (
                f"{path} lists the settings {sorted(named)}: take the rows of base/settings.js"
            )


def _words(source: str) -> list[str]:
    """Return the strings and the keyword arguments of a module."""
    nodes = [*ast.walk(ast.parse(source))]
    strings = [
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return strings + [str(node.arg) for node in nodes if isinstance(node, ast.keyword)]


ROW: Final = """    shade: int = _row(
        3, Kind.COUNT, "--shade N", shared=True, allowed=_NUMBER, high=10, help="How dark it is.",
        line="light", shows="shade {}", label="Shade", hint="0 to 10",
    )

"""
PROGRAM: Final = """
import sys, types, importlib.util
spec = importlib.util.find_spec("zsq.transport.settings")
table = types.ModuleType("zsq.transport.settings")
table.__package__ = "zsq.transport"
sys.modules["zsq.transport.settings"] = table
exec(compile(sys.stdin.read(), spec.origin, "exec"), table.__dict__)

from click.testing import CliRunner
from zsq.actors.gateways.http.console.action_handlers import _known
from zsq.actors.gateways.http.console.files import settings_module
from zsq.actors.settings.channel_settings import made, resolve
from zsq.apps.cli.manage.channel import channel
from zsq.apps.cli.manage.settings import CHANGEABLE, describe_channel, given_settings
from zsq.apps.cli.messages.consume import sub
from zsq.transport.client.core.administration import configure_channel
from zsq.transport.errors import UsageError

for command in (channel.commands["create"], channel.commands["set"], sub):
    assert "--shade N" in CliRunner().invoke(command, ["--help"]).output, command
assert given_settings(CHANGEABLE, {"shade": 5}) == {"shade": 5}
assert resolve({"shade": 5}).shade == 5 and resolve({}).shade == 3 and made({"shade": 5}) == ({"shade": 5}, None)
assert next(configure_channel("t", "c", shade=5)).make(1).options == {"shade": 5}
assert "light      shade 5" in describe_channel("t", "c", resolve({"shade": 5}).as_dict())
assert _known({"shade": 5}, table.ChannelOptions) == {"shade": 5}
assert '"name": "shade", "kind": "count", "label": "Shade"' in settings_module()
try:
    resolve({"shade": 11})
except UsageError as error:
    print(error.text)
"""


def test_a_new_setting_needs_only_its_row() -> None:
    source = (ROOT / TABLE).read_text()
    source = source.replace("    def __post_init__", f"{ROW}    def __post_init__", 1)
    source = source.replace(
        "    alarm_age_s: float | None\n",
        "    alarm_age_s: float | None\n    shade: int | None\n",
        1,
    )
    ended = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM],
        input=source,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.stdout, ended.stderr) == ("shade must be a number from 0 to 10, not 11\n", "")


@pytest.mark.parametrize(
    ("own", "text"),
    [
        ({"max_attempts": -1}, "max_attempts must be a number from 0 to 65535, not -1"),
        ({"max_attempts": True}, "max_attempts must be a number from 0 to 65535, not True"),
        (
            {"alarm_depth": -2},
            "alarm_depth must be a number from -1 to 4611686018427387904, not -2",
        ),
        (
            {"max_hold_s": 899},
            "max_hold_s must be a number of seconds from 900, or -1 for no limit, not 899",
        ),
        ({"max_age_s": 0}, "max_age_s must be a number of seconds above 0, or -1 for never, not 0"),
        (
            {"max_age_s": float("nan")},
            "max_age_s must be a number of seconds above 0, or -1 for never, not nan",
        ),
        (
            {"max_age_s": None},
            "max_age_s must be a number of seconds above 0, or -1 for never, not None",
        ),
        ({"backoff_s": -1}, "backoff_s must be a number of seconds from 0 to 31622400, not -1"),
        ({"backoff_s": 300}, "backoff_s (300) is above backoff_max_s (120.0)"),
        ({"dead_letter_topic": 3}, "dead_letter_topic must be a topic's name, not 3"),
        ({"tags": 7}, "tags must be a text like 'a||b', not 7"),
        ({"ordered": 1}, "ordered must be true or false, not 1"),
    ],
)
def test_each_wrong_setting_of_a_channel_is_refused(own: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as refused:
        ChannelSettings(**own)
    assert (refused.value.code, refused.value.text) == (E_BAD_ARGUMENT, text)


@pytest.mark.parametrize(
    ("own", "text"),
    [
        (
            {"keep_bytes": "x" * 99},
            f"keep_bytes must be a number from 0 to 2**62, or -1 for no bound, not '{'x' * 39}",
        ),
        (
            {"keep_time_s": -2},
            "keep_time_s must be a number of seconds, or -1 for no bound, not -2",
        ),
        (
            {"max_bytes": -2},
            "max_bytes must be a number from 0 to 2**62, or -1 for no bound, not -2",
        ),
        (
            {"max_bytes": 5},
            (
                "max_bytes must be at least 8388608 (8 MiB, the largest block), or -1 for no "
                "bound, not 5"
            ),
        ),
        ({"max_age_s": 0.5}, "max_age_s must be at least 1 s, or -1 for no bound, not 0.5"),
        ({"when_full": "wait"}, "when_full must be reject or drop-oldest, not 'wait'"),
        ({"when_full": []}, "when_full must be reject or drop-oldest, not []"),
    ],
)
def test_each_wrong_setting_of_a_topic_is_refused(own: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as refused:
        resolve(changed({}, own))
    assert (refused.value.code, refused.value.text) == (E_BAD_ARGUMENT, text)


def test_each_setting_has_the_name_of_its_option_with_its_unit() -> None:
    """So who knows `--keep-time` knows `keep_time_s`."""
    for row in (*settings.CHANNEL, *settings.TOPIC):
        unit = "_s" if row.kind is settings.Kind.SECONDS else ""
        assert row.name == f"{row.parameter}{unit}"


def test_every_default_and_every_bound_raises_nothing() -> None:
    for row in (*settings.CHANNEL, *settings.TOPIC):
        row.check(row.default)
        if row.kind in (settings.Kind.COUNT, settings.Kind.BYTES):
            for value in (row.low, row.high, *(() if row.no_bound is None else (row.no_bound,))):
                row.check(value)
