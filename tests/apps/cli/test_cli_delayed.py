"""Tests of `zsq pub --delay` and `zsq delayed` with a broker."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.zsq_command import Zsq

pytestmark = pytest.mark.slow


def listed(zsq: Zsq, *arguments: str) -> list[dict[str, Any]]:
    done = zsq("delayed", "list", "t", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_delayed_messages_are_published_listed_counted_and_cancelled(zsq: Zsq) -> None:
    assert zsq("delayed", "count", "t").returncode == 1, "there is no such topic"
    done = zsq("pub", "t", "--delay", "1h30m", stdin="one\ntwo\x07\nthree\n")
    assert (done.returncode, "3 messages wait in t" in done.stderr) == (0, True), done.stderr
    found = listed(zsq)
    assert [bytes.fromhex(one["body"]) for one in found] == [b"one", b"two\x07", b"three"]
    assert [
        one["delayed_key"] for one in listed(zsq, "-n", "1", "--after", found[0]["delayed_key"])
    ] == [found[1]["delayed_key"]]
    lines = zsq("delayed", "list", "t").stdout.splitlines()
    assert lines[1].startswith(found[1]["delayed_key"])
    assert lines[1].endswith("two\N{MIDDLE DOT}"), "nothing that would move a terminal's cursor"
    assert zsq("delayed", "count", "t").stdout.startswith("3 messages, ")
    assert json.loads(zsq("delayed", "count", "t", "--json").stdout)["messages"] == 3
    done = zsq("delayed", "cancel", "t", found[1]["delayed_key"])
    assert (done.returncode, done.stdout) == (0, "1 cancelled\n")
    done = zsq("delayed", "cancel", "t", found[1]["delayed_key"], found[0]["delayed_key"])
    assert (done.returncode, done.stdout) == (1, "1 cancelled\n")
    assert f"{found[1]['delayed_key']} is not a delayed message" in done.stderr
    assert zsq("topic", "delete", "t").returncode == 1, "one waits"
    assert zsq("delayed", "cancel", "t", "--all").stdout == "1 cancelled\n"
    assert zsq("topic", "delete", "t").returncode == 0


def test_emptying_names_the_delayed_messages_that_it_cancels_or_leaves(zsq: Zsq) -> None:
    zsq("pub", "t", "--delay", "1h", stdin="one\ntwo\nthree\n")
    asked = zsq("topic", "empty", "t").stderr
    assert "this would clear 0 unfinished messages and 3 delayed messages of t." in asked
    assert zsq("topic", "empty", "t", "--yes").stdout == (
        "cleared 0 messages and 3 delayed messages of t\n"
    )
    zsq("channel", "create", "t", "c")
    zsq("pub", "t", "--delay", "1h", stdin="one\ntwo\n")
    zsq("pub", "t", stdin="now\n")
    asked = zsq("channel", "empty", "t", "c").stderr
    assert "this would clear 1 unfinished messages and 2 delayed messages of t/c." in asked
    assert zsq("channel", "empty", "t", "c", "--yes").stdout == (
        "cleared 1 messages and 2 delayed messages of t/c\n"
    )
    assert zsq("delayed", "count", "t").stdout.startswith("0 messages")
    zsq("channel", "create", "t", "d")
    zsq("pub", "t", "--delay", "1h", stdin="one\n")
    done = zsq("channel", "empty", "t", "c", "--yes")
    assert done.stdout == "cleared 0 messages of t/c\n"
    assert "1 delayed messages of t stay, because they become due for all channels" in done.stderr
    assert zsq("delayed", "count", "t").stdout.startswith("1 message,")


@pytest.mark.parametrize(
    "arguments",
    [
        ("delayed", "cancel", "t"),
        ("delayed", "cancel", "t", "1" * 32, "--all"),
        ("pub", "t", "--delay", "367d"),
        ("pub", "t", "--delay", "soon"),
        ("delayed", "list", "t", "-n", "0"),
    ],
)
def test_each_wrong_usage_exits_with_2(zsq: Zsq, arguments: tuple[str, ...]) -> None:
    done = zsq(*arguments, stdin="x\n")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
