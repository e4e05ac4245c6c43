"""Tests of gatherings of pulses: which processes are asked, how long a gathering waits, and which
requests share one.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from zsq.actors.settings import options
from zsq.actors.statistics.gathering import Details, Gatherings, patience_s
from zsq.transport.errors import Refused
from zsq.transport.wire import protocol as p


class GatheringHarness:
    def __init__(self, children: int) -> None:
        self.asked: list[tuple[int, p.Ask]] = []
        self.unreachable: set[int] = set()
        self.children: list[Any] = [
            SimpleNamespace(spec=SimpleNamespace(key=key), envelope=key, state="up")
            for key in range(1, children + 1)
        ]
        self.processes = SimpleNamespace(
            children={child.spec.key: child for child in self.children}, send=self.send
        )
        self.gatherings = Gatherings(cast("Any", self.processes))
        self.told: list[tuple[str, bool, Details]] = []

    def send(self, child: Any, message: p.Ask) -> bool:
        self.asked.append((child.spec.key, message))
        return child.spec.key not in self.unreachable

    def gather(self, name: str, *, detailed: bool = False, only: int = 0) -> None:
        children = self.children[:only] if only else self.children
        self.gatherings.gather(
            children,
            lambda complete, details: self.told.append((name, complete, details)),
            detailed=detailed,
        )

    def answer(self, details: dict[str, Any] | None = None) -> None:
        """Answer for all processes that were asked until now."""
        asked, self.asked = self.asked, []
        for key, message in asked:
            self.gatherings.reported(message.request, key, details or {})


def test_a_gathering_ends_when_all_have_answered() -> None:
    harness = GatheringHarness(2)
    harness.gather("one", detailed=True)
    assert [(key, message.detailed) for key, message in harness.asked] == [(1, True), (2, True)]
    key, message = harness.asked.pop()
    harness.gatherings.reported(message.request, key, {"clients": [key]})
    harness.gatherings.reported(message.request, key, {"clients": ["again"]})
    assert harness.told == []
    harness.answer()
    assert harness.told == [("one", True, {2: {"clients": [2]}})]


def test_the_patience_grows_with_the_number_asked_and_stays_below_a_client_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert patience_s(1) < 1.1
    assert 5 <= patience_s(1_000) < 10
    assert patience_s(options.PROCESSES_MAX) * 2 < 20
    harness = GatheringHarness(1_000)
    begin = time.monotonic_ns()
    harness.gather("many")
    harness.gatherings.tick(begin + 5_900_000_000)
    assert harness.told == []
    harness.gatherings.tick(time.monotonic_ns() + 6_100_000_000)
    assert harness.told == [("many", False, {})]
    harness.answer()
    assert len(harness.told) == 1, "late answers change nothing"


def test_requests_during_a_gathering_share_the_next_one() -> None:
    harness = GatheringHarness(3)
    for name in ("first", "second", "third"):
        harness.gather(name)
    assert len(harness.asked) == 3
    harness.answer()
    assert [name for name, *_ in harness.told] == ["first"]
    assert len(harness.asked) == 3, "both by one"
    harness.answer()
    assert [name for name, *_ in harness.told] == ["first", "second", "third"]
    harness.gather("other", only=1)
    harness.gather("detailed", only=1, detailed=True)
    assert [message.detailed for _, message in harness.asked] == [False, True], (
        "others have their own"
    )


def test_the_dead_answer_nothing_and_the_unreachable_are_not_waited_for() -> None:
    harness = GatheringHarness(3)
    harness.unreachable = {2}
    harness.gather("one")
    harness.gatherings.reported(harness.asked[0][1].request, 1, {})
    harness.gatherings.ended(3)
    assert harness.told == [], "in the turn's own place, when groups have seen the end too"
    harness.gatherings.tick(time.monotonic_ns())
    assert harness.told == [("one", True, {})]


def test_a_queued_gathering_does_not_ask_processes_that_have_ended() -> None:
    harness = GatheringHarness(2)
    harness.gather("first")
    harness.gather("second")
    del harness.processes.children[2]
    harness.gatherings.ended(2)
    harness.answer()
    assert [key for key, _ in harness.asked] == [1]
    harness.answer()
    assert [name for name, *_ in harness.told] == ["first", "second"]


@pytest.mark.parametrize("ends", [True, False])
def test_a_waiter_learns_whether_the_child_ended_in_time(ends: bool) -> None:
    harness = GatheringHarness(1)
    told: list[bool] = []
    harness.gatherings.after_end(harness.children[0], told.append, 20)
    if ends:
        harness.gatherings.ended(1)
    harness.gatherings.tick(time.monotonic_ns() + (0 if ends else 21_000_000_000))
    assert told == [ends]


def test_all_who_wait_are_answered_at_the_end() -> None:
    harness = GatheringHarness(1)
    for name in ("first", "second"):
        harness.gather(name)
    harness.gatherings.stop()
    assert harness.told == [("first", False, {}), ("second", False, {})]


def test_not_more_than_the_limit_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "WAITERS_MAX", 2)
    harness = GatheringHarness(1)
    harness.gather("first")
    harness.gather("second")
    with pytest.raises(Refused, match="E_LIMIT"):
        harness.gather("third")


def test_a_pulse_costs_the_same_however_many_processes_there_are() -> None:
    """A pulse must not be compared with the whole table of processes."""

    class Table(dict[int, Any]):
        looks = 0

        def keys(self) -> Any:
            Table.looks += 1
            return super().keys()

    harness = GatheringHarness(100)
    harness.processes.children = Table(harness.processes.children)
    harness.gather("one")
    harness.answer()
    assert (Table.looks, len(harness.told)) == (0, 1)
