"""Tests of redeliveries by the channel core: commits, blocks that are not in memory, due times,
pause and empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from zsq.actors.channel.core import UNKNOWN_DELIVERY
from zsq.actors.channel.lease import Changes
from zsq.actors.settings import options
from zsq.transport.block.block import gather, pack, with_place
from zsq.transport.settings import HOLD_S_MIN

if TYPE_CHECKING:
    from tests.actors.conftest import ChannelHarness

S = 1_000_000_000
TIMEOUT_NS = 60 * S
A, B = (b"a",), (b"b",)
ALL: tuple[tuple[int, int], ...] = ()

# Redelivery


def test_a_redelivery_waits_for_the_commit_of_its_number(harness: ChannelHarness) -> None:
    harness.join(A, 10)
    harness.come(4)
    harness.channel.req(A, harness.send_one().token, ALL, 0, harness.wall_ns)
    assert harness.channel.waits_for_commit()
    assert harness.send() == []
    changes = harness.channel.changes()
    assert changes == Changes(4, ((0, 4, 1, 0),), ())
    assert harness.send() == []
    harness.channel.supply.committed()
    assert harness.told(harness.send()) == [("a", ((0, 4, 2),))]
    assert not harness.channel.waits_for_commit()


def test_a_delayed_requeue_comes_back_when_due(harness: ChannelHarness) -> None:
    harness.join(A, 10)
    harness.come(4)
    harness.channel.req(A, harness.send_one().token, [(1, 2)], 30 * 1_000, harness.wall_ns)
    assert harness.stats() == (0, 2, 2)
    assert harness.commit().holes_put == (
        (0, 1, 1, 0),
        (3, 1, 1, 0),
        (1, 2, 1, harness.wall_ns + 30 * S),
    )
    assert not harness.scan(29)
    assert harness.channel.next_due(harness.now_ns, harness.wall_ns) == harness.now_ns + S
    assert harness.scan(1)
    assert harness.stats() == (2, 2, 0)
    assert harness.send() == []
    assert harness.commit().holes_put == ((1, 2, 1, 0),)
    assert harness.kept == {}
    assert harness.told(harness.send()) == [("a", ((1, 2, 2),))]


def test_a_short_delay_ends_before_its_commit(harness: ChannelHarness) -> None:
    harness.join(A, 10)
    harness.come(4)
    harness.channel.req(A, harness.send_one().token, [(1, 2)], 100, harness.wall_ns)
    assert harness.channel.next_due(harness.now_ns, harness.wall_ns) == harness.now_ns + S // 10
    assert harness.scan(0.1)
    assert harness.stats() == (2, 2, 0)
    assert sorted(harness.commit().holes_put) == [(0, 1, 1, 0), (1, 2, 1, 0), (3, 1, 1, 0)]
    assert harness.told(harness.send()) == [("a", ((1, 2, 2),))]


def test_due_rows_are_asked_for_again_only_after_the_last_ones_are_used(
    harness: ChannelHarness,
) -> None:
    harness.join(A, 10)
    harness.come(4, 4)
    for pending in harness.send():
        for offset in range(pending.runs[0][0], pending.runs[0][0] + 4):
            harness.channel.req(
                A, pending.token, [(offset, 1)], (offset + 1) * 1_000, harness.wall_ns
            )
    harness.channel.changes()
    assert not harness.scan(100), "what is on its way is not there yet"
    harness.channel.supply.committed()
    harness.kept = {
        offset: (offset, 1, 1, harness.wall_ns - 100 * S + (offset + 1) * S) for offset in range(8)
    }
    assert harness.channel.scan(harness.now_ns, harness.wall_ns)
    assert not harness.channel.scan(harness.now_ns, harness.wall_ns), "told once"
    assert harness.ask(limit=3) == 3
    assert harness.ask() == 0
    harness.channel.changes()
    assert harness.ask() == 0
    harness.channel.supply.committed()
    harness.kept = {offset: row for offset, row in harness.kept.items() if offset >= 3}
    assert harness.ask() == 5, "without another scan"
    harness.commit()
    assert harness.ask() == 0
    assert sorted(run[0] for pending in harness.send() for run in pending.runs) == list(range(8))


def test_due_messages_stay_on_disk_while_many_are_held(
    harness: ChannelHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "DUE_HELD_MAX", 2)
    harness.come(2, 2, 2)
    harness.join(A, 4)
    first, second = harness.send()
    harness.channel.req(A, first.token, ALL, 1_000, harness.wall_ns)
    harness.commit()
    harness.join(B, 2)
    harness.send()
    assert harness.channel.held == 2
    assert not harness.scan(5)
    assert harness.channel.next_due(harness.now_ns, harness.wall_ns) > harness.now_ns
    harness.channel.fin(A, second.token, ALL)
    assert harness.scan()
    assert harness.stats()[2] == 0


def test_no_new_messages_while_too_many_are_deferred(
    harness: ChannelHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "DEFERRED_ROWS_MAX", 1)
    harness.join(A, 4)
    harness.come(2, 2)
    first, second = harness.send()
    harness.channel.req(A, first.token, ALL, 1_000, harness.wall_ns)
    harness.come(2)
    harness.commit()
    harness.channel.fin(A, second.token, ALL)
    assert harness.send() == []
    harness.scan(1)
    harness.commit()
    assert harness.told(harness.send()) == [("a", ((0, 2, 2),)), ("a", ((4, 2, 1),))]


def test_half_of_the_credit_is_for_redeliveries_while_new_messages_wait(
    harness: ChannelHarness,
) -> None:
    harness.join(A, 10)
    harness.come(10, 10)
    harness.channel.req(A, harness.send_one().token, ALL, 0, harness.wall_ns)
    harness.commit()
    assert harness.told(harness.send()) == [("a", ((0, 5, 2),)), ("a", ((10, 5, 1),))]


def test_all_of_the_credit_is_for_redeliveries_while_nothing_new_waits(
    harness: ChannelHarness,
) -> None:
    harness.join(A, 10)
    harness.come(10)
    harness.channel.req(A, harness.send_one().token, ALL, 0, harness.wall_ns)
    harness.commit()
    assert harness.told(harness.send()) == [("a", ((0, 10, 2),))]


def test_redeliveries_with_a_credit_of_one_do_not_delay_new_messages(
    harness: ChannelHarness,
) -> None:
    harness.join(A, 1)
    harness.come(1, 10)
    offsets = []
    for _ in range(6):
        pending = harness.send_one()
        offsets.append(pending.runs[0][0])
        harness.channel.req(A, pending.token, ALL, 0, harness.wall_ns)
        harness.commit()
    assert offsets == [0, 0, 1, 0, 2, 1]


def test_many_holes_hold_up_new_messages(
    harness: ChannelHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "HOLE_ROWS_MAX", 3)
    harness.join(A, 100)
    harness.come(*[1] * 5)
    pending_blocks = harness.send()
    assert len(pending_blocks) == 3
    harness.channel.req(A, pending_blocks[0].token, ALL, 0, harness.wall_ns)
    assert harness.send() == []
    harness.channel.fin(A, pending_blocks[1].token, ALL)
    assert harness.told(harness.send()) == [("a", ((3, 1, 1),))]


def test_gathered_messages_fit_into_one_block(
    harness: ChannelHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requeued messages of several blocks are gathered into one delivery. It must not exceed the
    size limit of a block, even if a few messages are large and the others are small.
    """
    monkeypatch.setattr(options, "CACHE_BYTES_MAX", 100 << 20)
    harness = type(harness)()
    harness.join(A, 10_000)
    large = [b"x" * (1 << 20)] * 5
    for _ in range(3):
        harness.channel.supply.offer(with_place(pack([*large, *[b"y"] * 995]), harness.end, 0))
        harness.end += 1_000
    for pending in harness.send():
        first = pending.runs[0][0]
        harness.channel.req(A, pending.token, [(first + 5, 1)], 0, harness.wall_ns)
        harness.channel.req(A, pending.token, [(first, 5)], 0, harness.wall_ns)
        harness.channel.fin(A, pending.token, ALL)
    harness.commit()
    again = harness.send()
    assert sorted(run for pending in again for run in pending.runs) == [
        (o, c, 2) for f in (0, 1000, 2000) for o, c in ((f, 5), (f + 5, 1))
    ]
    for pending in again:
        gather(pending.parts)


# Blocks that are not in memory


def test_blocks_not_in_memory_are_requested_and_then_sent(
    harness: ChannelHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "CACHE_BYTES_MAX", 1)  # so the cache holds only one block
    harness = type(harness)()
    harness.join(A, 8)
    harness.come(4, 4)
    first, second = harness.send()
    harness.channel.req(A, first.token, ALL, 0, harness.wall_ns)
    harness.channel.req(A, second.token, [(5, 1)], 0, harness.wall_ns)
    harness.commit()
    assert harness.told(harness.send()) == [("a", ((5, 1, 2),))]
    assert harness.channel.supply.wanted == {0}
    harness.channel.supply.shelve(harness.block_at(0, 4))
    assert harness.channel.supply.wanted == set()
    assert harness.told(harness.send()) == [("a", ((0, 4, 2),))]


def test_messages_lost_by_storage_are_counted_and_not_waited_for(
    harness: ChannelHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "CACHE_BYTES_MAX", 1)
    harness = type(harness)()
    harness.join(A, 8)
    harness.come(4, 4)
    first, second = harness.send()
    harness.channel.req(A, first.token, ALL, 0, harness.wall_ns)
    harness.channel.fin(A, second.token, ALL)
    harness.commit()
    harness.send()
    harness.channel.supply.lost(0, 3)
    assert harness.channel.supply.wanted == set()
    assert harness.channel.counters["lost_count"] == 3
    assert harness.commit() == Changes(8, ((3, 1, 1, 0),), (0,))
    harness.send()
    assert harness.channel.supply.wanted == {3}


def test_a_gap_is_refused_from_the_topic_and_stepped_over_from_storage(
    harness: ChannelHarness,
) -> None:
    harness.join(A, 100)
    harness.come(4)
    assert not harness.channel.supply.offer(harness.block_at(6, 2))
    assert harness.channel.supply.offer(harness.block_at(0, 4)), "an older one is ignored"
    assert harness.channel.supply.offer(harness.block_at(6, 2), from_storage=True)
    assert harness.channel.supply.offer(harness.block_at(10, 1), from_storage=True)
    assert harness.told(harness.send()) == [
        ("a", ((0, 4, 1),)),
        ("a", ((6, 2, 1),)),
        ("a", ((10, 1, 1),)),
    ]
    assert harness.channel.counters["lost_count"] == 4
    assert harness.channel.supply.next_offset == 11


def test_a_gap_in_front_of_an_empty_window_is_committed(harness: ChannelHarness) -> None:
    harness.join(A, 0)
    harness.commit()
    assert harness.channel.supply.offer(harness.block_at(3, 1), from_storage=True)
    assert harness.channel.supply.dirty
    assert harness.commit().next_offset == 3


def test_a_block_that_the_cursor_lies_in_is_taken_from_there(harness: ChannelHarness) -> None:
    harness = type(harness)(next_offset=3)
    harness.join(A, 100)
    harness.channel.supply.offer(harness.block_at(0, 5))
    assert harness.told(harness.send()) == [("a", ((3, 2, 1),))]


# Time


def test_a_scan_ends_leases_and_a_touch_prolongs_them_up_to_a_limit(
    harness: ChannelHarness,
) -> None:
    harness.join(A, 10)
    harness.come(2)
    token = harness.send_one().token
    sent_ns = harness.now_ns
    assert harness.channel.next_due(harness.now_ns, harness.wall_ns) == sent_ns + TIMEOUT_NS
    assert not harness.scan(59)
    assert harness.channel.touch(B, token, harness.now_ns) == (UNKNOWN_DELIVERY,)
    assert harness.channel.touch(A, token, harness.now_ns) == ()
    assert harness.channel.next_due(harness.now_ns, harness.wall_ns) == sent_ns + 119 * S
    for _ in range(30):
        harness.scan(30)
        if harness.channel.touch(A, token, harness.now_ns):
            break
    assert harness.now_ns - sent_ns >= HOLD_S_MIN * S
    assert harness.now_ns - sent_ns < HOLD_S_MIN * S + 30 * S
    assert harness.channel.counters["timeout_count"] == 2
    assert harness.stats() == (2, 0, 0)


@pytest.mark.parametrize(("max_hold_s", "end_s"), [(-1.0, None), (3600.0, 3600)])
def test_a_channel_may_let_its_consumers_hold_messages_for_longer(
    harness: ChannelHarness, max_hold_s: float, end_s: int | None
) -> None:
    harness.channel.configure(type(harness.channel.settings)(max_hold_s=max_hold_s))
    harness.join(A, 10, heartbeat_ns=100_000 * S)
    harness.come(2)
    token = harness.send_one().token
    sent_ns = harness.now_ns
    for _ in range(200):
        harness.scan(30)
        if harness.channel.touch(A, token, harness.now_ns):
            break
    held_s = (harness.now_ns - sent_ns) / S
    assert held_s == 6_000 if end_s is None else end_s <= held_s < end_s + 30


def test_due_times_are_told_in_monotonic_time(harness: ChannelHarness) -> None:
    assert harness.channel.next_due(harness.now_ns, harness.wall_ns) == 0
    harness.join(A, 10, heartbeat_ns=1_000 * S)
    harness.come(2)
    harness.channel.req(A, harness.send_one().token, ALL, 7 * 1_000, harness.wall_ns)
    assert harness.channel.next_due(harness.now_ns, harness.wall_ns) == harness.now_ns + 7 * S


def test_a_lost_consumer_gives_its_messages_back_at_once(harness: ChannelHarness) -> None:
    harness.join(A, 10, heartbeat_ns=S)
    harness.join(B, 10)
    harness.come(3)
    harness.send()
    assert not harness.scan(2)
    due_ns = harness.channel.next_due(harness.now_ns, harness.wall_ns)
    assert harness.now_ns < due_ns <= harness.now_ns + S, "it is looked for once a second"
    assert harness.scan(0.001)
    assert list(harness.channel.consumers) == [B]
    harness.commit()
    assert harness.told(harness.send()) == [("b", ((0, 3, 2),))]


def test_a_consumer_that_leaves_returns_its_messages(harness: ChannelHarness) -> None:
    harness.join(A, 2)
    harness.come(4, 4)
    token = harness.send_one().token
    assert harness.channel.unsubscribe(A)
    assert not harness.channel.unsubscribe(A)
    harness.channel.rest()
    assert harness.channel.fin(A, token, ALL) == (UNKNOWN_DELIVERY,)
    assert (harness.channel.supply.window_bytes, harness.channel.supply.window_end) == (0, 2)
    assert harness.stats() == (8, 0, 0)
    harness.join(B, 10)
    harness.commit()
    assert harness.send() == []
    assert harness.channel.supply.wanted == {0}
    harness.channel.supply.shelve(harness.block_at(0, 4))
    assert harness.channel.supply.offer(harness.block_at(0, 4))
    assert harness.told(harness.send()) == [("b", ((0, 2, 2),)), ("b", ((2, 2, 1),))]


# Pause and empty


def test_a_paused_channel_sends_nothing_and_takes_answers(harness: ChannelHarness) -> None:
    harness.join(A, 4)
    harness.come(8)
    token = harness.send_one().token
    harness.channel.paused = True
    assert not harness.channel.is_wanted()
    assert not harness.channel.fin(A, token, [(0, 2)])
    harness.channel.req(A, token, ALL, 0, harness.wall_ns)
    harness.commit()
    assert harness.send() == []
    assert not harness.channel.waits_for_commit(), "no number is promised that nobody gets"
    harness.channel.paused = False
    harness.commit()
    assert harness.told(harness.send()) == [("a", ((2, 2, 2),)), ("a", ((4, 2, 1),))]


def test_seeking_clears_everything_also_what_is_being_committed(harness: ChannelHarness) -> None:
    harness.join(A, 9)
    harness.come(2, 2, 2, 6)
    waits, delayed, held, _ = harness.send()
    harness.channel.req(A, waits.token, ALL, 0, harness.wall_ns)
    harness.channel.req(A, delayed.token, ALL, 9 * 1_000, harness.wall_ns)
    assert sorted(row[0] for row in harness.channel.changes().holes_put) == [0, 2, 4, 6]
    harness.channel.seek(12)
    harness.channel.supply.committed()
    assert harness.stats() == (0, 0, 0)
    assert harness.channel.consumers[A].in_flight == 0
    assert harness.channel.fin(A, held.token, ALL) == (UNKNOWN_DELIVERY,)
    assert harness.send() == []
    changes = harness.commit()
    assert (changes.next_offset, changes.holes_put, sorted(changes.holes_gone)) == (
        12,
        (),
        [0, 4, 6],
    )
    assert changes.clear, "what is deferred on disk goes too"
    assert not harness.commit().clear


@pytest.mark.parametrize("offset", [0, 3, 5])
def test_seeking_back_delivers_again_from_there_and_once(
    harness: ChannelHarness, offset: int
) -> None:
    harness.join(A, 100)
    harness.come(4, 4)
    first, second = harness.send()
    harness.channel.req(A, first.token, [(1, 2)], 0, harness.wall_ns)
    harness.channel.req(A, first.token, [(3, 1)], 9 * 1_000, harness.wall_ns)
    harness.channel.seek(offset)
    assert harness.channel.fin(A, second.token, ALL) == (UNKNOWN_DELIVERY,)
    assert harness.channel.supply.window_end == offset
    assert harness.stats() == (8 - offset, 0, 0)
    assert harness.commit() == Changes(offset, (), (), clear=True)
    harness.scan(3_000)
    for first_offset in (0, 4):
        harness.channel.supply.offer(harness.block_at(first_offset, 4), from_storage=True)
    got = [(run[0], run[1], run[2]) for pending in harness.send() for run in pending.runs]
    assert got == (
        [(0, 4, 1), (4, 4, 1)]
        if offset == 0
        else [(3, 1, 1), (4, 4, 1)]
        if offset == 3
        else [(5, 3, 1)]
    )


def test_nothing_of_the_new_place_is_delivered_before_the_seek_is_committed(
    harness: ChannelHarness,
) -> None:
    """A crash before the commit undoes the seek, so no consumer may have received a message from
    the new position.
    """
    harness.join(A, 100)
    harness.come(4)
    held = harness.send_one()
    harness.channel.changes()  # begin a commit that does not contain the seek
    harness.channel.seek(0)
    harness.end = 0
    harness.come(4)
    assert harness.send() == []
    harness.channel.supply.committed()
    assert harness.send() == [], "that was the commit before"
    assert harness.channel.fin(A, held.token, ALL) == (UNKNOWN_DELIVERY,)
    harness.channel.changes()
    assert harness.send() == [], "it is on its way"
    harness.channel.seek(2)
    harness.channel.supply.committed()
    assert harness.send() == [], "the second seek is not committed"
    harness.end = 0
    harness.come(4)
    harness.commit()
    assert harness.told(harness.send()) == [("a", ((2, 2, 1),))]


# Commits


def test_a_commit_holds_only_what_changed_since_the_last_commit(harness: ChannelHarness) -> None:
    harness.join(A, 100)
    harness.come(10, 10)
    first, second = harness.send()
    assert harness.channel.supply.dirty
    assert harness.commit() == Changes(20, ((0, 10, 1, 0), (10, 10, 1, 0)), ())
    assert not harness.channel.supply.dirty
    assert harness.commit() == Changes(20, (), ())
    harness.channel.fin(A, first.token, [(0, 4)])
    harness.channel.fin(A, second.token, ALL)
    assert harness.channel.supply.dirty
    changes = harness.commit()
    assert (changes.holes_put, sorted(changes.holes_gone)) == (((4, 6, 1, 0),), [0, 10])


def test_rows_are_taken_up_after_a_crash(harness: ChannelHarness) -> None:
    harness = type(harness)(next_offset=20, holes=[(3, 2, 4, 0), (9, 1, 1, 5_010 * S)])
    harness.join(A, 100)
    assert harness.stats() == (2, 0, 1)
    assert harness.commit() == Changes(20, (), ())
    harness.channel.supply.shelve(harness.block_at(0, 10))
    assert harness.told(harness.send()) == [("a", ((3, 2, 5),))]
    harness.scan(10)
    harness.commit()
    assert harness.told(harness.send()) == [("a", ((9, 1, 2),))]


# Order


def test_returned_messages_are_delivered_in_the_order_of_their_offsets(
    harness: ChannelHarness,
) -> None:
    """The messages are requeued one by one in any order, or returned by a consumer that left."""
    harness.join(A, 10)
    harness.come(*[1] * 10)
    sent = harness.send()
    harness.channel.set_ready(A, 0)
    for number in (7, 2, 5):
        harness.channel.req(A, sent[number].token, ALL, 0, harness.wall_ns)
    harness.channel.unsubscribe(A)
    harness.join(B, 100)
    harness.commit()
    assert [run[0] for pending in harness.send() for run in pending.runs] == [*range(10)]


def test_a_message_that_always_fails_does_not_keep_others_waiting(harness: ChannelHarness) -> None:
    """The message has the lowest offset, but it goes behind those that were already waiting when it
    was returned.
    """
    harness.join(A, 1)
    harness.come(3)
    harness.channel.set_ready(A, 3)
    harness.channel.req(A, harness.send_one().token, ALL, 0, harness.wall_ns)
    harness.channel.set_ready(A, 1)
    seen = []
    for _ in range(6):
        harness.commit()
        pending = harness.send_one()
        seen.append(pending.runs[0][0])
        harness.channel.req(A, pending.token, ALL, 0, harness.wall_ns)
    assert seen == [0, 1, 2, 0, 1, 2]


def test_a_touch_never_shortens_a_lease_that_is_longer_than_the_longest_hold(
    harness: ChannelHarness,
) -> None:
    harness.join(A, 10, timeout_ns=3_600 * S)
    harness.come(1)
    token = harness.send_one().token
    sent_ns = harness.now_ns
    harness.scan(800)
    assert harness.channel.touch(A, token, harness.now_ns) == ()
    due_ns = harness.channel.next_due(harness.now_ns, harness.wall_ns)
    assert due_ns is not None
    assert due_ns >= sent_ns + 3_600 * S - S
