"""Tests of a producer's plain and delayed blocks when storage has as many appends as it may have:
no block overtakes an earlier one of the other kind.
"""

from __future__ import annotations

import pytest

from zsq.actors.settings import options
from zsq.actors.topic.ordering import Ordering
from zsq.transport.block.block import Block, pack
from zsq.transport.wire.protocol import Delayed, Stored

S = 1_000_000_000
MINE, OTHER = (b"mine",), (b"other",)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each append start as soon as a block is ready, so that several appends are in
    progress.
    """
    monkeypatch.setattr(options, "APPEND_BYTES_LITTLE", 0)


def block(producer_id: int, sequence: int) -> Block:
    return pack([b"x"], producer_id=producer_id, sequence=sequence)


def crowded() -> Ordering:
    """Return an `Ordering` in which another producer's appends use the whole limit."""
    ordering = Ordering({})
    ordering.hello(MINE, 1, 30 * S, S)
    ordering.hello(OTHER, 2, 30 * S, S)
    for sequence in range(options.APPENDS_OUT_MAX):
        assert ordering.publish(OTHER, block(2, sequence), S) == []
        assert ordering.next_append() is not None
    return ordering


def test_a_delayed_block_waits_for_an_earlier_plain_block_in_the_queue() -> None:
    """If block 1 were stored first, and block 0 were then lost in a crash, a repeat of block 0
    would be taken for a block that is already stored.
    """
    ordering = crowded()
    ordering.publish(MINE, block(1, 0), S)
    ordering.publish(MINE, block(1, 1), S, 9)
    assert ordering.next_append() is None
    assert ordering.next_delayed() is None
    ordering.appended(1, 0)
    handed = ordering.next_append()
    assert handed is not None
    delayed = ordering.next_delayed()
    assert delayed is not None, "behind it now"
    assert ordering.appended(handed[0], 8)[0] == [(MINE, Stored(((0, 8),)))]
    assert ordering.kept(delayed[0], [(7, 3)]) == [(MINE, Delayed(1, 7, 3))]


def test_delayed_blocks_of_other_producers_do_not_wait() -> None:
    ordering = crowded()
    ordering.publish(MINE, block(1, 0), S)
    ordering.hello((b"third",), 3, 30 * S, S)
    ordering.publish((b"third",), block(3, 0), S, 9)
    found = ordering.next_delayed()
    assert found is not None
    assert [one.header.producer_id for one in found[1]] == [3]
