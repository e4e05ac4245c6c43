"""Attempt numbers: promised for what is about to be sent only, and taken back at a clean end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.actors.conftest import Desk
from zsq.actors import options
from zsq.actors.again import Again
from zsq.actors.channel_settings import ChannelSettings

if TYPE_CHECKING:
    from zsq.actors.lease import Hole

S = 1_000_000_000
A, B = (b"a",), (b"b",)
ALL: tuple[tuple[int, int], ...] = ()


def restarted(desk: Desk, rows: dict[int, Hole]) -> Desk:
    """As a clean stop and a start leave it; `rows` is what the store holds."""
    desk.channel.end()
    assert not desk.channel.waits_for_commit()
    save(desk, rows)
    assert not desk.channel.supply.dirty
    return Desk(desk.channel.supply.next_offset, list(rows.values()))


def save(desk: Desk, rows: dict[int, Hole]) -> None:
    changes = desk.commit()
    for start in changes.holes_gone:
        rows.pop(start, None)
    rows.update((row[0], row) for row in changes.holes_put)


@pytest.mark.parametrize("consumer", [False, True])
def test_a_number_is_left_out_by_no_clean_restart(desk: Desk, *, consumer: bool) -> None:
    """Also not where it was promised, and nobody took the message."""
    rows: dict[int, Hole] = {}
    desk.join(A, 4)
    desk.come(4)
    desk.channel.req(A, desk.send_one().token, ALL, 0, desk.wall_ns)
    for _ in range(4):
        if consumer:
            desk.join(A, 4)
            save(desk, rows)
            assert rows[0] == (0, 4, 2, 0), "promised"
        else:
            desk.channel.unsubscribe(A)
            save(desk, rows)
            assert rows[0] == (0, 4, 1, 0), "nobody takes it"
        desk = restarted(desk, rows)
        assert rows[0] == (0, 4, 1, 0)
    desk.join(A, 4)
    save(desk, rows)
    desk.channel.supply.shelve(desk.block_at(0, 4))
    assert desk.told(desk.send()) == [("a", ((0, 4, 2),))]
    desk = restarted(desk, rows)
    assert rows[0] == (0, 4, 2, 0), "sent under it, and not answered"


def test_what_is_promised_while_it_ends_is_taken_back_too(desk: Desk) -> None:
    desk.join(A, 4)
    desk.come(4)
    desk.channel.req(A, desk.send_one().token, ALL, 0, desk.wall_ns)
    assert desk.channel.changes().holes_put == ((0, 4, 2, 0),)
    desk.channel.end()
    desk.channel.supply.committed()
    desk.channel.end()
    assert desk.channel.supply.dirty
    assert desk.commit().holes_put == ((0, 4, 1, 0),)
    desk.channel.end()
    assert not desk.channel.supply.dirty


def test_of_a_long_run_so_much_is_promised_as_is_about_to_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "PROMISED_MAX", 10)
    rows: dict[int, Hole] = {0: (0, 1_000_000, 0, 0)}
    desk = Desk(1_000_000, list(rows.values()))
    save(desk, rows)
    assert rows == {0: (0, 1_000_000, 0, 0)}, "a start writes none of it"
    desk.join(A, 6)
    for _ in range(3):
        save(desk, rows)
    assert rows == {0: (0, 10, 1, 0), 10: (10, 999_990, 0, 0)}
    desk.channel.supply.shelve(desk.block_at(0, 20))
    assert desk.told(desk.send()) == [("a", ((0, 6, 1),))]
    assert desk.channel.waits_for_commit()
    save(desk, rows)
    assert sorted(rows.values()) == [(0, 6, 1, 0), (6, 4, 1, 0), (10, 6, 1, 0), (16, 999_984, 0, 0)]
    assert desk.stats() == (999_994, 6, 0)


def test_where_attempts_are_bounded_no_more_is_promised_than_there_is_room_for() -> None:
    """For after a crash what was promised is taken for delivered."""
    rows: dict[int, Hole] = {0: (0, 1_000, 0, 0)}
    desk = Desk(1_000, list(rows.values()), max_attempts=2)
    desk.channel.supply.shelve(desk.block_at(0, 1_000))
    desk.join(A, 6)
    desk.join(B, 4)
    for _ in range(3):
        save(desk, rows)
    assert rows == {0: (0, 10, 1, 0), 10: (10, 990, 0, 0)}
    sent = desk.send()
    save(desk, rows)
    assert not desk.channel.waits_for_commit(), "nobody has room"
    assert sorted(rows.values())[-1] == (10, 990, 0, 0)
    desk.channel.fin(sent[0].peer, sent[0].token, ((sent[0].runs[0][0], 3),))
    assert desk.channel.waits_for_commit()
    save(desk, rows)
    assert sorted(rows.values())[-1] == (13, 987, 0, 0)


@pytest.mark.parametrize("committed", [False, True])
def test_fewer_attempts_hold_for_what_was_promised_too(committed: bool) -> None:
    desk = Desk(4, [(0, 2, 1, 0), (2, 2, 0, 0)])
    rows: dict[int, Hole] = {}
    desk.join(A, 10)
    desk.channel.changes()
    if committed:
        desk.channel.supply.committed()
    desk.channel.configure(ChannelSettings(max_attempts=1))
    desk.channel.supply.committed()
    desk.channel.supply.shelve(desk.block_at(0, 4))
    assert desk.told(desk.send()) == [("a", ((2, 2, 1),))]
    save(desk, rows)
    assert rows[0] == (0, 2, 1, 0), "by the number of the last delivery that was made"
    assert [dead.death.run for dead in desk.channel.supply.next_dead()] == [(0, 2, 1)]


def test_many_rows_are_ready_before_more_are_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "PROMISED_ROWS_LOW", 3)
    desk = Desk(100, [(start, 1, 1, 0) for start in range(0, 20, 2)])
    desk.join(A, 1)
    desk.commit()
    assert len(desk.channel.supply.again.ready) == 10
    desk.channel.supply.again.waiting.append((50, 1, 1))
    assert not desk.channel.waits_for_commit()


runs = st.lists(st.integers(1, 9), max_size=8)


@given(runs, runs, st.integers(0, 4))
def test_nothing_is_lost_between_waiting_and_ready(waiting: list[int], more: list[int], promises: int) -> None:
    again = Again()
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
