"""Tests of the ordering with messages that the topic has already: what is answered and kept."""

from __future__ import annotations

import pytest
from support.ordering import ID, NOW, A, B, S, block

from zsq.actors.settings import options
from zsq.actors.storage.sifting import Left, Repeats
from zsq.actors.topic.ordering import Ordering, Reply
from zsq.transport.block.block import Block, pick
from zsq.transport.wire.protocol import Delayed, Duplicates, Stored

OTHER = ID + 1


def greeted(repeats: Repeats = ()) -> Ordering:
    ordering = Ordering({}, repeats=lambda block, place: repeats)
    ordering.hello(A, ID, S, NOW)
    ordering.hello(B, OTHER, S, NOW)
    return ordering


def with_ids(sequence: int, count: int = 1, producer_id: int = ID) -> Block:
    made = block(sequence, count=count, producer_id=producer_id)
    made.ids = (b"i" * 16,) * count
    return made


def test_what_is_left_is_placed_and_the_rest_is_answered() -> None:
    ordering = greeted()
    whole, some, none = block(0, count=2), with_ids(1, 3), with_ids(2)
    for one in (whole, some, none):
        assert ordering.publish(A, one, NOW) == []
    handed = ordering.next_append()
    assert handed is not None
    rest = pick(some, [0, 2])
    ordering.repeated(handed[0], {1: Left(rest, ((1, 7),)), 2: Left(None, ((0, 8),))})
    replies, placed = ordering.appended(handed[0], 100)
    assert placed == [(whole, 100), (rest, 102)]
    assert replies == [
        Reply(A, Stored(((0, 100),))),
        Reply(A, Duplicates(1, 102, -1, -1, ((1, 7),))),
        Reply(A, Duplicates(2, -1, -1, -1, ((0, 8),))),
    ]
    assert ordering.idle()
    assert ordering.publishers(NOW)[0]["unanswered_bytes"] == 0


def test_a_repeated_block_is_answered_like_the_first_time() -> None:
    ordering = greeted(((0, 8),))
    sent = with_ids(0)
    ordering.publish(A, sent, NOW)
    handed = ordering.next_append()
    assert handed is not None
    ordering.repeated(handed[0], {0: Left(None, ((0, 8),))})
    first, _ = ordering.appended(handed[0], 100)
    assert ordering.publish(A, sent, NOW) == first


def test_delayed_blocks_that_are_left_get_the_keys() -> None:
    ordering = greeted()
    for sequence in range(3):
        ordering.publish(A, with_ids(sequence), NOW, 9)
    handed = ordering.next_delayed()
    assert handed is not None
    ordering.repeated(handed[0], {1: Left(None, ((0, -1),))})
    assert ordering.kept(handed[0], [(50, 1), (50, 2)]) == [
        Reply(A, Delayed(0, 50, 1)),
        Reply(A, Duplicates(1, -1, -1, -1, ((0, -1),))),
        Reply(A, Delayed(2, 50, 2)),
    ]


def test_an_append_with_ids_waits_for_delayed_blocks_with_ids() -> None:
    """They may have the same ids, and it is not known yet whether they are stored."""
    ordering = greeted()
    ordering.publish(A, with_ids(0), NOW, 9)
    handed = ordering.next_delayed()
    assert handed is not None
    ordering.publish(B, with_ids(0, producer_id=OTHER), NOW)
    assert ordering.next_append() is None
    ordering.kept(handed[0], [(50, 1)])
    assert ordering.next_append() is not None


def test_an_append_without_ids_waits_for_nothing() -> None:
    ordering = greeted()
    ordering.publish(A, with_ids(0), NOW, 9)
    assert ordering.next_delayed() is not None
    ordering.publish(B, block(0, producer_id=OTHER), NOW)
    assert ordering.next_append() is not None


def test_one_append_looks_up_a_bounded_number_of_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks without ids are not counted, and a block with more ids goes alone."""
    monkeypatch.setattr("zsq.actors.topic.ordering.IDS_AN_APPEND", 5)
    monkeypatch.setattr(options, "APPEND_BYTES_LITTLE", 0)
    ordering = greeted()
    blocks = [block(0, count=9), with_ids(1, 3), with_ids(2, 2), with_ids(3, 9), block(4, count=9)]
    for one in blocks:
        ordering.publish(A, one, NOW)
    appends = []
    while (handed := ordering.next_append()) is not None:
        appends.append(handed[1])
    assert appends == [blocks[:3], blocks[3:4], blocks[4:]]
