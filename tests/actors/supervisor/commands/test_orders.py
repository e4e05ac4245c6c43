"""Tests of orders that the supervisor sends to its processes: each is answered once, and only by
the process that was asked. Answers from other processes are ignored.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.group import Broker

from zsq.actors.runtime.port import Mail
from zsq.actors.supervisor.commands.management import Commands
from zsq.actors.supervisor.commands.requests import Orders, Requests
from zsq.transport.errors import ZsqError
from zsq.transport.wire import protocol as p


@pytest.fixture
def asked() -> tuple[Any, list[tuple[p.Position | None, ZsqError | None]], p.SetSealed]:
    """Send an order to storage. Return the supervisor's `Orders`, the answers, and the order."""
    broker = Broker()
    sent: list[tuple[Any, Any]] = []

    def send(child: Any, message: Any) -> bool:
        sent.append((child.envelope, message))
        return True

    orders = Orders(cast("Any", SimpleNamespace(send=send)))
    requests = SimpleNamespace(broker=broker, orders=orders)
    harness = cast("Any", Commands(cast("Any", requests), broker.view()))
    answers: list[tuple[p.Position | None, ZsqError | None]] = []
    assert broker.group.topic is not None
    orders.send(
        broker.group.topic,
        partial(p.SetSealed, is_sealed=True),
        lambda end, error: answers.append((end, error)),
    )
    ((envelope, order),) = sent
    assert envelope == broker.group.topic.envelope
    harness.asked = envelope
    return harness, answers, order


@pytest.mark.parametrize("who", [(), (b"stranger",), (b"stranger", b"behind")])
def test_an_answer_from_another_process_is_ignored(asked: Any, who: tuple[bytes, ...]) -> None:
    """A false answer would decide where a topic ends, and so at which offset the next topic of that
    name begins.
    """
    harness, answers, order = asked
    for message in (p.Position(order.request, 0), p.Failed(order.request, "E_X", "no")):
        harness.on_mail(Mail(who, message, []))
    assert answers == []
    harness.on_mail(Mail(harness.asked, p.Position(order.request, 7), []))
    assert answers == [(p.Position(order.request, 7), None)]


def test_only_the_first_answer_to_an_order_counts(asked: Any) -> None:
    harness, answers, order = asked
    harness.on_mail(Mail(harness.asked, p.Failed(order.request, "E_X", "no"), []))
    harness.on_mail(Mail(harness.asked, p.Position(order.request, 7), []))
    ((data, error),) = answers
    assert data is None
    assert error is not None
    assert error.code == "E_X"


def test_an_operating_system_error_is_reported_to_a_waiting_request(asked: Any) -> None:
    """A full disk while a row is saved must not end the supervisor."""
    harness = asked[0]
    told: list[ZsqError] = []
    harness._requests.fail = lambda request, error: told.append(error)
    harness._requests.answering = partial(Requests.answering, harness._requests)

    def carry_out(message: Any) -> None:
        raise OSError(28, "No space left on device")

    harness._again(carry_out, p.Manage(1, "delete", "t", "c", {}), None)
    (error,) = told
    assert "No space left on device" in error.text
