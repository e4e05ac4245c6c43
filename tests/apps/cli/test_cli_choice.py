"""Tests of the command line for what a channel receives: tags, messages addressed to one channel,
and samples. Wrong options are refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support import zsq_command

import zsq
from local_setup.broker import LocalBroker, temporary_broker

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with temporary_broker("--no-listen", prefix="zsq-test-") as one:
        yield one


def run(broker: LocalBroker, *arguments: str, stdin: bytes = b"", code: int = 0) -> str:
    ended = zsq_command.run(*arguments, stdin=stdin, ZSQ_URL=broker.url)
    assert ended.returncode == code, ended.stderr.decode()
    return (ended.stdout if code == 0 else ended.stderr).decode()


def row(broker: LocalBroker, topic: str, channel: str) -> dict[str, Any]:
    return dict(
        json.loads(run(broker, "stats", topic, channel, "--json"))["topics"][0]["channels"][0]
    )


def test_a_channel_gets_only_its_tags_and_messages_addressed_to_it(broker: LocalBroker) -> None:
    run(broker, "channel", "create", "t", "paid", "--tags", "paid||refunded")
    run(broker, "channel", "create", "t", "all")
    run(broker, "pub", "t", "--tag", "paid", "--key", "k", stdin=b"1\n2\n")
    run(broker, "pub", "t", stdin=b"3\n4\n5\n")
    run(broker, "pub", "t", "--tag", "paid", "--channel", "all", stdin=b"6\n")
    run(broker, "pub", "t", "--tag", "refunded", stdin=b"7\n")
    assert run(broker, "sub", "t", "paid", "-n", "3") == "1\n2\n7\n"
    assert run(broker, "sub", "t", "all", "-n", "7") == "1\n2\n3\n4\n5\n6\n7\n"
    found = row(broker, "t", "paid")
    assert (found["tag_skipped_count"], found["addressed_skipped_count"], found["depth"]) == (
        3,
        1,
        0,
    )
    with zsq.Reader("t", url=broker.url) as reader:
        message = reader.message(0)
        assert (message.key, message.tag) == (b"k", "paid")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("sub", "t", "paid", "--tags", "other", "-n", "1"),
            "has tags 'paid||refunded', not 'other'",
        ),
        (("sub", "t", "paid", "--sample", "100"), "1<=x<=99"),
        (
            ("channel", "create", "t", "x", "--tags", "a||"),
            "tags must be names with || between them",
        ),
        (("pub", "t", "--channel", "a b"), "channel name 'a b' is not legal"),
        (("pub", "t", "--tag", "x" * 257), "over the limit of 256 bytes"),
    ],
)
def test_wrong_options_for_tags_and_samples_are_refused(
    broker: LocalBroker, arguments: tuple[str, ...], said: str
) -> None:
    assert said in run(broker, *arguments, code=2)
