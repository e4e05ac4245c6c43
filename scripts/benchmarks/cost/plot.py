"""Results of a sweep: curves over one axis, and a sentence that describes them. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

STEPS: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis. `label` has the quantity and its unit. `unit` follows a number in a sentence."""

    label: str
    unit: str
    log: bool = True
    place: str = "at"
    singular: str = ""


@dataclass(slots=True)
class Curve:
    """A curve. `values` has, for each place on the x axis, the values of all rounds."""

    name: str
    values: dict[float, list[float]] = field(default_factory=dict)

    @property
    def points(self) -> list[tuple[float, float]]:
        """The medians, in the order of their places on the x axis."""
        return [(x, statistics.median(values)) for x, values in sorted(self.values.items())]

    @property
    def spans(self) -> list[tuple[float, float, float]]:
        """The smallest and largest values at each place where they differ."""
        return [
            (x, min(values), max(values))
            for x, values in sorted(self.values.items())
            if min(values) < max(values)
        ]


@dataclass(slots=True)
class Plot:
    """A plot. `name` is part of the picture's file name."""

    name: str
    title: str
    x: Axis
    y: Axis
    curves: dict[str, Curve] = field(default_factory=dict)

    def add(self, curve: str, x: float, value: float) -> None:
        self.curves.setdefault(curve, Curve(curve)).values.setdefault(x, []).append(value)

    @property
    def file(self) -> str:
        return f"performance-{self.name}.svg"

    def as_dict(self) -> dict[str, Any]:
        curves = {
            name: [{"x": x, "values": values} for x, values in sorted(one.values.items())]
            for name, one in self.curves.items()
        }
        return {
            "name": self.name,
            "title": self.title,
            "x": self.x.label,
            "y": self.y.label,
            "curves": curves,
        }

    def sentence(self) -> str:
        """Return, as text, the first, the last and the largest value of each curve."""
        return " ".join(self._said(curve) for curve in self.curves.values())

    def _said(self, curve: Curve) -> str:
        points = curve.points
        first, last, top = points[0], points[-1], max(points, key=lambda point: point[1])
        said = f"{curve.name[:1].upper()}{curve.name[1:]}: {short(first[1])} {self.y.unit} "
        said += self._at(first)
        if len(points) > 1:
            said += f", {short(last[1])} {self._at(last)}"
        if top not in (first, last):
            said += f". The maximum is {short(top[1])}, {self._at(top)}"
        return f"{said}."

    def _at(self, point: tuple[float, float]) -> str:
        x = point[0]
        unit = self.x.singular if x == 1 and self.x.singular else self.x.unit
        return f"{self.x.place} {short(x)} {unit}"


def short(value: float) -> str:
    """Format a number with at most three digits, and a letter for thousands and so on."""
    for step, letter in STEPS:
        if abs(value) >= step * 0.9995:
            return f"{_three(value / step)}{letter}"
    return _three(value)


def _three(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:.3g}"


def markdown(plots: Iterable[Plot], folder: str) -> str:
    """Return Markdown with each picture and its sentence."""
    return (
        "\n\n".join(f"![{plot.title}]({folder}/{plot.file})\n\n{plot.sentence()}" for plot in plots)
        + "\n"
    )
