"""The teller of alarms at its end: it waits a moment for what is being told, and then for nobody
outside.
"""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from zsq.actors.alarms.alarm_sender import _STOP_NS, AlarmSender, Outbox


class Ended(BaseException):
    """The process, with this code."""


def teller_with(*outboxes: Outbox) -> tuple[AlarmSender, list[str]]:
    """Its threads only note that they were ended."""
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
    """Somebody is being told, and does not say whether he heard it."""
    found = Outbox()
    found.add(cast("Any", [{"text": "raised"}]))
    assert found.begin(time.monotonic_ns())
    return found


def test_a_receiver_that_does_not_answer_is_waited_for_a_moment_and_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the supervisor would have to kill it, at the end of the time for stopping."""
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
    """To wait for that thread may take half a minute, and libzmq aborts when its socket is closed
    under it.
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
