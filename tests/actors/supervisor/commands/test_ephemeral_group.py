"""A topic's group and its ephemeral channels: who comes while one ends gets a new one, and who may say that one has ended."""

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


def test_who_comes_while_it_ends_gets_a_new_one_with_what_it_asked_for(broker: Broker) -> None:
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


def test_who_waits_as_the_topic_ends_is_told(broker: Broker) -> None:
    broker.want()
    broker.over(broker.up())
    broker.want()
    broker.group.topic = None
    broker.group.stop(lambda: None)
    assert [error.code if error else "" for error in broker.answers] == ["", "E_CLOSING"]
    broker.end()
    assert C not in broker.group.channels, "and nothing is made any more"


@pytest.mark.parametrize("who", ["a stranger", "its process, being stopped", "a durable channel", "while the topic starts"])
def test_only_a_living_ephemeral_channel_can_say_that_it_is_over(broker: Broker, who: str) -> None:
    name = "durable" if who == "a durable channel" else C
    broker.want(name)
    child = broker.up(name)
    if who.startswith("its process"):
        child.state = "stopping"
    elif who.startswith("while"):
        broker.group.state = GroupState.CLEARING
    broker.over(child, (b"stranger",) if who == "a stranger" else None)
    assert (broker.stopped, name in broker.group.channels) == ([], True)


def test_one_whose_process_died_is_not_started_again(broker: Broker) -> None:
    broker.want()
    child = broker.up()
    child.state = "ended"
    broker.group.died(child)
    assert (C in broker.group.channels, len(broker.ends)) == (False, 1)
    broker.end()
    assert broker.group.channels == {}


def test_after_a_crash_of_the_topic_only_those_come_back_for_which_somebody_waits(broker: Broker) -> None:
    for name in (C, "other#ephemeral", "durable"):
        broker.want(name, max_attempts=7)
        broker.up(name)
    group = broker.group
    group.state = GroupState.CLEARING
    group.channels = dict.fromkeys(group.channels)
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


def test_an_ephemeral_topic_ends_with_its_last_channel_and_not_before() -> None:
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


def test_it_stays_for_who_comes_as_its_last_channel_ends() -> None:
    broker = Broker("t#ephemeral")
    broker.want()
    broker.over(broker.up())
    broker.want()
    broker.end()
    assert (broker.group.state, C in broker.group.channels) == (GroupState.UP, True)


@pytest.mark.parametrize("returns", [True, False])
def test_after_a_crash_it_waits_a_while_for_its_consumers(returns: bool, monkeypatch: pytest.MonkeyPatch) -> None:
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
