"""Tests of deferred messages that are only on disk: when the channel asks the store for them, and
which answers of the store count.
"""

from __future__ import annotations

from zsq.actors.channel.deferred import Deferred

S = 1_000_000_000
NOW = 5_000 * S


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
