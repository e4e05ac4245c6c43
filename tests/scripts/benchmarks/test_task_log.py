"""Tests of how the benchmark `tasks` counts what killed workers cost."""

from __future__ import annotations

from dataclasses import fields
from typing import Final, NamedTuple

import pytest

from benchmarks.measures.task_log import Moment, Outcome, moments, outcome, runs_of


class Case(NamedTuple):
    """Lines of the task t, `EVENT WORKER SECONDS`, the kills, and where t is counted."""

    claim: str
    lines: str
    killed: dict[str, float]
    counted: frozenset[str] | set[str] = frozenset()


CASES: Final = [
    Case("it runs once", "start a 1, end a 2, ack a 3", {}),
    Case("it was never begun", "", {}, {"lost"}),
    Case("no run of it came to its end", "start a 1, start b 5", {"a": 2, "b": 6}, {"lost"}),
    Case(
        "its worker was killed within it",
        "start a 1, start b 5, end b 6, ack b 7",
        {"a": 2},
    ),
    Case(
        "its worker was killed before the ack",
        "start a 1, end a 2, start b 5, end b 6, ack b 7",
        {"a": 2.5},
        {"repeated_unacked"},
    ),
    Case(
        "the line of the ack is later than the kill",
        "start a 1, end a 2, ack a 2.6, start b 5, end b 6, ack b 7",
        {"a": 2.5},
        {"repeated_unacked"},
    ),
    Case(
        "its worker was killed a moment after the ack",
        "start a 1, end a 2, ack a 2.45, start b 5, end b 6, ack b 7",
        {"a": 2.5},
        {"repeated_on_its_way"},
    ),
    Case(
        "its worker was killed long after the ack",
        "start a 1, end a 2, ack a 2.3, start b 5, end b 6, ack b 7",
        {"a": 2.5},
        {"needless_ends", "needless_starts"},
    ),
    Case(
        "it was acknowledged, and its second run never ended",
        "start a 1, end a 2, ack a 3, start b 5",
        {"b": 6},
        {"needless_starts"},
    ),
    Case(
        "no worker was killed",
        "start a 1, end a 2, ack a 3, start b 5, end b 6, ack b 7",
        {},
        {"needless_ends", "needless_starts"},
    ),
    Case(
        "a worker that lives never acknowledged it",
        "start a 1, end a 2, start b 5, end b 6, ack b 7",
        {},
        {"needless_ends", "needless_starts"},
    ),
    Case(
        "its first worker lives and still runs it, and the second one ends first",
        "start a 1, start b 4, end b 5, ack b 6, end a 9, ack a 9.1",
        {},
        {"needless_ends", "needless_starts"},
    ),
    Case(
        "its first worker ends last and is killed before the ack",
        "start a 1, start b 4, end b 5, ack b 6, end a 9",
        {"a": 9.05},
        {"needless_ends", "needless_starts"},
    ),
    Case(
        "it came to a second worker before the first one was killed",
        "start a 1, start b 4, end b 5, ack b 6",
        {"a": 4.5},
        {"needless_starts"},
    ),
    Case(
        "the second run is needed, and the third one is not",
        "start a 1, start b 4, end b 5, ack b 6, start c 8, end c 9, ack c 9.1",
        {"a": 2},
        {"needless_ends", "needless_starts"},
    ),
    Case(
        "the same worker runs it again",
        "start a 1, end a 2, start a 2.1, ack a 2.2, end a 3, ack a 3.1",
        {},
        {"needless_ends", "needless_starts"},
    ),
    Case(
        "the same worker begins it again before the first ack, and is killed within the second run",
        "start a 1, end a 2, start a 2.1, ack a 2.2, start b 6, end b 7, ack b 7.1",
        {"a": 2.5},
        {"needless_ends", "needless_starts"},
    ),
    Case(
        "the same worker runs it again and is killed before the second ack only",
        "start a 1, end a 2, ack a 2.1, start a 4, end a 5",
        {"a": 5.1},
        {"needless_ends", "needless_starts"},
    ),
]


def lines(text: str) -> list[str]:
    rows = [line.split() for line in text.split(", ") if line]
    return [f"{event} t {worker} 1 {seconds}" for event, worker, seconds in rows]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.claim)
def test_a_task_is_counted_once_if(case: Case) -> None:
    found = outcome(["t"], runs_of(lines(case.lines), case.killed))
    assert {one.name: getattr(found, one.name) for one in fields(Outcome)} == {
        one.name: ["t"] if one.name in case.counted else [] for one in fields(Outcome)
    }


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("", Moment.STARTING),
        ("start b 1", Moment.STARTING),
        ("start a 1", Moment.RUNNING),
        ("start a 1, end a 2", Moment.ACKING),
        ("start a 1, end a 2, ack a 3", Moment.BETWEEN),
        ("start a 1, end a 2, start a 3", Moment.RUNNING),
    ],
)
def test_the_last_run_says_what_a_killed_worker_did(text: str, moment: Moment) -> None:
    killed = {"a": 9.0}
    assert moments(runs_of(lines(text), killed), killed) == {moment: 1}


def test_a_line_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="no event of this log"):
        runs_of(["begin t a 1 2.0"], {})
