"""Drawing of a plot as SVG, readable on light and dark pages. Needs matplotlib (extra `bench`).

The same plot gives the same bytes, so a picture in the documentation changes only with its values.
A logarithmic axis has no zero. matplotlib's `symlog` adds it left of the smallest value. Curves
differ in colour, dashes and mark.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axis import Axis as Scale
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from .plot import Axis, Plot, short

TEXT: Final = "#1f2328"
GRID: Final = "#d1d9e0"
BACK: Final = "#ffffff"
# The colour, the dashes and the mark of each curve.
LINES: Final = (
    ("#0969da", "-", "o"),
    ("#bc4c00", "--", "s"),
    ("#1a7f37", ":", "^"),
    ("#8250df", "-.", "D"),
)
DARK: Final = {  # the replacement of each colour on a dark page
    TEXT: "#e6edf3",
    GRID: "#30363d",
    BACK: "#0d1117",
    "#0969da": "#58a6ff",
    "#bc4c00": "#f0883e",
    "#1a7f37": "#3fb950",
    "#8250df": "#bc8cff",
}
DECADES_WITH_STEPS: Final = 3  # axes of at most this many decades also have ticks at 2 and 5
TEXTS: Final = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
SETTINGS: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",  # text is stored as text and not as outlines
    "svg.hashsalt": "zsq",  # keeps names within the file the same from run to run
    "grid.color": GRID,
    "figure.facecolor": BACK,
    "axes.facecolor": BACK,
    **dict.fromkeys(TEXTS, TEXT),
}


def drawing(plot: Plot) -> str:
    """Return the picture of a plot."""
    xs = sorted({x for curve in plot.curves.values() for x in curve.values})
    ys = [y for curve in plot.curves.values() for values in curve.values.values() for y in values]
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(7.5, 4.2), layout="constrained")
        axes = figure.add_subplot()
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y")
        for (name, curve), (colour, dashes, mark) in zip(
            plot.curves.items(), LINES * len(plot.curves), strict=False
        ):
            axes.plot(
                *zip(*curve.points, strict=True),
                color=colour,
                linestyle=dashes,
                marker=mark,
                label=name,
            )
            for x, least, most in curve.spans:
                axes.vlines(x, least, most, color=colour, linewidth=1)
        _scale(axes.set_xscale, axes.xaxis, plot.x, xs)
        _scale(axes.set_yscale, axes.yaxis, plot.y, ys)
        axes.set_xticks(xs)
        if axes.get_yscale() == "log" and min(ys) * 10**DECADES_WITH_STEPS >= max(ys):
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        figure.legend(
            loc="outside upper left",
            frameon=False,
            title=plot.title,
            title_fontproperties={"weight": "bold"},
            alignment="left",
        )
        out = io.StringIO()
        about = {"Title": plot.title, "Description": plot.sentence(), "Date": None, "Creator": None}
        figure.savefig(out, format="svg", metadata=about)
    return out.getvalue().replace("<defs>", f"<style>{_dark()}</style>\n <defs>", 1)


def _scale(set_scale: Callable[..., None], scale: Scale, axis: Axis, values: list[float]) -> None:
    least = min((value for value in values if value > 0), default=0)
    if axis.log and least:
        set_scale("log") if min(values) > 0 else set_scale("symlog", linthresh=least, linscale=0.6)
    scale.set_label_text(f"{axis.label} (logarithmic)" if axis.log else axis.label)
    scale.set_minor_locator(NullLocator())
    scale.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def _dark() -> str:
    """Return CSS rules for dark pages.

    matplotlib writes each colour into the element's style, so the rules match that style.
    """
    rules = (
        f'[style*="{what}: {light}"] {{ {what}: {dark} !important }}'
        for light, dark in DARK.items()
        for what in ("fill", "stroke")
    )
    return f"@media (prefers-color-scheme: dark) {{\n{chr(10).join(rules)}\n}}"
