"""Gatherings of pulses: who is asked, how long it waits, who shares one."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from zsq.actors import options
from zsq.actors.gathering import Details, Gatherings, patience_s
from zsq.transport import protocol as p
from zsq.transport.errors import Refused


class Desk:
    def __init__(self, children: int) -> None:
        self.asked: list[tuple[int, p.Ask]] = []
        self.unreachable: set[int] = set()
        self.children: list[Any] = [
            SimpleNamespace(spec=SimpleNamespace(key=key), envelope=key, state="up") for key in range(1, children + 1)
        ]
        table = SimpleNamespace(children={child.spec.key: child for child in self.children})
        self.table = table
        self.gatherings = Gatherings(cast("Any", SimpleNamespace(table=table, port=SimpleNamespace(send=self.send))))
        self.told: list[tuple[str, bool, Details]] = []

    def send(self, envelope: int, word: p.Ask) -> bool:
        self.asked.append((envelope, word))
        return envelope not in self.unreachable

    def gather(self, name: str, *, detailed: bool = False, only: int = 0) -> None:
        children = self.children[:only] if only else self.children
        self.gatherings.gather(children, lambda complete, details: self.told.append((name, complete, details)), detailed=detailed)

    def answer(self, details: dict[str, Any] | None = None) -> None:
        """All that were asked until now."""
        asked, self.asked = self.asked, []
        for key, word in asked:
            self.gatherings.reported(word.request, key, details or {})


def test_it_goes_on_when_all_have_answered_with_what_they_said() -> None:
    desk = Desk(2)
    desk.gather("one", detailed=True)
    assert [(key, word.detailed) for key, word in desk.asked] == [(1, True), (2, True)]
    key, word = desk.asked.pop()
    desk.gatherings.reported(word.request, key, {"clients": [key]})
    desk.gatherings.reported(word.request, key, {"clients": ["again"]})
    assert desk.told == []
    desk.answer()
    assert desk.told == [("one", True, {2: {"clients": [2]}})]


def test_the_patience_grows_with_the_number_asked_and_stays_below_a_client_s(monkeypatch: pytest.MonkeyPatch) -> None:
    assert patience_s(1) < 1.1
    assert 5 <= patience_s(1_000) < 10
    assert patience_s(options.PROCESSES_MAX) * 2 < 20
    desk = Desk(1_000)
    begin = time.monotonic_ns()
    desk.gather("many")
    desk.gatherings.tick(begin + 5_900_000_000)
    assert desk.told == []
    desk.gatherings.tick(time.monotonic_ns() + 6_100_000_000)
    assert desk.told == [("many", False, {})]
    desk.answer()
    assert len(desk.told) == 1, "late answers change nothing"


def test_who_asks_the_same_meanwhile_shares_the_next_and_not_what_was_said_before() -> None:
    desk = Desk(3)
    for name in ("first", "second", "third"):
        desk.gather(name)
    assert len(desk.asked) == 3
    desk.answer()
    assert [name for name, *_ in desk.told] == ["first"]
    assert len(desk.asked) == 3, "both by one"
    desk.answer()
    assert [name for name, *_ in desk.told] == ["first", "second", "third"]
    desk.gather("other", only=1)
    desk.gather("detailed", only=1, detailed=True)
    assert [word.detailed for _, word in desk.asked] == [False, True], "others have their own"


def test_the_dead_answer_nothing_and_the_unreachable_are_not_waited_for() -> None:
    desk = Desk(3)
    desk.unreachable = {2}
    desk.gather("one")
    desk.gatherings.reported(desk.asked[0][1].request, 1, {})
    desk.gatherings.ended(3)
    assert desk.told == [], "in the turn's own place, when groups have seen the end too"
    desk.gatherings.tick(time.monotonic_ns())
    assert desk.told == [("one", True, {})]


def test_of_whom_a_queued_one_would_ask_the_dead_are_left_out() -> None:
    desk = Desk(2)
    desk.gather("first")
    desk.gather("second")
    del desk.table.children[2]
    desk.gatherings.ended(2)
    desk.answer()
    assert [key for key, _ in desk.asked] == [1]
    desk.answer()
    assert [name for name, *_ in desk.told] == ["first", "second"]


@pytest.mark.parametrize("ends", [True, False])
def test_waiting_for_an_end(ends: bool) -> None:
    desk = Desk(1)
    told: list[bool] = []
    desk.gatherings.after_end(desk.children[0], told.append, 20)
    if ends:
        desk.gatherings.ended(1)
    desk.gatherings.tick(time.monotonic_ns() + (0 if ends else 21_000_000_000))
    assert told == [ends]


def test_all_who_wait_are_answered_at_the_end() -> None:
    desk = Desk(1)
    for name in ("first", "second"):
        desk.gather(name)
    desk.gatherings.stop()
    assert desk.told == [("first", False, {}), ("second", False, {})]


def test_not_more_than_the_limit_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "WAITERS_MAX", 2)
    desk = Desk(1)
    desk.gather("first")
    desk.gather("second")
    with pytest.raises(Refused, match="E_LIMIT"):
        desk.gather("third")


def test_a_pulse_costs_the_same_however_many_processes_there_are() -> None:
    """Nothing is compared with the whole table on each pulse."""

    class Table(dict[int, Any]):
        looks = 0

        def keys(self) -> Any:
            Table.looks += 1
            return super().keys()

    desk = Desk(100)
    desk.table.children = Table(desk.table.children)
    desk.gather("one")
    desk.answer()
    assert (Table.looks, len(desk.told)) == (0, 1)
