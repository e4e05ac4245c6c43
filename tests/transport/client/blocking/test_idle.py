"""Tests of clients without a keeper that nobody uses."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest

import zsq
from zsq.transport.client.blocking import idle


def the_thread() -> threading.Thread | None:
    return next((one for one in threading.enumerate() if one.name == "idle clients of zsq"), None)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the thread of idle clients do its work every 10 ms."""
    monkeypatch.setattr(idle, "TURN_S", 0.01)
    if idle._woken is not None:  # the thread of an earlier test may be waiting for a minute
        idle._woken.set()
        idle._woken.clear()


def test_an_unused_client_reads_what_zeromq_reports(broker: Any, at_once: None) -> None:
    with zsq.Admin(broker.url) as admin:
        admin.pause("t", "c")
        drive = admin._made
        assert drive is not None
        turned = threading.Event()
        turn = drive.engine.turn

        def watched(ready: list[tuple[int, int]]) -> None:
            turn(ready)
            if any(link.state.value != "up" for link in drive.engine.links):
                turned.set()

        drive.engine.turn = watched  # type: ignore[method-assign]
        broker.die()
        assert turned.wait(10), "nobody uses the client, and it knows that its broker is gone"
        assert drive.lock.acquire(timeout=5)
        drive.lock.release()
        broker.start()


def test_the_thread_ends_with_the_last_client(broker: Any, at_once: None) -> None:
    with zsq.Admin(broker.url) as admin:
        admin.pause("t", "c")
        thread = the_thread()
        assert thread is not None
    del admin
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()
    with zsq.Admin(broker.url) as admin:
        admin.pause("t", "c")
        assert the_thread() is not None


def test_a_client_in_use_or_closed_is_left_alone(broker: Any) -> None:
    with zsq.Admin(broker.url) as admin:
        admin.pause("t", "c")
        drive = admin._made
        assert drive is not None
        turns = drive.engine.turns
        with drive.lock:
            drive.turn_if_idle()
        assert drive.engine.turns == turns
        drive._driver = object()  # as while a thread waits for the engine's descriptors
        drive.turn_if_idle()
        assert drive.engine.turns == turns
        drive._driver = None
        drive.turn_if_idle()
        assert drive.engine.turns == turns + 1
    drive.turn_if_idle()
    assert drive.engine.turns == turns + 1
