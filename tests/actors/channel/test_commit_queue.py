"""Tests of which answers of a channel wait for which commit, and of finishes that are withheld
while a standby may have taken over.
"""

from __future__ import annotations

import pytest

from tests.actors.channel.test_channel_actor import Shell, offered
from zsq.actors.channel.commit_queue import WITHHELD_MS, CommitQueue
from zsq.actors.channel.lease import Changes
from zsq.actors.settings import options
from zsq.storage.state.channel_row import ChannelRow
from zsq.transport.errors import E_LIMIT, UsageError
from zsq.transport.wire import protocol as p

A = (b"a",)
MS = 1_000_000
NOTHING = Changes(0, (), (), clear=False)
ROW = ChannelRow.decode(
    {"next": 0, "begin": 0, "paused": False, "created_ns": 1, "counters": {}, "settings": {}}
)


def answer(number: int) -> p.Answer:
    return p.Answer(number, 7, ())


def begun(saving: CommitQueue, request: int) -> None:
    saving.begin(request, NOTHING, ROW)


def test_withheld_finishes_are_confirmed_in_order_after_a_commit_that_may_be_confirmed() -> None:
    saving = CommitQueue("c")
    saving.confirm(A, answer(1))
    begun(saving, 5)
    saving.confirm(A, answer(2))
    assert saving.done(0, withholds=True) == ([], [])
    begun(saving, 6)
    assert saving.done(0, withholds=True) == ([], [])
    saving.confirm(A, answer(3))
    begun(saving, 7)
    assert saving.done(0, withholds=False) == ([(A, answer(n)) for n in (1, 2, 3)], [])
    begun(saving, 8)
    assert saving.done(0, withholds=False) == ([], [])


def test_a_commit_follows_from_time_to_time_while_finishes_are_withheld() -> None:
    saving = CommitQueue("c")
    saving.confirm(A, answer(1))
    begun(saving, 5)
    saving.done(10 * MS, withholds=True)
    assert not saving.is_due(False, 10 * MS)
    assert 0 < saving.wait_ms(10 * MS) <= WITHHELD_MS + 1
    assert saving.is_due(False, (10 + WITHHELD_MS) * MS)
    begun(saving, 6)
    saving.done((10 + WITHHELD_MS) * MS, withholds=False)
    assert not saving.is_due(False, 10**15)
    assert saving.wait_ms(10**15) > 10**6


def test_withheld_finishes_do_not_delay_the_end_of_a_channel() -> None:
    saving = CommitQueue("c")
    saving.confirm(A, answer(1))
    assert saving.waited_for
    begun(saving, 5)
    saving.done(0, withholds=True)
    assert not saving.waited_for


def test_orders_of_the_supervisor_are_answered_all_the_same() -> None:
    saving = CommitQueue("c")
    saving.answer(p.Done(9, {}))
    begun(saving, 5)
    assert saving.done(0, withholds=True) == ([], [p.Done(9, {})])


def test_withheld_finishes_count_for_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "WAITERS_MAX", 2)
    saving = CommitQueue("c")
    saving.confirm(A, answer(1))
    begun(saving, 5)
    saving.done(0, withholds=True)
    saving.confirm(A, answer(2))
    with pytest.raises(UsageError) as caught:
        saving.confirm(A, answer(3))
    assert caught.value.code == E_LIMIT


def test_a_consumer_hears_of_its_finish_when_storage_may_confirm_it() -> None:
    shell = Shell(0)
    shell.hear("front", p.Sub(1, p.PROTOCOL_VERSION, 5, 0, 30_000, "test"), A)
    shell.channel.on_turn()
    shell.hear("storage", p.Done(shell.channel.commits.out, {}))
    offered(shell, 1, b"x")
    (given,) = [message for message in shell.turn("front") if isinstance(message, p.Deliver)]
    first, count, _ = given.runs[0]
    shell.hear("front", p.Fin(4, given.token, ((first, first + count),)), A)
    shell.channel.on_turn()
    shell.hear("storage", p.Done(shell.channel.commits.out, {"withholds": True}))
    assert not [message for message in shell.turn("front") if isinstance(message, p.Answer)]
    shell.channel.commits.now = True  # time passes
    shell.channel.on_turn()
    shell.hear("storage", p.Done(shell.channel.commits.out, {}))
    (told,) = [message for message in shell.turn("front") if isinstance(message, p.Answer)]
    assert told.request == 4
