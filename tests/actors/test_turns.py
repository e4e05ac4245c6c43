"""Fairness between a channel's consumers: by messages, whatever the blocks; who stops, or has little credit, costs nobody else anything."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from zsq.actors.delivery import Delivery
from zsq.actors.lease import Consumer, Parcel
from zsq.actors.turns import Turns

if TYPE_CHECKING:
    from tests.actors.conftest import Desk

ALL: tuple[tuple[int, int], ...] = ()
EIGHT = [(b"%d" % number,) for number in range(8)]
MESSAGES = 100_000


def shares(channel: Delivery) -> list[float]:
    counts = [consumer.message_count for consumer in channel.consumers.values()]
    return [count / sum(counts) for count in counts]


def flow(desk: Desk, block: int, messages: int = MESSAGES) -> int:
    """Enough blocks for the next deliveries, of so many messages in all; how many came so far."""
    while desk.end < messages and desk.channel.supply.window_end - desk.channel.supply.next_offset < 20_000:
        desk.come(block)
    return desk.end


def finish(desk: Desk, parcel: Parcel) -> None:
    desk.channel.fin(parcel.peer, parcel.token, ALL)


@pytest.mark.parametrize("credit", [1, 10, 300, 2_500])
@pytest.mark.parametrize("block", [1, 100, 777, 1_000, 10_000])
def test_equal_credit_and_speed_get_equal_shares(desk: Desk, credit: int, block: int) -> None:
    """As fast as the broker can: each delivery is answered at once, and everybody always has room. (With a delivery each in turn, one would
    get 15% here and another one 5%: blocks of 1,000 are 3 times 300 and 1 time 100.)"""
    messages = MESSAGES if min(credit, block) >= 300 else 8_000
    for peer in EIGHT:
        desk.join(peer, credit)
    while desk.channel.supply.next_offset < messages:
        flow(desk, block, messages)
        parcel = desk.channel.next_parcel(desk.now_ns, desk.wall_ns)
        assert parcel is not None
        finish(desk, parcel)
    for share in shares(desk.channel):
        assert 0.125 * 0.8 < share < 0.125 * 1.2


@pytest.mark.parametrize("credit", [100, 2_500])
def test_consumers_that_take_their_time_get_equal_shares(desk: Desk, credit: int) -> None:
    """Each finishes 10 messages a tick, and has new ones before it runs dry."""
    held: dict[tuple[bytes, ...], list[Parcel]] = {peer: [] for peer in EIGHT}
    finished: Counter[tuple[bytes, ...]] = Counter()
    for peer in EIGHT:
        desk.join(peer, credit)
    for _ in range(MESSAGES // 80):
        flow(desk, 640)
        for parcel in desk.send():
            held[parcel.peer].append(parcel)
        for peer in EIGHT:
            work(desk, held[peer], 10, finished)
    for peer in EIGHT:
        assert 0.125 * 0.8 < finished[peer] / finished.total() < 0.125 * 1.2
    assert finished.total() > 0.95 * MESSAGES, "nobody waited for work"


def work(desk: Desk, parcels: list[Parcel], count: int, finished: Counter[tuple[bytes, ...]]) -> None:
    """Finish the first `count` messages of what a consumer holds."""
    while parcels and count:
        parcel = parcels[0]
        ((start, size, attempts),) = parcel.runs
        done = min(size, count)
        assert not desk.channel.fin(parcel.peer, parcel.token, [(start, done)])
        finished[parcel.peer] += done
        count -= done
        if done == size:
            parcels.pop(0)
        else:
            parcels[0] = parcel._replace(runs=((start + done, size - done, attempts),))


def test_one_that_stops_costs_the_others_what_it_holds_and_no_more(desk: Desk) -> None:
    for peer in EIGHT:
        desk.join(peer, 100)
    stopped = EIGHT[3]
    while desk.channel.supply.next_offset < MESSAGES:
        flow(desk, 1_000)
        for parcel in desk.send():
            if parcel.peer != stopped:
                finish(desk, parcel)
    counts = [consumer.message_count for peer, consumer in desk.channel.consumers.items() if peer != stopped]
    assert desk.channel.consumers[stopped].message_count == 100
    assert sum(counts) == MESSAGES - 100
    assert max(counts) < 1.2 * min(counts)


def test_little_credit_is_served_whenever_it_has_room(desk: Desk) -> None:
    """And much credit too: neither waits for the other."""
    large, small = (b"large",), (b"small",)
    desk.join(large, 2_500)
    desk.join(small, 10)
    held: list[Parcel] = []
    while desk.channel.supply.next_offset < MESSAGES - 5_000:
        flow(desk, 1_000)
        held += desk.send()
        consumers = desk.channel.consumers
        assert (consumers[small].in_flight, consumers[large].in_flight) == (10, 2_500)
        for parcel in held:
            finish(desk, parcel)
        held.clear()
    counts = {peer: consumer.message_count for peer, consumer in desk.channel.consumers.items()}
    assert counts[small] * 250 == counts[large]


def test_little_credit_waits_for_one_delivery_at_most(desk: Desk) -> None:
    large, small = (b"large",), (b"small",)
    desk.join(large, 2_500)
    desk.join(small, 10)
    waited = 0
    for _ in range(2_000):
        flow(desk, 500, 10**9)
        had_room = desk.channel.consumers[small].in_flight == 0
        parcel = desk.channel.next_parcel(desk.now_ns, desk.wall_ns)
        assert parcel is not None
        waited = waited + 1 if had_room and parcel.peer != small else 0
        assert waited <= 1
        finish(desk, parcel)


def test_few_messages_go_round(desk: Desk) -> None:
    """What trickles in does not gather with one of them, however much credit that has."""
    for peer in EIGHT:
        desk.join(peer, 2_500)
    for _ in range(80):
        desk.come(1)
        desk.send_one()
    assert {consumer.in_flight for consumer in desk.channel.consumers.values()} == {10}


def test_a_newcomer_gets_its_part_and_no_arrears(desk: Desk) -> None:
    first, late = EIGHT[:2]
    desk.join(first, 100)
    for _ in range(50):
        desk.come(100)
        finish(desk, desk.send_one())
    desk.join(late, 100)
    for _ in range(50):
        desk.come(100)
        finish(desk, desk.send_one())
    assert 24 <= desk.channel.consumers[late].message_count / 100 <= 26


def test_who_had_no_room_for_long_has_no_arrears_either(desk: Desk) -> None:
    busy, other = EIGHT[:2]
    desk.join(busy, 1)
    desk.join(other, 100)
    desk.come(1)
    kept = desk.send_one()
    assert kept.peer == busy
    for _ in range(50):
        desk.come(100)
        finish(desk, desk.send_one())
    desk.channel.set_ready(busy, 101)
    for _ in range(50):
        desk.come(100)
        finish(desk, desk.send_one())
    assert 24 <= (desk.channel.consumers[busy].message_count - 1) / 100 <= 26


def consumer(name: bytes, ready: int = 1) -> Consumer:
    return Consumer((name,), "", ready, 1, 1, 0, 0)


def test_who_leaves_is_out_of_the_line_wherever_it_stood() -> None:
    turns = Turns()
    a, b, c = consumer(b"a"), consumer(b"b"), consumer(b"c", ready=0)
    for one in (a, b, c):
        turns.join(one)
    assert turns.first() is a
    turns.leave(a)
    assert turns.first() is b
    turns.leave(c)
    c.ready = 1
    turns.look(c)
    assert turns.first() is b, "one that left does not come back by having room"
    turns.leave(b)
    assert turns.first() is None


def test_room_is_asked_when_it_is_ones_turn(desk: Desk) -> None:
    """Its credit may have been taken back meanwhile."""
    first, second = EIGHT[:2]
    desk.join(first, 10)
    desk.join(second, 10)
    desk.channel.set_ready(first, 0)
    desk.come(4)
    assert desk.send_one().peer == second
    desk.channel.set_ready(first, 10)
    desk.come(4)
    assert desk.send_one().peer == first
