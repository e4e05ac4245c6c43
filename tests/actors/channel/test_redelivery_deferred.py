"""Tests of deferred messages that are only on disk: when the channel asks the store for them, and
which answers of the store count.
"""

from __future__ import annotations

import pytest

from zsq.actors.channel.redelivery import Deferred
from zsq.actors.settings import options
from zsq.transport.wire.protocol import REQUEUE_DELAY_MS_MAX

S = 1_000_000_000
NOW = 5_000 * S
FAR = NOW + 86_400 * S


def test_rows_cleared_during_their_commit_are_not_waited_for() -> None:
    deferred = Deferred()
    deferred.put([(0, 3, 1)], NOW + S)
    assert deferred.take() == ([(0, 3, 1, NOW + S)], False)
    deferred.clear()
    assert deferred.uncommitted == 0
    deferred.committed()
    assert (deferred.next_due_ns, deferred.rows, deferred.messages) == (0, 0, 0)
    assert deferred.next_due(NOW, 0) == 0
    assert deferred.take() == ([], True)


def test_an_answer_to_a_question_from_before_a_clear_brings_nothing_back() -> None:
    deferred = Deferred(2, 2, NOW)
    deferred.due(NOW, 0)
    assert deferred.may_ask(0)
    deferred.ask(7)
    assert not deferred.may_ask(0), "one question is out at a time"
    deferred.clear()
    assert not deferred.answered(7), "late"
    deferred.take()
    deferred.committed()
    assert not deferred.answered(0), "nothing was asked"


def test_the_store_may_be_asked_again_after_an_answer_or_a_failure() -> None:
    deferred = Deferred(2, 2, NOW)
    deferred.due(NOW, 0)
    deferred.ask(7)
    assert not deferred.answered(6)
    assert not deferred.may_ask(0)
    assert deferred.answered(7)
    assert deferred.may_ask(0)
    deferred.ask(8)
    deferred.failed(7)
    assert deferred.wanted
    deferred.failed(8)
    assert not deferred.may_ask(0), "not at once: it would go round and round"
    assert deferred.next_due(NOW, 0) == NOW
    deferred.due(NOW, 0)
    assert deferred.may_ask(0)


def test_a_due_time_that_cannot_be_counts_as_due() -> None:
    """The clock was a day ahead when the message was requeued, so its due time is later than any
    delay allows.
    """
    deferred = Deferred()
    deferred.put([(0, 1, 1)], FAR)
    deferred.put([(1, 1, 1)], NOW + REQUEUE_DELAY_MS_MAX * 1_000_000)
    assert deferred.next_due(NOW, 0) == NOW
    assert deferred.due(NOW, 0) == [(0, 1, 1)]
    assert deferred.next_due(NOW, 0) == NOW + REQUEUE_DELAY_MS_MAX * 1_000_000
    kept = Deferred(3, 3, FAR)
    assert kept.next_due(NOW, 0) == NOW
    assert kept.due(NOW, 0) == []
    assert kept.may_ask(0)
    kept.came([(5, 1, 1, FAR)], FAR, NOW)
    assert kept.wanted
    kept.came([(6, 1, 1, FAR)], NOW + S, NOW)
    assert not kept.wanted
    assert kept.next_due(NOW, 0) == NOW + S


@pytest.mark.parametrize("late", [0, 1])
def test_the_bound_leaves_room_for_clocks_that_are_set(late: int) -> None:
    deferred = Deferred(1, 1, NOW + options.DUE_LATEST_NS + late)
    deferred.due(NOW, 0)
    assert deferred.wanted == bool(late)
