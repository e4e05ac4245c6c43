"""Tests of tables in narrow terminals: names come first and keep 20 characters, further columns
continue in another table, and control characters are shown escaped.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from zsq.apps.cli.inspect import stats, top
from zsq.apps.cli.output import NAME_MIN, Grid, Heading, figure, laid_out, shown_body, wide_console
from zsq.apps.cli.run import doctor
from zsq.apps.doctor.system import CheckResult
from zsq.apps.top import COLUMNS, VIEWS, Screen
from zsq.storage.errors import REFUSED_TEXT

WIDTHS = (60, 80, 100, 120)
TOPICS = (
    "clicks",
    "eu-west-1.orders.billing.invoices",
    "eu-west-1.orders.billing.invoices-that-failed-and-were-kept-64",
)
CHANNELS = (
    "archive",
    "warehouse-loader-of-the-analytics-team",
    "nsq_to_file_0123456789abcdef0123456789abcdef",
)
BIG = 1_234_567_890


def channel(name: str) -> dict[str, Any]:
    fields = (
        "depth",
        "in_flight_count",
        "deferred_count",
        "message_count",
        "delivery_count",
        "finish_count",
        "requeue_count",
        "timeout_count",
    )
    figures = dict.fromkeys((*fields, "client_count", "dead_letter_count", "expired_count"), BIG)
    client = {
        "client_id": f"consumer-{name}",
        "ready_count": BIG,
        "in_flight_count": BIG,
        "message_count": BIG,
        "finish_count": BIG,
    }
    return figures | {
        "channel_name": name,
        "health": "OK",
        "paused": True,
        "clients": [client],
        "rates": {"finish_count": 12345.0},
    }


def statistics() -> Any:
    rows = [
        {
            "topic_name": name, "sync": "always", "health": "publishes are refused: " + "the disk is full " * 10, "closed": "consumers",
            "channels": [channel(one) for one in CHANNELS], "depth": BIG, "message_count": BIG, "message_bytes": BIG, "start": 0,
            "log_bytes": BIG, "head": BIG, "refused_count": 3, "rates": {},
        }
        for name in TOPICS
    ]  # fmt: skip
    processes = [
        {
            "name": f"channel {TOPICS[2]}/{CHANNELS[1]}",
            "kind": "channel",
            "pid": 4711,
            "restarts": 0,
            "uptime_s": 5,
        }
    ]
    return {"topics": rows, "processes": processes, "health": "OK", "version": "1"}


def printed(tables: Iterable[Any], width: int) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None)
    for table in tables:
        console.print(table)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", WIDTHS)
def test_names_of_stats_keep_20_characters(width: int) -> None:
    lines = printed(stats.tables(statistics(), processes=True, width=width), width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for name in (*TOPICS, *CHANNELS, "consumer-archive"):
        assert name[:NAME_MIN] in text
    starts = [line for line in lines if line.startswith("clicks ")]
    assert all(CHANNELS[0] in line for line in starts if "archive" in line)
    for word in (
        "depth",
        "in flight",
        "deferred",
        "consumers",
        "finished/s",
        "requeued",
        "timed out",
        "state",
    ):
        assert word in text, "every figure is shown, if need be below"
    assert "1.23G" in text
    assert not {"1,234,567,89", "1.23…"} & {*text.split()}, "figures are not cut"


@pytest.mark.parametrize("channels", [1, 3])
def test_stats_of_one_topic_fit_on_one_screen_of_80_columns(channels: int) -> None:
    """The screen has 24 lines."""
    found = statistics()
    topic = found["topics"][0] | {"health": "OK", "closed": "", "refused_count": 0}
    names = ("archive", "warehouse-loader", "nsq_to_file_01234567")
    topic["channels"] = [channel(name) | {"paused": False} for name in names[:channels]]
    for row in topic["channels"]:
        row.update(dead_letter_count=0, expired_count=0)
        row["clients"][0]["client_id"] = "worker-a-01/123456"
    report = found | {"topics": [topic]}
    about = stats.head(report) + stats.about_one(report)
    lines = [text[at : at + 80] for text in about.splitlines() for at in range(0, len(text), 80)]
    lines += printed(stats.tables(report, processes=False, is_one=True, width=80), 80)
    assert len(lines) <= 24
    titles = [re.split(r"  +", line.strip()) for line in lines if line.startswith("channel ")]
    assert len(titles) == 3, "a table is not split"
    assert all(len(words) == len({*words}) for words in titles), "no two columns are named alike"
    if channels == 1:
        whole = stats.head(report) + stats.about_processes(report)
        tables = printed(stats.tables(report, processes=False, width=80), 80)
        assert len(whole.splitlines()) + len(tables) <= 23


def test_stats_leave_out_what_is_0_before_a_table_is_split() -> None:
    found = statistics()
    row = channel("warehouse") | dict.fromkeys(("paused", "dead_letter_count", "expired_count"), 0)
    row |= dict.fromkeys(("in_flight_count", "deferred_count", "timeout_count"), 0)
    topic = {"topic_name": "eu-west-1.orders.new", "health": "OK", "closed": "", "channels": [row]}
    report = found | {"topics": [found["topics"][0] | topic]}
    lines = printed(stats.tables(report, processes=False, width=80), 80)
    assert "channels, rounded, without in flight, deferred" in {line.strip() for line in lines}
    row["deferred_count"] = 1
    lines = printed(stats.tables(report, processes=False, width=80), 80)
    assert any("deferred" in line.split() for line in lines), "it is not 0"


def test_a_narrow_table_says_what_it_rounds_and_leaves_out() -> None:
    grid = Grid("t", ["name"], [Heading("came", is_optional=True), "depth"])
    grid.add("n", figure(9_999), figure(1_234_567, "B"))
    wide = "\n".join(printed(grid.tables(80), 80))
    assert wide.split("\n")[0].strip() == "t"
    assert "9,999" in wide
    assert "1,234,567 B" in wide
    assert printed(grid.tables(24), 24)[0].strip() == "t, rounded"
    narrow = " ".join(line.strip() for line in printed(grid.tables(16), 16)[:3])
    assert narrow.startswith("t, rounded, without came ")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (9_999, "9,999"), (10_000, "10.0k"), (999_499, "999k"), (999_500, "1.00M"),
     (999_997, "1.00M"), (9_996_000, "10.0M"), (1_234_567_890, "1.23G"), (5 * 10**15, "5,000T")],
)  # fmt: skip
def test_a_figure_is_rounded_to_three_digits(value: int, text: str) -> None:
    assert figure(value).rounded == text
    assert figure(value).exact == f"{value:,}"


def test_a_full_disk_is_said_once_and_not_in_the_columns() -> None:
    why = "/data is on a file system with 2.0 MiB free, and zsq keeps a reserve of 3.2 MiB. " * 2
    found = statistics() | {
        "disk": {"full": why},
        "health": f"the disk is full: publishes to topic clicks are refused: {why}",
    }
    full, bound, well = found["topics"]
    full.update(health=REFUSED_TEXT, full="disk")
    bound.update(health=f"publishes are refused: the topic's bound is reached: {why}", full="topic")
    well.update(health="OK")
    well["channels"][0]["health"] = f"cannot move dead letters: {why}"
    text = "\n".join(
        [
            stats.head(found),
            *printed(stats.tables(found, processes=True, width=100), 100),
            *stats.troubles(found),
        ]
    )
    assert text.startswith(
        "zsq 1, pid ?, up 0 s\nhealth: the disk is full: publishes to topic clicks are refused: "
    )
    assert "disk full" in text
    assert "topic full" in text
    assert text.count(REFUSED_TEXT) == 0
    assert stats.troubles(found) == [
        f"topic {TOPICS[1]}: publishes are refused: the topic's bound is reached: {why}",
        f"channel {TOPICS[2]}/{CHANNELS[0]}: cannot move dead letters: {why}",
    ]


@pytest.mark.parametrize("columns", [None, "90", "200", "0", "wide"])
def test_columns_of_the_environment_are_respected_in_pipes(
    columns: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", io.StringIO())
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    assert wide_console(160).width == {"90": 90, "200": 200}.get(str(columns), 160)


@pytest.mark.parametrize("width", WIDTHS)
def test_names_of_top_keep_20_characters(width: int) -> None:
    for view in VIEWS:
        rows = [
            {column.key: 123456 for column in COLUMNS[view]}
            | {"topic": topic, "channel": one, "name": f"{topic}/{one}", "said": "unwell " * 20}
            | {"kind": "channel"}
            for topic in TOPICS for one in CHANNELS
        ]  # fmt: skip
        for order in (COLUMNS[view][0], COLUMNS[view][5], COLUMNS[view][-1]):
            screen = Screen(view=view)
            screen.order[view] = order.key
            [*lines] = printed([top.table(screen, rows, width)], width)
            assert max(map(len, lines)) <= width
            assert len(lines) == len(rows) + 2, "a line a row"
            assert order.title in lines[0], "the column that is sorted by is there"
            for row, line in zip(rows, lines[2:], strict=True):
                names = (
                    [row["topic"], row["channel"]]
                    if view == "channels"
                    else [row["topic"]]
                    if view in ("topics", "parts")
                    else [row["name"]]
                )
                for name in names:
                    assert str(name)[: NAME_MIN - 1] in line
        screen = Screen(view=view)
        titles = " ".join(printed(top.tables(screen, rows, width), width))
        assert all(column.title in titles for column in COLUMNS[view]), (
            "with --once all columns are shown"
        )


@pytest.mark.parametrize("view", ["topics", "channels"])
def test_a_long_state_is_cut_in_top_also_where_it_would_fit(view: str) -> None:
    row = {column.key: 1 for column in COLUMNS[view]} | {
        "topic": "t",
        "channel": "c",
        "said": "x" * 100,
    }
    text = "\n".join(printed([top.table(Screen(view=view), [row], 400)], 400))
    assert "x" * (top.STATE_MAX - 1) in text
    assert "x" * (top.STATE_MAX + 1) not in text


def test_a_long_text_in_a_grid_goes_on_below_after_40_characters() -> None:
    grid = Grid("t", ["name"], [Heading("said", is_text=True), "count"])
    grid.add("n", "x" * 100, "1" * 50)
    text = "\n".join(printed(grid.tables(400), 400))
    assert "x" * 40 in text
    assert "x" * 41 not in text
    assert "1" * 50 in text, "numbers are shown whole"


@pytest.mark.parametrize("width", WIDTHS)
def test_the_chunk_table_keeps_its_figures_at_each_width(width: int) -> None:
    chunk = {
        "first_offset": BIG,
        "state": "ongoing",
        "first_time_ns": 1,
        "last_time_ns": 2,
        "messages": BIG,
        "bytes": BIG,
    }
    answer: Any = {"chunks": [chunk], "total": {"chunks": 1, "messages": BIG, "bytes": BIG}}
    grid = stats.chunk_grid("t", answer)
    text = "\n".join(printed(grid.tables(width), width))
    assert str(BIG) in text
    assert "ongoing" in text
    assert "file bytes/s" in text


@pytest.mark.parametrize("width", WIDTHS)
def test_the_findings_of_the_doctor_fit_each_width(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    doctor._print([CheckResult("problem", "data directory", "word " * 60, "do something " * 20)])
    lines = Text.from_ansi(capsys.readouterr().out).plain.splitlines()
    assert max(map(len, lines)) <= width
    assert "problem" in lines[0]
    assert "data directory" in lines[0]


def test_a_grid_that_fits_is_one_table() -> None:
    assert laid_out(80, [6, 7], [10, 10]) == ([6, 7], [[(0, 10), (1, 10)]])


def test_names_give_way_only_to_twenty_and_figures_go_on_below() -> None:
    names, pages = laid_out(60, [64, 64], [10, 10, 40])
    assert names == [NAME_MIN, NAME_MIN]
    assert pages == [[(0, 10)], [(1, 10)], [(2, 15)]]


def test_names_take_what_is_left() -> None:
    names, pages = laid_out(100, [30, 64], [10])
    assert names == [30, 55]
    assert pages == [[(0, 10)]]
    assert sum(names) + 10 + 2 * 2 + 1 == 100


def test_control_characters_from_outside_are_shown_escaped() -> None:
    grid = Grid("t\x1b[2J", ("name",), (Heading("said", is_text=True),))
    grid.add("\x1b[31mred\x9b5m", "[bold]\u202eeslaf\x07")
    text = "\n".join(printed(grid.tables(80), 80))
    assert "\\x1b[31mred\\x9b5m" in text
    assert "[bold]\\u202eeslaf\\x07" in text
    assert not {letter for letter in text if letter < " " and letter != "\n"}


def test_control_characters_of_a_body_are_escaped() -> None:
    assert shown_body(
        "a\tb\nc\rd\x1b]0;x\x07 \u2066é\u202c \u200c\U0001f600".encode() + b"\x9b\xff"
    ) == ("a\tb\nc\\rd\\x1b]0;x\\x07 \\u2066é\\u202c \u200c\U0001f600\\x9b\\xff".encode())


BUCKET = {
    "url": "file:///b", "trouble": "", "shipping": "open", "lag_s": 0.25, "write_requests": 1_234, "read_requests": 5, "remove_requests": 0,
    "sent_bytes": 7 << 20, "received_bytes": 0, "cost": 0.0123, "shipped_bytes": 1, "shipped_ticks": 1, "epoch": 3, "standbys": 1,
}  # fmt: skip


def test_the_line_of_a_bucket_has_its_lag_and_cost_only_where_they_are_known() -> None:
    found = statistics()
    found["bucket"] = BUCKET
    requests = "bucket file:///b: 1,234 write requests (7 MiB), 5 read requests (0 MiB)"
    assert stats.head(found).endswith(
        f"{requests}, shipping open, lag 0.2 s, cost 0.0123, 1 standby\n"
    )
    found["bucket"] = BUCKET | {"shipping": "off", "cost": 0.0, "standbys": 0}
    assert stats.head(found).endswith(f"{requests}\n")


def test_topics_have_a_column_for_the_bucket_only_if_the_broker_ships() -> None:
    found = statistics()
    wide = 400
    assert "bucket lag" not in "\n".join(
        printed(stats.tables(found, processes=True, width=wide), wide)
    )
    for topic, shipping, lag_s in zip(
        found["topics"], ("open", "catching up", "off"), (0.5, 20.0, 0.0), strict=True
    ):
        topic.update(shipping=shipping, ship_lag_s=lag_s)
    text = "\n".join(printed(stats.tables(found, processes=True, width=wide), wide))
    for shown in ("bucket lag", "0.5 s", "20 s, catching up", " off "):
        assert shown in text
