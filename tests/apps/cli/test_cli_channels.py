"""Tests of channels on the command line: creating, configuring, moving and peeking. They use a real
broker and run `zsq` as a user does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support import zsq_command

from local_setup.broker import LocalBroker, temporary_broker
from zsq.apps.cli.app import run

pytestmark = pytest.mark.slow


class Shell:
    """A shell that runs `zsq` with a broker's URL."""

    def __init__(self, broker: LocalBroker) -> None:
        self.url = broker.url

    def __call__(self, *arguments: str, code: int = 0, stdin: bytes = b"") -> str:
        ended = zsq_command.run(*arguments, stdin=stdin, ZSQ_URL=self.url)
        assert ended.returncode == code, ended.stderr.decode()
        return (ended.stdout + ended.stderr).decode()

    def channel(self, topic: str, channel: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("stats", topic, channel, "--json"))["topics"][0][
            "channels"
        ][0]
        return found

    def at(self, topic: str, channel: str) -> int:
        return int(self.channel(topic, channel)["next_offset"])


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    with temporary_broker("--no-listen", prefix="zsq-test-") as broker:
        one = Shell(broker)
        one("pub", "t", stdin=b"".join(b"message %d\n" % number for number in range(20)))
        yield one


def test_a_channel_is_made_set_and_shown(shell: Shell) -> None:
    shell(
        "channel",
        "create",
        "t",
        "set",
        "--start",
        "5",
        "--tags",
        "b || a",
        "--max-attempts",
        "5",
        "--backoff",
        "2s",
        "--max-age",
        "7d",
    )
    now = shell.channel("t", "set")
    assert now["next_offset"] == 5
    assert {name: now["settings"][name] for name in ("tags", "ordered", "max_attempts", "backoff_s", "max_age_s")} == {
        "tags": "a||b", "ordered": False, "max_attempts": 5, "backoff_s": 2.0, "max_age_s": 604_800,
    }  # fmt: skip
    shown = shell("channel", "show", "t", "set")
    for line in (
        "channel    t/set, health OK, 0 consumers",
        "offsets    next 5 of 20: 15 waiting, 0 in flight, 0 deferred",
        "takes      tags a||b, max age 7d",
        "attempts   at most 5, then to topic t.set.dead",
        "backoff    2s, up to 2m, exponential, no jitter",
        "consumers  any number",
    ):
        assert line in shown
    said = shell(
        "channel",
        "set",
        "t",
        "set",
        "--max-attempts",
        "none",
        "--backoff",
        "default",
        "--max-consumers",
        "3",
        "--max-age",
        "none",
    )
    for line in (
        "attempts   until it is finished",
        "backoff    1s,",
        "consumers  at most 3",
        "max age none",
    ):
        assert line in said
    assert "dead letters" not in said.splitlines()[0], "what expires is skipped"
    said = shell("channel", "set", "t", "set", "--dead-letter-expired")
    assert "max age none, expired ones go to the dead letters" in said
    shell("channel", "set", "t", "set", "--max-attempts", "7", "--dead-letter-topic", "bad")
    assert "at most 7, then to topic bad" in shell("channel", "show", "t", "set")
    shell("channel", "set", "t", "set", "--dead-letter-topic", "", "--max-consumers", "default")
    now = shell.channel("t", "set")["settings"]
    assert (now["dead_letter_topic"], now["max_consumers"], now["max_attempts"]) == ("", 0, 7)


def test_options_for_an_existing_channel_have_no_effect_and_a_note_says_so(shell: Shell) -> None:
    shell("channel", "create", "t", "there", "--tags", "a||b", "--start", "3")
    assert shell("channel", "create", "t", "there", "--tags", "b||a") == ""
    said = shell("channel", "create", "t", "there", "--max-attempts", "3", "--start", "latest")
    assert "exists already; --start has no effect (zsq seek moves the channel)" in said
    assert (
        "exists already with other settings; they were not changed (zsq channel set changes them)"
        in said
    )
    assert (shell.at("t", "there"), shell.channel("t", "there")["settings"]["tags"]) == (3, "a||b")
    assert "has tags 'a||b', not 'c'" in shell("sub", "t", "there", "--tags", "c", code=2)
    assert "has tags 'a||b', not 'c'; use another channel" in shell(
        "channel", "create", "t", "there", "--tags", "c", code=2
    )
    assert "has ordered False, not True; use another channel" in shell(
        "channel", "create", "t", "there", "--ordered", code=2
    )
    shell("channel", "create", "t", "plain", "--start", "earliest")
    said = shell("sub", "t", "plain", "-n", "2", "--start", "9", "--max-attempts", "4")
    assert said.startswith("message 0\nmessage 1\n")
    assert "--start has no effect" in said
    assert (
        "already existed and has max_attempts 0, not 4; the settings of this consumer do not "
        "change it"
    ) in said
    assert len(said.splitlines()) == 4, "each is said once"


def test_sub_creates_the_channel_with_its_options(shell: Shell) -> None:
    assert shell(
        "sub",
        "t",
        "fresh",
        "-n",
        "3",
        "--start",
        "17",
        "--max-attempts",
        "4",
        "--max-age",
        "1d",
    ) == (
        "message 17\nmessage 18\nmessage 19\nzsq: channel 'fresh' of topic 't' does not "
        "exist; creating it\n"
    )
    now = shell.channel("t", "fresh")["settings"]
    assert (now["max_attempts"], now["max_age_s"]) == (4, 86_400)
    shell("sub", "t", "fresh", "--sample", "100", code=2)


def test_seek_moves_a_channel_to_each_kind_of_place(shell: Shell) -> None:
    shell("channel", "create", "t", "moved")
    for where, expected in (
        ("earliest", 0), ("7", 7), ("latest", 20), ("0000000000000009", 9), ("1h", 0), ("2020-01-01", 0), ("20", 20),
    ):  # fmt: skip
        assert shell("seek", "t", "moved", where) == f"t/moved continues at offset {expected}\n"
        assert shell.at("t", "moved") == expected
    assert shell("seek", "t", "moved", "1", "--forward") == "t/moved continues at offset 20\n"
    assert "channel 'moved' would skip 20 waiting and 0 deferred messages" in shell(
        "seek", "t", "moved", "earliest"
    ) + shell("seek", "t", "moved", "21", code=2)
    assert "ahead of the broker's clock" in shell("seek", "t", "moved", "@4000000000", code=2)
    assert shell.at("t", "moved") == 0
    for where in ("21", "@4000000000", "2100-01-01T00:00Z"):
        assert shell("seek", "t", "moved", "earliest") == "t/moved continues at offset 0\n"
        assert shell("seek", "t", "moved", where, "--clamp") == "t/moved continues at offset 20\n"
    assert "is not a position; use earliest" in shell("seek", "t", "moved", "soon", code=2)
    assert "id 0040000000000001 belongs to node 1, but this broker is node 0" in shell(
        "seek", "t", "moved", "0040000000000001", code=1
    )
    assert "E_NOT_FOUND" in shell("seek", "t", "nobody", "1", code=1)
    assert shell("message", "t", "0000000000000009") == "message 9\n"


def test_tail_starts_at_each_kind_of_place(shell: Shell) -> None:
    for where, first in (("18", 18), ("1h", 0), ("0000000000000013", 19), ("earliest", 0)):
        assert shell("tail", "t", "--no-follow", "--from", where).startswith(f"message {first}\n")
    for where in ("latest", "2100-01-01"):
        assert shell("tail", "t", "--no-follow", "--from", where) == ""


def test_peek_shows_messages_and_moves_nothing(shell: Shell) -> None:
    newest = shell("peek", "t", "-n", "2").splitlines()
    assert [line.split()[:2] for line in newest[:2]] == [["18", "stored"], ["19", "stored"]]
    assert newest[0].endswith("10 B: message 18")
    assert newest[2] == "zsq: topic t ends at offset 20"
    shell("channel", "create", "t", "looked", "--start", "4")
    *lines, summary = shell("peek", "t", "looked", "-n", "3").splitlines()
    assert [line.split()[:2] for line in lines] == [["4", "new"], ["5", "new"], ["6", "new"]]
    assert summary == "zsq: t/looked is at offset 4 of 20; no messages held"
    objects = [
        json.loads(line) for line in shell("peek", "t", "looked", "--json", "-n", "2").splitlines()
    ]
    assert [(one["offset"], one["state"], one["attempts"], one["body"]) for one in objects] == [
        (4, "new", 0, "message 4"), (5, "new", 0, "message 5"),
    ]  # fmt: skip
    assert shell.at("t", "looked") == 4
    assert "E_NOT_FOUND" in shell("peek", "nothing", code=1)
    assert "E_NOT_FOUND" in shell("peek", "t", "nobody", code=1)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["channel", "set", "t", "c"], "give at least one setting: --"),
        (["channel", "create", "t", "c", "--start", "soon"], "is not a position"),
        (["channel", "create", "t", "c", "--max-age", "soon"], "is not a time"),
        (["channel", "create", "t", "c", "--max-attempts", "default"], "is not a whole number"),
        (
            ["channel", "set", "t", "c", "--max-attempts", "-1"],
            "is not a whole number of 0 or more",
        ),
        (
            ["channel", "create", "t", "c", "--max-consumers", "-1"],
            "is not a whole number of 0 or more",
        ),
        (["channel", "set", "t", "c", "--tags", "a"], "No such option"),
        (["peek", "t", "-n", "1001"], "is not in the range"),
        (["seek", "t", "c"], "Missing argument 'WHERE'"),
    ],
)
def test_wrong_arguments_are_wrong_usage(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    assert text in capsys.readouterr().err


def test_settings_that_make_no_sense_are_wrong_usage(shell: Shell) -> None:
    assert "channel 'c' of topic 't': max_age_s must be a number of seconds above 0" in shell(
        "channel", "create", "t", "c", "--max-age", "0", code=2
    )
    assert "is above backoff_max_s" in shell(
        "channel", "create", "t", "c", "--backoff", "5m", code=2
    )
    assert "E_NOT_FOUND" in shell("channel", "show", "t", "c", code=1)
    assert "E_NOT_FOUND" in shell("channel", "set", "t", "c", "--max-attempts", "1", code=1)


@pytest.mark.parametrize(
    "line",
    [
        "seek orders audit 999999",
        "seek orders audit @4000000000",
        "channel set orders audit --max-age 0",
        "channel set orders audit --backoff 5m",
        "channel set orders audit --dead-letter-topic orders",
        "channel create orders audit --ordered",
        "channel create orders other --max-age 0",
        "sub orders audit --tags x",
        "channel delete orders audit",
    ],
)
def test_a_refusal_names_the_topic_and_the_channel(shell: Shell, line: str) -> None:
    shell("channel", "create", "orders", "audit")
    shell("pub", "orders", "hello")
    said = shell(*line.split(), code=1 if "delete" in line else 2)
    assert "topic 'orders'" in said
    assert f"channel '{line.split()[line.split().index('orders') + 1]}'" in said
