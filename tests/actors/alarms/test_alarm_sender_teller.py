"""Tests of how the alarm sender stops: it waits a moment for a delivery in progress, and then no
longer for any receiver.
"""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from zsq.actors.alarms.alarm_sender import _STOP_NS, AlarmSender, Outbox


class Ended(BaseException):
    """Raised in place of ending the process with this code."""


def teller_with(*outboxes: Outbox) -> tuple[AlarmSender, list[str]]:
    """Return an alarm sender whose threads only record that they were ended, and that record."""
    ended: list[str] = []
    teller = AlarmSender(1, "alarms", cast("Any", None))
    teller._stop_ns = 0
    lines = {
        number: SimpleNamespace(
            outbox=outbox,
            thread=SimpleNamespace(close=lambda number=number: ended.append(f"thread {number}")),
            receiver=SimpleNamespace(end=lambda: None),
        )
        for number, outbox in enumerate(outboxes)
    }
    teller._lines = cast("Any", lines)
    return teller, ended


def busy() -> Outbox:
    """Return an outbox with a delivery in progress whose receiver does not answer."""
    found = Outbox()
    found.add(cast("Any", [{"text": "raised"}]))
    assert found.begin(time.monotonic_ns())
    return found


def test_a_receiver_that_does_not_answer_is_waited_for_a_moment_and_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the supervisor would have to kill the process at the end of the time
    for stopping.
    """
    now = 10**15
    monkeypatch.setattr(time, "monotonic_ns", lambda: now)
    outbox = busy()
    teller, _ = teller_with(Outbox(), outbox)
    assert not teller.on_stop()
    now += _STOP_NS
    assert not teller.on_stop()
    now += 1
    assert teller.on_stop()
    outbox.went("", now)
    teller._stop_ns = 0
    assert teller.on_stop(), "at once where nobody is being told"


def test_the_alarm_sender_ends_although_a_thread_still_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Waiting for that thread may take half a minute, and libzmq aborts if its socket is closed
    while the thread uses it.
    """

    def ends(code: int) -> NoReturn:
        raise Ended(code)

    monkeypatch.setattr(os, "_exit", ends)
    teller, ended = teller_with(Outbox(), busy())
    with pytest.raises(Ended, match="0"):
        teller.on_end()
    assert ended == []
    teller, ended = teller_with(Outbox(), Outbox())
    teller.on_end()
    assert ended == ["thread 0", "thread 1"]
