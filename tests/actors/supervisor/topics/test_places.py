"""Tests of where a topic's processes run: moves between shared and own processes, and what follows
from the end of a shared one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from support.group import Broker, a_channel
from support.group import C as EPHEMERAL

from zsq.actors.runtime.child import OUT_OF_FILES, Failure, Phase
from zsq.actors.runtime.placement import ROOM, Load, room
from zsq.actors.runtime.process_table import Child, HostProcess
from zsq.actors.settings import options
from zsq.actors.statistics.broker_view import ChannelProcess, GroupState
from zsq.actors.supervisor.topics import topic_group
from zsq.actors.supervisor.topics.registry_format import TopicRow
from zsq.actors.supervisor.topics.topic_group import TopicGroup
from zsq.transport.errors import E_CLOSING, ZsqError
from zsq.transport.wire import protocol as p

S = 1_000_000_000
FIRST = 1  # the restart by which the fixture begins


class Clock:
    def __init__(self) -> None:
        self.now = 1_000 * S

    def monotonic_ns(self) -> int:
        return self.now

    def time_ns(self) -> int:
        return self.now


class Place(Broker):
    """A topic that is up in shared host 1, with the channels `a` and `b`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        monkeypatch.setattr(topic_group, "time", self.clock)
        super().__init__()
        self.options.own_process = "busy"
        self.options.share_after_s = 60.0
        self.options.busy_at = 0.2
        self.host = HostProcess(1, cast("Any", None), 1)
        self.placed: list[tuple[int, int]] = []  # actors and ends of each request for a place
        self.sent: list[tuple[Child, p.Hold, Any]] = []
        self.send_order = lambda child, make, then, patience_s=0.0: self.sent.append(
            (child, make(len(self.sent)), then)
        )
        self.in_debt: set[int] = set()  # the keys of actors that owe an answer to an order
        self.owes_answer = lambda child: child.spec.key in self.in_debt
        self.group.load = Load(0.2)
        for name in "ab":
            channel = self.child("channel", a_channel(name))
            channel.data = {"settings": {}}
            self.group.channels[name] = ChannelProcess(channel)
        self.restart()

    def place(self, title: str, actors: int, ends: int) -> HostProcess | None:
        self.placed.append((actors, ends))
        self.host.ends = ends
        return self.host if actors <= room(ends) or not ends else None

    def start(self, spec: Any, owner: Any = None, host: Any = None) -> Child:
        child = super().start(spec, owner, host)
        child.host = host
        return child

    def gone(self, child: Child | None) -> None:
        assert child is not None
        child.state = "ended"
        self.children.pop(child.spec.key, None)
        self.group.died(child)

    def all_gone(self) -> None:
        """Let the channels end, and then the topic."""
        for name in "ab":
            self.gone(self.group.child(name))
        self.gone(self.group.topic)

    def state(self) -> GroupState:
        return self.group.state

    def come_up(self, channels: Sequence[str] = ("a", "b")) -> None:
        """Let all that starts come up."""
        topic = self.group.topic
        assert topic is not None
        topic.state, topic.data = "up", {"channels": [*channels], "alarms": ()}
        self.group.born(topic)
        self.group.tick()
        for name in channels:
            self.group.tick()
            channel = self.group.child(name)
            assert channel is not None
            channel.state, channel.data = "up", {"settings": {}}
            self.group.born(channel)
        self.group.tick()

    def restart(self) -> None:
        """Let the processes end as those of a host that was killed, and come up again."""
        living = list(self.group.children())
        for child in living:
            child.state = "ended"
            self.children.pop(child.spec.key, None)
        for child in living:
            self.group.died(child)
        self.come_up()

    def work(self, share: float) -> None:
        """Let the topic take this share of a core for a second."""
        topic = self.group.topic
        assert topic is not None
        key = topic.spec.key
        self.cpu_ns = getattr(self, "cpu_ns", 0) + int(share * S)
        self.group.load.add(key, self.cpu_ns - int(share * S), self.clock.now)
        self.clock.now += S
        self.group.load.add(key, self.cpu_ns, self.clock.now)
        self.group.tick()

    def answer(self, error: ZsqError | None = None) -> None:
        """Answer all orders so far."""
        sent, self.sent = self.sent, []
        for _, order, then in sent:
            then(None if error else p.Done(order.request, {}), error)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    made = Place(monkeypatch)
    made.placed.clear()
    made.started.clear()
    return made


def test_a_channel_that_was_deleted_makes_its_topic_busy_no_more(place: Place) -> None:
    channel = place.group.child("b")
    assert channel is not None
    place.group.load.add(channel.spec.key, 0, place.clock.now)
    place.clock.now += S
    place.group.load.add(channel.spec.key, S, place.clock.now)
    place.group.begin_deletion("b")
    place.gone(channel)
    place.group.end_deletion("b")
    place.work(0.0)
    assert place.sent == []


def test_a_quiet_topic_that_may_share_with_no_other_keeps_its_own_processes(
    place: Place,
) -> None:
    for _ in range(4):
        place.restart()
    for _ in range(100):
        place.work(0.0)
    assert place.sent == []


def test_a_topic_with_more_channels_than_a_crowded_host_has_room_for_moves_to_another_one(
    place: Place,
) -> None:
    names = [*"ab", *(f"c{number}" for number in range(ROOM))]
    for name in names[2:]:
        channel = place.child("channel", a_channel(name))
        channel.data = {"settings": {}}
        place.group.channels[name] = ChannelProcess(channel)
    place.work(0.0)
    assert place.sent == []
    place.host.is_crowded = True
    place.work(0.0)
    place.answer()
    for name in [*names, ""]:
        place.gone(place.group.child(name))
    assert place.placed == [(ROOM + 3, 0)]
    place.host.is_crowded = False
    place.time_for = 1_000
    place.come_up(names)
    for _ in range(100):
        place.work(0.0)
    assert place.sent == []


LATE = ZsqError(E_CLOSING, "no answer in time")


def test_a_busy_topic_moves_when_all_its_channels_are_held(place: Place) -> None:
    place.work(0.1)
    assert place.sent == []
    place.work(0.3)
    assert [order.is_over for _, order, _ in place.sent] == [False, False]
    assert place.state() is GroupState.UP, "it serves its clients until then"
    place.answer()
    assert place.state() is GroupState.DOZING
    assert [child.spec.kind for child in place.stopped] == ["channel", "channel"]
    place.all_gone()
    assert place.state() is GroupState.STARTING, "it does not wait for a request"
    place.come_up()
    assert place.placed == [], "it has processes of its own"
    assert place.asleep == 0
    assert place.mover is None


def test_a_topic_stays_if_a_handler_still_works_and_tries_again_at_longer_times(
    place: Place,
) -> None:
    for pause_s in (1, 2, 4):
        place.work(0.3)
        (_, _, then), (_, order, last) = place.sent
        then(p.Done(0, {}), None)
        last(None, LATE)
        overs = place.sent[2:]
        assert [order.is_over for _, order, _ in overs] == [True, True], "both channels go on"
        assert place.state() is GroupState.UP
        assert place.mover is None, "another topic may move meanwhile"
        place.sent.clear()
        last(p.Done(order.request, {}), None)
        assert place.state() is GroupState.UP, "a late answer means nothing"
        for _ in range(pause_s - 1):
            place.work(0.3)
            assert place.sent == []
    assert place.host.is_left, "so its neighbours leave"


def test_a_quiet_topic_leaves_a_host_with_a_busy_topic_that_cannot(place: Place) -> None:
    place.work(0.0)
    assert place.sent == []
    place.host.is_left = True
    place.work(0.0)
    place.answer()
    place.all_gone()
    place.come_up()
    assert place.placed == [(3, 0)], "and shares another one"


def test_one_topic_moves_at_a_time(place: Place) -> None:
    place.mover = cast("Any", object())
    place.work(0.5)
    assert place.sent == []


def test_the_next_topic_moves_when_this_one_has_arrived(place: Place) -> None:
    place.work(0.5)
    place.answer()
    place.group.tick()
    assert place.mover is place.group
    for name in ("a", "b", ""):
        place.gone(place.group.child(name))
    place.group.tick()
    assert place.mover is place.group
    place.come_up()
    assert place.mover is None


@pytest.mark.parametrize("when", ["held", "stopping"])
def test_the_next_topic_moves_if_this_one_is_deleted(place: Place, when: str) -> None:
    place.work(0.5)
    if when == "stopping":
        place.answer()
    place.group.stop(lambda: None)
    for name in ("a", "b", ""):
        place.gone(place.group.child(name))
    assert place.state() is GroupState.ENDED
    assert place.mover is None


@pytest.mark.parametrize("what", ["new", "ephemeral", "deletion", "late"])
def test_a_topic_that_changes_while_its_channels_are_held_stays(place: Place, what: str) -> None:
    """A new channel may have given out messages, and answers that come late hold no more."""
    place.work(0.5)
    if what == "new":
        place.group.channels["x"] = ChannelProcess(place.child("channel", a_channel("x")))
    elif what == "ephemeral":
        place.group.want(EPHEMERAL, lambda error: None)
    elif what == "deletion":
        place.group.is_sealing = True
    else:
        place.clock.now += options.HOLD_MS * S // 1_000
    place.answer()
    assert place.state() is GroupState.UP
    assert [order.is_over for _, order, _ in place.sent] == [True, True]
    assert place.mover is None


def test_a_channel_that_gets_no_order_is_not_held_alone(place: Place) -> None:
    """The first channel's connection is gone."""

    def send(child: Child, make: Any, then: Any, patience_s: float = 0.0) -> None:
        place.sent.append((child, make(1), then))
        if not place.sent[1:]:
            then(None, LATE)

    place.send_order = send
    place.work(0.5)
    assert [order.is_over for _, order, _ in place.sent] == [False, True, True]


@pytest.mark.parametrize("what", ["backup", "disk_full", "order"])
def test_a_topic_stays_for_a_backup_for_a_trouble_and_for_an_order(place: Place, what: str) -> None:
    topic = place.group.topic
    assert topic is not None
    storage = dict.fromkeys(
        ("backup", "alarms", "state_alarm", "delayed_alarm", "delayed_full", "disk_full", "topic_full")
    )  # fmt: skip
    topic.stats = {"storage": {**storage, what: True}}
    if what == "order":
        place.in_debt.add(topic.spec.key)
    place.work(0.5)
    assert place.sent == []
    topic.stats, place.in_debt = {"storage": storage}, set()
    place.work(0.5)
    assert [order.is_over for _, order, _ in place.sent] == [False, False]


def test_the_neighbours_leave_a_busy_topic_that_may_not_move(place: Place) -> None:
    """There is no room for its own processes."""
    place.room_for = 2
    for _ in range(4):
        assert not place.host.is_left
        place.work(0.5)
    assert place.host.is_left
    assert place.sent == []
    place.host.is_left, place.room_for = False, 3
    place.clock.now += 60 * S
    place.work(0.5)
    assert [order.is_over for _, order, _ in place.sent] == [False, False]


def test_a_topic_shares_with_many_again_an_hour_after_the_last_end_of_its_host(
    place: Place,
) -> None:
    place.restart()
    assert place.placed == [(3, 1)]
    place.placed.clear()
    for _ in range(3_599):
        place.work(0.0)
        assert place.sent == []
    place.work(0.0)
    place.answer()
    place.all_gone()
    assert place.placed == [(3, 0)]


def test_a_topic_leaves_a_crowded_host_even_if_none_has_own_processes(place: Place) -> None:
    place.options.own_process = "never"
    place.work(0.5)
    assert place.sent == []
    place.host.is_crowded = True
    place.work(0.5)
    place.answer()
    place.all_gone()
    assert place.placed == [(3, 0)]


def test_a_topic_with_unknown_channels_takes_the_room_of_several(place: Place) -> None:
    row = TopicRow(2, "1" * 32, "always", 0, "live")
    TopicGroup("of the last broker", row, cast("Any", place)).start()
    assert place.placed == [(4, 0)]


@pytest.mark.parametrize("what", ["ephemeral channel", "in memory"])
def test_what_would_lose_messages_by_a_move_stays(place: Place, what: str) -> None:
    if what == "in memory":
        place.group.row = replace(place.group.row, number=0)
    else:
        place.group.channels[EPHEMERAL] = ChannelProcess(
            place.child("channel", a_channel(EPHEMERAL))
        )
    place.work(0.5)
    assert place.sent == []


def test_a_topic_in_own_processes_shares_when_it_was_quiet_for_long(place: Place) -> None:
    place.work(0.5)
    place.answer()
    place.all_gone()
    place.come_up()
    place.work(0.5)
    for _ in range(59):
        place.work(0.0)
        assert place.sent == []
    place.work(0.0)
    place.answer()
    place.all_gone()
    assert place.placed == [(3, 0)]


def test_an_unexplained_end_of_its_host_counts_for_the_place_and_not_as_a_failure(
    place: Place,
) -> None:
    for ends in (1, 2, 3):
        place.restart()
        assert place.placed == [(3, ends)]
        place.placed.clear()
    assert place.group.restarts.count == FIRST


def test_topics_whose_host_had_no_descriptors_share_with_fewer_others(place: Place) -> None:
    for child in place.group.children():
        child.failure = Failure(Phase.RUN, OUT_OF_FILES, "too many open files")
    for child in list(place.group.children()):
        child.state = "ended"
        place.children.pop(child.spec.key)
        place.group.died(child)
    place.clock.now += 10 * S
    place.group.tick()
    assert place.placed == [(3, 1)]


def test_a_topic_that_was_stopped_by_a_failed_step_did_not_end_its_host(place: Place) -> None:
    place.group.fail("no room")
    for child in place.group.children():
        child.told_to_stop = True
    place.restart()
    assert place.placed == [(3, 0)]


def test_an_end_that_another_topic_explains_changes_nothing(place: Place) -> None:
    place.host.is_explained = True
    place.restart()
    assert place.placed == [(3, 0)]
    assert place.group.restarts.count == FIRST


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("who", ["a", ""])
def test_a_topic_that_ended_its_host_gets_its_own_processes(
    place: Place, who: str, hangs: bool
) -> None:
    place.host.is_explained = True
    failing = place.group.child(who)
    assert failing is not None
    if hangs:
        failing.hangs = True
    else:
        failing.failure = Failure(Phase.RUN, "ValueError", "no")
    place.restart()
    assert place.placed == []
    assert place.group.restarts.count == FIRST + 1
    place.work(0.0)
    for _ in range(100):
        place.work(0.0)
    assert place.sent == [], "and keeps them"


def test_a_topic_that_cannot_move_for_days_tries_on(place: Place) -> None:
    for _ in range(1_100):
        place.work(0.3)
        assert [order.is_over for _, order, _ in place.sent] == [False, False]
        place.answer(LATE)
        place.sent.clear()
        place.clock.now += 60 * S
    assert place.state() is GroupState.UP


def test_a_topic_that_hangs_while_it_falls_asleep_gets_its_own_processes(place: Place) -> None:
    place.work(0.5)
    place.answer()
    channel = place.group.child("a")
    assert channel is not None
    channel.hangs = True
    for name in ("a", "b", ""):
        place.gone(place.group.child(name))
    place.come_up()
    place.group.load.forget()
    for _ in range(100):
        place.work(0.0)
    assert place.sent == []


def test_a_setting_of_the_topic_keeps_it_in_own_or_in_shared_processes(place: Place) -> None:
    """Without load, and in spite of load. The change of the setting moves the topic."""
    place.group.row.retention = {"own_process": "always"}
    place.group.tick()
    place.answer()
    place.all_gone()
    place.come_up()
    assert place.placed == []
    assert place.mover is None
    place.group.row.retention = {"own_process": "never"}
    place.group.tick()
    place.answer()
    place.all_gone()
    place.come_up()
    assert place.placed == [(3, 0)]
    for _ in range(5):
        place.work(0.9)
    assert place.state() is GroupState.UP
    assert place.mover is None, "it stays, although it is busy"
    place.group.row.retention = {"own_process": None}
    place.work(0.9)
    assert place.mover is place.group, "the broker decides again"


def test_a_topic_without_channels_has_room_beside_one_other_topic(place: Place) -> None:
    """Its channels are known from its last start. Otherwise it would move back and forth for ever,
    because it expects channels while it starts, and has none when it is up.
    """
    for name in "ab":
        channel = place.group.child(name)
        place.group.begin_deletion(name)
        place.gone(channel)
        place.group.end_deletion(name)
    for _ in range(3):
        topic = place.group.topic
        place.gone(topic)
        place.come_up([])
    assert place.placed[-1] == (1, 3)
