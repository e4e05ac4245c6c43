"""Tests of what `stats` reports about health, and about why a topic cannot be written to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.group import processes_of
from zsq.actors.channel.core import ChannelCore
from zsq.actors.channel.deferred import Deferred
from zsq.actors.settings.options import DEFERRED_ROWS_MAX
from zsq.actors.statistics import statistics
from zsq.actors.statistics.broker_view import GroupState
from zsq.actors.statistics.channel_rows import channel_rows

DISK: Any = SimpleNamespace(says_why=lambda topic: False)


@pytest.mark.parametrize("rows", [DEFERRED_ROWS_MAX - 1, DEFERRED_ROWS_MAX])
def test_a_channel_that_holds_all_it_can_says_so(rows: int) -> None:
    full = rows == DEFERRED_ROWS_MAX
    delivery = ChannelCore(1, 0, [], {}, paused=False, deferred=Deferred(rows, rows, 5))
    child = SimpleNamespace(state="up", stats=delivery.statistics(0), data={})
    topic = SimpleNamespace(stats={"storage": {"appends": 1}}, data={})
    group = processes_of(topic, {"c": child})
    (row,) = channel_rows(group, 0, 0)
    limit = "limit of 10,000,000 deferred messages"
    assert (row["health"] == "OK", limit in row["health"], "deferred_full" in row) == (
        not full,
        full,
        False,
    )
    assert (statistics.said_of_topic(group, DISK) == []) == (not full)
    child.state = "starting"
    assert channel_rows(group, 0, 0)[0]["health"] == "starting"


@pytest.mark.parametrize(
    ("state", "failure", "pulse", "why"),
    [
        (GroupState.UP, "", {}, ""),
        (
            GroupState.UP,
            "",
            {"alarms": ["x.zsq: its footer is damaged, and has no space to be mended"]},
            "",
        ),
        (
            GroupState.UP,
            "",
            {"state_alarm": "the state store is full", "delayed_full": "they wait"},
            "the state store is full; they wait",
        ),
        (
            GroupState.UP,
            "",
            {"delayed_alarm": "2 delayed messages are lost because of damage", "delayed_full": ""},
            "",
        ),
        (GroupState.UP, "", {"extension_refusal": "publishing waits"}, "publishing waits"),
        (GroupState.UP, "sync failed", {}, ""),
        (GroupState.STARTING, "", {}, ""),
        (GroupState.STARTING, "it died before", {}, "starting: it died before"),
        (GroupState.CLEARING, "t ended with code 4", {}, "clearing: t ended with code 4"),
        (GroupState.FAILED, "", {}, "failed"),
        (GroupState.STOPPING, "it died before", {}, ""),
    ],
)
def test_the_reason_why_a_topic_cannot_be_written_to_is_reported(
    state: GroupState, failure: str, pulse: dict[str, Any], why: str
) -> None:
    """The reason depends on the known state, and not on the text of the health."""
    topic = SimpleNamespace(stats={"storage": pulse}, data={})
    group = processes_of(topic, {}, state, failure)
    assert statistics.write_trouble(group, DISK) == why


def test_only_the_first_failed_topics_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "FAILED_NAMED", 2)
    view: Any = SimpleNamespace(
        groups={}, disk=SimpleNamespace(health=""), settings_trouble=lambda: ""
    )
    for name, said in (
        ("a", "a"),
        ("b", "a, b"),
        ("c", "a, b and 1 more"),
        ("d", "a, b and 2 more"),
    ):
        view.groups[name] = SimpleNamespace(name=name, state=GroupState.FAILED)
        assert statistics.broker_health(view) == f"failed topics: {said}"
