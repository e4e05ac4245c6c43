"""Orders of the supervisor: answered once, by who was asked, and by nobody else who has found the door."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.group import Broker

from zsq.actors.management import Management
from zsq.actors.port import Mail
from zsq.transport import protocol as p
from zsq.transport.errors import ZsqError


@pytest.fixture
def asked() -> tuple[Any, list[tuple[dict[str, Any] | None, ZsqError | None]], p.Order]:
    """A management that has asked a storage for its end; what came of it; the order."""
    broker = Broker()
    sent: list[tuple[Any, Any]] = []

    def send(envelope: Any, word: Any) -> bool:
        sent.append((envelope, word))
        return True

    desk = cast("Any", object.__new__(Management))
    desk.supervisor = SimpleNamespace(port=SimpleNamespace(send=send))
    desk._request, desk._orders = 0, {}
    answers: list[tuple[dict[str, Any] | None, ZsqError | None]] = []
    assert broker.group.storage is not None
    desk.order(broker.group.storage, "seal", {}, lambda data, error: answers.append((data, error)))
    ((envelope, order),) = sent
    assert envelope == broker.group.storage.envelope
    desk.asked = envelope
    return desk, answers, order


@pytest.mark.parametrize("who", [(), (b"stranger",), (b"stranger", b"behind")])
def test_a_stranger_answers_no_order(asked: Any, who: tuple[bytes, ...]) -> None:
    """It would say where a topic ends, and with that which offsets the next one of its name begins at."""
    desk, answers, order = asked
    for word in (p.Done(order.request, {"head": 0}), p.Failed(order.request, "E_X", "no")):
        desk.on_mail(Mail(who, word, []))
    assert answers == []
    desk.on_mail(Mail(desk.asked, p.Done(order.request, {"head": 7}), []))
    assert answers == [({"head": 7}, None)]


def test_an_order_is_answered_once(asked: Any) -> None:
    desk, answers, order = asked
    desk.on_mail(Mail(desk.asked, p.Failed(order.request, "E_X", "no"), []))
    desk.on_mail(Mail(desk.asked, p.Done(order.request, {"head": 7}), []))
    ((data, error),) = answers
    assert data is None
    assert error is not None
    assert error.code == "E_X"


def test_what_the_system_refuses_is_told_also_to_who_waited_for_the_topic(asked: Any) -> None:
    """A full disk while a row is saved must not end the supervisor."""
    desk = asked[0]
    told: list[ZsqError] = []
    desk.fail = lambda envelope, request, error: told.append(error)

    def carry_out(envelope: Any, word: Any) -> None:
        raise OSError(28, "No space left on device")

    desk._again(carry_out, (b"client",), p.Manage(1, "delete", "t", "c", {}), None)
    (error,) = told
    assert "No space left on device" in error.text
