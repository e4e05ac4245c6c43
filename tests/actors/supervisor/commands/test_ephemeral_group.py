"""Tests of a topic's ephemeral channels: a consumer that comes while its channel ends gets a new
channel, and only the channel itself may report its end.
"""

from __future__ import annotations

import time

import pytest
from support.group import Broker, C, made_with

from zsq.actors.settings import options
from zsq.actors.statistics.broker_view import GroupState
from zsq.actors.supervisor.commands import deletion
from zsq.transport.wire import protocol as p


@pytest.fixture
def broker() -> Broker:
    return Broker()


def test_a_consumer_that_comes_while_its_channel_ends_gets_a_new_channel(broker: Broker) -> None:
    broker.want()
    first = broker.up()
    broker.over(first)
    assert (broker.stopped, C in broker.group.channels) == ([first], False)
    assert broker.orders[0][0] == p.LeaveChannel(1, C), "before anybody can see that it is gone"
    broker.want(max_attempts=7)
    assert broker.answers == [None], "it waits"
    broker.end()
    second = broker.up()
    assert second is not first
    assert made_with(second) == {"max_attempts": 7}
    assert broker.answers == [None, None]


def test_a_consumer_that_waits_while_the_topic_ends_gets_an_error(broker: Broker) -> None:
    broker.want()
    broker.over(broker.up())
    broker.want()
    broker.group.topic = None
    broker.group.stop(lambda: None)
    assert [error.code if error else "" for error in broker.answers] == ["", "E_CLOSING"]
    broker.end()
    assert C not in broker.group.channels, "and nothing is made any more"


@pytest.mark.parametrize(
    "who",
    ["a stranger", "its process, being stopped", "a durable channel", "while the topic starts"],
)
def test_only_a_running_ephemeral_channel_can_report_its_end(broker: Broker, who: str) -> None:
    name = "durable" if who == "a durable channel" else C
    broker.want(name)
    child = broker.up(name)
    if who.startswith("its process"):
        child.state = "stopping"
    elif who.startswith("while"):
        broker.group.state = GroupState.CLEARING
    broker.over(child, (b"stranger",) if who == "a stranger" else None)
    assert (broker.stopped, name in broker.group.channels) == ([], True)


def test_an_ephemeral_channel_whose_process_died_is_not_restarted(broker: Broker) -> None:
    broker.want()
    child = broker.up()
    child.state = "ended"
    broker.group.died(child)
    assert (C in broker.group.channels, len(broker.ends)) == (False, 1)
    broker.end()
    assert broker.group.channels == {}


def test_after_a_crash_only_awaited_ephemeral_channels_are_restarted(broker: Broker) -> None:
    for name in (C, "other#ephemeral", "durable"):
        broker.want(name, max_attempts=7)
        broker.up(name)
    group = broker.group
    group.state = GroupState.CLEARING
    for channel in group.channels.values():
        channel.child = None
    broker.want()
    group.start()
    assert list(group.channels) == [C, "durable"]
    child = group.topic
    assert child is not None
    child.state, child.data = "up", {"channels": ["durable"]}
    group.born(child)
    group.tick()
    assert made_with(broker.up()) == {"max_attempts": 7}
    assert made_with(broker.up("durable")) == {}, "its row says it"


def test_an_ephemeral_topic_ends_only_with_its_last_channel() -> None:
    broker = Broker("t#ephemeral")
    broker.want()
    broker.want("other")
    other = broker.up("other")
    broker.over(broker.up())
    broker.end()
    assert broker.group.state.name == "UP"
    deletion.remove_channel(broker.requests, broker.group, "other", lambda error: None)
    other.state = "ended"
    broker.ends.pop(0)(True)
    broker.orders.pop(0)[1](p.Done(1, {}), None)
    assert broker.group.state.name == "STOPPING"


def test_a_topic_stays_if_a_consumer_comes_while_its_last_channel_ends() -> None:
    broker = Broker("t#ephemeral")
    broker.want()
    broker.over(broker.up())
    broker.want()
    broker.end()
    assert (broker.group.state, C in broker.group.channels) == (GroupState.UP, True)


@pytest.mark.parametrize("returns", [True, False])
def test_an_ephemeral_topic_waits_for_its_consumers_after_a_crash(
    returns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker("t#ephemeral")
    broker.want()
    child = broker.up()
    child.state = "ended"
    broker.group.died(child)
    broker.end()
    broker.group.tick()
    assert broker.group.state.name == "UP"
    if returns:
        broker.want()
    later = time.monotonic_ns() + int(options.EPHEMERAL_UNUSED_S * 1e9) + 1
    monkeypatch.setattr(time, "monotonic_ns", lambda: later)
    broker.group.tick()
    assert broker.group.state.name == ("UP" if returns else "STOPPING")
