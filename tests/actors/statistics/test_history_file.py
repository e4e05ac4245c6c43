"""Tests of the history file: minutes and hours, restarts, its bounds, and damage."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import pytest

from zsq.actors.statistics.history_file import MINUTES, SIZE, TRACKS_MAX, HistoryFile

HOUR = 500_000  # since 1970
T, C = ("t", ""), ("t", "c")


def known(values: list[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def test_minutes_and_hours_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "history"
    history = HistoryFile(str(path))
    for minute in range(30):
        history.note(HOUR * 60 + minute, {T: (minute, 2.0, 3.0, minute), C: (1, 2, 3, 4, 5)})
    history = HistoryFile(str(path))
    history.note(HOUR * 60 + 60, {T: (9.0, 9.0, 9.0, 9.0), C: (1, 2, 3, 4, 5)})
    assert path.stat().st_size == SIZE
    assert path.stat().st_blocks * 512 < 1 << 20, "it has holes"
    now_s = (HOUR * 60 + 61) * 60
    step_s, found = history.series(T, "1d", now_s, MINUTES.rows)
    assert (step_s, known(found["in"])) == (60, [*map(float, range(30)), 9.0])
    assert found["in"][-1] == 9.0
    step_s, found = history.series(T, "30d", now_s + 3_600, 720)
    assert (step_s, known(found["in"]), known(found["backlog"])) == (3_600, [14.5], [29.0])
    assert known(history.series(C, "30d", now_s, 720)[1]["p99_ms"]) == [5.0]
    step_s, found = history.series(T, "1d", now_s, 240)
    assert (step_s, len(found["in"]), found["backlog"][-1]) == (360, 240, 9.0)
    later = history.series(T, "1d", now_s + 86_400, 240)[1]
    assert not known(later["in"]), "rows of the day before are not shown"


def test_the_hour_of_a_stop_is_kept_however_long_the_broker_is_down(tmp_path: Path) -> None:
    path = str(tmp_path / "history")
    history = HistoryFile(path)
    for minute in range(25):
        history.note(HOUR * 60 + minute, {T: (minute, 2.0, 3.0, minute)})
    history = HistoryFile(path)
    history.note((HOUR + 5) * 60, {T: (9.0, 9.0, 9.0, 9.0)})
    found = history.series(T, "30d", (HOUR + 6) * 3_600, 720)[1]
    assert known(found["backlog"]) == [19.0], "until the last sum"


def test_places_are_bounded_and_those_of_deleted_topics_are_used_again(tmp_path: Path) -> None:
    history = HistoryFile(str(tmp_path / "history"))
    many = {(f"t{number}", ""): (1.0, 1.0, 1.0, 1.0) for number in range(TRACKS_MAX + 1)}
    history.note(HOUR * 60, many)
    now_s = (HOUR * 60 + 2) * 60
    assert not known(history.series((f"t{TRACKS_MAX}", ""), "1d", now_s, 240)[1]["in"])
    history.note(HOUR * 60 + 1, {("new", ""): (5.0, 1.0, 1.0, 1.0)})
    assert known(history.series(("new", ""), "1d", now_s, MINUTES.rows)[1]["in"]) == [5.0]
    assert not known(history.series(("t0", ""), "1d", now_s, 240)[1]["in"])


@pytest.mark.parametrize("damage", [b"", b"x" * 100])
def test_a_damaged_file_begins_anew(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "history"
    path.write_bytes(damage)
    with caplog.at_level(logging.WARNING, "zsq"):
        history = HistoryFile(str(path))
    assert "begins anew" in caplog.text
    history.note(HOUR * 60, {T: (1.0, 1.0, 1.0, 1.0)})
    assert known(history.series(T, "1d", (HOUR * 60 + 1) * 60, 240)[1]["in"]) == [1.0]


def test_without_a_file_there_is_no_history(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "zsq"):
        history = HistoryFile(str(tmp_path / "none" / "history"))
    assert "there is no history" in caplog.text
    history.note(HOUR * 60, {T: (1.0, 1.0, 1.0, 1.0)})
    assert not known(history.series(T, "1d", HOUR * 3_600, 240)[1]["in"])
