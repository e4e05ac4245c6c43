"""Tests of attempt numbers: they are promised only for messages that are about to be sent, and they
are taken back at a clean stop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.actors.conftest import ChannelHarness
from zsq.actors.channel.redelivery import Redelivery
from zsq.actors.settings import options
from zsq.transport.settings import ChannelSettings

if TYPE_CHECKING:
    from zsq.actors.channel.lease import Hole

S = 1_000_000_000
A, B = (b"a",), (b"b",)
ALL: tuple[tuple[int, int], ...] = ()


def restarted(harness: ChannelHarness, rows: dict[int, Hole]) -> ChannelHarness:
    """Stop the channel cleanly and start it again. `rows` is what the store holds."""
    harness.channel.end()
    assert not harness.channel.waits_for_commit()
    save(harness, rows)
    assert not harness.channel.supply.dirty
    return ChannelHarness(harness.channel.supply.next_offset, list(rows.values()))


def save(harness: ChannelHarness, rows: dict[int, Hole]) -> None:
    changes = harness.commit()
    for start in changes.holes_gone:
        rows.pop(start, None)
    rows.update((row[0], row) for row in changes.holes_put)


@pytest.mark.parametrize("consumer", [False, True])
def test_a_number_is_left_out_by_no_clean_restart(
    harness: ChannelHarness, *, consumer: bool
) -> None:
    """A clean restart must not use up an attempt number, even if the number was promised and no
    consumer took the message.
    """
    rows: dict[int, Hole] = {}
    harness.join(A, 4)
    harness.come(4)
    harness.channel.req(A, harness.send_one().token, ALL, 0, harness.wall_ns)
    for _ in range(4):
        if consumer:
            harness.join(A, 4)
            save(harness, rows)
            assert rows[0] == (0, 4, 2, 0), "promised"
        else:
            harness.channel.unsubscribe(A)
            save(harness, rows)
            assert rows[0] == (0, 4, 1, 0), "nobody takes it"
        harness = restarted(harness, rows)
        assert rows[0] == (0, 4, 1, 0)
    harness.join(A, 4)
    save(harness, rows)
    harness.channel.supply.shelve(harness.block_at(0, 4))
    assert harness.told(harness.send()) == [("a", ((0, 4, 2),))]
    harness = restarted(harness, rows)
    assert rows[0] == (0, 4, 2, 0), "sent under it, and not answered"


def test_attempts_promised_during_the_end_are_taken_back(harness: ChannelHarness) -> None:
    harness.join(A, 4)
    harness.come(4)
    harness.channel.req(A, harness.send_one().token, ALL, 0, harness.wall_ns)
    assert harness.channel.changes().holes_put == ((0, 4, 2, 0),)
    harness.channel.end()
    harness.channel.supply.committed()
    harness.channel.end()
    assert harness.channel.supply.dirty
    assert harness.commit().holes_put == ((0, 4, 1, 0),)
    harness.channel.end()
    assert not harness.channel.supply.dirty


def test_attempts_are_promised_only_for_messages_about_to_be_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(options, "PROMISED_MAX", 10)
    rows: dict[int, Hole] = {0: (0, 1_000_000, 0, 0)}
    harness = ChannelHarness(1_000_000, list(rows.values()))
    save(harness, rows)
    assert rows == {0: (0, 1_000_000, 0, 0)}, "a start writes none of it"
    harness.join(A, 6)
    for _ in range(3):
        save(harness, rows)
    assert rows == {0: (0, 10, 1, 0), 10: (10, 999_990, 0, 0)}
    harness.channel.supply.shelve(harness.block_at(0, 20))
    assert harness.told(harness.send()) == [("a", ((0, 6, 1),))]
    assert harness.channel.waits_for_commit()
    save(harness, rows)
    assert sorted(rows.values()) == [(0, 6, 1, 0), (6, 4, 1, 0), (10, 6, 1, 0), (16, 999_984, 0, 0)]
    assert harness.stats() == (999_994, 6, 0)


def test_with_limited_attempts_no_more_is_promised_than_fits() -> None:
    """After a crash, a promised attempt counts as delivered. So the channel may only promise as
    many messages as the consumers have room for.
    """
    rows: dict[int, Hole] = {0: (0, 1_000, 0, 0)}
    harness = ChannelHarness(1_000, list(rows.values()), max_attempts=2)
    harness.channel.supply.shelve(harness.block_at(0, 1_000))
    harness.join(A, 6)
    harness.join(B, 4)
    for _ in range(3):
        save(harness, rows)
    assert rows == {0: (0, 10, 1, 0), 10: (10, 990, 0, 0)}
    sent = harness.send()
    save(harness, rows)
    assert not harness.channel.waits_for_commit(), "nobody has room"
    assert sorted(rows.values())[-1] == (10, 990, 0, 0)
    harness.channel.fin(sent[0].peer, sent[0].token, ((sent[0].runs[0][0], 3),))
    assert harness.channel.waits_for_commit()
    save(harness, rows)
    assert sorted(rows.values())[-1] == (13, 987, 0, 0)


@pytest.mark.parametrize("committed", [False, True])
def test_fewer_attempts_hold_for_what_was_promised_too(committed: bool) -> None:
    harness = ChannelHarness(4, [(0, 2, 1, 0), (2, 2, 0, 0)])
    rows: dict[int, Hole] = {}
    harness.join(A, 10)
    harness.channel.changes()
    if committed:
        harness.channel.supply.committed()
    harness.channel.configure(ChannelSettings(max_attempts=1))
    harness.channel.supply.committed()
    harness.channel.supply.shelve(harness.block_at(0, 4))
    assert harness.told(harness.send()) == [("a", ((2, 2, 1),))]
    save(harness, rows)
    assert rows[0] == (0, 2, 1, 0), "by the number of the last delivery that was made"
    assert [dead.death.run for dead in harness.channel.supply.next_dead()] == [(0, 2, 1)]


def test_many_rows_are_ready_before_more_are_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "PROMISED_ROWS_LOW", 3)
    harness = ChannelHarness(100, [(start, 1, 1, 0) for start in range(0, 20, 2)])
    harness.join(A, 1)
    harness.commit()
    assert len(harness.channel.supply.again.ready) == 10
    harness.channel.supply.again.waiting.append((50, 1, 1))
    assert not harness.channel.waits_for_commit()


runs = st.lists(st.integers(1, 9), max_size=8)


@given(runs, runs, st.integers(0, 4))
def test_nothing_is_lost_between_waiting_and_ready(
    waiting: list[int], more: list[int], promises: int
) -> None:
    again = Redelivery()
    first = 0
    for turn, counts in enumerate((waiting, more)):
        for count in counts:
            again.waiting.append((first, count, 1 + turn))
            first += count
        for _ in range(promises):
            again.promise(again.to_promise(options.PROMISED_MAX))
            again.committed()
    again.take_back()
    kept = sorted(again.waiting)
    assert again.messages() == first
    assert all(attempts == (1 if start < sum(waiting) else 2) for start, _, attempts in kept)


def test_a_commit_that_promises_nothing_leaves_what_came_back_unsorted() -> None:
    """Such a message is sorted later, together with those that are returned after it."""
    again = Redelivery()
    again.returned = [(5, 1, 1)]
    again.promise(0)
    again.returned.append((1, 1, 1))
    again.promise(10)
    assert again.promising == [(1, 1, 1), (5, 1, 1)]
