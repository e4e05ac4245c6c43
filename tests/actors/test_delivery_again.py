"""Redeliveries, case by case: commits, blocks that are not at hand, time, pause, empty."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from zsq.actors import options
from zsq.actors.delivery import UNKNOWN_DELIVERY
from zsq.actors.lease import Changes
from zsq.transport.block import pack, with_place
from zsq.transport.block_gather import gather
from zsq.transport.protocol import MESSAGE_TIMEOUT_MS_MAX

if TYPE_CHECKING:
    from tests.actors.conftest import Desk

S = 1_000_000_000
TIMEOUT_NS = 60 * S
A, B = (b"a",), (b"b",)
ALL: tuple[tuple[int, int], ...] = ()

# Redelivery


def test_a_redelivery_waits_for_the_commit_of_its_number(desk: Desk) -> None:
    desk.join(A, 10)
    desk.come(4)
    desk.channel.req(A, desk.send_one().token, ALL, 0, desk.wall_ns)
    assert desk.channel.waits_for_commit()
    assert desk.send() == []
    changes = desk.channel.changes()
    assert changes == Changes(4, ((0, 4, 2, 0),), ())
    assert desk.send() == []
    desk.channel.supply.committed()
    assert desk.told(desk.send()) == [("a", ((0, 4, 2),))]
    assert not desk.channel.waits_for_commit()


def test_a_delayed_requeue_comes_back_when_due(desk: Desk) -> None:
    desk.join(A, 10)
    desk.come(4)
    desk.channel.req(A, desk.send_one().token, [(1, 2)], 30 * 1_000, desk.wall_ns)
    assert desk.stats() == (0, 2, 2)
    assert desk.commit().holes_put == ((0, 1, 1, 0), (3, 1, 1, 0), (1, 2, 1, desk.wall_ns + 30 * S))
    assert not desk.scan(29)
    assert desk.channel.next_due(desk.now_ns, desk.wall_ns) == desk.now_ns + S
    assert desk.scan(1)
    assert desk.stats() == (2, 2, 0)
    assert desk.send() == []
    assert desk.commit().holes_put == ((1, 2, 2, 0),)
    assert desk.kept == {}
    assert desk.told(desk.send()) == [("a", ((1, 2, 2),))]


def test_a_short_delay_ends_before_its_commit(desk: Desk) -> None:
    desk.join(A, 10)
    desk.come(4)
    desk.channel.req(A, desk.send_one().token, [(1, 2)], 100, desk.wall_ns)
    assert desk.channel.next_due(desk.now_ns, desk.wall_ns) == desk.now_ns + S // 10
    assert desk.scan(0.1)
    assert desk.stats() == (2, 2, 0)
    assert sorted(desk.commit().holes_put) == [(0, 1, 1, 0), (1, 2, 2, 0), (3, 1, 1, 0)]
    assert desk.told(desk.send()) == [("a", ((1, 2, 2),))]


def test_the_store_is_asked_again_only_when_what_it_named_is_taken_from_it(desk: Desk) -> None:
    desk.join(A, 10)
    desk.come(4, 4)
    for parcel in desk.send():
        for offset in range(parcel.runs[0][0], parcel.runs[0][0] + 4):
            desk.channel.req(A, parcel.token, [(offset, 1)], (offset + 1) * 1_000, desk.wall_ns)
    desk.channel.changes()
    assert not desk.scan(100), "what is on its way is not there yet"
    desk.channel.supply.committed()
    desk.kept = {offset: (offset, 1, 1, desk.wall_ns - 100 * S + (offset + 1) * S) for offset in range(8)}
    assert desk.channel.scan(desk.now_ns, desk.wall_ns)
    assert not desk.channel.scan(desk.now_ns, desk.wall_ns), "told once"
    assert desk.ask(limit=3) == 3
    assert desk.ask() == 0
    desk.channel.changes()
    assert desk.ask() == 0
    desk.channel.supply.committed()
    desk.kept = {offset: row for offset, row in desk.kept.items() if offset >= 3}
    assert desk.ask() == 5, "without another scan"
    desk.commit()
    assert desk.ask() == 0
    assert sorted(run[0] for parcel in desk.send() for run in parcel.runs) == list(range(8))


def test_what_is_due_stays_on_disk_while_much_is_held(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "DUE_HELD_MAX", 2)
    desk.come(2, 2, 2)
    desk.join(A, 4)
    first, second = desk.send()
    desk.channel.req(A, first.token, ALL, 1_000, desk.wall_ns)
    desk.commit()
    desk.join(B, 2)
    desk.send()
    assert desk.channel.held == 2
    assert not desk.scan(5)
    assert desk.channel.next_due(desk.now_ns, desk.wall_ns) > desk.now_ns
    desk.channel.fin(A, second.token, ALL)
    assert desk.scan()
    assert desk.stats()[2] == 0


def test_no_new_messages_while_too_many_are_deferred(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "DEFERRED_ROWS_MAX", 1)
    desk.join(A, 4)
    desk.come(2, 2)
    first, second = desk.send()
    desk.channel.req(A, first.token, ALL, 1_000, desk.wall_ns)
    desk.come(2)
    desk.commit()
    desk.channel.fin(A, second.token, ALL)
    assert desk.send() == []
    desk.scan(1)
    desk.commit()
    assert desk.told(desk.send()) == [("a", ((0, 2, 2),)), ("a", ((4, 2, 1),))]


def test_half_of_the_credit_is_for_redeliveries_while_new_ones_wait(desk: Desk) -> None:
    desk.join(A, 10)
    desk.come(10, 10)
    desk.channel.req(A, desk.send_one().token, ALL, 0, desk.wall_ns)
    desk.commit()
    assert desk.told(desk.send()) == [("a", ((0, 5, 2),)), ("a", ((10, 5, 1),))]


def test_all_of_the_credit_is_for_redeliveries_while_nothing_new_waits(desk: Desk) -> None:
    desk.join(A, 10)
    desk.come(10)
    desk.channel.req(A, desk.send_one().token, ALL, 0, desk.wall_ns)
    desk.commit()
    assert desk.told(desk.send()) == [("a", ((0, 10, 2),))]


def test_redeliveries_with_one_credit_do_not_hold_up_new_ones(desk: Desk) -> None:
    desk.join(A, 1)
    desk.come(1, 10)
    offsets = []
    for _ in range(6):
        parcel = desk.send_one()
        offsets.append(parcel.runs[0][0])
        desk.channel.req(A, parcel.token, ALL, 0, desk.wall_ns)
        desk.commit()
    assert offsets == [0, 0, 1, 0, 2, 1]


def test_many_holes_hold_up_new_messages(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "HOLE_ROWS_MAX", 3)
    desk.join(A, 100)
    desk.come(*[1] * 5)
    parcels = desk.send()
    assert len(parcels) == 3
    desk.channel.req(A, parcels[0].token, ALL, 0, desk.wall_ns)
    assert desk.send() == []
    desk.channel.fin(A, parcels[1].token, ALL)
    assert desk.told(desk.send()) == [("a", ((3, 1, 1),))]


def test_what_is_gathered_fits_into_one_block(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """However unevenly the sizes of a block's messages lie, and however large the second part is."""
    monkeypatch.setattr(options, "CACHE_BYTES_MAX", 100 << 20)
    desk = type(desk)()
    desk.join(A, 10_000)
    large = [b"x" * (1 << 20)] * 5
    for _ in range(3):
        desk.channel.supply.offer(with_place(pack([*large, *[b"y"] * 995]), desk.end, 0))
        desk.end += 1_000
    for parcel in desk.send():
        first = parcel.runs[0][0]
        desk.channel.req(A, parcel.token, [(first + 5, 1)], 0, desk.wall_ns)
        desk.channel.req(A, parcel.token, [(first, 5)], 0, desk.wall_ns)
        desk.channel.fin(A, parcel.token, ALL)
    desk.commit()
    again = desk.send()
    assert sorted(run for parcel in again for run in parcel.runs) == [(o, c, 2) for f in (0, 1000, 2000) for o, c in ((f, 5), (f + 5, 1))]
    for parcel in again:
        gather(parcel.parts)


# Blocks that are not at hand


def test_what_is_not_on_the_shelf_is_wanted_and_then_sent(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "CACHE_BYTES_MAX", 1)  # one block
    desk = type(desk)()
    desk.join(A, 8)
    desk.come(4, 4)
    first, second = desk.send()
    desk.channel.req(A, first.token, ALL, 0, desk.wall_ns)
    desk.channel.req(A, second.token, [(5, 1)], 0, desk.wall_ns)
    desk.commit()
    assert desk.told(desk.send()) == [("a", ((5, 1, 2),))]
    assert desk.channel.supply.wanted == {0}
    desk.channel.supply.shelve(desk.block_at(0, 4))
    assert desk.channel.supply.wanted == set()
    assert desk.told(desk.send()) == [("a", ((0, 4, 2),))]


def test_what_storage_lost_is_counted_and_not_waited_for(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "CACHE_BYTES_MAX", 1)
    desk = type(desk)()
    desk.join(A, 8)
    desk.come(4, 4)
    first, second = desk.send()
    desk.channel.req(A, first.token, ALL, 0, desk.wall_ns)
    desk.channel.fin(A, second.token, ALL)
    desk.commit()
    desk.send()
    desk.channel.supply.lost(0, 3)
    assert desk.channel.supply.wanted == set()
    assert desk.channel.counters["lost_count"] == 3
    assert desk.commit() == Changes(8, ((3, 1, 2, 0),), (0,))
    desk.send()
    assert desk.channel.supply.wanted == {3}


def test_a_gap_is_refused_from_the_topic_and_stepped_over_from_storage(desk: Desk) -> None:
    desk.join(A, 100)
    desk.come(4)
    assert not desk.channel.supply.offer(desk.block_at(6, 2))
    assert desk.channel.supply.offer(desk.block_at(0, 4)), "an older one is ignored"
    assert desk.channel.supply.offer(desk.block_at(6, 2), from_storage=True)
    assert desk.channel.supply.offer(desk.block_at(10, 1), from_storage=True)
    assert desk.told(desk.send()) == [("a", ((0, 4, 1),)), ("a", ((6, 2, 1),)), ("a", ((10, 1, 1),))]
    assert desk.channel.counters["lost_count"] == 4
    assert desk.channel.supply.next_offset == 11


def test_a_gap_in_front_of_an_empty_window_is_committed(desk: Desk) -> None:
    desk.join(A, 0)
    desk.commit()
    assert desk.channel.supply.offer(desk.block_at(3, 1), from_storage=True)
    assert desk.channel.supply.dirty
    assert desk.commit().next_offset == 3


def test_a_block_that_the_cursor_lies_in_is_taken_from_there(desk: Desk) -> None:
    desk = type(desk)(next_offset=3)
    desk.join(A, 100)
    desk.channel.supply.offer(desk.block_at(0, 5))
    assert desk.told(desk.send()) == [("a", ((3, 2, 1),))]


# Time


def test_the_scan_ends_leases_and_touch_prolongs_them_up_to_a_cap(desk: Desk) -> None:
    desk.join(A, 10)
    desk.come(2)
    token = desk.send_one().token
    sent_ns = desk.now_ns
    assert desk.channel.next_due(desk.now_ns, desk.wall_ns) == sent_ns + TIMEOUT_NS
    assert not desk.scan(59)
    assert desk.channel.touch(B, token, desk.now_ns) == (UNKNOWN_DELIVERY,)
    assert desk.channel.touch(A, token, desk.now_ns) == ()
    assert desk.channel.next_due(desk.now_ns, desk.wall_ns) == sent_ns + 119 * S
    for _ in range(30):
        desk.scan(30)
        if desk.channel.touch(A, token, desk.now_ns):
            break
    assert desk.now_ns - sent_ns >= MESSAGE_TIMEOUT_MS_MAX * 1_000_000
    assert desk.now_ns - sent_ns < MESSAGE_TIMEOUT_MS_MAX * 1_000_000 + 30 * S
    assert desk.channel.counters["timeout_count"] == 2
    assert desk.stats() == (2, 0, 0)


def test_due_times_are_told_in_monotonic_time(desk: Desk) -> None:
    assert desk.channel.next_due(desk.now_ns, desk.wall_ns) == 0
    desk.join(A, 10, heartbeat_ns=1_000 * S)
    desk.come(2)
    desk.channel.req(A, desk.send_one().token, ALL, 7 * 1_000, desk.wall_ns)
    assert desk.channel.next_due(desk.now_ns, desk.wall_ns) == desk.now_ns + 7 * S


def test_a_lost_consumer_gives_its_messages_back_at_once(desk: Desk) -> None:
    desk.join(A, 10, heartbeat_ns=S)
    desk.join(B, 10)
    desk.come(3)
    desk.send()
    assert not desk.scan(2)
    assert desk.channel.next_due(desk.now_ns, desk.wall_ns) == desk.now_ns + 1
    assert desk.scan(0.001)
    assert list(desk.channel.consumers) == [B]
    desk.commit()
    assert desk.told(desk.send()) == [("b", ((0, 3, 2),))]


def test_one_that_leaves_gives_its_messages_back_and_the_last_one_the_memory(desk: Desk) -> None:
    desk.join(A, 2)
    desk.come(4, 4)
    token = desk.send_one().token
    assert desk.channel.unsubscribe(A)
    assert not desk.channel.unsubscribe(A)
    desk.channel.rest()
    assert desk.channel.fin(A, token, ALL) == (UNKNOWN_DELIVERY,)
    assert (desk.channel.supply.window_bytes, desk.channel.supply.window_end) == (0, 2)
    assert desk.stats() == (8, 0, 0)
    desk.join(B, 10)
    desk.commit()
    assert desk.send() == []
    assert desk.channel.supply.wanted == {0}
    desk.channel.supply.shelve(desk.block_at(0, 4))
    assert desk.channel.supply.offer(desk.block_at(0, 4))
    assert desk.told(desk.send()) == [("b", ((0, 2, 2),)), ("b", ((2, 2, 1),))]


# Pause and empty


def test_a_paused_channel_sends_nothing_and_takes_answers(desk: Desk) -> None:
    desk.join(A, 4)
    desk.come(8)
    token = desk.send_one().token
    desk.channel.paused = True
    assert not desk.channel.is_wanted()
    assert not desk.channel.fin(A, token, [(0, 2)])
    desk.channel.req(A, token, ALL, 0, desk.wall_ns)
    desk.commit()
    assert desk.send() == []
    assert not desk.channel.waits_for_commit(), "no number is promised that nobody gets"
    desk.channel.paused = False
    desk.commit()
    assert desk.told(desk.send()) == [("a", ((2, 2, 2),)), ("a", ((4, 2, 1),))]


def test_seeking_clears_everything_also_what_is_being_committed(desk: Desk) -> None:
    desk.join(A, 9)
    desk.come(2, 2, 2, 6)
    waits, delayed, held, _ = desk.send()
    desk.channel.req(A, waits.token, ALL, 0, desk.wall_ns)
    desk.channel.req(A, delayed.token, ALL, 9 * 1_000, desk.wall_ns)
    assert sorted(row[0] for row in desk.channel.changes().holes_put) == [0, 2, 4, 6]
    desk.channel.seek(12)
    desk.channel.supply.committed()
    assert desk.stats() == (0, 0, 0)
    assert desk.channel.consumers[A].in_flight == 0
    assert desk.channel.fin(A, held.token, ALL) == (UNKNOWN_DELIVERY,)
    assert desk.send() == []
    changes = desk.commit()
    assert (changes.next_offset, changes.holes_put, sorted(changes.holes_gone)) == (12, (), [0, 4, 6])
    assert changes.clear, "what is deferred on disk goes too"
    assert not desk.commit().clear


@pytest.mark.parametrize("offset", [0, 3, 5])
def test_seeking_back_delivers_again_from_there_and_once(desk: Desk, offset: int) -> None:
    desk.join(A, 100)
    desk.come(4, 4)
    first, second = desk.send()
    desk.channel.req(A, first.token, [(1, 2)], 0, desk.wall_ns)
    desk.channel.req(A, first.token, [(3, 1)], 9 * 1_000, desk.wall_ns)
    desk.channel.seek(offset)
    assert desk.channel.fin(A, second.token, ALL) == (UNKNOWN_DELIVERY,)
    assert desk.channel.supply.window_end == offset
    assert desk.stats() == (8 - offset, 0, 0)
    assert desk.commit() == Changes(offset, (), (), clear=True)
    desk.scan(3_000)
    for first_offset in (0, 4):
        desk.channel.supply.offer(desk.block_at(first_offset, 4), from_storage=True)
    got = [(run[0], run[1], run[2]) for parcel in desk.send() for run in parcel.runs]
    assert got == ([(0, 4, 1), (4, 4, 1)] if offset == 0 else [(3, 1, 1), (4, 4, 1)] if offset == 3 else [(5, 3, 1)])


# Commits


def test_changes_are_differences(desk: Desk) -> None:
    desk.join(A, 100)
    desk.come(10, 10)
    first, second = desk.send()
    assert desk.channel.supply.dirty
    assert desk.commit() == Changes(20, ((0, 10, 1, 0), (10, 10, 1, 0)), ())
    assert not desk.channel.supply.dirty
    assert desk.commit() == Changes(20, (), ())
    desk.channel.fin(A, first.token, [(0, 4)])
    desk.channel.fin(A, second.token, ALL)
    assert desk.channel.supply.dirty
    changes = desk.commit()
    assert (changes.holes_put, sorted(changes.holes_gone)) == (((4, 6, 1, 0),), [0, 10])


def test_rows_are_taken_up_after_a_crash(desk: Desk) -> None:
    desk = type(desk)(next_offset=20, holes=[(3, 2, 4, 0), (9, 1, 1, 5_010 * S)])
    desk.join(A, 100)
    assert desk.stats() == (2, 0, 1)
    assert desk.commit() == Changes(20, ((3, 2, 5, 0),), ())
    desk.channel.supply.shelve(desk.block_at(0, 10))
    assert desk.told(desk.send()) == [("a", ((3, 2, 5),))]
    desk.scan(10)
    desk.commit()
    assert desk.told(desk.send()) == [("a", ((9, 1, 2),))]
