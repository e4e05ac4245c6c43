"""Test of an actor on an event loop: it checks its timers although no message arrives."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from zsq.actors.runtime import actor as actor_module
from zsq.actors.runtime.async_actor import AsyncActor
from zsq.actors.settings import options
from zsq.actors.settings.starts import ActorStart
from zsq.transport.wire import protocol as p

S = 1_000_000_000


class Loop:
    """An event loop that only records which function is to be called, and after how long."""

    def __init__(self) -> None:
        self.due: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, pause_s: float, function: Callable[[], None]) -> Any:
        self.due.append((pause_s, function))
        return SimpleNamespace(cancel=self.due.clear)


def test_news_of_an_idle_actor_is_told_within_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop watches the sockets of the clients, and the actor does not. So only the
    actor's own timer wakes it, and the next regular pulse is far away.
    """
    now, said = 10**15, list[Any]()
    monkeypatch.setattr(time, "monotonic_ns", lambda: now)
    monkeypatch.setattr(time, "process_time_ns", lambda: 3)
    monkeypatch.setattr(actor_module, "release_memory", lambda: None)
    found = AsyncActor(5, "gateway", ActorStart())
    found.supervisor = cast(
        "Any", SimpleNamespace(send=lambda envelope, message: said.append(message))
    )
    found.loop, found._timer = cast("Any", loop := Loop()), None
    found.every(options.PULSE_MS, found._pulse_if_stirred)
    now += S
    found._take_in()
    assert said == [p.Pulse(5, 0, {"cpu_ns": 3}, {})]
    assert found._timers[0][0] == now + options.IDLE_PULSE_MS * 1_000_000, (
        "the premise: nothing stirs it"
    )
    begun = now
    found.stir()
    while len(said) == 1:
        ((pause_s, function),) = loop.due
        now += int(pause_s * S)
        function()
    assert now - begun <= options.PULSE_MS * 1_000_000
