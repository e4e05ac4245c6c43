"""Tests of the bounds of a topic's group: its channels, and the requests that wait for it."""

from __future__ import annotations

import pytest
from support.group import Broker

from zsq.actors.settings import options
from zsq.transport.errors import E_CLOSING, E_LIMIT


def test_the_number_of_channels_of_a_topic_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "CHANNELS_MAX", 2)
    broker = Broker()
    for name in ("a", "b", "c"):
        broker.want(name)
    assert [error.code for error in broker.answers if error] == [E_LIMIT]
    assert {*broker.group.channels} == {"a", "b"}


def test_the_number_of_requests_that_wait_for_a_topic_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(options, "WAITERS_MAX", 2)
    broker = Broker()
    for _ in range(3):
        broker.want("a")
    assert [error.code for error in broker.answers if error] == [E_LIMIT]
    broker.up("a")
    assert broker.answers[1:] == [None, None]


def test_requests_that_wait_for_a_deleted_channel_to_return_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(options, "WAITERS_MAX", 2)
    broker = Broker()
    broker.group.begin_deletion("c#ephemeral")
    for _ in range(3):
        broker.want("c#ephemeral")
    assert [error.code for error in broker.answers if error] == [E_CLOSING]


def test_a_request_for_a_durable_channel_that_is_being_deleted_fails_at_once() -> None:
    broker = Broker()
    broker.group.begin_deletion("c")
    broker.want("c")
    assert [error.code for error in broker.answers if error] == [E_CLOSING]
    broker.group.end_deletion("c")
    broker.want("c")
    assert broker.started == ["c"]
