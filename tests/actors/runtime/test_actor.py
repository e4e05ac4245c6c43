"""Tests of what an actor reports: little with each pulse, more on request, and soon after something
has changed.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
import zmq

from zsq.actors.runtime import actor as actor_module
from zsq.actors.runtime.actor import Actor
from zsq.actors.runtime.port import Mail, Port
from zsq.actors.settings import options
from zsq.actors.settings.starts import ActorStart
from zsq.actors.storage.storage_actor import StorageActor
from zsq.transport.wire import protocol as p


class Sample(Actor[ActorStart]):
    def statistics(self) -> dict[str, Any]:
        return {"depth": 7}

    def details(self) -> dict[str, Any]:
        return {"clients": []}

    came = ""


@pytest.fixture
def sample(monkeypatch: pytest.MonkeyPatch) -> Sample:
    found = Sample(5, "sample", ActorStart())
    found.said = []  # type: ignore[attr-defined]
    found.supervisor = cast(
        "Any",
        SimpleNamespace(send=lambda envelope, message: found.said.append(message)),  # type: ignore[attr-defined]
    )
    monkeypatch.setattr(actor_module, "private_bytes", lambda: 1_000)
    monkeypatch.setattr(time, "process_time_ns", lambda: 3)
    return found


def ask(sample: Sample, *, detailed: bool) -> None:
    sample._ask(sample.supervisor, cast("Any", None), p.Ask(9, detailed))


def said(sample: Sample) -> list[p.Pulse]:
    found: list[p.Pulse] = sample.said  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("detailed", [True, False])
def test_details_and_memory_are_reported_only_if_requested(sample: Sample, detailed: bool) -> None:
    ask(sample, detailed=detailed)
    memory = {"private_bytes": 1_000} if detailed else {}
    assert said(sample) == [
        p.Pulse(5, 9, {"cpu_ns": 3, "depth": 7} | memory, {"clients": []} if detailed else {})
    ]


def test_memory_is_given_back_after_work_and_not_with_each_pulse(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    trims: list[int] = []
    now = time.monotonic_ns()
    monkeypatch.setattr(time, "monotonic_ns", lambda: now)
    monkeypatch.setattr(actor_module, "release_memory", lambda: trims.append(len(said(sample))))
    sample.every(1_000, sample._pulse_if_stirred)
    for pulse in range(20):
        now += 10_000_000_000
        if pulse == 10:
            sample.stir(blocks=True)
        sample._pulse_if_stirred()
        ask(sample, detailed=True)
    assert trims == [0, 22]


def test_the_result_of_a_thread_is_reported_soon(sample: Sample) -> None:
    """The health and the statistics of storage depend on what its threads have done."""
    sample.every(10_000, sample._pulse_if_stirred)
    sample._poller = cast(
        "Any",
        SimpleNamespace(poll=lambda wait: [5], register=lambda source: None),
    )
    sample.listen_raw(5, lambda: setattr(sample, "came", "thread"))
    sample.stopping = True
    sample._loop()
    assert sample.came == "thread"
    assert said(sample) != [], "at once, for the last pulse was long ago"


def test_pushed_blocks_are_reported_soon_and_their_memory_returned_later() -> None:
    storage = StorageActor.__new__(StorageActor)
    host = storage.host = Sample(1, "topic t", ActorStart())
    storage._stages = cast("Any", SimpleNamespace(take_pushes=lambda port: None))
    host._drain(cast("Any", SimpleNamespace(on_readable=storage._take_pushes)))
    assert (host._stirred, host._worked) == (True, True)


def test_a_port_that_was_closed_in_the_same_round_is_not_read(sample: Sample) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    first, second = Port(context, zmq.PULL), Port(context, zmq.PULL)
    try:
        first.on_readable = lambda port: second.close()
        sample._poller = cast("Any", SimpleNamespace(poll=lambda wait: [first, second]))
        sample.every(10_000, sample._pulse_if_stirred)
        sample.stopping = True
        sample._loop()
        assert second.closed
    finally:
        context.destroy(linger=0)


def test_timers_that_may_rest_run_with_the_pulses_until_a_message_comes(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand idle actors must cost almost nothing, so the pulses become rare, too."""
    now = 10**15
    monkeypatch.setattr(time, "monotonic_ns", lambda: now)
    monkeypatch.setattr(actor_module, "release_memory", lambda: None)
    resting: list[int] = []
    strict: list[int] = []
    sample.every(1_000, sample._pulse_if_stirred)
    sample.every(1_000, lambda: resting.append(now), rests=True)
    sample.every(60_000, lambda: strict.append(now))

    def pass_by(seconds: int) -> tuple[int, int, int]:
        nonlocal now
        before = len(said(sample)), len(resting), len(strict)
        for _ in range(seconds):
            now += 10**9
            sample._run_timers()
        after = len(said(sample)), len(resting), len(strict)
        return after[0] - before[0], after[1] - before[1], after[2] - before[2]

    assert pass_by(600) == (7, 7, 10), "after 1, 11, 31, 71, 151, 311, and 471 s"
    sample.stir()
    sample.hasten_pulse()
    assert pass_by(10) == (1, 10, 0), "and each second again"


def test_an_actor_that_may_not_rest_keeps_its_timers(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 10**15
    monkeypatch.setattr(time, "monotonic_ns", lambda: now)
    monkeypatch.setattr(actor_module, "release_memory", lambda: None)
    monkeypatch.setattr(Sample, "may_rest", lambda self, pulse: pulse["depth"] == 0)
    calls: list[int] = []
    sample.every(1_000, sample._pulse_if_stirred)
    sample.every(1_000, lambda: calls.append(now), rests=True)
    for _ in range(100):
        now += 10**9
        sample._run_timers()
    assert (len(said(sample)), len(calls)) == (10, 100)


@pytest.mark.parametrize(("is_over", "taken"), [(False, 3), (True, 1)])
def test_blocks_are_read_for_a_bounded_time_in_a_turn(
    sample: Sample, monkeypatch: pytest.MonkeyPatch, is_over: bool, taken: int
) -> None:
    monkeypatch.setattr(options, "DRAIN_NS", -1 if is_over else 60_000_000_000)
    seen: list[Mail] = []
    mails = [Mail((b"a",), p.Pub(), [b"block"]) for _ in range(3)]
    port = SimpleNamespace(
        on_readable=None,
        receive=lambda limit: iter(mails),
        routes={p.Pub: lambda port, mail, message: seen.append(mail)},
    )
    sample._drain(cast("Any", port))
    assert len(seen) == taken
