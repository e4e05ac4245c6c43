"""Tests of the tables of cases of docs/rates.md: each row is a test, at the in-memory broker
and at a real one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

import zsq
from zsq.testing import Namespace

DOCUMENT: Final = Path(__file__).resolve().parents[3] / "docs" / "rates.md"
WAIT_S: Final = 10.0
HOUR_S: Final = 3_600.0
RATE: Final = 2 / HOUR_S  # so slow that no token comes while a test runs
Case = Callable[[Namespace], None]
CASES: Final[dict[str, Case]] = {}


def case(name: str) -> Callable[[Case], Case]:
    def keep(function: Case) -> Case:
        CASES[name] = function
        return function

    return keep


def documented() -> list[str]:
    """Return the first cells of the tables of cases."""
    cells = re.findall(r"^\| (.*?) \|", DOCUMENT.read_text(), re.MULTILINE)
    return [cell for cell in cells if cell != "case"]


def test_each_case_of_the_documentation_is_tested() -> None:
    assert sorted(CASES) == sorted(documented())


@pytest.mark.parametrize("name", documented())
def test_the_case_is_as_documented(name: str, space: Namespace) -> None:
    CASES[name](space)


def make(space: Namespace, **settings: Any) -> None:
    with space.admin() as admin:
        admin.create_channel(space.topic("t"), "c", **settings)


def configure(space: Namespace, **settings: Any) -> None:
    with space.admin() as admin:
        admin.configure_channel(space.topic("t"), "c", **settings)


def publish(space: Namespace, keys: str, **more: Any) -> None:
    """Publish messages with these keys, one character each. A dot is no key."""
    values = [None if key == "." else key for key in keys]
    space.producer().publish_many(
        space.topic("t"), [key.encode() for key in keys], keys=values, **more
    )


def take(consumer: zsq.Consumer) -> zsq.Message:
    message = consumer.receive(WAIT_S)
    assert message is not None
    return message


def taken(consumer: zsq.Consumer, count: int) -> str:
    """Return the bodies of messages that are received and finished one after the other."""
    text = ""
    for _ in range(count):
        message = take(consumer)
        text += message.body.decode()
        message.finish(sync=True)
    return text


def nothing(consumer: zsq.Consumer) -> bool:
    return consumer.receive(0.2) is None


def next_token(space: Namespace) -> None:
    space.advance(timedelta(minutes=31))


@case("several consumers")
def shared(space: Namespace) -> None:
    make(space, max_rate=RATE, max_rate_burst=2)
    one, two = space.consumer("t", "c", ready=10), space.consumer("t", "c", ready=10)
    for consumer in (one, two):
        consumer.subscribe(WAIT_S)
    publish(space, "abcd")
    got = [consumer.receive(0.5) for consumer in (one, two, one, two)]
    assert sum(message is not None for message in got) == 2


@case("a wait")
def waits(space: Namespace) -> None:
    make(space, max_rate=RATE, max_rate_burst=1, max_attempts=1)
    publish(space, "ab")
    consumer = space.consumer("t", "c", ready=10)
    assert taken(consumer, 1) == "a"
    assert nothing(consumer)
    next_token(space)
    second = take(consumer)
    assert (second.body, second.attempts) == (b"b", 1)


@case("a redelivery")
def redelivered(space: Namespace) -> None:
    make(space, max_rate=RATE, max_rate_burst=1)
    publish(space, "a")
    consumer = space.consumer("t", "c", ready=10)
    take(consumer).requeue()
    assert nothing(consumer)
    next_token(space)
    assert take(consumer).attempts == 2


@case("held messages")
def held(space: Namespace) -> None:
    make(space, max_rate=RATE, max_rate_burst=2)
    publish(space, "abcdefgh")
    consumer = space.consumer("t", "c", ready=100, message_timeout=80_000)
    first = take(consumer)
    space.advance(timedelta(hours=20))
    second = take(consumer)
    consumer.flush()
    assert [first.body, second.body] == [b"a", b"b"]
    assert taken(consumer, 2) == "cd", "what came meanwhile is one burst"
    assert nothing(consumer)


@case("given back")
def given_back(space: Namespace) -> None:
    make(space, max_rate=RATE, max_rate_burst=2)
    publish(space, "abc")
    with space.consumer("t", "c", ready=10) as first:
        take(first).finish(sync=True)
    second = space.consumer("t", "c", ready=10)
    assert taken(second, 1) in "bc", "the first consumer held a message, which came back"
    assert nothing(second)


@case("a change")
def changed(space: Namespace) -> None:
    make(space, max_rate=RATE, max_rate_burst=1)
    publish(space, "abcde")
    consumer = space.consumer("t", "c", ready=10)
    assert taken(consumer, 1) == "a"
    configure(space, max_rate=RATE, max_rate_burst=3)
    assert nothing(consumer)
    configure(space, max_rate=None, max_rate_burst=None)
    assert taken(consumer, 4) == "bcde"


@case("delayed messages")
def delayed(space: Namespace) -> None:
    make(space, max_rate=RATE, max_rate_burst=1)
    consumer = space.consumer("t", "c", ready=10)
    for body in (b"x", b"y"):
        space.publish("t", body, delay=timedelta(hours=20))
    space.advance(timedelta(hours=21))
    take(consumer).finish(sync=True)
    assert nothing(consumer)
    next_token(space)
    assert len(taken(consumer, 1)) == 1


@case("an urgent message")
def urgent(space: Namespace) -> None:
    make(space, max_rate=RATE, max_rate_burst=1, priorities=2)
    publish(space, "abc")
    consumer = space.consumer("t", "c", ready=10)
    assert taken(consumer, 1) == "a"
    space.publish("t", b"urgent", headers={"zsq-priority": 1})
    assert nothing(consumer)
    next_token(space)
    assert take(consumer).body == b"urgent"


@case("ordered")
def ordered(space: Namespace) -> None:
    make(space, max_rate=RATE, max_rate_burst=1, ordered=True)
    publish(space, "aab")
    consumer = space.consumer("t", "c", ready=10)
    got = ""
    for _ in range(3):
        got += taken(consumer, 1)
        assert nothing(consumer)
        next_token(space)
    assert got == "aab"


@case("dead letters")
def dead(space: Namespace) -> None:
    make(space, max_rate=RATE, max_rate_burst=1, max_attempts=1)
    publish(space, "ab")
    consumer = space.consumer("t", "c", ready=10)
    take(consumer).reject("no")
    letters = space.consumer("t.c.dead", "letters")
    assert take(letters).body == b"a"
    next_token(space)
    assert taken(consumer, 1) == "b"


@case("a new key")
def new_key(space: Namespace) -> None:
    make(space, fair_by="key")
    publish(space, "a" * 50 + "b")
    consumer = space.consumer("t", "c", ready=1)
    assert taken(consumer, 2) == "ab"
    publish(space, "c")
    assert "c" in taken(consumer, 12), "as soon as the channel knows of it"


@case("one key")
def one_key(space: Namespace) -> None:
    make(space, fair_by="key")
    publish(space, "abab" * 5)
    consumer = space.consumer("t", "c", ready=1)
    offsets: dict[bytes | None, list[int]] = {}
    for _ in range(20):
        message = take(consumer)
        offsets.setdefault(message.key, []).append(message.offset)
        message.finish(sync=True)
    assert all(found == sorted(found) for found in offsets.values())


@case("weights")
def weights(space: Namespace) -> None:
    make(space, fair_by="key", fair_weights="g=5")
    publish(space, "f" * 30 + "g" * 30)
    counts = Counter(taken(space.consumer("t", "c", ready=1), 24))
    assert counts == {"g": 20, "f": 4}


@case("no key")
def no_key(space: Namespace) -> None:
    make(space, fair_by="key", max_in_flight_per_key=1, max_rate_per_key=RATE)
    publish(space, "." * 60 + "a")
    consumer = space.consumer("t", "c", ready=1)
    assert "a" in taken(consumer, 18)
    assert taken(consumer, 43) == "." * 43


@case("redeliveries")
def redeliveries(space: Namespace) -> None:
    make(space, fair_by="key", max_in_flight_per_key=1)
    publish(space, "aab")
    consumer = space.consumer("t", "c", ready=3)
    first = take(consumer)
    assert first.body == b"a"
    assert take(consumer).body == b"b"
    assert nothing(consumer), "the first message of this key is in flight"
    first.requeue()
    second = take(consumer)
    assert nothing(consumer), "one of the two at a time"
    second.finish(sync=True)
    third = take(consumer)
    assert [second.body, third.body] == [b"a", b"a"]
    assert sorted([second.attempts, third.attempts]) == [1, 2]


@case("`max_in_flight_per_key`")
def in_flight(space: Namespace) -> None:
    make(space, fair_by="key", max_in_flight_per_key=2)
    publish(space, "aaaaabcc")
    consumer = space.consumer("t", "c", ready=100)
    got = [take(consumer) for _ in range(5)]
    assert Counter(message.body for message in got) == {b"a": 2, b"b": 1, b"c": 2}
    assert nothing(consumer)
    next(message for message in got if message.body == b"a").finish(sync=True)
    assert take(consumer).body == b"a"
    assert nothing(consumer)


@case("`max_rate_per_key`")
def rate_per_key(space: Namespace) -> None:
    make(space, fair_by="key", max_rate_per_key=RATE)
    publish(space, "aaaab")
    consumer = space.consumer("t", "c", ready=100)
    assert taken(consumer, 2) == "ab"
    assert nothing(consumer)
    next_token(space)
    assert taken(consumer, 1) == "a"
    assert nothing(consumer)


@case("fair while running")
def while_running(space: Namespace) -> None:
    make(space)
    publish(space, "a" * 30 + "b" * 3)
    consumer = space.consumer("t", "c", ready=1)
    assert taken(consumer, 2) == "aa"
    configure(space, fair_by="key")
    assert "b" in taken(consumer, 3), "the consumer may hold one already"
    configure(space, fair_by=None)
    assert Counter(taken(consumer, 28)) == {"a": 26, "b": 2}


@case("refused")
def refused(space: Namespace) -> None:
    for settings in (
        {"ordered": True, "fair_by": "key"},
        {"priorities": 2, "fair_by": "tag"},
        {"max_rate_per_key": 1.0},
        {"max_in_flight_per_key": 1},
        {"fair_weights": "a=2"},
        {"fair_by": "key", "fair_weights": "a=0"},
        {"fair_by": "key", "fair_weights": "a=1,a=2"},
        {"max_rate": -1.0},
    ):
        with pytest.raises(zsq.UsageError) as found:
            make(space, **settings)
        assert found.value.code == "E_BAD_ARGUMENT"
