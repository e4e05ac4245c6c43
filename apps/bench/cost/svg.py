"""A plot as SVG: plain text that a browser shows in light and in dark, written by hand because that is all of it that is needed.

Zero on a logarithmic axis has no place: it gets one to the left of the others, behind a gap in the axis. Colours are told apart by
dashes and marks as well. Pure: the same plot gives the same bytes, so that a picture changes only with what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final
from xml.sax.saxutils import escape

from .plot import Axis, Curve, Plot, short

WIDTH: Final = 720
HEIGHT: Final = 400
LEFT: Final = 78
RIGHT: Final = 24
TOP: Final = 48
LEGEND: Final = 20  # of each curve
BOTTOM: Final = 56
GAP: Final = 0.6  # decades between zero and the first place that is not
STYLE: Final = """
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.title { font-size: 16px; font-weight: 600; }
.grid { stroke: #d1d9e0; stroke-width: 1; }
.axis { stroke: #59636e; stroke-width: 1; }
.back { fill: #ffffff; }
.curve { fill: none; stroke-width: 2; }
.span { stroke-width: 1; }
.c0 { stroke: #0969da; } .m0 { fill: #0969da; }
.c1 { stroke: #bc4c00; stroke-dasharray: 7 4; } .m1 { fill: #bc4c00; }
.c2 { stroke: #1a7f37; stroke-dasharray: 2 4; } .m2 { fill: #1a7f37; }
.c3 { stroke: #8250df; stroke-dasharray: 9 3 2 3; } .m3 { fill: #8250df; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; }
.grid { stroke: #30363d; } .axis { stroke: #9198a1; } .back { fill: #0d1117; }
.c0 { stroke: #58a6ff; } .m0 { fill: #58a6ff; }
.c1 { stroke: #f0883e; } .m1 { fill: #f0883e; }
.c2 { stroke: #3fb950; } .m2 { fill: #3fb950; }
.c3 { stroke: #bc8cff; } .m3 { fill: #bc8cff; }
}
"""
COLOURS: Final = 4

Place = Callable[[float], float]


def drawing(plot: Plot) -> str:
    curves = list(plot.curves.values())
    xs = sorted({x for curve in curves for x in curve.values})
    ys = [value for curve in curves for values in curve.values.values() for value in values]
    top = TOP + LEGEND * len(curves)
    x_place = _x_place(xs, plot.x.log)
    ticks = y_ticks(ys, plot.y)
    y_place = _y_place(ticks, plot.y.log, top)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(plot.title)}</title>",
        f"<desc>{escape(plot.sentence())}</desc>",
        f"<style>{STYLE}</style>",
        f'<rect class="back" width="{WIDTH}" height="{HEIGHT}"/>',
        _text(LEFT, 26, plot.title, "start", "title"),
        *_y_axis(plot.y, ticks, y_place, top),
        *_x_axis(plot.x, xs, x_place),
    ]
    for index, curve in enumerate(curves):
        parts += _curve(curve, index % COLOURS, x_place, y_place)
        parts += _legend(curve.name, index)
    return "\n".join([*parts, "</svg>"]) + "\n"


def y_ticks(values: Sequence[float], axis: Axis) -> list[float]:
    """Round numbers from below the least to above the most; from zero where the axis is not logarithmic."""
    most = max(values, default=1.0) or 1.0
    if not axis.log:
        step = _round_step(most / 5)
        return [step * index for index in range(math.ceil(most / step - 1e-9) + 1)]
    least = min((value for value in values if value > 0), default=most)
    low, high = math.floor(math.log10(least) + 1e-9), math.ceil(math.log10(most) - 1e-9)
    factors = (1,) if high - low > 3 else (1, 2, 5)
    ticks = [factor * 10.0**power for power in range(low, high + 1) for factor in factors]
    first = max((index for index, tick in enumerate(ticks) if tick <= least * (1 + 1e-9)), default=0)
    last = next((index for index, tick in enumerate(ticks) if tick >= most * (1 - 1e-9)), len(ticks) - 1)
    return ticks[first : max(last, first + 1) + 1]


def _round_step(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= value * (1 - 1e-9))


def _x_place(xs: Sequence[float], log: bool) -> Place:
    positive = [x for x in xs if x > 0]

    def measure(x: float) -> float:
        if not log or not positive:
            return x
        return math.log10(x) if x > 0 else math.log10(positive[0]) - GAP

    low, high = measure(xs[0]), measure(xs[-1])
    inner = WIDTH - LEFT - RIGHT - 40
    return lambda x: LEFT + 20 + (inner * (measure(x) - low) / (high - low) if high > low else inner / 2)


def _y_place(ticks: Sequence[float], log: bool, top: float) -> Place:
    measure: Place = (lambda y: math.log10(max(y, ticks[0]))) if log else (lambda y: y)
    low, high = measure(ticks[0]), measure(ticks[-1])
    return lambda y: HEIGHT - BOTTOM - (HEIGHT - BOTTOM - top) * (measure(y) - low) / (high - low)


def _y_axis(axis: Axis, ticks: Sequence[float], place: Place, top: float) -> list[str]:
    parts = []
    for tick in ticks:
        y = place(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
        parts.append(_text(LEFT - 8, y + 4, short(tick), "end"))
    middle = (top + HEIGHT - BOTTOM) / 2
    turned = f'transform="rotate(-90 18 {middle:.1f})"'
    parts.append(f'<text x="18" y="{middle:.1f}" text-anchor="middle" {turned}>{escape(_with_scale(axis))}</text>')
    return parts


def _x_axis(axis: Axis, xs: Sequence[float], place: Place) -> list[str]:
    y = HEIGHT - BOTTOM
    parts = [f'<line class="axis" x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}"/>']
    for x in xs:
        parts.append(f'<line class="axis" x1="{place(x):.1f}" y1="{y}" x2="{place(x):.1f}" y2="{y + 5}"/>')
        parts.append(_text(place(x), y + 19, short(x), "middle"))
    if axis.log and len(xs) > 1 and xs[0] == 0:
        gap = (place(xs[0]) + place(xs[1])) / 2
        parts += [f'<line class="axis" x1="{gap + by:.1f}" y1="{y + 5}" x2="{gap + by + 4:.1f}" y2="{y - 5}"/>' for by in (-4, 0)]
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, _with_scale(axis), "middle"))
    return parts


def _with_scale(axis: Axis) -> str:
    return f"{axis.label} (logarithmic)" if axis.log else axis.label


def _curve(curve: Curve, colour: int, x_place: Place, y_place: Place) -> list[str]:
    at = [(x_place(x), y_place(y)) for x, y in curve.points]
    parts = [f'<polyline class="curve c{colour}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in at)}"/>']
    for x, least, most in curve.spans:
        ends = f'x1="{x_place(x):.1f}" y1="{y_place(least):.1f}" x2="{x_place(x):.1f}" y2="{y_place(most):.1f}"'
        parts.append(f'<line class="span c{colour}" style="stroke-dasharray:none" {ends}/>')
    return [*parts, *(_mark(colour, x, y) for x, y in at)]


def _mark(colour: int, x: float, y: float) -> str:
    if colour % 2:
        return f'<rect class="m{colour}" x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7"/>'
    return f'<circle class="m{colour}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'


def _legend(name: str, index: int) -> list[str]:
    y, colour = TOP + LEGEND * index, index % COLOURS
    line = f'<line class="curve c{colour}" x1="{LEFT}" y1="{y - 4}" x2="{LEFT + 36}" y2="{y - 4}"/>'
    return [line, _mark(colour, LEFT + 18, y - 4), _text(LEFT + 44, y, name, "start")]


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
