"""Tests of the command to revoke keys: its orders, and what it answers if one of them fails."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from zsq.actors.supervisor.commands import revoking
from zsq.transport.errors import E_CLOSING, E_LIMIT, Refused, ZsqError
from zsq.transport.wire import protocol as p
from zsq.transport.wire.admin_requests import RevokeRequest


class Broker:
    """A topic with channels. `answers` has the answer of each order, or the error."""

    def __init__(self, *channels: str) -> None:
        self.channels = dict.fromkeys(channels)
        self.topic = "topic"
        self.starts: dict[str, ZsqError] = {}  # processes that do not start
        self.orders: list[tuple[str, p.Order[Any]]] = []
        self.answers: list[p.Done | ZsqError] = []
        self.settled: list[tuple[ZsqError | None, object]] = []

    def want(self, channel: str, then: Callable[[ZsqError | None], None]) -> None:
        then(self.starts.get(channel))

    def child(self, channel: str) -> str:
        return channel

    def send(self, child: str, make: Callable[[int], Any], then: Callable[..., None]) -> None:
        self.orders.append((child, make(1)))
        answer = self.answers.pop(0) if self.answers else p.Done(1, {})
        then(*((answer, None) if isinstance(answer, p.Done) else (None, answer)))

    def revoke(self) -> None:
        requests = SimpleNamespace(
            orders=self,
            gatherings=SimpleNamespace(gather=lambda ends, then: then(True, None)),
            settle=lambda number, error, data: self.settled.append((error, data)),
        )
        request = RevokeRequest("t", keys=("k",))
        revoking.HANDLERS[RevokeRequest](cast("Any", requests), request, cast("Any", self))


@pytest.fixture(autouse=True)
def ends_at_7(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revoking, "log_head", lambda group: 7)


def test_all_delayed_messages_are_looked_at_before_the_channels_are_told() -> None:
    broker = Broker("c", "d")
    broker.answers = [
        p.Done(1, {"cancelled": 2, "after": (5, 6)}),
        p.Done(1, {"cancelled": 3, "after": ()}),
    ]
    broker.revoke()
    assert broker.orders == [
        ("topic", p.CancelDelayed(1, (), revoke_keys=("k",))),
        ("topic", p.CancelDelayed(1, (), revoke_keys=("k",), after=(5, 6))),
        ("c", p.Revoke(1, ("k",), 7)),
        ("d", p.Revoke(1, ("k",), 7)),
    ]
    assert broker.settled == [(None, {"delayed": 5})]


def test_a_channel_that_refuses_does_not_keep_the_others_from_it() -> None:
    broker = Broker("c", "d", "e")
    error = Refused(E_LIMIT, "too many keys")
    broker.answers = [p.Done(1, {"cancelled": 0, "after": ()}), error]
    broker.starts = {"d": Refused(E_CLOSING, "it is being deleted")}
    broker.revoke()
    assert [child for child, _ in broker.orders] == ["topic", "c", "e"]
    assert broker.settled == [(error, {"delayed": 0})]


def test_a_topic_that_does_not_start_or_answer_gives_its_error() -> None:
    broker = Broker("c")
    error = Refused(E_CLOSING, "not now")
    broker.starts = {"": error}
    broker.revoke()
    broker.starts = {}
    broker.answers = [error]
    broker.revoke()
    assert [settled[0] for settled in broker.settled] == [error, error]
    assert [child for child, _ in broker.orders] == ["topic"]
