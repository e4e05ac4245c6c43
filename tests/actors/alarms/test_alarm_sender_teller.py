"""Tests of when the alarm sender tries again, and of how it stops: it waits a moment for a delivery
in progress, and then no longer for any receiver.
"""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from zsq.actors.alarms.alarm_sender import _STOP_NS, PAUSE_S, AlarmSender, Outbox


class Ended(BaseException):
    """An exception that is raised in place of ending the process. It holds the exit code."""


def teller_with(*outboxes: Outbox) -> tuple[AlarmSender, list[str]]:
    """Return an alarm sender whose threads only record that they were ended, together with the
    record.
    """
    ended: list[str] = []
    teller = AlarmSender(1, "alarms", cast("Any", None))
    teller._stop_ns = 0
    lines = [
        SimpleNamespace(
            outbox=outbox,
            thread=SimpleNamespace(close=lambda number=number: ended.append(f"thread {number}")),
            receiver=SimpleNamespace(end=lambda: None),
        )
        for number, outbox in enumerate(outboxes)
    ]
    teller._lines = cast("Any", lines)
    return teller, ended


def busy() -> Outbox:
    """Return an outbox with a delivery in progress whose receiver does not answer."""
    found = Outbox()
    found.add(cast("Any", [{"text": "raised"}]))
    assert found.begin(time.monotonic_ns())
    return found


def test_the_alarm_sender_wakes_for_its_next_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else wakes it: it has no other timers than its pulses, and these are minutes apart
    while nothing happens.
    """
    now = 10**15
    monkeypatch.setattr(time, "monotonic_ns", lambda: now)
    outbox = busy()
    teller, _ = teller_with(Outbox(), outbox)
    idle_ms = 160_000
    teller._timers_due_ns = now + idle_ms * 10**6
    assert teller._wait_ms() > idle_ms - 1, "the receiver's answer wakes it"
    outbox.went("refused", now)
    assert teller._wait_ms() == PAUSE_S * 1_000 + 1
    now += int(PAUSE_S * 10**9)
    assert outbox.begin(now)
    outbox.went("", now)
    assert teller._wait_ms() > 100_000


def test_a_receiver_that_does_not_answer_is_waited_for_a_moment_and_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the process waited longer, the supervisor would have to kill it when the time for stopping
    is over.
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
    """The process does not wait for the thread, because that may take half a minute. It does not
    close the thread's socket either, because libzmq aborts if a socket is closed while a thread
    uses it.
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
