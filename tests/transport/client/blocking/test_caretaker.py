"""Tests of the thread that looks after clients that no other thread turns."""

from __future__ import annotations

import gc
import threading
from typing import Any

import zsq
from zsq.transport.client.blocking.caretaker import Caretaker

TURN_S = 0.01


def threads() -> set[threading.Thread]:
    return {one for one in threading.enumerate() if one.name == "caretaker of zsq clients"}


def test_an_unused_client_reads_what_zeromq_reports(broker: Any) -> None:
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
        Caretaker(TURN_S).look_after(drive)
        broker.die()
        assert turned.wait(10), "nobody uses the client, and it knows that its broker is gone"
        assert drive.lock.acquire(timeout=5)
        drive.lock.release()
        broker.start()


class _Client:
    """A client that counts how often it was turned, and notes that it was ended."""

    def __init__(self) -> None:
        self.turned = threading.Event()
        self.ended = threading.Event()

    def turn_if_idle(self) -> None:
        self.turned.set()

    def end_dropped(self) -> None:
        self.ended.set()


def test_the_thread_ends_with_the_last_client() -> None:
    before = threads()
    caretaker = Caretaker(TURN_S)
    for _ in range(2):  # after its end, another one is started
        client = _Client()
        caretaker.look_after(client)
        [thread] = threads() - before
        assert client.turned.wait(10)
        del client
        gc.collect()
        thread.join(10)
        assert not thread.is_alive()


def test_a_dropped_client_is_ended_at_once() -> None:
    caretaker = Caretaker(turn_s=3600)
    client = _Client()
    caretaker.look_after(client)
    caretaker.take(client)
    assert client.ended.wait(10)
    assert not client.turned.is_set()


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
