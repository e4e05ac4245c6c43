"""Tests of a topic that is closed to publishers: new blocks are refused, and blocks that were
accepted before are answered as usual.
"""

from __future__ import annotations

import pytest

from zsq.actors.settings import options
from zsq.actors.topic.ordering import Ordering
from zsq.transport.block.block import Block, Header, pack
from zsq.transport.wire.protocol import Delayed, Stored, Unstored

PEER = (b"a",)
PRODUCER = 7
HOUR_NS = 3_600_000_000_000


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each append start as soon as a block is ready, so that several appends are in
    progress.
    """
    monkeypatch.setattr(options, "APPEND_BYTES_LITTLE", 0)


def block(sequence: int) -> Block:
    one = pack([b"x"])
    h = one.header
    return Block(
        Header(h.columns, h.flags, h.length, h.count, 0, 0, PRODUCER, sequence, h.columns_crc),
        one.columns,
    )


def closed_after(stored: int, pending: int) -> Ordering:
    """Return the `Ordering` of a closed topic. `stored` blocks were stored before the close, and
    `pending` more were accepted but not answered.
    """
    ordering = Ordering({})
    assert ordering.hello(PEER, PRODUCER, HOUR_NS, 0) is not None
    for sequence in range(stored + pending):
        assert ordering.publish(PEER, block(sequence), 0) == []
        append = ordering.next_append()
        assert append is not None
        if sequence < stored:
            ordering.appended(append[0], sequence)
    ordering.closed = True
    return ordering


@pytest.mark.parametrize("delay_ms", [0, 1_000])
def test_new_plain_and_delayed_blocks_are_refused(delay_ms: int) -> None:
    ordering = closed_after(1, 0)
    ((peer, message),) = ordering.publish(PEER, block(1), 0, delay_ms)
    assert (peer, type(message)) == (PEER, Unstored)
    assert isinstance(message, Unstored)
    assert (message.sequence, message.expected, message.code) == (1, 1, "E_CLOSED")
    assert ordering.next_append() is None
    assert ordering.next_delayed() is None
    assert ordering.idle()


def test_a_new_producer_is_refused_and_not_remembered() -> None:
    ordering = closed_after(0, 0)
    (reply,) = ordering.publish(PEER, block(0), 0)
    assert isinstance(reply.message, Unstored)
    assert reply.message.code == "E_CLOSED"
    ordering.closed = False
    assert ordering.publish(PEER, block(0), 0) == [], (
        "the same number is taken once it is open again"
    )


def test_a_repeated_block_that_is_stored_is_answered_like_before() -> None:
    ordering = closed_after(2, 0)
    assert ordering.publish(PEER, block(0), 0) == [(PEER, Stored(((0, 0),)))]
    assert [type(reply.message) for reply in ordering.publish(PEER, block(1), 0, 5)] == [Delayed]


def test_blocks_accepted_before_the_close_are_stored_and_answered() -> None:
    ordering = closed_after(0, 2)
    assert not ordering.idle()
    assert ordering.publish(PEER, block(1), 0) == [], "it is pending, and waits for its first"
    replies, placed = ordering.appended(1, 0)
    assert [reply.message for reply in replies] == [Stored(((0, 0),))]
    replies, placed = ordering.appended(2, 1)
    assert [reply.message for reply in replies] == [Stored(((1, 1),))]
    assert len(placed) == 1
    assert ordering.idle()


def test_a_gap_in_the_sequences_is_still_reported_as_a_gap() -> None:
    (reply,) = closed_after(1, 0).publish(PEER, block(5), 0)
    assert isinstance(reply.message, Unstored)
    assert (reply.message.code, reply.message.expected) == ("E_SEQUENCE", 1)
