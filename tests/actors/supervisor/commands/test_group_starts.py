"""Tests of how a topic's channels start: in portions. A channel that is created again under an old
name is a new channel.
"""

from __future__ import annotations

import time
from typing import Any, cast

import pytest
from support.group import Broker, C

from zsq.actors.runtime.child import OUT_OF_FILES, Failure, Phase
from zsq.actors.settings import options
from zsq.actors.settings.starts import channel_of
from zsq.actors.statistics.broker_view import ChannelProcess, GroupState
from zsq.actors.statistics.statistics import troubles_of_topic
from zsq.actors.supervisor.commands import deletion
from zsq.transport.errors import E_CLOSING, E_LIMIT, E_TOPIC_FAILED, ZsqError
from zsq.transport.wire import protocol as p

MANY = 100


@pytest.fixture
def broker() -> Broker:
    return Broker()


def begin(broker: Broker, channels: int = MANY) -> list[str]:
    """Let the topic's process come up. Storage knows `channels` channels."""
    group = broker.group
    group.channels = {f"c{number}": ChannelProcess() for number in range(channels)}
    group.state = GroupState.STARTING
    assert group.topic is not None
    group.topic.data = {"channels": [*group.channels]}
    group.born(group.topic)
    group.tick()
    return broker.started


def begin_again(broker: Broker) -> None:
    """Let the topic's process end, and its successor come up."""
    group, topic = broker.group, broker.group.topic
    assert topic is not None
    topic.state = "ended"
    group.died(topic)
    assert group.topic is not None
    group.topic.state, group.topic.data = "up", {"channels": [*group.channels]}
    broker.started.clear()
    group.born(group.topic)
    group.tick()


def test_a_bounded_number_of_channels_starts_at_a_time(broker: Broker) -> None:
    started = begin(broker)
    assert started == [f"c{number}" for number in range(options.STARTS_MAX)]
    for number in range(MANY):
        assert not broker.group.settled(), "not ready before the last one"
        broker.up(f"c{number}")
        assert len(started) == min(MANY, options.STARTS_MAX + number + 1)
    assert broker.group.settled()


def test_a_channel_that_a_client_waits_for_starts_first(broker: Broker) -> None:
    broker.group.state = GroupState.CLEARING
    broker.group.channels = {f"c{number}": ChannelProcess() for number in range(MANY)}
    broker.want("c70")
    started = begin(broker)
    assert started[0] == "c70"
    broker.want("c80")
    broker.want("new")
    assert len(started) == options.STARTS_MAX
    broker.up("c70")
    broker.up("c0")
    assert started[-2:] == ["c80", "new"]
    assert broker.answers == [None]


@pytest.mark.parametrize("how", ["died", "deleted", "deleted before its start"])
def test_a_channel_that_does_not_come_up_makes_room_for_the_next(broker: Broker, how: str) -> None:
    started = begin(broker)
    name = f"c{MANY - 1 if how.endswith('start') else 0}"
    child = broker.group.child(name)
    if how == "died":
        assert child is not None
        child.state = "ended"
        broker.group.died(child)
    else:
        deletion.remove_channel(broker.requests, broker.group, name, lambda error: None)
    broker.group.tick()
    assert len(started) == options.STARTS_MAX + (not how.endswith("start"))
    while (
        waiting := [
            child
            for child in broker.group.processes()
            if child is not broker.group.topic and child.state == "starting"
        ]
    ) != []:
        broker.up(channel_of(waiting[0].spec.start))
    assert sorted(set(started)) == sorted(
        {*broker.group.channels, *(["c0"] if how == "deleted" else [])}
    )
    assert broker.group.settled()


def test_channels_that_die_at_once_are_restarted_in_portions(broker: Broker) -> None:
    started = begin(broker)
    for number in range(MANY):
        broker.up(f"c{number}")
    started.clear()
    for number in range(MANY):
        child = broker.group.child(f"c{number}")
        assert child is not None
        child.state = "ended"
        broker.group.died(child)
    broker.group.tick()
    assert len(started) == options.STARTS_MAX


def test_a_turn_starts_as_many_channels_as_its_time_allows(broker: Broker) -> None:
    broker.time_for = 10
    started = begin(broker)
    assert len(started) == 10
    broker.time_for = 1_000
    broker.group.tick()
    assert len(started) == options.STARTS_MAX
    broker.time_for = 0
    broker.up("c0")
    broker.up("c1")
    assert (len(started), broker.time_for) == (options.STARTS_MAX, -2)
    broker.time_for = 5
    broker.group.tick()
    broker.group.tick()
    assert (len(started), broker.time_for) == (options.STARTS_MAX + 2, 3), (
        "time is asked for only where something waits"
    )


def test_a_topic_that_ends_starts_no_channels(broker: Broker) -> None:
    started = begin(broker)
    broker.group.stop(lambda: None)
    broker.group.tick()
    assert (len(started), len(broker.stopped)) == (options.STARTS_MAX, options.STARTS_MAX)


def refuse(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(spec: Any, owner: Any = None, host: Any = None) -> Any:
        raise ZsqError(E_LIMIT, "enough")

    monkeypatch.setattr(broker, "start", start)


def test_a_new_channel_that_cannot_start_is_removed_and_refused_once(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(broker)
    broker.want("new")
    refuse(broker, monkeypatch)
    monkeypatch.setattr(options, "CHANNELS_MAX", MANY + 1)
    for number in range(options.STARTS_MAX):
        broker.group.channels[f"c{number + options.STARTS_MAX}"] = ChannelProcess()
    broker.up("c0")
    assert [error.code if error else "" for error in broker.answers] == ["E_LIMIT"]
    assert "new" not in broker.group.channels


def test_an_old_channel_that_cannot_start_fails_its_topic(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(broker)
    refuse(broker, monkeypatch)
    broker.up("c0")
    assert broker.group.state is GroupState.CLEARING
    assert "enough" in broker.group.failure
    assert len(broker.killed) == options.STARTS_MAX + 1


def crash(broker: Broker, name: str, failure: Failure | None = None) -> None:
    child = broker.group.child(name)
    assert child is not None
    child.state, child.failure = "ended", failure
    broker.group.died(child)
    broker.group.tick()


def test_a_channel_created_again_has_no_earlier_restarts_counted(broker: Broker) -> None:
    broker.want("c")
    broker.up("c")
    for _ in range(options.RESTARTS_MAX):
        crash(broker, "c")
    deletion.remove_channel(broker.requests, broker.group, "c", lambda error: None)
    broker.ends.pop(0)(True)
    broker.orders.pop(0)[1](p.Done(1, {}), None)
    broker.want("c")
    crash(broker, "c")
    assert not broker.group.channels["c"].has_failed


def test_an_ephemeral_channel_that_dies_too_often_fails(broker: Broker) -> None:
    for _ in range(options.RESTARTS_MAX):
        broker.want()
        broker.up()
        crash(broker, C)
        broker.end()
    broker.want()
    broker.up()
    crash(broker, C)
    assert broker.group.channels[C].has_failed


def test_a_channel_that_failed_too_often_stays_stopped_until_it_is_deleted(broker: Broker) -> None:
    broker.want("c")
    broker.up("c")
    for _ in range(options.RESTARTS_MAX + 1):
        crash(broker, "c")
    assert troubles_of_topic(broker.group, cast("Any", None))[0] == "channel c failed too often"
    broker.started.clear()
    broker.want("c")
    assert [error.code if error else "" for error in broker.answers] == ["", E_TOPIC_FAILED]
    begin_again(broker)
    assert (broker.started, broker.group.settled()) == ([], True)
    deletion.remove_channel(broker.requests, broker.group, "c", lambda error: None)
    broker.ends.pop(0)(True)
    broker.orders.pop(0)[1](p.Done(1, {}), None)
    broker.want("c")
    assert broker.started == ["c"]


def test_settings_of_a_request_that_names_no_channel_differ_from_nothing(broker: Broker) -> None:
    assert broker.group.differs("", {"tags": ["a"]}) is None
    broker.want("c")
    broker.up("c")
    assert broker.group.differs("c", {"tags": ["a"]}) is not None


def test_the_restarts_of_ephemeral_channels_that_are_gone_are_forgotten(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = time.monotonic_ns()
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns)

    def die(name: str, times: int) -> None:
        for _ in range(times):
            broker.want(name)
            broker.up(name)
            crash(broker, name)
            broker.ends.pop(0)(True)
            broker.orders[-1][1](p.Done(1, {}), None)

    for number in range(3):
        die(f"{number}#ephemeral", options.UNSTEADY_RESTARTS)
    broker.group.tick()
    assert len(broker.group.unsteady) == 3
    now_ns += int(options.RESTARTS_WITHIN_S * 1e9) + 1
    die("last#ephemeral", 1)
    broker.group.tick()
    assert not broker.group.unsteady


def test_a_channel_whose_start_lacks_files_is_started_later(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = time.monotonic_ns()
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns)
    broker.group.channels["c"] = ChannelProcess()
    broker.want("c")
    for number in range(options.RESTARTS_MAX + 5):
        crash(broker, "c", Failure(Phase.START, OUT_OF_FILES, "no file is free"))
        assert broker.started == ["c"] * (number + 1)
        now_ns += int(options.FILES_RETRY_S_MAX * 1e9)
        broker.group.tick()
        broker.group.tick()
        assert broker.started == ["c"] * (number + 2)
    broker.up("c")
    assert broker.answers == [None]


def test_a_wanted_channel_that_was_to_start_later_is_started_once(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When its time comes, no other channel starts in its place."""
    now_ns = time.monotonic_ns()
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns)
    started = begin(broker)
    crash(broker, "c0", Failure(Phase.START, OUT_OF_FILES, "no file is free"))
    broker.want("c0")
    broker.up("c1")
    assert started[-1] == "c0"
    now_ns += int(options.FILES_RETRY_S_MAX * 1e9)
    count = len(started)
    for _ in range(3):
        broker.group.tick()
        assert len(started) == count
    broker.up("c2")
    assert len(started) == count + 1


def test_waiting_requests_fail_as_soon_as_their_topic_is_stopped(broker: Broker) -> None:
    broker.group.state = GroupState.STARTING
    broker.want("")
    broker.want("c")
    assert broker.answers == []
    broker.group.stop(lambda: None)
    assert broker.group.children() != [], "they have not ended"
    assert [error.code for error in broker.answers if error is not None] == [E_CLOSING, E_CLOSING]
