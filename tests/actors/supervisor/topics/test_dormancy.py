"""Tests of dormancy: when a topic may sleep, and how its processes stop and start again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.group import TOPIC, Broker, a_channel

from zsq.actors.runtime.child import Failure, Phase
from zsq.actors.runtime.process_table import Child
from zsq.actors.settings.starts import TopicStart
from zsq.actors.statistics.broker_view import ChannelProcess, GroupState
from zsq.actors.statistics.channel_rows import channel_rows
from zsq.actors.statistics.statistics import reach, said_of_topic, unfinished, write_trouble
from zsq.actors.supervisor.topics import dormancy, topic_group
from zsq.transport.errors import E_CLOSING, ZsqError
from zsq.transport.settings import Retention

S = 1_000_000_000
MINUTE = 60 * S
NOW = 1_000 * S
WALL = 1_700_000_000 * S


def a_storage(**changes: Any) -> dict[str, Any]:
    return {
        "stage_links": 0, "stages": 0, "backup": False, "extension_busy": False, "alarms": (),
        "state_alarm": "", "delayed_alarm": "",
        "delayed_full": "", "disk_full": "", "topic_full": "", "delayed_count": 0, "delayed_next_due_ns": 0, "start": 0,
        "head": 7, "gaps": (), "kept_count": 7, "waiting": 7,
        "oldest_ns": {"": 5, "c": 5}, "refused_count": 3, "removed_bytes": 4, "entered_bytes": 10,
    } | changes  # fmt: skip


def a_topic(storage: dict[str, Any] | None = None, **changes: Any) -> Any:
    return {
        "head": 7, "end": 7, "stirred_ns": NOW - MINUTE, "producers": 0, "pending_appends": 0, "queued_blocks": 0, "paused": False,
        "message_count": 7, "message_bytes": 90, "rates": {}, "rates_recent": {},
        "storage": a_storage() if storage is None else storage,
    } | changes  # fmt: skip


def a_pulse(**changes: Any) -> Any:
    return {
        "next_offset": 2, "stirred_ns": NOW - MINUTE, "client_count": 0, "in_flight_count": 0, "dying_count": 0, "deferred_count": 1,
        "dead_letter_alarm": "", "depth": 4, "window_end": 7, "absent": (), "begin": 0, "rates": {}, "settings": {},
    } | changes  # fmt: skip


def test_a_topic_without_any_use_is_unused() -> None:
    assert dormancy.is_unused(a_topic(), [a_pulse(), a_pulse()], NOW, MINUTE)
    assert dormancy.is_unused(a_topic(), [], NOW, MINUTE)


@pytest.mark.parametrize(
    "topic",
    [
        {},
        a_topic(stirred_ns=NOW - MINUTE + 1),
        a_topic(producers=1),
        a_topic(pending_appends=1),
        a_topic(queued_blocks=1),
        a_topic(a_storage(stage_links=1)),
        a_topic(a_storage(stages=1)),
        a_topic(a_storage(backup=True)),
        a_topic(a_storage(alarms=("a chunk is damaged",))),
        a_topic(a_storage(state_alarm="cannot write")),
        a_topic(a_storage(delayed_alarm="cannot read")),
        a_topic(a_storage(delayed_full="no space")),
        a_topic(a_storage(disk_full="no space")),
        a_topic(a_storage(topic_full="10 GiB are unfinished")),
    ],
)
def test_a_topic_with_any_use_or_trouble_stays_awake(topic: Any) -> None:
    assert not dormancy.is_unused(topic, [a_pulse()], NOW, MINUTE)


@pytest.mark.parametrize(
    "channel",
    [
        {},
        a_pulse(stirred_ns=NOW - MINUTE + 1),
        a_pulse(client_count=1),
        a_pulse(in_flight_count=1),
        a_pulse(dying_count=1),
        a_pulse(dead_letter_alarm="cannot be sent"),
    ],
)
def test_one_channel_in_use_keeps_the_topic_awake(channel: Any) -> None:
    assert not dormancy.is_unused(a_topic(), [a_pulse(), channel], NOW, MINUTE)


def test_a_topic_sleeps_until_its_first_delayed_message_is_due() -> None:
    storage: Any = a_storage(delayed_count=2, delayed_next_due_ns=WALL + 90 * S)
    assert dormancy.due_ns(storage) == WALL + 88 * S
    none: Any = a_storage()
    assert dormancy.due_ns(none) == dormancy.NEVER


@pytest.mark.parametrize(
    ("retention", "storage", "longest_s"),
    [
        (Retention(), a_storage(), None),
        (Retention(keep_time_s=86_400), a_storage(), 3_600),
        (Retention(max_age_s=86_400, when_full="drop-oldest"), a_storage(), 3_600),
        (Retention(keep_time_s=86_400), a_storage(start=7), None),
    ],
)
def test_a_topic_whose_retention_depends_on_time_wakes_each_hour(
    retention: Retention, storage: Any, longest_s: int | None
) -> None:
    found = dormancy.sleep_ns(storage, retention, 0.0)
    assert found == (dormancy.NEVER if longest_s is None else longest_s * S)
    if longest_s is not None:
        assert dormancy.sleep_ns(storage, retention, 1.0) == longest_s * S // 2


class Clock:
    """A replacement for the `time` module, only in the code of a topic's group."""

    def __init__(self) -> None:
        self.now = NOW
        self.ahead = 0  # of the wall clock

    def monotonic_ns(self) -> int:
        return self.now

    def time_ns(self) -> int:
        return WALL + self.now - NOW + self.ahead


class Place(Broker):
    """A topic that is up, with channel `c`, and has not been used for long."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        monkeypatch.setattr(topic_group, "time", self.clock)
        super().__init__()
        self.options.sleep_after_s = 60.0
        channel = self.child("channel", a_channel("c"))
        self.group.channels["c"] = ChannelProcess(channel)
        assert self.group.topic is not None
        self.group.topic.stats, channel.stats = a_topic(), a_pulse()
        channel.data = {"settings": {}}
        self.group.tick()
        assert self.group.state is GroupState.UP, "it was asked for a moment ago"
        self.clock.now += MINUTE

    def state(self) -> GroupState:
        return self.group.state

    def gone(self, child: Child | None, failure: Failure | None = None) -> None:
        assert child is not None
        child.state, child.failure = "ended", failure
        self.children.pop(child.spec.key)
        self.group.died(child)

    def put_to_sleep(self) -> Place:
        self.group.tick()
        self.gone(self.group.child("c"))
        self.gone(self.group.topic)
        assert self.group.state is GroupState.ASLEEP
        return self

    def born(self) -> None:
        topic = self.group.topic
        assert topic is not None
        topic.state, topic.data = "up", {"channels": ["c"], "alarms": ()}
        self.group.born(topic)
        self.group.tick()


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(monkeypatch)


def test_the_channels_stop_before_their_topic(place: Place) -> None:
    place.group.tick()
    assert place.state() is GroupState.DOZING
    assert place.stopped == [place.group.child("c")]
    place.gone(place.group.child("c"))
    assert place.stopped[-1] is place.group.topic
    assert place.state() is GroupState.DOZING
    place.gone(place.group.topic)
    assert place.state() is GroupState.ASLEEP
    assert place.group.settled()
    assert place.asleep == 2, "they count for the limit of processes"
    place.group.tick()
    assert place.started == []


def test_a_topic_that_was_just_asked_for_stays_awake(place: Place) -> None:
    place.clock.now -= 1
    place.group.tick()
    assert place.state() is GroupState.UP


def test_a_process_whose_next_pulse_may_be_on_the_way_keeps_its_topic_awake(place: Place) -> None:
    channel = place.group.child("c")
    assert channel is not None
    channel.news_ns = place.clock.now - 2 * S
    place.group.tick()
    assert place.state() is GroupState.UP
    channel.news_ns -= 1
    place.clock.now += S
    place.group.tick()
    assert place.state() is GroupState.DOZING


def test_the_option_none_keeps_all_topics_awake(place: Place) -> None:
    place.options.sleep_after_s = 0.0
    place.group.tick()
    assert place.state() is GroupState.UP


@pytest.mark.parametrize(
    "cause", ["starting", "deleting", "ephemeral", "failed", "missing", "in memory", "due"]
)
def test_these_topics_stay_awake(place: Place, cause: str) -> None:
    group = place.group
    assert group.topic is not None
    if cause == "starting":
        group.channels["c"].child.state = "starting"  # type: ignore[union-attr]
    elif cause == "deleting":
        group.begin_deletion("c")
    elif cause == "ephemeral":
        group.channels["e#ephemeral"] = group.channels["c"]
    elif cause == "failed":
        group.channels["c"].has_failed = True
    elif cause == "missing":
        group.channels["d"] = ChannelProcess()
    elif cause == "in memory":
        group.row = replace(group.row, number=0)
    else:
        group.topic.stats = a_topic(
            a_storage(delayed_count=1, delayed_next_due_ns=place.clock.time_ns() + 30 * S)
        )
    group.tick()
    assert place.state() is GroupState.UP


def test_a_topic_that_failed_and_started_again_may_sleep(place: Place) -> None:
    group = place.group
    assert group.topic is not None
    group.cause = Failure(Phase.RUN, "", "the disk failed")
    group.topic.stats = a_topic()
    group.tick()
    assert place.state() is GroupState.DOZING
    assert group.failure == ""


def test_a_request_wakes_a_topic_and_is_answered_when_it_is_up(place: Place) -> None:
    place.put_to_sleep().group.want("", place.answers.append)
    assert place.answers == []
    place.group.tick()
    assert place.state() is GroupState.STARTING
    assert place.started == ["topic"]
    assert place.asleep == 0
    place.born()
    assert place.answers == [None]
    assert place.started == ["topic", "c"]


def test_a_request_for_a_topic_that_dozes_waits_for_its_new_processes(place: Place) -> None:
    group = place.group
    group.tick()
    old = group.topic
    group.want("c", place.answers.append)
    place.gone(group.child("c"))
    place.gone(old)
    assert place.answers == [], "nobody is told to use a process that ends"
    group.tick()
    place.born()
    assert group.topic is not old
    assert place.answers == []
    place.up("c")
    assert place.answers == [None]


def test_a_roused_topic_has_all_channels(place: Place) -> None:
    place.put_to_sleep().group.rouse(place.answers.append)
    place.group.tick()
    place.born()
    assert place.answers == []
    place.up("c")
    assert place.answers == [None]


def test_a_topic_that_is_stopped_answers_who_waits_for_its_channels(place: Place) -> None:
    place.put_to_sleep().group.rouse(place.answers.append)
    place.group.tick()
    place.born()
    place.group.stop(lambda: None)
    [error] = place.answers
    assert error is not None
    assert error.code == E_CLOSING


def test_a_topic_that_cannot_start_answers_who_rouses_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.put_to_sleep().group.rouse(place.answers.append)
    place.group.tick()
    place.gone(place.group.topic, Failure(Phase.START, "Damaged", "the identity is damaged"))
    [error] = place.answers
    assert isinstance(error, ZsqError)
    assert "the identity is damaged" in error.text


def test_a_topic_that_sleeps_ends_at_once(place: Place) -> None:
    ended: list[bool] = []
    place.put_to_sleep().group.stop(lambda: ended.append(True))
    assert ended == [True]
    assert place.state() is GroupState.ENDED
    assert place.asleep == 0


def test_a_topic_that_dozes_ends_when_its_processes_have(place: Place) -> None:
    ended: list[bool] = []
    place.group.tick()
    place.group.stop(lambda: ended.append(True))
    assert ended == []
    place.gone(place.group.child("c"))
    place.gone(place.group.topic)
    assert ended == [True]


def test_a_topic_that_fails_while_it_dozes_starts_again(place: Place) -> None:
    place.group.tick()
    place.gone(place.group.child("c"))
    place.gone(place.group.topic, Failure(Phase.RUN, "StoreFailed", "sync failed"))
    assert place.state() is GroupState.STARTING
    assert "sync failed" in place.group.failure


def test_a_topic_killed_while_it_dozes_sleeps_when_its_channels_have_ended(place: Place) -> None:
    place.group.tick()
    place.gone(place.group.topic)
    assert place.state() is GroupState.DOZING
    place.gone(place.group.child("c"))
    assert place.state() is GroupState.ASLEEP


@pytest.mark.parametrize("is_set", [False, True])
def test_a_topic_wakes_when_its_delayed_message_is_due(place: Place, is_set: bool) -> None:
    """The wall clock may be set forward while the topic sleeps."""
    assert place.group.topic is not None
    due = place.clock.time_ns() + 300 * S
    place.group.topic.stats = a_topic(a_storage(delayed_count=1, delayed_next_due_ns=due))
    place.put_to_sleep()
    wait = 300 * S - dormancy.EARLY_NS - 1
    if is_set:
        place.clock.ahead = wait
    else:
        place.clock.now += wait
    place.group.tick()
    assert place.state() is GroupState.ASLEEP
    place.clock.now += 1
    place.group.tick()
    assert place.state() is GroupState.STARTING


def test_a_delayed_message_in_the_last_pulse_wakes_its_topic(place: Place) -> None:
    """The topic got it while it stopped. The pulse may come after the news of the topic's end."""
    place.put_to_sleep()
    place.group.tick()
    assert place.state() is GroupState.ASLEEP
    assert place.group.topic is not None
    due = place.clock.time_ns() + dormancy.EARLY_NS
    place.group.topic.stats = a_topic(a_storage(delayed_count=1, delayed_next_due_ns=due))
    place.group.tick()
    assert place.state() is GroupState.STARTING


def test_a_topic_wakes_for_its_retention(place: Place) -> None:
    assert place.group.topic is not None
    place.options.retention = {"keep_time_s": 86_400.0}
    place.put_to_sleep()
    place.clock.now += dormancy.RETENTION_NS
    place.group.tick()
    assert place.state() is GroupState.STARTING


def test_the_statistics_of_a_topic_that_sleeps_are_those_of_its_last_pulses(place: Place) -> None:
    disk: Any = place.view().disk
    for state in (GroupState.DOZING, GroupState.ASLEEP):
        if state is GroupState.ASLEEP:
            place.put_to_sleep()
        else:
            place.group.tick()
        assert place.group.state is state
        assert said_of_topic(place.group, disk) == []
        assert write_trouble(place.group, disk) == ""
        assert unfinished(place.group) == 6
        assert reach(place.group) == {"start": 0, "head": 7}
        [row] = channel_rows(place.group, 7, WALL)
        assert (row["health"], row["depth"]) == ("OK", 5)
        assert (row["oldest_message_age_s"] or 0) > 0
        if state is GroupState.DOZING:
            place.group.state = GroupState.UP
            place.stopped.clear()
            place.clock.now += S


def test_counters_go_on_after_sleep_and_begin_again_after_a_failure(place: Place) -> None:
    place.put_to_sleep().group.want("", place.answers.append)
    place.group.tick()
    topic = place.group.topic
    assert topic is not None
    start = topic.spec.start
    assert isinstance(start, TopicStart)
    assert (start.message_count, start.message_bytes) == (7, 100)
    assert (start.storage.refused_count, start.storage.removed_bytes) == (3, 4)
    assert start.storage.woken
    assert start.storage.name == TOPIC.storage.name
    topic.stats = a_topic()
    place.gone(topic)
    again = place.group.topic
    assert again is not None
    start = again.spec.start
    assert isinstance(start, TopicStart)
    assert (start.message_count, start.storage.refused_count, start.storage.woken) == (0, 0, False)
