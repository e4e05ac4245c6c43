"""Tests of `zsq.testing.assert_published`: what it accepts, how long it waits, and what it says."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import zsq
from zsq.testing import MemoryBroker, Namespace, assert_published


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker() as one, one.producer() as producer:
        producer.publish("orders", b'{"id": 7}', key="k", tag="paid", headers={"n": 1, "s": "x"})
        producer.publish("orders", b"plain")
        yield one


def fails(broker: MemoryBroker, **expected: Any) -> str:
    """Return the text of the error."""
    with pytest.raises(AssertionError) as error:
        assert_published("orders", broker=broker, timeout=0, **expected)
    return str(error.value)


@pytest.mark.parametrize(
    "expected",
    [
        {"body": b'{"id": 7}'},
        {"body": '{"id": 7}'},
        {"body": lambda body: body.startswith(b"{")},
        {"json": {"id": 7}},
        {"headers": {"n": 1}},
        {"headers": {"n": 1, "s": "x"}},
        {"key": b"k"},
        {"key": "k", "tag": "paid", "count": 1},
    ],
)
def test_messages_as_expected_are_returned(broker: MemoryBroker, expected: dict[str, Any]) -> None:
    [message] = assert_published("orders", broker=broker, timeout=0, **expected)
    assert (message.offset, message.body) == (0, b'{"id": 7}')


def test_none_means_that_a_message_has_no_key_and_no_tag(broker: MemoryBroker) -> None:
    for message in (
        *assert_published("orders", broker=broker, timeout=0, key=None),
        *assert_published("orders", broker=broker, timeout=0, tag=None),
    ):
        assert message.body == b"plain"


def test_without_expectations_any_message_is_right(broker: MemoryBroker) -> None:
    assert len(assert_published("orders", broker=broker, timeout=0)) == 2
    assert assert_published("orders", broker=broker, body=b"other", count=0) == []
    assert assert_published("nothing", broker=broker, count=0) == []


@pytest.mark.parametrize(
    ("expected", "differs"),
    [
        ({"body": b"x", "key": "k"}, "body"),
        ({"json": {"id": 8}, "key": "k"}, "json"),
        ({"headers": {"n": 2}}, "header 'n'"),
        ({"headers": {"other": 2}}, "header 'other'"),
        ({"tag": "free"}, "tag"),
        ({"key": "l"}, "key"),
    ],
)
def test_an_error_shows_each_message_and_how_it_differs(
    broker: MemoryBroker, expected: dict[str, object], differs: str
) -> None:
    text = fails(broker, **expected)
    first = next(line for line in text.split("\n") if "offset 0" in line)
    assert "key=b'k' tag='paid' headers={'n': 1, 's': 'x'}" in first
    assert first.endswith(f"<- differs: {differs}")
    assert "it has 2 messages in all:" in text


def test_the_number_is_exact_if_it_is_given(broker: MemoryBroker) -> None:
    assert "has 2 messages at all, expected 1\n" in fails(broker, count=1)
    assert "has 2 messages at all, expected 3 within 0 s" in fails(broker, count=3)
    assert "expected 0" in fails(broker, count=0)
    assert "as expected" in fails(broker, body=b"plain", count=2)


def test_it_waits_for_what_another_thread_publishes(broker: MemoryBroker) -> None:
    def publish() -> None:
        with broker.producer() as producer:
            producer.publish("orders", b"late")

    publisher = threading.Timer(0.2, publish)
    publisher.start()
    [message] = assert_published("orders", broker=broker, body=b"late", timeout=30)
    assert message.offset == 2
    publisher.join()


def test_an_error_names_delayed_messages_and_a_missing_topic(broker: MemoryBroker) -> None:
    with broker.producer() as producer:
        producer.publish("orders", b"late", delay=60)
    assert "1 delayed messages are not due yet" in fails(broker, body=b"late")
    with pytest.raises(AssertionError, match="it has 0 messages in all"):
        assert_published("nothing", broker=broker, timeout=0)


def test_the_default_broker_is_that_of_the_environment(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZSQ_URL", broker.url)
    assert_published("orders", body=b"plain")
    assert_published("orders", body=b"plain", broker=broker.url)


def test_long_topics_and_bodies_are_cut(broker: MemoryBroker) -> None:
    with broker.producer() as producer:
        producer.publish_many("orders", [b"x" * 1000] * 30)
    text = fails(broker, body=b"none")
    assert "it has 32 messages in all; the last 20:" in text
    assert text.count("offset ") == 20
    assert "... (1003 long)" in text


def test_a_body_of_another_type_is_refused(broker: MemoryBroker) -> None:
    with pytest.raises(zsq.UsageError, match="body must be bytes or text, not int"):
        assert_published("orders", body=7, broker=broker)  # type: ignore[arg-type]


def test_a_topic_of_a_namespace_is_named_as_in_the_test(broker: MemoryBroker) -> None:
    with Namespace(broker) as space:
        space.publish("orders", b"of the namespace")
        (message,) = assert_published("orders", timeout=0, broker=space)
        assert message.body == b"of the namespace"
