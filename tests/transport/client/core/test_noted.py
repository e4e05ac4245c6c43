"""Tests of when a consumer's engine sends a plain finish."""

from __future__ import annotations

import time

import pytest

from zsq.transport.client.core.consumer_session import ConsumerSession
from zsq.transport.client.core.subscription import READY_FEW, TELL_NS, ConsumerEngine
from zsq.transport.client.link.engine import Waiter
from zsq.transport.client.link.timeouts import FAR_NS
from zsq.transport.wire.addresses import parse_all


@pytest.mark.parametrize(
    ("ready", "waits", "at_once"),
    [(1, True, True), (READY_FEW, True, True), (READY_FEW + 1, True, False), (1, False, False)],
)
def test_a_finish_is_sent_at_once_if_a_caller_may_wait_for_it(
    ready: int, waits: bool, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = parse_all("tcp://127.0.0.1:1", None, None)
    engine = ConsumerEngine(address, "t", "c", ConsumerSession(ready), None, {})
    sent: list[int] = []
    monkeypatch.setattr(engine, "tell", sent.append)
    if waits:
        engine.waiters.append(Waiter(lambda: False, lambda: None))
    now = time.monotonic_ns()
    engine.noted(now)
    assert (sent == [now]) is at_once
    assert engine.due_ns == (FAR_NS if at_once else now + TELL_NS)
    engine.stop()
