"""Tests that the broker's work is per block: a block of 10,000 messages takes as many calls as a
block of 10.

The tests count all calls of Python and C functions that Python code makes on a block's way through
topic and channel. Measuring time would show less, because the noise of a fast machine hides the
cost of a loop over messages.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from zsq.actors.channel.core import ChannelCore
from zsq.actors.channel.lease import Subscriber
from zsq.actors.topic.fanout import Fanout
from zsq.actors.topic.ordering import Ordering
from zsq.transport.block.block import PIECE_BYTES, Block, check_block, pack
from zsq.transport.wire import protocol as p
from zsq.transport.wire.codec import block_frames, decode, encode, frames_blocks

A = (b"a",)
CALLS_A_PIECE = 5  # for the checksum of one piece
ID = 77


def calls(work: Callable[[], object]) -> int:
    count = 0

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def plain(count: int) -> Block:
    return pack([b"x" * 20] * count, producer_id=ID)


def full(count: int) -> Block:
    """Return a block with every column, with nulls and times. A column that is longer than the
    limit for a single value is checked in more detail, so the columns are longer than that limit in
    both sizes of block.
    """
    keys = [None, b"y" * 100] * (count // 2)
    headers = [None, b"z"] * (count // 2)
    return pack(
        [b"x" * 20] * count,
        keys=keys,
        tags=keys,
        headers=headers,
        times=range(count),
        producer_id=ID,
    )


def through_topic_and_channel(block: Block) -> Callable[[], None]:
    """Return a function that does all work of the actors for one block. Two consumers share the
    block. One finishes its half at once, and the other finishes a part and leaves.
    """
    half = block.count // 2
    ordering = Ordering({})
    ordering.hello(A, ID, 1, 0)
    fanout = Fanout(0)
    fanout.attach(A, 0, 1 << 40)
    channel = ChannelCore(1, 0, (), {}, paused=False)
    for peer in (A, (b"b",)):
        channel.subscribe(Subscriber(peer, "", half, 60, 60, 0, 0))
    frames = block_frames([block])
    pub = encode(p.Pub())

    def work() -> None:
        assert isinstance(decode(pub), p.Pub)
        (came,) = frames_blocks(frames)
        check_block(came)
        assert ordering.publish(A, came, 0) == []
        handed = ordering.next_append()
        assert handed is not None
        replies, placed = ordering.appended(handed[0], 0)
        for _, message in replies:
            encode(message)
        for stored, offset in placed:
            fanout.add(stored, offset, 0)
        for _, offered in fanout.offers():
            for one in frames_blocks(block_frames(offered)):
                channel.supply.offer(one)
        fanout.trim()
        while (pending := channel.next_delivery(0, 0)) is not None:
            encode(p.Deliver(pending.token, pending.runs, 60))
            block_frames([pending.block])
            ranges = () if pending.peer == A else ((half, 1), (half + 2, 2))
            fin = decode(encode(p.Fin(0, pending.token, ranges)))
            assert isinstance(fin, p.Fin)
            channel.fin(pending.peer, fin.token, fin.ranges)
        channel.unsubscribe((b"b",))
        channel.changes()
        channel.supply.committed()
        assert channel.counters["finish_count"] == half + 3
        channel.statistics(block.count)

    return work


@pytest.mark.parametrize("make", [plain, full])
def test_ten_thousand_messages_take_as_many_calls_as_ten(make: Callable[[int], Block]) -> None:
    calls(through_topic_and_channel(make(10)))  # work that is done once in a process is done here
    # Take the lowest of three counts, because objects that other tests left may be finalized in
    # between.
    few = min(calls(through_topic_and_channel(make(10))) for _ in range(3))
    many = min(calls(through_topic_and_channel(make(10_000))) for _ in range(3))
    pieces = len(make(10_000).columns) // PIECE_BYTES
    assert 0 <= many - few <= CALLS_A_PIECE * pieces < 1_000, (
        "calls grow with bytes to check, not with messages"
    )
    assert few < 1_000, "and they are not many"


def test_the_count_can_fail() -> None:
    """`Column.value` takes each message apart, so a loop over it needs many calls. This shows that
    the count notices such a loop. The broker must not use `value` in this way.
    """
    assert calls(lambda: plain(10_000).body.values()) < 100, "in C, however"
    block = plain(10_000)
    assert calls(lambda: [block.body.value(i) for i in range(block.count)]) > 10_000
