"""Tests of every view of statistics with actors that have not reported yet: the view shows defaults
and does not fail.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from tests.support.group import Broker, a_channel, processes_of
from zsq.actors.channel.core import ChannelCore
from zsq.actors.gateways.http.api.metrics import RequestMetrics, render
from zsq.actors.gateways.http.api.stats import as_nsq, as_text, health
from zsq.actors.gateways.http.console import previews
from zsq.actors.gateways.http.console.board import Board
from zsq.actors.gateways.http.console.page_details import channel_details, topic_details
from zsq.actors.statistics.broker_view import ChannelProcess
from zsq.actors.statistics.channel_rows import NOT_REPORTED, channel_rows
from zsq.actors.statistics.overview import Overview
from zsq.actors.statistics.statistics import broker_statistics
from zsq.apps.cli.inspect import stats as cli_stats
from zsq.apps.cli.inspect import top as cli_top
from zsq.apps.top import Picture, Screen
from zsq.transport.draining import remaining
from zsq.transport.reports import BrokerStats
from zsq.transport.wire.admin_requests import OverviewRequest

PRIVATE = {"begin", "window_end", "requeued_waiting", "deferred_full", "absent", "rates_recent"}
"""Values that a channel reports only for the supervisor."""


def no_topic_process(broker: Any) -> None:
    broker.group.storage = broker.group.topic = None
    broker.group.channels["c"] = ChannelProcess()


def no_channel_process(broker: Any) -> None:
    broker.group.channels["c"] = ChannelProcess()


def starting(broker: Any) -> None:
    child = broker.child("channel", a_channel("c"))
    child.state = "starting"
    broker.group.channels["c"] = ChannelProcess(child)


def up_and_silent(broker: Any) -> None:
    broker.group.channels["c"] = ChannelProcess(broker.child("channel", a_channel("c")))


MOMENTS = (no_topic_process, no_channel_process, starting, up_and_silent)


@pytest.fixture(params=MOMENTS)
def broker(request: pytest.FixtureRequest) -> Any:
    made = cast("Any", Broker())
    request.param(made)
    return made


def screen_text(*shown: Any) -> str:
    out = io.StringIO()
    console = Console(file=out, width=200)
    for one in shown:
        console.print(one)
    return out.getvalue()


def as_json(stats: BrokerStats) -> Any:
    return as_nsq(stats, health(stats), "", "", clients=True, memory=True)["topics"][0]["channels"]


def of_the_console(stats: BrokerStats) -> Any:
    row = stats["topics"][0]
    topic_details(stats, row["topic_name"], {})
    channel_details(row["channels"][0], {})
    shown = [
        previews.preview(action, previews.ActionRequest(row, row["channels"][0], 0, 1, (1, [0])))
        for action in previews._ACTIONS
    ]
    return [remaining(row), *shown]


VIEWS: dict[str, Callable[[Any], Any]] = {
    "stats as JSON": as_json,
    "stats as text": lambda stats: as_text(
        as_nsq(stats, "OK", "", "", clients=True, memory=True), 1.0, "1"
    ),
    "metrics": lambda stats: render(stats, True, 0.1, RequestMetrics(), ""),
    "console": of_the_console,
    "zsq stats": lambda stats: screen_text(*cli_stats.tables(stats, processes=True)),
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_shows_a_channel_that_has_not_reported(broker: Any, view: str) -> None:
    assert VIEWS[view](broker_statistics(broker.view(), "", "", {}))


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_shows_a_channel_whose_details_came_before_its_first_report(
    broker: Any, view: str
) -> None:
    child = broker.group.child("c")
    details = (
        {}
        if child is None
        else {child.spec.key: ChannelCore(1, 0, [], {}, paused=False).details(1, 1)}
    )
    assert VIEWS[view](broker_statistics(broker.view(), "", "", details))


def test_nsqs_view_shows_rows_that_have_nothing_but_names() -> None:
    rows: Any = {
        "version": "1",
        "start_time": 1,
        "topics": [{"topic_name": "t", "channels": [{"channel_name": "c", "clients": [{}]}]}],
    }
    found = as_nsq(rows, "OK", "", "", clients=True, memory=True)
    assert found["topics"][0]["channels"][0]["requeue_count"] == 0
    assert "[c " in as_text(found, 1.0, "1")


@pytest.mark.parametrize("view", ["channels", "topics", "processes"])
def test_zsq_top_and_the_console_s_board_show_a_channel_that_has_not_reported(
    broker: Any, view: str
) -> None:
    found: Any = Overview(broker.view()).answer(OverviewRequest(processes=True, alarms=True))
    picture, screen = Picture(), Screen(view=view)
    picture.take(found)
    rows = screen.arranged(picture.rows(view, 10**18))
    assert rows
    assert screen_text(cli_top.head(picture, "ipc://x"), cli_top.table(screen, rows, 200))
    board = Board()
    board.take(found, 1_000, 1_000)
    assert board.topics["t"].channels["c"].values["finished"] == 0


def test_the_defaults_are_of_all_that_a_channel_reports() -> None:
    """A new statistic must have a default, too."""
    delivery = ChannelCore(1, 0, [], {}, paused=False)
    child: Any = SimpleNamespace(
        state="up",
        stats={**delivery.statistics(0), "settings": {}, "rates": {}},
        data={},
        spec=SimpleNamespace(key=1),
    )
    group = processes_of(None, {"c": child})
    (row,) = channel_rows(group, 0, 0, {1: delivery.details(1, 1)})
    assert {*delivery.statistics(0)} - PRIVATE <= NOT_REPORTED.keys()
    assert row.keys() - {"channel_name", "health", "latency_bins"} == NOT_REPORTED.keys()
    silent = processes_of(None, {"c": None})
    assert channel_rows(silent, 0, 0)[0].keys() - {"channel_name", "health"} == NOT_REPORTED.keys()
