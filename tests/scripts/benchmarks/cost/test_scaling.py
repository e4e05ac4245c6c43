"""Tests of the plots of the benchmarks: their sentences, that each picture is well-formed, and what
is written to the documentation.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from benchmarks.cost import command, piles
from benchmarks.cost.crowd import shares
from benchmarks.cost.drawing import LINES, drawing
from benchmarks.cost.plot import Axis, Plot, markdown, short
from benchmarks.cost.sweeps import Load
from benchmarks.harness import marked
from benchmarks.harness.crew import MemberFailed
from benchmarks.main import bench

SVG = "{http://www.w3.org/2000/svg}"


def made(*, x_log: bool = True, y_log: bool = True) -> Plot:
    plot = Plot(
        "size",
        "Sizes & <rates>",
        Axis("bytes", "B", x_log),
        Axis("messages a second", "a second", y_log),
    )
    for x, values in ((10, (5.0, 7.0)), (1_000, (900.0,)), (100_000, (300.0, 100.0, 200.0))):
        for value in values:
            plot.add("ours", x, value)
    plot.add("a limit", 10, 50.0)
    plot.add("a limit", 100_000, 4_000.0)
    return plot


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.1, "0.1"),
        (12.34, "12.3"),
        (999, "999"),
        (999.9, "1k"),
        (1_048_576, "1.05M"),
        (123_456, "123k"),
        (2.5e9, "2.5G"),
    ],
)
def test_each_number_is_shortened(value: float, text: str) -> None:
    assert short(value) == text


def test_a_sentence_has_both_ends_and_the_top() -> None:
    assert made().sentence() == (
        "Ours: 6 a second at 10 B, 200 at 100k B. The maximum is 900, at 1k B. A limit: 50 a "
        "second at 10 B, 4k at 100k B."
    )


def test_a_sentence_has_the_singular_of_one() -> None:
    plot = Plot(
        "consumers",
        "Consumers",
        Axis("consumers", "consumers", place="with", singular="consumer"),
        Axis("messages a second", "a second"),
    )
    plot.add("ours", 1, 5.0)
    plot.add("ours", 64, 4.0)
    assert plot.sentence() == "Ours: 5 a second with 1 consumer, 4 with 64 consumers."


def test_rounds_give_medians_and_spans() -> None:
    curve = made().curves["ours"]
    assert curve.points == [(10, 6.0), (1_000, 900.0), (100_000, 200.0)]
    assert curve.spans == [(10, 5.0, 7.0), (100_000, 100.0, 300.0)]


def texts(picture: str) -> list[str]:
    return ["".join(text.itertext()) for text in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def lines(picture: str, colour: int) -> list[list[tuple[float, float]]]:
    """Return the points of each line of this colour, in the units of the picture. The marks on the
    lines are left out.
    """
    paths = [
        path
        for path in ElementTree.fromstring(picture).iter(f"{SVG}path")
        if f"stroke: {LINES[colour][0]}" in path.get("style", "")
    ]
    return [
        [
            (float(x), float(y))
            for x, y in re.findall(r"[ML] (-?[\d.]+) (-?[\d.]+)", path.get("d", ""))
        ]
        for path in paths
        if "fill: none" in path.get("style", "") or "clip-path" in path.attrib
    ]


@pytest.mark.parametrize(
    ("values", "log", "ticks"),
    [
        ((3.0, 48.0), True, ["5", "10", "20"]),
        ((10.0, 100.0), True, ["10", "20", "50", "100"]),
        ((7.0, 2_000_000.0), True, ["100", "10k", "1M"]),
        ((0.0, 40.0), True, ["0"]),
        ((0.0, 0.0), True, ["0"]),
        ((3.0, 48.0), False, ["10", "20", "30", "40"]),
    ],
)
def test_ticks_are_round(values: tuple[float, ...], log: bool, ticks: list[str]) -> None:
    plot = Plot("one", "One", Axis("x", "x"), Axis("y", "", log))
    for index, value in enumerate(values):
        plot.add("ours", 3.25 + index, value)
    assert set(ticks) <= set(texts(drawing(plot)))


@pytest.mark.parametrize("x_log", [True, False])
@pytest.mark.parametrize("y_log", [True, False])
def test_a_picture_is_well_formed_and_all_of_it_is_in_sight(x_log: bool, y_log: bool) -> None:
    plot = made(x_log=x_log, y_log=y_log)
    plot.add("ours", 0, 10.0)
    picture = drawing(plot)
    found = texts(picture)
    assert plot.title in found
    assert {"ours", "a limit", "0", "10", "1k", "100k"} <= set(found)
    assert f"bytes{' (logarithmic)' if x_log else ''}" in found
    assert f"messages a second{' (logarithmic)' if y_log else ''}" in found
    assert "prefers-color-scheme: dark" in picture
    _, _, width, height = map(float, ElementTree.fromstring(picture).get("viewBox", "").split())
    ours, *spans = sorted(lines(picture, 0), key=len, reverse=True)
    assert [len(ours), *map(len, spans)].count(4) == 1
    assert all(0 <= x <= width and 0 <= y <= height for line in (ours, *spans) for x, y in line)
    assert [x for x, _ in ours] == sorted({x for x, _ in ours})
    assert len([line for line in spans if len(line) == 2 and line[0][0] == line[1][0]]) == 2


def test_larger_values_are_drawn_higher() -> None:
    (_, first), (_, second), (_, third) = max(lines(drawing(made()), 0), key=len)
    assert second < third < first


def test_one_point_is_a_picture_too() -> None:
    plot = Plot("one", "One", Axis("x", "x"), Axis("y", "y"))
    plot.add("ours", 0, 0.0)
    assert {"One", "ours", "0"} <= set(texts(drawing(plot)))


def test_the_same_plot_is_the_same_picture() -> None:
    assert drawing(made()) == drawing(made())


@pytest.mark.parametrize(
    ("most", "found"),
    [
        (1_000_000, (0, 10_000, 100_000, 1_000_000)),
        (20_000, (0, 10_000, 20_000)),
        (10_000, (0, 10_000)),
    ],
)
def test_a_pile_grows_in_fixed_steps_to_its_size(most: int, found: tuple[int, ...]) -> None:
    assert piles.steps(most) == found


@pytest.mark.parametrize(("count", "found"), [(1, [1]), (2, [1, 1]), (5, [3, 2]), (64, [32, 32])])
def test_work_is_shared_evenly_by_at_most_two_processes(count: int, found: list[int]) -> None:
    assert shares(count) == found


def test_every_second_round_goes_back() -> None:
    assert list(Load(None, 2).turns((1, 2))) == [(0, 1), (0, 2), (1, 2), (1, 1)]
    assert (
        Load(None, scale=0.001).count(1_000_000, 1000),
        Load(None).count(2_500, 1000),
        Load(None).count(10, 10),
    ) == (2000, 2000, 20)


def sweep(load: Load) -> list[Plot]:
    return [made()]


def broken(load: Load) -> list[Plot]:
    raise MemberFailed("in the middle")


@pytest.fixture
def sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "SWEEPS", {"size": sweep, "broken": broken})


@pytest.mark.usefixtures("sweeps")
def test_the_documentation_gets_pictures_and_figures(tmp_path: Path) -> None:
    docs = tmp_path / "performance.md"
    names = ["scaling", "scaling size", "scaling block"]
    docs.write_text("# Title\n" + "\n".join("\n".join(marked.marks(name)) for name in names))
    ended = CliRunner().invoke(
        bench,
        ["scaling", "--only", "size", "--docs", str(docs), "--folder", str(tmp_path), "--json"],
    )
    assert ended.exit_code == 0, ended.output
    assert [plot["name"] for plot in json.loads(ended.stdout)["plots"]] == ["size"]
    text = docs.read_text()
    assert marked.between(text, "scaling size") == markdown([made()], "pictures").strip()
    assert "- command: `scripts/bench scaling --only size`\n" in marked.between(text, "scaling")
    assert marked.between(text, "scaling block") == ""
    for picture in re.findall(r"\]\(([^)]+)\)", text):
        assert (tmp_path / picture).read_text() == drawing(made())


@pytest.mark.usefixtures("sweeps")
def test_a_sweep_that_fails_is_told_and_the_others_are_measured(tmp_path: Path) -> None:
    ended = CliRunner().invoke(bench, ["scaling", "--pictures", str(tmp_path), "--json"])
    assert ended.exit_code == 1
    assert "broken: in the middle" in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["performance-size.svg"]


@pytest.mark.parametrize(
    "options",
    [("--only", "nothing"), ("--waiting", "1"), ("--pictures", "/nowhere"), ("--rounds", "0")],
)
def test_each_senseless_option_is_refused(options: tuple[str, str]) -> None:
    assert CliRunner().invoke(bench, ["scaling", *options]).exit_code == 2
