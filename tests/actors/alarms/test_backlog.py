"""Tests of backlog alarms: their table of states, hysteresis, hold times, and a simple model that
sees the same values.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsq.actors.alarms import backlog as alarms
from zsq.actors.alarms.backlog import (
    HELD,
    TRANSITIONS,
    Alarms,
    AlarmState,
    AlarmSubject,
    Event,
    Level,
    Watched,
    as_json,
    condition,
    level,
)

S = 1_000_000_000
DEPTH = AlarmSubject("clicks", "archive", "depth")
AGE = AlarmSubject("clicks", "archive", "age_s")


class Watch:
    """Backlog alarms that see one value per second."""

    def __init__(self, hold_s: float = 3, threshold: float = 100) -> None:
        self.alarms = Alarms(hold_s)
        self.threshold = threshold
        self.now = 50

    def see(self, *values: float | None) -> list[str]:
        """Return the events that these values cause, one value per second."""
        told: list[Event] = []
        for value in values:
            self.now += 1
            told += self.alarms.see(
                {DEPTH: Watched(value, self.threshold)}, self.now * S, (9_000 + self.now) * S
            )
        return [event.event for event in told]


def test_the_table_in_the_head_is_the_table() -> None:
    drawn = [line for line in (alarms.__doc__ or "").splitlines() if line.startswith("|")]
    assert "\n".join(drawn) in Path(__file__).parents[3].joinpath("docs/alarms.md").read_text(), (
        "and that in the docs"
    )
    rows = [line.strip("| ").split(" | ") for line in drawn if line.startswith("| ")]
    assert [row[0] for row in rows[1:]] == [state.value for state in AlarmState]
    order = (Level.ABOVE, Level.BETWEEN, Level.BELOW, Level.UNKNOWN)
    for row in rows[1:]:
        state = AlarmState(row[0])
        assert [cell.split(";")[0] for cell in row[1:]] == [
            TRANSITIONS[state][found].value for found in order
        ]
        held = [cell.split("held: ")[1] for cell in row[1:] if "held" in cell]
        assert held == ([HELD[state].value] if state in HELD else [])


@pytest.mark.parametrize(
    ("value", "threshold", "found"),
    [
        (101, 100, Level.ABOVE), (100, 100, Level.BETWEEN), (80.1, 100, Level.BETWEEN), (80, 100, Level.BELOW), (0, 100, Level.BELOW),
        (1, 0, Level.ABOVE), (0, 0, Level.BELOW), (2, 1, Level.ABOVE), (1, 1, Level.BETWEEN), (0, 1, Level.BELOW),
        (None, 100, Level.UNKNOWN),
    ],
)  # fmt: skip
def test_each_value_has_its_level_against_the_threshold(
    value: float | None, threshold: float, found: Level
) -> None:
    assert level(value, threshold) is found


def test_an_alarm_is_raised_once_after_its_hold_time() -> None:
    watch = Watch()
    assert watch.see(101, 200, 300) == []
    assert watch.see(400) == ["raised"]
    assert watch.see(*[500] * 20) == []
    (row,) = watch.alarms.raised()
    assert (row["topic"], row["channel"], row["kind"], row["value"], row["threshold"]) == (
        "clicks",
        "archive",
        "depth",
        500,
        100,
    )
    assert row["raised_ns"] == 9_054 * S


def test_a_peak_that_does_not_hold_is_none() -> None:
    watch = Watch()
    assert watch.see(*[101, 101, 101, 100] * 10) == []
    assert watch.alarms.raised() == []


def test_an_alarm_is_cleared_after_a_while_below_the_lower_bound() -> None:
    watch = Watch()
    watch.see(*[200] * 4)
    assert watch.see(*[81] * 20) == [], "between the two bounds it stays"
    assert watch.see(80, 80, 80, 81) == []
    assert watch.see(80, 0, 0) == []
    assert watch.see(0) == ["cleared"]
    assert watch.alarms.raised() == []


def test_a_value_that_swings_around_the_threshold_raises_one_alarm() -> None:
    watch = Watch()
    assert watch.see(*[101, 101, 101, 101, 90, 99] * 30) == ["raised"]


def test_a_hold_time_of_0_raises_an_alarm_at_once() -> None:
    assert Watch(hold_s=0).see(101, 50, 101) == ["raised", "cleared", "raised"]


def test_an_unknown_value_changes_nothing_and_stops_the_hold_time() -> None:
    watch = Watch()
    assert watch.see(101, 101, None, None, None, None, 101) == []
    assert watch.see(101) == ["raised"]
    assert watch.see(*[None] * 9) == []
    assert watch.see(0, 0, None, None, None, None, 0) == []
    assert watch.see(0) == ["cleared"]


def test_a_threshold_that_is_changed_counts_at_once() -> None:
    watch = Watch()
    watch.see(*[200] * 4)
    watch.threshold = 1_000
    assert watch.see(*[200] * 4) == ["cleared"]
    watch.threshold = 10
    assert watch.see(*[200] * 4) == ["raised"]


@pytest.mark.parametrize(("seen", "told"), [(4, ["cleared"]), (2, [])])
def test_the_alarm_of_a_removed_channel_is_cleared_if_it_was_raised(
    seen: int, told: list[str]
) -> None:
    watch = Watch()
    watch.see(*[200] * seen)
    events = watch.alarms.see({}, 99 * S, 9_099 * S)
    assert [event.event for event in events] == told
    assert all("was removed" in event.text and event.value is None for event in events)
    assert watch.alarms.see({}, 100 * S, 9_100 * S) == []


def test_each_figure_of_each_channel_is_one_alarm() -> None:
    found = Alarms(0)
    other = AlarmSubject("clicks", "billing", "depth")
    events = found.see(
        {DEPTH: Watched(200, 100), AGE: Watched(5.0, 60.0), other: Watched(7, 5)}, S, S
    )
    assert {event.place for event in events} == {DEPTH, other}
    assert len(found.raised()) == 2


def test_an_alarm_is_described_in_json_and_in_text() -> None:
    (event,) = Alarms(0).see({DEPTH: Watched(1_234, 1_000)}, S, 9 * S)
    assert as_json(event) == {
        "event": "raised", "topic": "clicks", "channel": "archive", "kind": "depth", "value": 1_234, "threshold": 1_000,
        "raised_ns": 9 * S, "time_ns": 9 * S, "text": "raised: clicks/archive: depth 1,234 (alarm above 1,000)",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("place", "watched", "text"),
    [
        (AGE, Watched(61.25, 60), "clicks/archive: oldest message 61.2 s old (alarm above 60 s)"),
        (AlarmSubject("t", "", "depth"), Watched(2_000, 5), "t: depth 2,000 (alarm above 5)"),
        (AlarmSubject("", "", "depth"), Watched(7, 5), "broker: depth 7 (alarm above 5)"),
        (
            AlarmSubject("t", "", "held_bytes"),
            Watched(2_000, 5),
            "t: unfinished messages hold 2,000 bytes (alarm above 5 bytes)",
        ),
        (AlarmSubject("t", "", "health"), condition("it is ill", "well"), "t: it is ill"),
    ],
)
def test_a_raised_alarm_says_what_it_is_about(
    place: AlarmSubject, watched: Watched, text: str
) -> None:
    found = Alarms(0)
    (event,) = found.see({place: watched}, S, S)
    assert event.text == f"raised: {text}"
    assert [row["text"] for row in found.raised()] == [text]


def test_a_condition_says_what_is_wrong_now_and_what_is_said_when_it_is_over() -> None:
    found, place = Alarms(0), AlarmSubject("", "", "bucket")
    told = []
    for second, trouble in enumerate(("", "no answer", "refused", "", "")):
        told += found.see({place: condition(trouble, "it can be used")}, (second + 1) * S, S)
        if trouble == "refused":
            (row,) = found.raised()
            assert (row["text"], row["value"], row["threshold"]) == ("broker: refused", None, 0)
    assert [event.text for event in told] == [
        "raised: broker: no answer",
        "cleared: broker: it can be used",
    ]


@given(st.lists(st.sampled_from([0, 80, 81, 100, 101, 500, None]), max_size=60), st.integers(0, 5))
def test_alarms_agree_with_a_model_that_reads_all_past_values(
    values: list[float | None], hold: int
) -> None:
    """In the model, an alarm is raised when the latest known values above the threshold span `hold`
    seconds without interruption. It is cleared in the same way by values below it.
    """
    watch = Watch(hold_s=hold)
    raised = False
    run: list[bool] = []  # the known values in a row that call for a change of the alarm
    kind = ""
    for value in values:
        found = level(value, 100)
        told = watch.see(value)
        want: list[str] = []
        if found is not Level.UNKNOWN:
            counts = found is (Level.BELOW if raised else Level.ABOVE)
            run = [*run, True] if counts and kind == found.value else [True] if counts else []
            kind = found.value
            if run and len(run) - 1 >= hold:
                raised = not raised
                want = ["raised" if raised else "cleared"]
                run = []
        assert told == want
        assert bool(watch.alarms.raised()) == raised
