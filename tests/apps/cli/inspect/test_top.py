"""Tests of `zsq top`: the picture that it builds from overviews, what keys do to the screen, and
the whole program in a terminal.
"""

from __future__ import annotations

import io
import json
import os
import select
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from zsq.actors.statistics.cluster import Answer, PartSeen, Report, Seen, merge
from zsq.actors.statistics.overview import CHANNEL_FIELDS, TOPIC_FIELDS
from zsq.apps.cli.inspect import top
from zsq.apps.cli.inspect.top import named, tables
from zsq.apps.top import (
    CLUSTER_VIEWS,
    COLUMNS,
    FILTER_MAX,
    FIRST,
    VIEWS,
    Picture,
    Screen,
    Usage,
    age,
    count,
    rate,
    size,
)


def row(fields: tuple[str, ...], **values: Any) -> tuple[Any, ...]:
    usual: dict[str, Any] = {
        "state": "up",
        "health": "OK",
        "sync": "always",
        "closed": "",
        "paused": False,
    }
    return tuple(values.get(name, usual.get(name, 0)) for name in fields)


def told(since: int = 0) -> Any:
    channels = {
        "archive": row(
            CHANNEL_FIELDS, depth=5, in_rate=10.0, out_rate=2.5, drain_s=-1, oldest_ns=1_000_000_000
        ),
        "mail": row(CHANNEL_FIELDS, depth=70_000, paused=True, health="failed"),
    }
    topics = {
        "clicks": (row(TOPIC_FIELDS, in_rate=10.0, backlog=70_000, log_bytes=4096), channels),
        "orders": (row(TOPIC_FIELDS, state="failed", closed="publishers"), {}),
    }
    processes = [
        {
            "name": "supervisor",
            "kind": "supervisor",
            "pid": 7,
            "state": "up",
            "restarts": 0,
            "uptime_s": 1.0,
        }
    ]
    broker = {
        "version": "1.0",
        "start_ms": 0,
        "health": "OK",
        "alarms": 2,
        "processes": 5,
        "restarts": 0,
    }
    fields = {"topic_fields": TOPIC_FIELDS, "channel_fields": CHANNEL_FIELDS}
    return {
        "version": 5,
        "whole": True,
        "topics": topics,
        "broker": broker,
        "processes": processes,
        **fields,
    }


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (count(0), "-"), (count(999), "999"), (count(1_000), "1.0k"), (count(123_456), "123k"), (count(2_500_000), "2.5M"),
        (rate(0.04), "0.0"), (rate(12.34), "12.3"), (rate(4_000), "4.0k"), (size(4096), "4.1kB"), (size(0), "-"),
        (age(-1), "?"), (age(None), "?"), (age(0), "-"), (age(0.25), "250ms"), (age(59), "59s"), (age(90), "1.5m"),
        (age(86_400 * 20), "20d"),
    ],
)  # fmt: skip
def test_numbers_are_short(shown: str, text: str) -> None:
    assert shown == text


def test_the_picture_keeps_what_did_not_change() -> None:
    picture = Picture()
    picture.take(told())
    assert picture.version == 5
    changed = {"clicks": ((), {"mail": row(CHANNEL_FIELDS, depth=1)})}
    later: Any = {"version": 6, "whole": False, "topics": changed, "broker": {"version": "1.0"}}
    picture.take(later)
    found = {one["channel"]: one for one in picture.rows("channels", 3_000_000_000)}
    assert (found["mail"]["depth"], found["mail"]["said"]) == (1, "")
    assert (found["archive"]["depth"], found["archive"]["age_s"]) == (5, 2.0)
    topics = {one["topic"]: one for one in picture.rows("topics", 0)}
    assert topics["orders"]["said"] == "failed, closed to publishers"
    assert topics["clicks"]["channels"] == 2
    assert picture.summary()["depth"] == 6
    picture.take(told() | {"topics": {}})
    assert picture.rows("topics", 0) == []


def test_the_lines_above_the_table_fit_into_80_columns() -> None:
    picture = Picture()
    overview = told()
    overview["broker"] |= {"alarms": 0, "start_ms": 1000 * time.time() - 90_000}
    picture.take(overview)
    lines = str(top.head(picture, "tcp://127.0.0.1:4153")).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].endswith(", up 1.5m, 5 processes, 4.1kB on disk, OK")
    assert lines[1].startswith("2 topics, 2 channels; in 10.0/s")


def test_every_column_is_in_every_row() -> None:
    picture = Picture()
    picture.take(told())
    assert picture.rows("brokers", 0) == picture.rows("parts", 0) == []
    picture.take_cluster(cluster())
    for view in VIEWS:
        rows = picture.rows(view, 0, {7: (1.5, 1000)})
        assert rows
        for one in rows:
            for column in COLUMNS[view]:
                assert isinstance(column.shown(one[column.key]), str)
        assert FIRST[view] in {column.key for column in COLUMNS[view]}


def cluster() -> Report:
    """Return a cluster of eleven brokers, of which only number 0 answers."""
    part = PartSeen("up", "OK", "", 0, 10, 10, 4, None, {"a": 4})
    here = Seen("0", "OK", {"epoch": 2, "lag_s": 0.25, "standbys": 1}, {"t#0": part})
    brokers: Any = [
        {
            "number": at,
            "uuid": str(at),
            "addresses": (f"tcp://{at}:1",),
            "me": at == 0,
            "draining": 0,
            "gone": False,
        }
        for at in range(11)
    ]
    topic: Any = {"topic": "t", "uuid": "u", "parts": (0, 10), "closed": (1,), "moves": {}}
    known: Any = {
        "directory": 1,
        "is_shared": True,
        "trouble": "",
        "auto": None,
        "moving": 0,
        "planned": 0,
    }
    told: Any = {"brokers": brokers, "topics": [topic], **known}
    silent = [Answer("tcp://1:1", why="no answer")]
    return merge(told, {0: [Answer("", here)], **dict.fromkeys(range(1, 11), silent)})


def test_the_cluster_is_shown_by_broker_and_by_topic() -> None:
    picture, screen = Picture(), Screen(view="brokers")
    assert picture.waits
    picture.take(told())
    picture.take_cluster(cluster())
    assert not picture.waits
    rows = screen.arranged(picture.rows("brokers", 0))
    names = [" 0 (this one)", *(f"{at:>2}" for at in range(1, 11))]
    assert [one["name"] for one in rows] == names, "by number, and not by its digits"
    shown = {column.key: column.shown(rows[0][column.key]) for column in COLUMNS["brokers"]}
    assert shown == {
        "name": " 0 (this one)", "role": "primary", "epoch": "2", "lag_s": "250ms", "standbys": "1", "parts": "1", "said": "",
    }  # fmt: skip
    assert (rows[1]["role"], rows[1]["said"]) == ("away", "no answer")
    (row,) = picture.rows("parts", 0)
    assert {column.key: row[column.key] for column in COLUMNS["parts"]} == {
        "topic": "t", "part_count": 2, "brokers": 2, "messages": 10, "backlog": 4, "closed_count": 1,
        "said": "no answer for 1 of 2 parts",
    }  # fmt: skip


@pytest.mark.parametrize("view", CLUSTER_VIEWS)
def test_the_cluster_fits_80_columns(view: str) -> None:
    picture, screen = Picture(), Screen(view=view)
    picture.take(told())
    picture.take_cluster(cluster())
    found = tables(screen, screen.arranged(picture.rows(view, 0)), 80)
    assert len(found) == 1, "all columns are in one table"
    console = Console(width=80, file=io.StringIO())
    console.print(found[0])
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= 80
    assert all(column.title in text for column in COLUMNS[view])


def test_keys_show_the_cluster() -> None:
    screen = Screen()
    for key, view in (("4", "brokers"), ("5", "parts"), ("\t", "channels")):
        screen.press(key)
        assert screen.view == view


def test_a_broker_that_is_away_delays_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster is asked in a thread. The picture gets its answers when they are there."""
    free, asked = threading.Event(), threading.Event()

    def ask(*_: object) -> Report:
        asked.set()
        free.wait()
        return cluster()

    monkeypatch.setattr(top, "ask_cluster", ask)
    picture = Picture()
    with top.ClusterLook("ipc:///nowhere", 1.0) as look:
        look.ask(picture, wait=False)
        assert asked.wait(20)
        look.ask(picture, wait=False)
        assert picture.waits, "nothing was waited for"
        free.set()
        look.ask(picture, wait=True)
        assert not picture.waits


def test_a_filter_is_bounded() -> None:
    """Even if a key is held down, the filter does not grow beyond its limit."""
    screen = Screen()
    for key in "/" + "a" * (FILTER_MAX + 50):
        screen.press(key)
    assert screen.filter == "a" * FILTER_MAX


def test_keys_sort_filter_and_switch_the_view() -> None:
    picture, screen = Picture(), Screen()
    picture.take(told())

    def names() -> list[str]:
        rows = screen.arranged(picture.rows(screen.view, 0))
        return [one.get("channel") or one.get("topic") or one["name"] for one in rows]

    assert names() == ["mail", "archive"], "the deepest first"
    screen.press("r")
    assert names() == ["archive", "mail"]
    screen.press("<")
    assert screen.order["channels"] == "channel"
    assert names() == ["archive", "mail"], "texts from A"
    for key in "/MaI":
        screen.press(key)
    assert screen.typing
    assert names() == ["mail"]
    # While a filter is typed, `q` is a letter like all others.
    for key in ("q", "backspace", "enter"):
        screen.press(key)
    assert not screen.over
    assert screen.filter == "MaI"
    screen.press("escape")
    assert names() == ["archive", "mail"]
    screen.press("2")
    assert names() == ["clicks", "orders"]
    screen.press("\t")
    assert names() == ["supervisor"]
    screen.press(" ")
    assert screen.paused
    screen.press("q")
    assert screen.over


def test_scrolling_stays_inside_the_rows() -> None:
    screen = Screen()
    rows = [{"n": number} for number in range(30)]
    screen.press("end", 10)
    assert screen.window(rows, 10) == rows[20:]
    screen.press("pageup", 10)
    assert screen.window(rows, 10) == rows[10:20]
    assert screen.window(rows[:3], 10) == rows[:3]
    assert screen.window(rows, -3) == []


def test_processor_time_and_memory_are_read_from_proc(tmp_path: Path) -> None:
    usage = Usage(str(tmp_path), 100, 4096)
    (tmp_path / "7").mkdir()
    for ticks, seconds, expected in ((100, 1.0, None), (150, 2.0, 50.0)):
        fields = ["S"] + ["0"] * 10 + [str(ticks), "0"] + ["0"] * 8 + ["3"]
        (tmp_path / "7" / "stat").write_text(f"7 (a) b) {' '.join(fields)} 0")
        assert usage.look([7, 8], seconds) == {7: (expected, 12_288)}


@pytest.mark.parametrize(
    ("text", "keys"),
    [("q", ["q"]), ("\x1b", ["escape"]), ("\x1b[A\x1bOB", ["up", "down"]), ("\x1b[5~x\r\x7f", ["pageup", "x", "enter", "backspace"])],
)  # fmt: skip
def test_each_sequence_of_bytes_names_its_keys(text: str, keys: list[str]) -> None:
    assert named(text) == keys


def test_without_a_terminal_of_unix_there_are_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has no module `termios`. The table is drawn all the same."""
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(top, "find_spec", lambda name: None)
    with top.keyboard() as wait:
        assert wait(0.001) == []


def test_a_system_without_units_of_time_has_the_usual_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = Usage.here()
    assert (here._ticks_s, here._page_bytes) == (
        os.sysconf("SC_CLK_TCK"),
        os.sysconf("SC_PAGESIZE"),
    )
    monkeypatch.delattr(os, "sysconf")
    assert Usage.here()._ticks_s == 100


PROGRAM = """
import json, sys
from zsq.apps.cli import app
from zsq.transport.client.blocking import client
class Admin:
    def __init__(self, *_, **__): pass
    def __enter__(self): return self
    def __exit__(self, *_): pass
    def overview(self, since=0, **_): return json.loads(sys.argv[1])
client.Admin = Admin
sys.exit(app.run(["top", "--url", "ipc:///nowhere", *sys.argv[2:]]))
"""


def test_zsq_top_restores_the_settings_of_the_terminal() -> None:
    master, slave = os.openpty()
    termios.tcsetwinsize(slave, (30, 150))  # type: ignore[attr-defined, unused-ignore]
    before = termios.tcgetattr(slave)
    line = [sys.executable, "-c", PROGRAM, json.dumps(told()), "--interval", "0.2"]
    # pytest-xdist sets COLUMNS, and rich uses COLUMNS in place of the terminal's real size. The
    # same holds for the other variables.
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in ("COLUMNS", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
    }
    process = subprocess.Popen(
        line, stdin=slave, stdout=slave, stderr=slave, env={**env, "TERM": "xterm"}
    )
    said = b""

    def until(text: bytes) -> None:
        nonlocal said
        deadline = time.monotonic() + 30
        while text not in said:
            assert select.select([master], [], [], max(0.0, deadline - time.monotonic()))[0], said
            said += os.read(master, 65536)
        said = said[said.index(text) :]

    try:
        until(b"mail")
        os.write(master, b"2")
        until(b"orders")
        os.write(master, b"/ord\r")
        until(b"filter 'ord'")
        os.write(master, b"q")
        until(b"\x1b[?1049l")
        assert process.wait(20) == 0
        assert termios.tcgetattr(slave) == before
    finally:
        process.kill()
        process.wait()
        os.close(master)
        os.close(slave)


def test_top_prints_once_as_text_or_json() -> None:
    def run(*more: str) -> str:
        line = [sys.executable, "-c", PROGRAM, json.dumps(told()), "--once", *more]
        return subprocess.run(line, capture_output=True, text=True, timeout=60, check=True).stdout

    text = run("--filter", "arch")
    assert "zsq 1.0 at ipc:///nowhere" in text
    assert "archive" in text
    assert "mail" not in text
    found = json.loads(run("--json", "--view", "topics"))
    assert [one["topic"] for one in found["topics"]] == ["clicks", "orders"]
