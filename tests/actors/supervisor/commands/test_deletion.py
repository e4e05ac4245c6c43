"""Tests of deletions. Without force, the supervisor asks the processes whether they hold messages,
and refuses if they do not answer in time. With force, it asks no process.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.group import Broker

from zsq.actors.statistics.broker_view import GroupState
from zsq.actors.supervisor.commands import deletion
from zsq.actors.supervisor.commands.management import Commands
from zsq.transport.errors import (
    E_CLOSING,
    E_NOT_EMPTY,
    E_NOT_FOUND,
    E_TIMEOUT,
    NotFound,
    Refused,
    ZsqError,
    from_wire,
)
from zsq.transport.wire import protocol as p
from zsq.transport.wire.admin_requests import DeleteRequest


class DeletionHarness(Broker):
    """A topic with three running channels that hold no messages."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[list[str], Any, bool]] = []
        self.refused: list[ZsqError] = []
        self.requests.gatherings = SimpleNamespace(
            gather=lambda children, then, detailed=False: self.asked.append(
                ([one.spec.title for one in children], then, detailed)
            )
        )
        self.requests.fail = lambda request, error: self.refused.append(error)
        self.requests.settle = lambda request, error, data=None: (
            self.refused.append(error) if error is not None else None
        )
        self.requests.scope = lambda group: group.children()
        for name in ("a", "b", "c"):
            self.want(name)
            child = self.up(name)
            child.spec = cast("Any", SimpleNamespace(**{**vars(child.spec), "title": name}))
            child.stats = {"next_offset": 0}

    def delete(self, channel: str = "", *, force: bool = False, end: int = 0) -> None:
        deletion.delete(self.requests, DeleteRequest("t", channel, force=force), self.group)
        if not channel:
            _, answer = self.orders.pop()
            answer(p.Position(1, end), None)


def test_deleting_a_channel_asks_only_the_channel_and_its_topic() -> None:
    harness = DeletionHarness()
    harness.delete("b")
    ((titles, then, detailed),) = harness.asked
    assert (titles, detailed) == (["topic", "b"], False)
    then(True, {})
    assert [child.spec.title for child in harness.stopped] == ["b"]


@pytest.mark.parametrize("channel", ["b", ""])
def test_a_deletion_is_refused_if_the_statistics_do_not_come_in_time(channel: str) -> None:
    harness = DeletionHarness()
    harness.delete(channel)
    harness.asked[0][1](False, {})
    (error,) = harness.refused
    assert type(from_wire(error.code, error.text)) is Refused
    assert "try again" in error.text
    assert harness.stopped == []
    assert [order for order, _ in harness.orders] == (
        [] if channel else [p.SetSealed(1, is_sealed=False)]
    )


def test_deleting_a_topic_asks_the_topic_and_all_its_channels() -> None:
    harness = DeletionHarness()
    harness.delete()
    ((titles, _, detailed),) = harness.asked
    assert (titles, detailed) == (["topic", "a", "b", "c"], False)


@pytest.mark.parametrize("has_channels", [True, False])
def test_a_topic_is_not_deleted_while_a_publish_waits_for_its_sync(has_channels: bool) -> None:
    """The storage wrote the messages 17 to 22 before it was sealed, and acknowledges them when the
    sync ends. Until then, no pulse counts them.
    """
    harness = DeletionHarness()
    assert harness.group.topic is not None
    harness.group.topic.stats = {"head": 17, "storage": {"head": 17, "waiting": 17}}
    if not has_channels:
        harness.group.channels.clear()
    for channel in harness.group.channels.values():
        assert channel.child is not None
        channel.child.stats = {"next_offset": 17}
    harness.delete(end=23)
    harness.asked[0][1](True, {})
    (error,) = harness.refused
    assert error.code == E_NOT_EMPTY
    assert "6 messages" in error.text
    assert harness.group.state is GroupState.UP
    assert [order for order, _ in harness.orders] == [p.SetSealed(1, is_sealed=False)]


def test_a_topic_whose_messages_are_all_finished_is_deleted() -> None:
    harness = DeletionHarness()
    assert harness.group.topic is not None
    harness.group.topic.stats = {"head": 23, "storage": {"head": 23, "waiting": 23}}
    for channel in harness.group.channels.values():
        assert channel.child is not None
        channel.child.stats = {"next_offset": 23}
    harness.delete(end=23)
    harness.asked[0][1](True, {})
    assert harness.refused == []
    assert harness.group.state is GroupState.STOPPING


@pytest.mark.parametrize("force", [True, False])
def test_a_second_deletion_is_refused_until_the_first_is_decided(force: bool) -> None:
    """If it unsealed the topic meanwhile, messages that are acknowledged then would be deleted."""
    harness = DeletionHarness()
    harness.delete()
    order = DeleteRequest("t", force=force)
    deletion.delete(harness.requests, order, harness.group)
    assert [error.code for error in harness.refused] == [E_CLOSING]
    assert harness.orders == []
    harness.asked[0][1](False, {})
    harness.delete()
    harness.asked[1][1](True, {})
    assert harness.group.state is GroupState.STOPPING


def test_a_topic_that_was_started_again_during_the_decision_is_not_deleted() -> None:
    """Its new process is not sealed."""
    harness = DeletionHarness()
    harness.delete()
    before = harness.group.topic
    assert before is not None
    harness.group.topic = copy.copy(before)
    harness.asked[0][1](True, {})
    assert [error.code for error in harness.refused] == [E_CLOSING]
    assert harness.group.state is GroupState.UP
    assert harness.orders == []
    assert not harness.group.is_sealing


def test_a_seal_that_is_not_answered_in_time_is_taken_back() -> None:
    harness = DeletionHarness()
    deletion.delete(harness.requests, DeleteRequest("t"), harness.group)
    _, answer = harness.orders.pop()
    answer(None, Refused("E_TIMEOUT", "no answer"))
    assert [error.code for error in harness.refused] == ["E_TIMEOUT"]
    assert [order for order, _ in harness.orders] == [p.SetSealed(1, is_sealed=False)]
    assert not harness.group.is_sealing


def test_a_forced_deletion_asks_no_process() -> None:
    harness = DeletionHarness()
    harness.delete("b", force=True)
    assert [child.spec.title for child in harness.stopped] == ["b"]
    harness.delete(force=True)
    assert harness.group.state.name == "STOPPING"
    assert harness.asked == []


def test_deleting_a_channel_waits_until_its_topic_is_up() -> None:
    """A client that deletes a channel just after a start must not be told that the channel does not
    exist.
    """
    harness = DeletionHarness()
    commands = Commands(harness.requests, harness.view())
    known = dict(harness.group.channels)
    harness.group.channels.clear()
    harness.group.state = GroupState.STARTING
    for name in ("b", "never made"):
        commands._manage(DeleteRequest("t", name, force=True))
    assert (harness.refused, harness.stopped) == ([], [])
    harness.group.channels.update(known)
    assert harness.group.topic is not None
    harness.group.topic.data = {"channels": [*known]}
    harness.group.born(harness.group.topic)
    assert [child.spec.title for child in harness.stopped] == ["b"]
    assert [error.code for error in harness.refused] == [E_NOT_FOUND]


def test_a_channel_that_is_being_deleted_is_not_reported_as_missing() -> None:
    """Its deletion may still fail. A client that repeats its request would take "does not exist"
    for success.
    """
    harness = DeletionHarness()
    commands = Commands(harness.requests, harness.view())
    harness.delete("b", force=True)
    with pytest.raises(Refused, match="E_CLOSING channel 'b' is being deleted"):
        commands._manage(DeleteRequest("t", "b", force=True))
    harness.ends.pop()(True)
    order, answer = harness.orders.pop()
    assert order == p.DropChannel(1, "b")
    answer(p.Done(1, {}), None)
    with pytest.raises(NotFound):
        commands._manage(DeleteRequest("t", "b", force=True))


def test_a_slow_deletion_of_a_channel_is_answered_in_time_and_goes_on() -> None:
    harness = DeletionHarness()
    answers: list[ZsqError | None] = []
    deletion.remove_channel(harness.requests, harness.group, "b", answers.append)
    harness.ends.pop()(False)  # its process has not ended yet
    (late,) = answers
    assert late is not None
    assert (late.code, "is deleted when it has" in late.text) == (E_TIMEOUT, True)
    assert harness.orders == []
    harness.requests.later.pop()()
    harness.ends.pop()(True)
    _, answer = harness.orders.pop()
    answer(None, ZsqError(E_TIMEOUT, "no answer"))
    assert [*harness.group.deleting] == ["b"]
    harness.requests.later.pop()()
    order, answer = harness.orders.pop()
    assert order == p.DropChannel(1, "b")
    answer(p.Done(1, {}), None)
    assert (harness.group.deleting, answers, harness.requests.later) == ({}, [late], [])


def test_a_deletion_of_a_channel_ends_with_the_process_of_its_topic() -> None:
    """The topic's next process knows whether it still has the channel."""
    harness = DeletionHarness()
    answers: list[ZsqError | None] = []
    deletion.remove_channel(harness.requests, harness.group, "b", answers.append)
    harness.ends.pop()(True)
    _, answer = harness.orders.pop()
    assert harness.group.topic is not None
    harness.group.topic = copy.copy(harness.group.topic)
    refused = Refused(E_CLOSING, "the process ended before it answered")
    answer(None, refused)
    assert (harness.group.deleting, answers, harness.requests.later) == ({}, [refused], [])


def test_a_topic_whose_deletion_was_refused_is_opened_again() -> None:
    """The topic stays sealed while the next start might still carry out the deletion. Messages that
    were acknowledged in the meantime would then be deleted with the topic.
    """
    harness = DeletionHarness()
    refused = Refused("E_INTERNAL", "the registry cannot be written")

    def set_state(*_: object) -> None:
        harness.registry.in_doubt = True
        raise refused

    harness.registry.set_state = set_state
    answers: list[object] = []
    deletion.remove_topic(harness.requests, harness.group, 0, answers.append)
    deletion.open_again(harness.requests)
    assert (answers, harness.orders, harness.stopped) == ([refused], [], [])
    harness.registry.in_doubt = False  # the disk still has the previous registry
    for _ in range(2):
        deletion.open_again(harness.requests)
    assert [order for order, _ in harness.orders] == [p.SetSealed(1, is_sealed=False)]
