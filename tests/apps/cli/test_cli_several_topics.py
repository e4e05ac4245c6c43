"""Tests of `zsq sub` with several topics, and with a pattern."""

from __future__ import annotations

import json

import pytest
from support.zsq_command import Zsq

pytestmark = pytest.mark.slow


def test_sub_receives_from_several_topics_and_names_them(zsq: Zsq) -> None:
    zsq("pub", "orders.eu", stdin="one\n")
    zsq("pub", "orders.us", stdin="two\n")
    found = zsq("sub", "orders.eu,orders.us", "list", "-n", "2", "--json")
    rows = [json.loads(line) for line in found.stdout.splitlines()]
    assert {(row["topic"], row["body"]) for row in rows} == {
        ("orders.eu", "one"),
        ("orders.us", "two"),
    }
    assert found.stderr.count("creating it") == 2
    found = zsq("sub", "orders.*", "pattern", "-n", "2", "--start", "earliest")
    assert sorted(found.stdout.splitlines()) == ["one", "two"]


def test_sub_names_the_part_of_each_message(zsq: Zsq) -> None:
    zsq("topic", "create", "parted", "--parts", "2")
    lines = [json.dumps({"body": f"{key}", "key": f"{key}"}) for key in range(8)]
    zsq("pub", "parted", "--json-lines", stdin="\n".join(lines) + "\n")
    zsq("pub", "whole", stdin="one\n")
    found = zsq("sub", "parted,whole", "list", "-n", "9", "--json")
    rows = [json.loads(line) for line in found.stdout.splitlines()]
    places = {(row["topic"], row.get("part"), row["offset"]) for row in rows}
    assert len(places) == len(rows) == 9, "two messages of one place"
    assert {part for topic, part, _ in places if topic == "parted"} == {0, 1}
    assert ("whole", None, 0) in places
    # What it writes can be published again.
    again = zsq("pub", "copy", "--json-lines", stdin=found.stdout)
    assert "9 messages stored" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("orders.eu,none", "c"), "topic 'none' does not exist"),
        (
            ("orders.*", "c", "--create"),
            "--create needs names of topics, and orders.* is a pattern",
        ),
        (("a,b", "c", "--create", "--start", f"{7:016x}"), "is a message of one topic"),
        (("a,,b", "c"), "topic name '' is not legal"),
        (("a,a", "c"), "topic 'a' is twice in the list"),
        (("a,b*", "c"), "is in a list"),
    ],
)
def test_sub_refuses_what_makes_no_sense(arguments: tuple[str, ...], said: str, zsq: Zsq) -> None:
    zsq("pub", "orders.eu", stdin="one\n")
    ended = zsq("sub", *arguments)
    assert ended.returncode != 0
    assert said in ended.stderr


def test_sub_says_which_topic_is_paused(zsq: Zsq) -> None:
    zsq("topic", "create", "p.on")
    zsq("topic", "create", "p.off")
    zsq("topic", "pause", "p.off")
    ended = zsq("sub", "p.*", "c", "--idle", "2")
    assert "topic p.off is paused" in ended.stderr
    assert "p.on" not in ended.stderr
