"""Tests of the overview: it has a row for each actor that has sent a pulse. A later overview has
only the rows that changed since the last request. No overview shows a false backlog.
"""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.group import Broker, a_channel
from zsq.actors.runtime.process_table import Child, HostProcess
from zsq.actors.statistics import overview
from zsq.actors.statistics.broker_view import ChannelProcess
from zsq.actors.statistics.overview import CHANNEL_FIELDS, TOPIC_FIELDS, Overview
from zsq.transport.wire.admin_requests import OverviewRequest

S = 1_000_000_000
STORAGE = {
    "start": 10,
    "head": 110,
    "log_bytes": 5_000,
    "chunks": 2,
    "oldest_ns": {"": 7, "a": 7},
    "delayed_count": 3,
}
TOPIC = {
    "head": 110,
    "end": 110,
    "message_count": 100,
    "message_bytes": 900,
    "rates": {"message_count": 50.0},
}
CHANNEL = {
    "depth": 40,
    "next_offset": 70,
    "requeued_waiting": 0,
    "in_flight_count": 5,
    "begin": 10,
    "client_count": 2,
}


class OverviewHarness:
    """One topic with one channel, and an overview of both."""

    def __init__(self) -> None:
        self.broker = cast("Any", Broker())
        self.group = self.broker.group
        self.channel = self.broker.child("channel", a_channel("a"))
        self.group.channels["a"] = ChannelProcess(self.channel)
        self.tell(self.group.topic, {**TOPIC, "storage": STORAGE})
        self.tell(self.channel, CHANNEL)
        self.overview = Overview(self.broker.view())

    @staticmethod
    def tell(child: Child | None, stats: dict[str, Any], second: float = 1.0) -> None:
        assert child is not None
        child.stats, child.pulsed_ns = {**child.stats, **stats}, int(second * S)

    def ask(self, since: int = 0, **more: Any) -> Any:
        self.overview._refreshed_ns = -overview.REFRESH_NS
        return self.overview.answer(OverviewRequest(since=since, **more))

    def channel_row(self) -> dict[str, Any]:
        return dict(zip(CHANNEL_FIELDS, self.ask()["topics"]["t"][1]["a"], strict=True))

    def topic_row(self) -> dict[str, Any]:
        return dict(zip(TOPIC_FIELDS, self.ask()["topics"]["t"][0], strict=True))


@pytest.fixture
def harness() -> OverviewHarness:
    return OverviewHarness()


def test_the_overview_has_the_last_report_of_each_topic_and_channel(
    harness: OverviewHarness,
) -> None:
    topic, channel = harness.topic_row(), harness.channel_row()
    assert topic["head"] == 110
    assert (topic["messages"], topic["in_rate"], topic["backlog"], topic["delayed"]) == (
        100,
        50.0,
        45,
        3,
    )
    assert (channel["depth"], channel["in_flight"], channel["came"], channel["consumers"]) == (
        40,
        5,
        100,
        2,
    )
    assert (topic["oldest_ns"], channel["oldest_ns"], channel["health"]) == (7, 7, "OK")
    assert channel["drain_s"] == overview.NOT_KNOWN  # this value is never known


def test_a_later_overview_has_only_changed_rows(harness: OverviewHarness) -> None:
    version = harness.ask()["version"]
    assert harness.ask(version)["topics"] == {}
    harness.tell(harness.channel, {"depth": 39, "next_offset": 71})
    found = harness.ask(version)
    assert not found["whole"]
    assert found["topics"]["t"][1]["a"][CHANNEL_FIELDS.index("depth")] == 39
    assert found["topics"]["t"][0][TOPIC_FIELDS.index("backlog")] == 44
    harness.tell(harness.group.topic, {"storage": {**STORAGE, "log_bytes": 6_000}})
    row, channels = harness.ask(found["version"])["topics"]["t"]
    assert row[TOPIC_FIELDS.index("log_bytes")] == 6_000
    assert channels == {}
    assert harness.ask(version)["topics"]["t"][1]  # a client that missed a version gets both rows


def test_a_change_of_a_channel_does_not_repeat_the_row_of_its_topic(
    harness: OverviewHarness,
) -> None:
    version = harness.ask()["version"]
    harness.tell(harness.channel, {"client_count": 3})
    row, channels = harness.ask(version)["topics"]["t"]
    assert channels["a"][CHANNEL_FIELDS.index("consumers")] == 3
    assert row == ()


def test_requests_at_the_same_time_share_one_version(harness: OverviewHarness) -> None:
    version = harness.ask()["version"]
    assert harness.overview.answer(OverviewRequest())["version"] == version


def test_a_pulse_that_says_the_same_once_more_is_no_change(harness: OverviewHarness) -> None:
    version = harness.ask()["version"]
    harness.tell(harness.channel, dict(CHANNEL))
    assert harness.ask(version)["topics"] == {}


def test_the_overview_is_whole_after_a_channel_or_a_topic_comes_or_goes(
    harness: OverviewHarness,
) -> None:
    version = harness.ask()["version"]
    harness.group.channels["b"] = ChannelProcess()
    found = harness.ask(version)
    assert (found["whole"], [*found["topics"]["t"][1]]) == (True, ["a", "b"])
    assert found["topics"]["t"][1]["b"][0] == "starting"
    del harness.group.channels["b"]
    found = harness.ask(found["version"])
    assert (found["whole"], [*found["topics"]["t"][1]]) == (True, ["a"])
    assert not harness.ask(found["version"])["whole"]
    del harness.broker.groups["t"]
    found = harness.ask(found["version"])
    assert (found["whole"], found["topics"]) == (True, {})


@pytest.mark.parametrize("since", [0, 1, 1 << 60])
def test_a_version_of_another_life_counts_for_nothing(harness: OverviewHarness, since: int) -> None:
    assert harness.ask(since)["whole"]


def test_messages_between_two_pulses_are_not_counted_as_backlog(harness: OverviewHarness) -> None:
    now_s = time.monotonic_ns() / S
    harness.channel.topic_end = 115
    harness.tell(harness.group.topic, {"end": 160, "head": 160})
    # An active channel reports each second. This report is not older than that.
    harness.tell(harness.channel, {"depth": 0, "next_offset": 110}, now_s + 60)
    assert harness.channel_row()["depth"] == 5, "they were there when the channel reported"
    # One that has been silent for longer has not moved.
    harness.channel.pulsed_ns = int((now_s - 60) * S)
    assert harness.channel_row()["depth"] == 50
    # The channel knows more than the topic reported.
    harness.tell(harness.channel, {"depth": 7, "next_offset": 210}, now_s + 60)
    assert harness.channel_row()["depth"] == 7


def test_all_messages_wait_in_a_channel_without_consumers(harness: OverviewHarness) -> None:
    """It does not move, so the newest end counts, whatever the age of its report."""
    still = {"depth": 0, "next_offset": 10, "in_flight_count": 0, "client_count": 0}
    harness.tell(harness.channel, still, time.monotonic_ns() / S + 60)
    harness.tell(harness.group.topic, {"end": 110, "head": 110})
    assert harness.channel_row()["depth"] == 100


def test_health_is_of_processes_too(harness: OverviewHarness) -> None:
    harness.channel.state = "starting"
    assert harness.channel_row()["health"] == "starting"
    harness.channel.state = "up"
    harness.tell(harness.channel, {"dead_letter_alarm": "cannot be written"})
    assert (harness.channel_row()["health"], harness.topic_row()["health"]) == (
        "cannot be written",
        "channel a cannot be written",
    )


def test_processes_and_alarms_are_included_only_if_requested(harness: OverviewHarness) -> None:
    assert not {"processes", "alarms"} & harness.ask().keys()
    found = harness.ask(processes=True, alarms=True)
    assert found["alarms"] == {"now": [], "recent": [], "receivers": []}
    assert [row["kind"] for row in found["processes"]] == [
        "supervisor",
        "forkserver",
        "topic",
        "channel",
    ]
    assert found["broker"]["processes"] == 2


def test_the_actors_of_a_shared_process_count_as_one_process(harness: OverviewHarness) -> None:
    host = HostProcess(1, cast("Any", None), 1)
    for child in harness.broker.children.values():
        child.host = host
    harness.broker.table.hosts = {host}
    found = harness.ask(processes=True)
    kinds = [row["kind"] for row in found["processes"]]
    assert kinds == ["supervisor", "forkserver", "host", "topic", "channel"]
    assert found["broker"]["processes"] == 3


@pytest.mark.parametrize(
    ("bucket", "is_clustered"),
    [
        (None, False),
        ({}, False),
        ({"cluster": "s3://bucket"}, True),
        ({"standbys": 1}, True),
    ],
)
def test_a_broker_says_if_it_belongs_to_a_cluster_or_has_a_standby(
    bucket: dict[str, Any] | None, is_clustered: bool
) -> None:
    harness = OverviewHarness()
    singles: dict[int, Any] = {}
    if bucket is not None:
        singles[1] = SimpleNamespace(spec=SimpleNamespace(kind="archive", start=None), stats=bucket)
    view = replace(harness.broker.view(), singles=singles)
    assert Overview(view).answer(OverviewRequest())["broker"]["clustered"] is is_clustered
