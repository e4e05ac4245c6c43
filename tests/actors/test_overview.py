"""The overview: rows of what pulsed, those that changed since it was asked for last, and no backlog that is none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.group import Broker
from zsq.actors import overview
from zsq.actors.overview import CHANNEL_FIELDS, TOPIC_FIELDS, Overview
from zsq.actors.process_table import Child
from zsq.transport.errors import UsageError

S = 1_000_000_000
STORAGE = {"start": 10, "head": 110, "log_bytes": 5_000, "chunks": 2, "oldest_ns": {"": 7, "a": 7}, "delayed_count": 3}
TOPIC = {"head": 110, "end": 110, "message_count": 100, "message_bytes": 900, "rates": {"message_count": 50.0}}
CHANNEL = {"depth": 40, "next_offset": 70, "requeued_waiting": 0, "in_flight_count": 5, "begin": 10, "client_count": 2}


class Desk:
    """One topic with one channel, and an overview over both."""

    def __init__(self) -> None:
        self.broker = cast("Any", Broker())
        self.group = self.broker.group
        self.broker.alarms = SimpleNamespace(rows=list, recent=list, receivers=list, texts=lambda topic: [])
        self.broker.registry.node, self.broker.registry.uuid, self.broker.started = 3, "u", 100.0
        self.broker.table.forkserver_pid = 1
        self.channel = self.broker.child("channel", {"channel": "a"})
        self.group.channels["a"] = self.channel
        self.tell(self.group.storage, STORAGE)
        self.tell(self.group.topic, TOPIC)
        self.tell(self.channel, CHANNEL)
        self.overview = Overview(self.broker)

    @staticmethod
    def tell(child: Child | None, stats: dict[str, Any], second: float = 1.0) -> None:
        assert child is not None
        child.stats, child.pulsed_ns = child.stats | stats, int(second * S)

    def ask(self, since: int = 0, **more: Any) -> dict[str, Any]:
        self.overview._refreshed_ns = -overview.REFRESH_NS
        return self.overview.answer({"since": since, **more})

    def channel_row(self) -> dict[str, Any]:
        return dict(zip(CHANNEL_FIELDS, self.ask()["topics"]["t"][1]["a"], strict=True))

    def topic_row(self) -> dict[str, Any]:
        return dict(zip(TOPIC_FIELDS, self.ask()["topics"]["t"][0], strict=True))


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_it_says_of_each_topic_and_channel_what_they_said_last(desk: Desk) -> None:
    topic, channel = desk.topic_row(), desk.channel_row()
    assert topic["head"] == 110
    assert (topic["messages"], topic["in_rate"], topic["backlog"], topic["delayed"]) == (100, 50.0, 45, 3)
    assert (channel["depth"], channel["in_flight"], channel["came"], channel["consumers"]) == (40, 5, 100, 2)
    assert (topic["oldest_ns"], channel["oldest_ns"], channel["health"]) == (7, 7, "OK")
    assert channel["drain_s"] == overview.NOT_KNOWN  # it never is


def test_only_what_changed_is_told_again(desk: Desk) -> None:
    version = desk.ask()["version"]
    assert desk.ask(version)["topics"] == {}
    desk.tell(desk.channel, {"depth": 39, "next_offset": 71})
    found = desk.ask(version)
    assert not found["whole"]
    assert found["topics"]["t"][1]["a"][CHANNEL_FIELDS.index("depth")] == 39
    assert found["topics"]["t"][0][TOPIC_FIELDS.index("backlog")] == 44
    desk.tell(desk.group.storage, {"log_bytes": 6_000})
    row, channels = desk.ask(found["version"])["topics"]["t"]
    assert row[TOPIC_FIELDS.index("log_bytes")] == 6_000
    assert channels == {}
    assert desk.ask(version)["topics"]["t"][1]  # who missed one gets both


def test_a_topic_s_row_is_not_told_again_for_what_its_channel_alone_says(desk: Desk) -> None:
    version = desk.ask()["version"]
    desk.tell(desk.channel, {"client_count": 3})
    row, channels = desk.ask(version)["topics"]["t"]
    assert channels["a"][CHANNEL_FIELDS.index("consumers")] == 3
    assert row == ()


def test_many_who_ask_at_once_cost_one_look(desk: Desk) -> None:
    version = desk.ask()["version"]
    assert desk.overview.answer({"since": 0})["version"] == version


def test_a_pulse_that_says_the_same_once_more_is_no_change(desk: Desk) -> None:
    version = desk.ask()["version"]
    desk.tell(desk.channel, dict(CHANNEL))
    assert desk.ask(version)["topics"] == {}


def test_all_is_told_anew_when_a_channel_or_a_topic_comes_or_goes(desk: Desk) -> None:
    version = desk.ask()["version"]
    desk.group.channels["b"] = None
    found = desk.ask(version)
    assert (found["whole"], [*found["topics"]["t"][1]]) == (True, ["a", "b"])
    assert found["topics"]["t"][1]["b"][0] == "starting"
    del desk.group.channels["b"]
    found = desk.ask(found["version"])
    assert (found["whole"], [*found["topics"]["t"][1]]) == (True, ["a"])
    assert not desk.ask(found["version"])["whole"]
    del desk.broker.groups["t"]
    found = desk.ask(found["version"])
    assert (found["whole"], found["topics"]) == (True, {})


@pytest.mark.parametrize("since", [0, 1, 1 << 60])
def test_a_version_of_another_life_counts_for_nothing(desk: Desk, since: int) -> None:
    assert desk.ask(since)["whole"]


def test_what_came_between_two_pulses_is_no_backlog(desk: Desk) -> None:
    desk.tell(desk.channel, {"depth": 0, "next_offset": 110, "in_flight_count": 0}, 1.0)
    desk.tell(desk.group.topic, {"end": 160, "head": 160}, 2.0)  # 50 a second, and a second later
    assert desk.channel_row()["depth"] == 0
    desk.tell(desk.group.topic, {"end": 200, "head": 200}, 2.0)  # more than that: it has not heard of them
    assert desk.channel_row()["depth"] == 40
    desk.tell(desk.channel, {"depth": 7, "next_offset": 210}, 3.0)  # it knows more than the topic said
    assert desk.channel_row()["depth"] == 7


def test_health_is_of_processes_too(desk: Desk) -> None:
    desk.channel.state = "starting"
    assert desk.channel_row()["health"] == "starting"
    desk.channel.state = "up"
    desk.tell(desk.channel, {"dead_letter_alarm": "cannot be written"})
    assert (desk.channel_row()["health"], desk.topic_row()["health"]) == ("cannot be written", "channel a cannot be written")


def test_processes_and_alarms_are_told_to_who_wants_them(desk: Desk) -> None:
    assert not {"processes", "alarms"} & desk.ask().keys()
    found = desk.ask(processes=True, alarms=True)
    assert found["alarms"] == {"now": [], "recent": [], "receivers": []}
    assert [row["kind"] for row in found["processes"]] == ["supervisor", "forkserver", "storage", "topic", "channel"]
    assert found["broker"]["processes"] == 5
    for wrong in ({"since": "1"}, {"since": 0, "all": True}):
        with pytest.raises(UsageError):
            desk.overview.answer(wrong)
