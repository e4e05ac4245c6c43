"""Tests of sizes and times in the form in which users type them, and of retention settings on the
command line.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import zsq_command

from local_setup.broker import LocalBroker, temporary_broker
from zsq.apps.cli.inspect import stats
from zsq.apps.cli.manage.settings import describe, given_settings
from zsq.apps.cli.quantities import (
    BoundedSize,
    parse_bytes,
    parse_count,
    spelled_bytes,
)
from zsq.transport.durations import SECONDS_MAX, parse_seconds
from zsq.transport.settings import TOPIC, Retention

pytestmark = pytest.mark.slow

GIB = 1024**3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0), ("4096", 4096), ("1b", 1), ("1k", 1024), ("1KiB", 1024), ("1kB", 1000), ("64m", 64 << 20), ("1.5MB", 1_500_000),
        ("1GiB", GIB), (" 10 GiB ", 10 * GIB), ("2T", 2 << 40), ("0.5gib", GIB // 2), ("1TB", 10**12),
    ],
)  # fmt: skip
def test_each_size_is_parsed_to_bytes(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GiB",
        "-1",
        "1e9",
        "1.GiB",
        "one",
        "1 Gib 2",
        "1pib",
        "10000000TiB",
        "0x10",
        "1,5GB",
        "٣",
    ],
)
def test_each_text_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|limit of 4 EiB") as error:
        parse_bytes(text)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0), ("90", 90), ("1.5", 1.5), ("90s", 90), ("15m", 900), ("15 min", 900), ("1h30m", 5400),
        ("1h 30m 5s", 5405), ("7d", 604_800),
        ("2w", 1_209_600), ("500ms", 0.5), ("1D", 86_400),
    ],
)  # fmt: skip
def test_each_duration_is_parsed_to_seconds(text: str, expected: float) -> None:
    assert parse_seconds(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "d", "-1", "1h30", "1y", "7 d x", "1e3", "h1", "10000w", "inf", "nan", "99999999999"],
)
def test_each_text_that_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"time|100 years") as error:
        parse_seconds(text)
    assert repr(text) in str(error.value)


@given(st.text(max_size=12))
def test_any_text_is_a_quantity_or_refused(text: str) -> None:
    for parse, most in ((parse_bytes, 1 << 62), (parse_seconds, SECONDS_MAX)):
        with contextlib.suppress(ValueError):
            assert 0 <= parse(text) <= most


def test_options_become_settings() -> None:
    given_options = {
        "keep_time": 60,
        "keep_bytes": None,
        "max_age": "default",
        "max_bytes": -1,
        "when_full": "reject",
    }
    assert given_settings(TOPIC, given_options) == {
        "keep_time_s": 60,
        "max_age_s": None,
        "max_bytes": -1,
        "when_full": "reject",
    }
    shown = describe(TOPIC, Retention(keep_time_s=60).as_dict())
    assert "kept up to: bytes 1,073,741,824, time 1m, chunks none" in shown
    assert "at most: bytes none, age none, when full reject" in shown


class Shell:
    """A shell that runs `zsq` with a broker's URL."""

    def __init__(self, broker: LocalBroker) -> None:
        self.url = broker.url

    def __call__(self, *arguments: str, code: int = 0, stdin: bytes = b"") -> str:
        ended = zsq_command.run(*arguments, stdin=stdin, ZSQ_URL=self.url)
        assert ended.returncode == code, ended.stderr.decode()
        return (ended.stdout + ended.stderr).decode()

    def settings(self, topic: str) -> dict[str, Any]:
        found = json.loads(self("stats", topic, "--json"))["topics"][0]["settings"]
        unset = (-1, "on", "default", 600)  # 600: the window of ids
        return {name: value for name, value in found.items() if value not in unset}


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    with temporary_broker(
        "--no-listen", "--keep-bytes", "5MiB", "--keep-time", "none", prefix="zsq-test-"
    ) as broker:
        yield Shell(broker)


def test_a_topic_is_made_and_set(shell: Shell) -> None:
    shell(
        "topic",
        "create",
        "a",
        "--keep-time",
        "7d",
        "--max-bytes",
        "1GiB",
        "--when-full",
        "drop-oldest",
        "--max-age",
        "3d",
    )
    wanted = {
        "keep_bytes": 5 << 20,
        "keep_time_s": 604_800,
        "max_bytes": GIB,
        "max_age_s": 259_200,
        "when_full": "drop-oldest",
    }
    assert shell.settings("a") == wanted
    said = shell(
        "topic", "set", "a", "--keep-bytes", "none", "--keep-chunks", "100", "--max-age", "none"
    )
    assert "chunks 100" in said
    assert "age none" in said
    del wanted["keep_bytes"], wanted["max_age_s"]
    assert shell.settings("a") == wanted | {"keep_chunks": 100}
    shell(
        "topic",
        "set",
        "a",
        "--keep-bytes",
        "default",
        "--keep-chunks",
        "default",
        "--keep-time",
        "default",
    )
    assert shell.settings("a") == {
        "keep_bytes": 5 << 20,
        "max_bytes": GIB,
        "when_full": "drop-oldest",
    }
    assert "exists already with other settings; they were not changed" in shell(
        "topic", "create", "a", "--max-bytes", "2GiB"
    )
    assert shell.settings("a")["max_bytes"] == GIB
    shell("topic", "set", "a", "--when-full", "default")
    assert shell.settings("a")["when_full"] == "reject"


def test_a_topic_follows_what_the_broker_was_started_with(shell: Shell) -> None:
    shell("topic", "create", "plain")
    assert shell.settings("plain") == {"keep_bytes": 5 << 20, "when_full": "reject"}
    shell("pub", "plain", stdin=b"one\ntwo\n")
    shown = shell("topic", "show", "plain")
    assert "offsets    0 to 2" in shown
    assert "bytes 5,242,880, time" in shown


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["set", "a"], "give at least one setting: --"),
        (["set", "a", "--keep-bytes", "much"], "is not a size"),
        (["set", "a", "--keep-time", "1h30"], "is not a time"),
        (["set", "a", "--keep-chunks", "-3"], "is not a whole number"),
        (["set", "a", "--max-bytes", "1MiB"], "at least 8388608"),
        (["set", "a", "--when-full", "reject", "--max-age", "1d"], "--max-age none"),
        (["create", "b", "--when-full", "default"], "is not one of"),
        (["create", "b", "--max-age", "1d"], "works only with when_full drop-oldest"),
        (["create", "b", "--keep-bytes", "default"], "is not a size"),
    ],
)
def test_wrong_settings_are_wrong_usage(shell: Shell, arguments: list[str], text: str) -> None:
    assert text in shell("topic", *arguments, code=2)


def test_a_topic_that_is_not_there(shell: Shell) -> None:
    assert "E_NOT_FOUND" in shell("topic", "set", "nobody", "--keep-chunks", "1", code=1)
    assert "E_NOT_FOUND" in shell("topic", "show", "nobody", code=1)
    assert "b" not in [
        topic["topic_name"] for topic in json.loads(shell("stats", "--json"))["topics"]
    ], "a refused creation makes nothing"


def test_bytes_on_disk_and_dropped_messages_are_in_the_tables() -> None:
    from rich.console import Console

    channel: dict[str, Any] = {"channel_name": "c", "depth": 1, "dropped_count": 0}
    topic = {"topic_name": "t", "log_bytes": 1_234_567, "dropped_count": 0, "channels": [channel]}
    answer: Any = {"topics": [topic]}

    def text() -> str:
        out = io.StringIO()
        for table in stats.tables(answer, processes=False):
            Console(file=out, width=200).print(table)
        return out.getvalue()

    assert "1,234,567" in text()
    assert "dropped" not in text()
    topic["dropped_count"], channel["dropped_count"] = 9_871, 6_543
    assert text().count("dropped") == 2
    assert text().count("dropped, up to") == 1, "of the topic it is an upper bound"
    assert {"9,871", "6,543"} <= set(text().split())


def test_counts_are_parsed_and_wrong_ones_are_refused() -> None:
    assert [parse_count(text) for text in ("0", " 12 ", "9" * 18)] == [0, 12, 10**18 - 1]
    for text in ("", "-1", "1.5", "\u0663", "1" + "0" * 18, "9" * 5_000):
        with pytest.raises(ValueError, match=r"is not a whole number|at most 18 digits"):
            parse_count(text)


@pytest.mark.parametrize(
    ("text", "found"), [("64KiB", 65_536), ("65536", 65_536), ("1GiB", 1 << 30), ("2 mib", 2 << 20)]
)
def test_a_size_with_bounds_takes_units(text: str, found: int) -> None:
    assert BoundedSize(65_536, 1 << 30).convert(text, None, None) == found
    assert BoundedSize(65_536).convert(found, None, None) == found


@pytest.mark.parametrize("text", ["65535", "1025MiB", "none", "default", "x", 65_535])
def test_a_size_outside_of_its_bounds_is_refused(text: object) -> None:
    with pytest.raises(click.BadParameter) as error:
        BoundedSize(65_536, 1 << 30).convert(text, None, None)
    if text in ("65535", "1025MiB", 65_535):
        assert f"{text} is not allowed: it must be 64 KiB to 1 GiB" in error.value.message


def test_sizes_are_spelled_with_the_largest_unit() -> None:
    assert [spelled_bytes(count) for count in (0, 1, 7, 1024, 1536, 5 << 20, 3 << 30)] == [
        "0 bytes", "1 byte", "7 bytes", "1 KiB", "1536 bytes", "5 MiB", "3 GiB",
    ]  # fmt: skip
