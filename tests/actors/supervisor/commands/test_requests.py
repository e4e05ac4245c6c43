"""Test of requests of clients, and of the numbers that the broker gives them."""

from __future__ import annotations

from typing import Any, cast

import pytest
from support.group import Broker

from zsq.actors.settings import options
from zsq.actors.supervisor.commands.requests import Requests
from zsq.transport.wire.protocol import Done


class NoAudit:
    def note(self, *_: Any, **__: Any) -> None: ...


def test_the_number_of_requests_that_wait_for_an_answer_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(options, "ASKED_MAX", 2)
    sent: list[Any] = []

    def send(who: Any, message: Any) -> bool:
        sent.append((who, message))
        return True

    requests = Requests(cast("Any", Broker()), cast("Any", None), cast("Any", NoAudit()), send, int)
    for number in [requests.numbered((b"me",), theirs) for theirs in (7, 8, 9)]:
        requests.done(number, {})
    assert sent == [((b"me",), Done(8, {})), ((b"me",), Done(9, {}))], "the oldest one is forgotten"
