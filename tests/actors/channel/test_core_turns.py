"""Tests of fairness between the consumers of a channel. Fairness counts messages, whatever the size
of the blocks. A consumer that stops or has little credit does not slow down the others.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from zsq.actors.channel.core import ChannelCore
from zsq.actors.channel.lease import OutgoingDelivery, Subscriber
from zsq.actors.channel.turns import Turns

if TYPE_CHECKING:
    from tests.actors.conftest import ChannelHarness

ALL: tuple[tuple[int, int], ...] = ()
EIGHT = [(b"%d" % number,) for number in range(8)]
MESSAGES = 100_000


def shares(channel: ChannelCore) -> list[float]:
    counts = [consumer.message_count for consumer in channel.consumers.values()]
    return [count / sum(counts) for count in counts]


def flow(harness: ChannelHarness, block: int, messages: int = MESSAGES) -> int:
    """Offer enough blocks for the next deliveries, up to `messages` messages in all. Return the
    number of messages that were offered so far.
    """
    while (
        harness.end < messages
        and harness.channel.supply.window_end - harness.channel.supply.next_offset < 20_000
    ):
        harness.come(block)
    return harness.end


def finish(harness: ChannelHarness, pending: OutgoingDelivery) -> None:
    harness.channel.fin(pending.peer, pending.token, ALL)


@pytest.mark.parametrize("credit", [1, 10, 300, 2_500])
@pytest.mark.parametrize("block", [1, 100, 777, 1_000, 10_000])
def test_equal_credit_and_speed_get_equal_shares(
    harness: ChannelHarness, credit: int, block: int
) -> None:
    """The consumers work as fast as the broker can deliver: each delivery is answered at once, and
    every consumer always has room. If consumers simply took turns, one of them would get 15% of the
    messages and another one 5%, because a block of 1,000 is delivered as 3 parts of 300 and 1 part
    of 100.
    """
    messages = MESSAGES if min(credit, block) >= 300 else 8_000
    for peer in EIGHT:
        harness.join(peer, credit)
    while harness.channel.supply.next_offset < messages:
        flow(harness, block, messages)
        pending = harness.channel.next_delivery(harness.now_ns, harness.wall_ns)
        assert pending is not None
        finish(harness, pending)
    for share in shares(harness.channel):
        assert 0.125 * 0.8 < share < 0.125 * 1.2


@pytest.mark.parametrize("credit", [100, 2_500])
def test_consumers_that_take_their_time_get_equal_shares(
    harness: ChannelHarness, credit: int
) -> None:
    """Each consumer finishes 10 messages per round, and gets new ones before it runs out of
    messages.
    """
    held: dict[tuple[bytes, ...], list[OutgoingDelivery]] = {peer: [] for peer in EIGHT}
    finished: Counter[tuple[bytes, ...]] = Counter()
    for peer in EIGHT:
        harness.join(peer, credit)
    for _ in range(MESSAGES // 80):
        flow(harness, 640)
        for pending in harness.send():
            held[pending.peer].append(pending)
        for peer in EIGHT:
            work(harness, held[peer], 10, finished)
    for peer in EIGHT:
        assert 0.125 * 0.8 < finished[peer] / finished.total() < 0.125 * 1.2
    assert finished.total() > 0.95 * MESSAGES, "nobody waited for work"


def work(
    harness: ChannelHarness,
    pending_blocks: list[OutgoingDelivery],
    count: int,
    finished: Counter[tuple[bytes, ...]],
) -> None:
    """Finish the first `count` messages of what a consumer holds."""
    while pending_blocks and count:
        pending = pending_blocks[0]
        ((start, size, attempts),) = pending.runs
        done = min(size, count)
        assert not harness.channel.fin(pending.peer, pending.token, [(start, done)])
        finished[pending.peer] += done
        count -= done
        if done == size:
            pending_blocks.pop(0)
        else:
            pending_blocks[0] = pending._replace(runs=((start + done, size - done, attempts),))


def test_a_consumer_that_stops_costs_the_others_only_what_it_holds(harness: ChannelHarness) -> None:
    for peer in EIGHT:
        harness.join(peer, 100)
    stopped = EIGHT[3]
    while harness.channel.supply.next_offset < MESSAGES:
        flow(harness, 1_000)
        for pending in harness.send():
            if pending.peer != stopped:
                finish(harness, pending)
    counts = [
        consumer.message_count
        for peer, consumer in harness.channel.consumers.items()
        if peer != stopped
    ]
    assert harness.channel.consumers[stopped].message_count == 100
    assert sum(counts) == MESSAGES - 100
    assert max(counts) < 1.2 * min(counts)


def test_consumers_with_little_and_much_credit_do_not_delay_each_other(
    harness: ChannelHarness,
) -> None:
    """A consumer with much credit and one with little credit take part. Neither waits for the
    other.
    """
    large, small = (b"large",), (b"small",)
    harness.join(large, 2_500)
    harness.join(small, 10)
    held: list[OutgoingDelivery] = []
    while harness.channel.supply.next_offset < MESSAGES - 5_000:
        flow(harness, 1_000)
        held += harness.send()
        consumers = harness.channel.consumers
        assert (consumers[small].in_flight, consumers[large].in_flight) == (10, 2_500)
        for pending in held:
            finish(harness, pending)
        held.clear()
    counts = {peer: consumer.message_count for peer, consumer in harness.channel.consumers.items()}
    assert counts[small] * 250 == counts[large]


def test_little_credit_waits_for_one_delivery_at_most(harness: ChannelHarness) -> None:
    large, small = (b"large",), (b"small",)
    harness.join(large, 2_500)
    harness.join(small, 10)
    waited = 0
    for _ in range(2_000):
        flow(harness, 500, 10**9)
        had_room = harness.channel.consumers[small].in_flight == 0
        pending = harness.channel.next_delivery(harness.now_ns, harness.wall_ns)
        assert pending is not None
        waited = waited + 1 if had_room and pending.peer != small else 0
        assert waited <= 1
        finish(harness, pending)


def test_a_trickle_of_messages_is_shared_evenly_among_consumers(harness: ChannelHarness) -> None:
    """Messages that arrive one by one do not all go to one consumer, however much credit it has."""
    for peer in EIGHT:
        harness.join(peer, 2_500)
    for _ in range(80):
        harness.come(1)
        harness.send_one()
    assert {consumer.in_flight for consumer in harness.channel.consumers.values()} == {10}


def test_a_newcomer_gets_its_part_and_no_arrears(harness: ChannelHarness) -> None:
    first, late = EIGHT[:2]
    harness.join(first, 100)
    for _ in range(50):
        harness.come(100)
        finish(harness, harness.send_one())
    harness.join(late, 100)
    for _ in range(50):
        harness.come(100)
        finish(harness, harness.send_one())
    assert 24 <= harness.channel.consumers[late].message_count / 100 <= 26


def test_a_consumer_without_room_gets_no_extra_turns_later(harness: ChannelHarness) -> None:
    busy, other = EIGHT[:2]
    harness.join(busy, 1)
    harness.join(other, 100)
    harness.come(1)
    kept = harness.send_one()
    assert kept.peer == busy
    for _ in range(50):
        harness.come(100)
        finish(harness, harness.send_one())
    harness.channel.set_ready(busy, 101)
    for _ in range(50):
        harness.come(100)
        finish(harness, harness.send_one())
    assert 24 <= (harness.channel.consumers[busy].message_count - 1) / 100 <= 26


def consumer(name: bytes, ready: int = 1) -> Subscriber:
    return Subscriber((name,), "", ready, 1, 1, 0, 0)


def test_a_consumer_that_leaves_loses_its_turn() -> None:
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


def test_the_room_of_a_consumer_is_checked_at_its_turn(harness: ChannelHarness) -> None:
    """The credit of a consumer may have become 0 since its turn was planned."""
    first, second = EIGHT[:2]
    harness.join(first, 10)
    harness.join(second, 10)
    harness.channel.set_ready(first, 0)
    harness.come(4)
    assert harness.send_one().peer == second
    harness.channel.set_ready(first, 10)
    harness.come(4)
    assert harness.send_one().peer == first
