"""Tests of the console's board: it reports only what changed, computes rates between two pulses,
and shows each user only what the user may see.
"""

from __future__ import annotations

from typing import Any

import pytest

from zsq.actors.gateways.http.console import board as module
from zsq.actors.gateways.http.console.board import Board, BoardView, GoneRows
from zsq.actors.security.access import Access
from zsq.actors.security.policy import EVERYBODY, AccessPolicy, Principal
from zsq.actors.statistics.overview import CHANNEL_FIELDS, TOPIC_FIELDS

BROKER = {
    "version": "1", "node": 0, "uuid": "u", "start_ms": 1, "health": "OK", "alarms": 0, "alarmed_ns": 0, "processes": 5, "restarts": 0,
}  # fmt: skip
NOTHING: dict[str, Any] = {
    "health": "OK",
    "state": "up",
    "sync": "always",
    "closed": "",
    "paused": False,
}


def row(fields: tuple[str, ...], **values: Any) -> tuple[Any, ...]:
    assert values.keys() <= set(fields)
    return tuple({**dict.fromkeys(fields, 0), **NOTHING, **values}[name] for name in fields)


class Told:
    """A board, and the rows with which a supervisor would answer it."""

    def __init__(self) -> None:
        self.board = Board()
        self.steady_ms = 50_000
        self.rows: dict[str, tuple[tuple[Any, ...], dict[str, tuple[Any, ...]]]] = {}

    def topic(self, name: str, **values: Any) -> None:
        self.rows[name] = row(TOPIC_FIELDS, **values), self.rows.get(name, ((), {}))[1]

    def channel(self, topic: str, name: str, **values: Any) -> None:
        self.rows[topic][1][name] = row(CHANNEL_FIELDS, **values)

    def tick(self, after_ms: int = 1_000, *, whole: bool = True, **broker: Any) -> int:
        """Pass the rows to the board. Return the number of the tick before."""
        before, self.steady_ms = self.board.tick, self.steady_ms + after_ms
        found: Any = {
            "version": 1,
            "whole": whole,
            "topics": self.rows if whole else {},
            "broker": BROKER | broker,
        }
        self.board.take(
            found | {"topic_fields": TOPIC_FIELDS, "channel_fields": CHANNEL_FIELDS},
            self.steady_ms + 7,
            self.steady_ms,
        )
        return before

    def changes(self, since: int, view: BoardView = BoardView(EVERYBODY, channels=True)) -> Any:  # noqa: B008 (a tuple)
        found = view.changes(self.board, since)
        return (
            None
            if found is None
            else {name: value for name, value in found.items() if name != "now_ms"}
        )


@pytest.fixture
def told() -> Told:
    told = Told()
    told.topic("t", messages=100, bytes=1_000, pulsed_ms=1_000)
    told.channel("t", "c", finished=10, pulsed_ms=1_000, drain_s=-1, oldest_ns=-1)
    told.tick()
    return told


def test_only_fields_that_changed_are_told(told: Told) -> None:
    told.topic("t", messages=150, bytes=1_000, pulsed_ms=2_000, log_bytes=9)
    told.channel("t", "c", finished=10, depth=4, pulsed_ms=2_000, drain_s=-1, oldest_ns=5_000_000)
    before = told.tick()
    channel = {"depth": 4, "oldest_ms": 5}
    assert told.changes(before) == {
        "topics": {"t": {"messages": 150, "log_bytes": 9, "in": 50.0, "channels": {"c": channel}}}
    }
    before = told.tick()
    assert told.changes(before) is None
    # A slow page gets this change, too.
    assert told.changes(before - 1)["topics"]["t"]["in"] == 50.0
    assert told.tick(alarms=2) == before + 1
    assert told.changes(before + 1)["broker"]["alarms"] == 2


@pytest.mark.parametrize(
    ("passed_ms", "looked_ms", "rate"),
    [(1_000, 1_000, 50), (500, 1_000, 100), (60_000, 1_000, 25), (10_000, 10_000, 5)],
)
def test_rates_are_between_two_pulses(
    told: Told, passed_ms: int, looked_ms: int, rate: float
) -> None:
    """If more than `STILL_MS` lies between two pulses, the rate is computed as if it were
    `STILL_MS`, because an idle actor sends pulses rarely. If the overviews are farther apart than
    that, the time between two overviews counts.
    """
    told.topic("t", messages=150, bytes=1_000, pulsed_ms=1_000 + passed_ms)
    told.tick(looked_ms)
    assert told.board.topics["t"].values["in"] == rate


def test_without_a_pulse_nothing_moves(told: Told) -> None:
    told.channel("t", "c", finished=20, pulsed_ms=2_000, requeued=1)
    told.tick()
    assert told.board.topics["t"].channels["c"].values["out"] == 10
    assert told.board.topics["t"].values["out"] == 10  # the sum of its channels
    told.tick(whole=False)
    before = told.tick(module.STILL_MS - 1_000, whole=False)
    assert told.changes(before) == {
        "topics": {"t": {"out": 0, "channels": {"c": {"out": 0.0, "requeues": 0.0}}}}
    }
    assert not told.board._moving


def test_a_counter_that_starts_again_gives_no_negative_rate(told: Told) -> None:
    told.topic("t", messages=3, bytes=0, pulsed_ms=2_000)
    told.tick()
    assert told.board.topics["t"].values["in"] == 0


def test_changes_name_topics_and_channels_that_came_and_went(told: Told) -> None:
    told.topic("u")
    told.channel("t", "d")
    before = told.tick()
    found = told.changes(before)["topics"]
    assert found["u"]["may"] == "asp"
    assert (
        found["t"]["channels"]["d"]["may"],
        found["t"]["channel_count"],
        "may" in found["t"],
    ) == ("as", 2, False)
    del told.rows["u"], told.rows["t"][1]["d"]
    before = told.tick()
    assert told.changes(before) == {
        "topics": {"t": {"channel_count": 1}},
        "gone": {"topics": ["u"], "channels": [["t", "d"]]},
    }
    assert told.changes(before - 1)["gone"]["topics"] == ["u"]
    told.topic("u", messages=5)
    told.tick()
    # The topic was removed and came back. The page must forget its old values.
    found = told.changes(before)
    assert (found["gone"]["topics"], found["topics"]["u"]["messages"]) == (["u"], 5)
    only = BoardView(EVERYBODY, "t", True).changes(told.board, before)
    assert only is not None
    assert only["gone"] == GoneRows(topics=[], channels=[["t", "d"]])


def test_a_page_that_missed_too_many_changes_gets_the_whole_state(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GONE_KEPT", 2)
    told.board._gone = type(told.board._gone)(maxlen=2)
    for number in range(4):
        told.rows = {f"n{number}": told.rows["t"] if number == 0 else (row(TOPIC_FIELDS), {})}
        told.tick()
    assert told.changes(1)["whole"]
    assert "whole" not in told.changes(told.board.tick - 1)


SOME = Principal("some", AccessPolicy(Access.parse('[users.some]\nsubscribe = ["t/c"]')))


def test_a_view_has_what_its_caller_may_see(told: Told) -> None:
    told.topic("secret")
    told.tick(health="failed topics: secret")
    whole: Any = BoardView(SOME, channels=True).whole(told.board)
    assert [*whole["topics"]] == ["t"]
    assert (whole["topics"]["t"]["may"], whole["topics"]["t"]["channels"]["c"]["may"]) == ("", "s")
    assert whole["broker"] == {
        "version": "1", "node": 0, "uuid": "u", "start_ms": 1, "health": "a topic has a problem", "user": "some",
        "may": {"admin": False, "all": False},
    }  # fmt: skip
    assert BoardView(SOME, "secret").whole(told.board)["topics"] == {}
    del told.rows["secret"]
    before = told.tick()
    assert told.changes(before, BoardView(SOME)) == {
        "topics": {},
        "broker": BoardView(SOME)._broker(told.board),
    }
    rows: Any = [
        {"topic": topic, "raised_ns": 7_000_000, "time_ns": 8_000_000} for topic in ("t", "secret")
    ]
    receivers: Any = [{"name": "mail"}]
    alarms = BoardView(SOME).alarms({"now": rows, "recent": rows, "receivers": receivers})
    assert alarms == {
        "now": [{"topic": "t", "raised_ms": 7}],
        "recent": [{"topic": "t", "time_ms": 8}],
    }
