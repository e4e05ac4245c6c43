"""Deleting unforced: who is asked what it holds, and what is said when they do not answer in time. Forced: nobody is asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.group import Broker

from zsq.actors import deletion
from zsq.actors.group_states import GroupState
from zsq.actors.management import Management
from zsq.transport import protocol as p
from zsq.transport.errors import E_NOT_FOUND, Refused, ZsqError, from_wire


class Desk(Broker):
    """A topic with three channels that are up and hold nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[list[str], Any, bool]] = []
        self.refused: list[ZsqError] = []
        self.management.gatherings = SimpleNamespace(
            gather=lambda children, then, detailed=False: self.asked.append(([one.spec.title for one in children], then, detailed))
        )
        self.management.fail = lambda envelope, request, error: self.refused.append(error)
        self.management.scope = lambda group: group.children()
        for name in ("a", "b", "c"):
            self.want(name)
            child = self.up(name)
            child.spec = cast("Any", SimpleNamespace(**{**vars(child.spec), "title": name}))
            child.stats = {"next_offset": 0}

    def delete(self, channel: str = "", *, force: bool = False) -> None:
        deletion.delete(self.management, (), p.Manage(1, "delete", "t", channel, {"force": force}), self.group)
        if not channel:
            _, _, answer = self.orders.pop()
            answer({"head": 0}, None)


def test_of_a_channel_s_deletion_only_those_are_asked_who_know_it() -> None:
    desk = Desk()
    desk.delete("b")
    ((titles, then, detailed),) = desk.asked
    assert (titles, detailed) == (["storage", "topic", "b"], False)
    then(True, {})
    assert [child.spec.title for child in desk.stopped] == ["b"]


@pytest.mark.parametrize("channel", ["b", ""])
def test_what_is_not_known_in_time_is_refused_by_a_broker_that_was_reached(channel: str) -> None:
    desk = Desk()
    desk.delete(channel)
    desk.asked[0][1](False, {})
    (error,) = desk.refused
    assert type(from_wire(error.code, error.text)) is Refused
    assert "try again" in error.text
    assert desk.stopped == []
    assert [action for action, *_ in desk.orders] == ([] if channel else ["unseal"])


def test_a_topic_s_asks_all_for_little() -> None:
    desk = Desk()
    desk.delete()
    ((titles, _, detailed),) = desk.asked
    assert (titles, detailed) == (["storage", "topic", "a", "b", "c"], False)


def test_forced_nobody_is_asked() -> None:
    desk = Desk()
    desk.delete("b", force=True)
    assert [child.spec.title for child in desk.stopped] == ["b"]
    desk.delete(force=True)
    assert desk.group.state.name == "STOPPING"
    assert desk.asked == []


def test_which_channels_a_topic_has_is_not_known_before_it_is_up() -> None:
    """Who deletes one just after a start must not hear that it is not there."""
    desk = Desk()
    for name in ("_manage", "_group", "_again"):
        setattr(desk.management, name, getattr(Management, name).__get__(desk.management))
    known = dict(desk.group.channels)
    desk.group.channels.clear()
    desk.group.state = GroupState.TOPIC
    for name in ("b", "never made"):
        desk.management._manage((), p.Manage(1, "delete", "t", name, {"force": True}))
    assert (desk.refused, desk.stopped) == ([], [])
    desk.group.channels.update(known)
    assert desk.group.topic is not None
    desk.group.born(desk.group.topic)
    assert [child.spec.title for child in desk.stopped] == ["b"]
    assert [error.code for error in desk.refused] == [E_NOT_FOUND]


def test_a_refused_deletion_opens_the_topic_again_when_no_start_can_carry_it_out() -> None:
    """What is published in between would be acknowledged, and then go with the topic."""
    desk = Desk()
    refused = Refused("E_INTERNAL", "the registry cannot be written")

    def set_state(*_: object) -> None:
        desk.registry.in_doubt = True
        raise refused

    desk.registry.set_state = set_state
    answers: list[object] = []
    deletion.remove_topic(desk.management, desk.group, 0, lambda data, error: answers.append(error))
    deletion.open_again(desk.management)
    assert (answers, desk.orders, desk.stopped) == ([refused], [], [])
    desk.registry.in_doubt = False  # the disk took what was there before
    for _ in range(2):
        deletion.open_again(desk.management)
    assert [action for action, *_ in desk.orders] == ["unseal"]
