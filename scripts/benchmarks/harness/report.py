"""Report of interleaved rounds: medians and ratios, as a table or as JSON."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table


@dataclass(slots=True)
class Measure:
    """A quantity that is measured in every round.

    `limit` marks a quantity with which the others are compared. `against` is the prefix of the
    limits that this one is compared with.
    """

    name: str
    unit: str
    limit: bool = False
    against: str = ""
    values: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.values)


@dataclass(slots=True)
class Report:
    """One benchmark: its settings, the machine, and its results."""

    title: str
    settings: dict[str, Any]
    machine: dict[str, str]
    measures: dict[str, Measure] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(
        self, name: str, unit: str, *values: float, limit: bool = False, against: str = ""
    ) -> None:
        self.measures.setdefault(name, Measure(name, unit, limit, against)).values.extend(values)

    def ratios(self, measure: Measure) -> dict[str, float]:
        """Return the ratios to the limits of the same unit, or to those that `against` selects."""
        limits = [
            other
            for other in self.measures.values()
            if other.limit and other.unit == measure.unit and other is not measure
        ]
        limits = [other for other in limits if other.name.startswith(measure.against)]
        return (
            {}
            if measure.limit
            else {other.name: measure.median / other.median for other in limits if other.median}
        )

    def as_json(self) -> str:
        measures = [
            {
                "name": m.name,
                "unit": m.unit,
                "limit": m.limit,
                "median": m.median,
                "values": m.values,
                "ratios": self.ratios(m),
            }
            for m in self.measures.values()
        ]
        whole = {
            "benchmark": self.title,
            "settings": self.settings,
            "machine": self.machine,
            "measures": measures,
            "notes": self.notes,
        }
        return json.dumps(whole, indent=2)

    def show(self, console: Console) -> None:
        console.print(
            f"[bold]{self.title}[/]  "
            + ", ".join(f"{name} {value}" for name, value in self.settings.items())
        )
        console.print(
            ", ".join(f"{name} {value}" for name, value in self.machine.items()),
            style="dim",
            highlight=False,
        )
        if any("raw pyzmq" in name for name in self.measures):
            console.print(
                (
                    "raw pyzmq: the same bytes over the hops of five processes, nothing packed or "
                    "stored"
                ),
                style="dim",
            )
        console.print(self.table())
        for note in self.notes:
            console.print(note, highlight=False)

    def table(self) -> Table:
        limits = [m for m in self.measures.values() if m.limit]
        single = any(m.against for m in self.measures.values())
        table = Table("what", box=box.SIMPLE_HEAD)
        for name in (
            "median",
            "unit",
            "least",
            "most",
            *(["ratio to"] if single else [f"of {m.name}" for m in limits]),
        ):
            table.add_column(name, justify="right")
        for measure in self.measures.values():
            ratios = self.ratios(measure)
            numbers = (
                short(measure.median),
                measure.unit,
                short(min(measure.values)),
                short(max(measure.values)),
            )
            columns = [f"{ratios[m.name]:.2f}" if m.name in ratios else "" for m in limits]
            if single:
                columns = [
                    ", ".join(
                        f"{ratio:.2f} {_rest(name, measure.against)}"
                        for name, ratio in ratios.items()
                    )
                ]
            table.add_row(measure.name, *numbers, *columns)
        return table


def _rest(name: str, prefix: str) -> str:
    """Return the part of a limit's name that differs from other limits with the same prefix."""
    return name.removeprefix(prefix) or name


def short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"


def percentile(values: list[float], share: float) -> float:
    """Return the value that a `share` of all values do not exceed (0.5: the median)."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]
