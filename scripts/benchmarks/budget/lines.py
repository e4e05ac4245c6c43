"""Lines of the table: measurement, budget, and whether it is met. Pure.

A line has one value for each round. If a budget is a ratio, the ratio is taken within each round,
so that other load on the machine affects both sides alike. A line without values was not compared,
and gives the reason. A line without a budget is for information.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from ..harness.report import Report

TIMES: Final = "times"


class Verdict(StrEnum):
    MET = "met"
    UNMET = "unmet"
    NOT_COMPARED = "not compared"
    NO_BUDGET = ""


@dataclass(frozen=True, slots=True)
class Goal:
    """The bound that a median must reach (`at_least`) or must not exceed."""

    bound: float
    at_least: bool = True

    def met(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound

    def text(self, unit: str) -> str:
        return f"{'at least' if self.at_least else 'at most'} {number(self.bound)} {unit}"


def most(bound: float) -> Goal:
    return Goal(bound, at_least=False)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a group. `why` is the reason for missing values."""

    group: str
    what: str
    unit: str
    values: tuple[float, ...]
    goal: Goal | None = None
    why: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def verdict(self) -> Verdict:
        if not self.values:
            return Verdict.NOT_COMPARED
        if self.goal is None:
            return Verdict.NO_BUDGET
        return Verdict.MET if self.goal.met(self.median) else Verdict.UNMET

    @property
    def measured(self) -> str:
        """The median, with the smallest and largest values if there was more than one round."""
        if not self.values:
            return self.why
        if len(self.values) == 1:
            return f"{number(self.median)} {self.unit}"
        return (
            f"{number(self.median)} {self.unit} ({number(min(self.values))} to "
            f"{number(max(self.values))})"
        )

    @property
    def budget(self) -> str:
        return "" if self.goal is None else self.goal.text(self.unit)

    def as_dict(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "what": self.what,
            "unit": self.unit,
            "values": list(self.values),
            "median": self.median if self.values else None,
            "budget": None
            if self.goal is None
            else {"bound": self.goal.bound, "at_least": self.goal.at_least},
            "verdict": str(self.verdict),
            "why": self.why,
        }


def number(value: float) -> str:
    """Format a number with three significant digits, and thousands separators from 1,000 on."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        digits = len(str(int(abs(value)))) - 3
        return f"{round(value, -digits):,.0f}"
    return f"{value:.3g}"


def by_round(values: Sequence[float], rounds: int) -> list[float]:
    """Return the median of each round. All rounds have the same number of values."""
    count, rest = divmod(len(values), rounds)
    if rest or not count:
        raise ValueError(f"{len(values)} values cannot be divided into {rounds} rounds")
    return [
        statistics.median(values[first : first + count]) for first in range(0, len(values), count)
    ]


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, ...]:
    """Return the ratio of each round. The shorter sequence has one value for each round."""
    rounds = min(len(ours), len(theirs))
    return tuple(
        one / other
        for one, other in zip(by_round(ours, rounds), by_round(theirs, rounds), strict=True)
    )


class Lines:
    """Collects the lines of one group, mostly from the report of a benchmark."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.found: list[Line] = []

    def add(
        self,
        what: str,
        unit: str,
        values: Iterable[float],
        goal: Goal | None = None,
        why: str = "not measured",
    ) -> None:
        values = tuple(values)
        self.found.append(Line(self.group, what, unit, values, goal, "" if values else why))

    def of(
        self,
        report: Report,
        what: str,
        measure: str,
        goal: Goal | None = None,
        unit: str = "",
        why: str = "",
    ) -> None:
        """Add a line with a measure of the report. `unit` replaces the report's unit.

        `why` is the reason if the measure is missing. Without a reason it must exist.
        """
        if why and measure not in report.measures:
            self.add(what, unit, (), goal, why)
        else:
            found = report.measures[measure]
            self.add(what, unit or found.unit, found.values, goal)

    def ratio(
        self,
        report: Report,
        what: str,
        ours: str,
        theirs: str,
        goal: Goal | None = None,
        why: str = "",
    ) -> None:
        """Add the ratio of two measures. `why` is the reason if the other measure is missing."""
        other = report.measures.get(theirs)
        values = () if other is None else ratios(report.measures[ours].values, other.values)
        self.add(what, TIMES, values, goal, why)


def tally(lines: Iterable[Line]) -> str:
    """Return a sentence that says how many budgets are met."""
    verdicts = [line.verdict for line in lines if line.goal is not None]
    count = {
        verdict: verdicts.count(verdict)
        for verdict in (Verdict.MET, Verdict.UNMET, Verdict.NOT_COMPARED)
    }
    return (
        f"{len(verdicts)} budgets: "
        f"{', '.join(f'{size} {verdict}' for verdict, size in count.items())}."
    )


def markdown(lines: Sequence[Line], about: Mapping[str, str], notes: Sequence[str]) -> str:
    """Return Markdown: a list about the machine, the table, and the notes."""
    rows = ["| | measured | budget | |", "|---|---|---|---|"]
    group = ""
    for line in lines:
        if line.group != group:
            group = line.group
            rows.append(f"| **{_cell(group)}** | | | |")
        verdict = f"**{line.verdict}**" if line.verdict is Verdict.UNMET else str(line.verdict)
        rows.append(
            f"| {_cell(line.what)} | {_cell(line.measured)} | {_cell(line.budget)} | {verdict} |"
        )
    head = [f"- {name}: {_plain(value)}" for name, value in about.items()]
    return (
        "\n".join(
            [
                *head,
                "",
                *rows,
                "",
                tally(lines),
                *(["", *(f"- {_plain(note)}" for note in notes)] if notes else []),
            ]
        )
        + "\n"
    )


def _plain(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|")
