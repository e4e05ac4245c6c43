"""Tests of what commands print on a terminal of 80 columns, with a real broker."""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Iterator

import pytest
from support.broker import wait_for
from support.zsq_command import run_text

import zsq
from local_setup.broker import LocalBroker, temporary_broker

pytestmark = pytest.mark.slow

# They do not become smaller by compression.
BODIES = "".join(f"{b64encode(os.urandom(700_000)).decode()}\n" for _ in range(16))
TOPIC = "a-topic-with-a-name-of-forty-four-characters"


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with temporary_broker(
        "--no-listen", "--alarm-hold", "0.1s", "--alarm-depth", "2", prefix="zsq-test-"
    ) as broker:
        for arguments in (
            ("topic", "create", TOPIC, "--max-bytes", "8MiB"),
            ("channel", "create", TOPIC, "c"),
            ("topic", "create", "spread", "--parts", "4"),
            ("channel", "create", "spread", "c"),
        ):
            shown(broker, *arguments)
        ended = run_text("pub", TOPIC, stdin=BODIES, ZSQ_URL=broker.url)
        assert "E_TOPIC_FULL" in ended.stderr
        wait_for(
            lambda: "depth" in shown(broker, "alarms"),
            what="the alarm about the backlog",
        )
        yield broker


def shown(broker: LocalBroker, *arguments: str, columns: str = "80") -> str:
    ended = run_text(*arguments, ZSQ_URL=broker.url, COLUMNS=columns)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize(
    "command",
    [
        ("alarms",),
        ("stats",),
        ("stats", TOPIC),
        ("topic", "show", TOPIC),
        ("channel", "show", TOPIC, "c"),
        ("peek", TOPIC, "c"),
    ],
    ids=" ".join,
)
def test_no_line_is_wider_than_the_terminal_and_a_file_gets_whole_lines(
    broker: LocalBroker, command: tuple[str, ...]
) -> None:
    narrow = shown(broker, *command)
    assert max(map(len, narrow.splitlines())) <= 80, narrow
    whole = shown(broker, *command, columns="")
    assert max(map(len, whole.splitlines())) > 80


def test_counts_that_are_seldom_shown_are_numbers(broker: LocalBroker) -> None:
    assert re.search(r"^refused: full topic [1-9]\d*", shown(broker, "stats", TOPIC), re.MULTILINE)


def test_sub_takes_a_time_with_its_unit(broker: LocalBroker) -> None:
    assert shown(broker, "sub", "spread", "c", "--idle", "200ms") == ""


def test_a_topic_with_four_parts_fits_on_a_screen(broker: LocalBroker) -> None:
    with zsq.Consumer("spread", "c", url=broker.url):
        lines = shown(broker, "stats", "spread").splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert "topic spread, 4 parts: OK, sync always" in lines
