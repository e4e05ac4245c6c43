"""Tests of messages that a consumer holds, and that its channel ends."""

from __future__ import annotations

import pytest

from zsq.transport.block.block import pack
from zsq.transport.client.core.consumer_session import ConsumerSession, LeasedBlock
from zsq.transport.client.core.held_endings import cancelled_in
from zsq.transport.wire.codec import pack_headers
from zsq.transport.wire.protocol import Cancelled, Deliver


def held(*keys: str) -> LeasedBlock:
    """Return a delivery with these revoke keys, at the offsets 5, 6 and from 9 on."""
    headers = [pack_headers({"zsq-revoke-key": key}) for key in keys]
    block = pack([b"x"] * len(keys), headers=headers)
    runs = ((5, 2, 1), (9, len(keys) - 2, 1))
    return LeasedBlock(ConsumerSession(10), Deliver(1, runs, 1_000), block, 0, 0)


@pytest.mark.parametrize(
    ("word", "indexes"),
    [
        (Cancelled(((6, 4),), (), 0), [1, 2]),
        (Cancelled(((0, 5),), (), 0), []),
        (Cancelled((), ("a",), 100), [0, 2, 3]),
        (Cancelled((), ("a", "b"), 9), [0, 1]),
        (Cancelled((), ("c",), 100), []),
    ],
)
def test_the_word_of_the_channel_is_about_offsets_or_keys(
    word: Cancelled, indexes: list[int]
) -> None:
    assert cancelled_in(held("a", "b", "a", "a"), word) == indexes


def test_what_is_dropped_as_a_whole_is_skipped_message_by_message() -> None:
    """The program has them in its hands already, in the order of the block."""
    delivery = held("a", "a", "a")
    delivery.session.drop(delivery, [0, 1, 2], finished=True)
    assert delivery.closed
    assert delivery.answered == {0, 1, 2}
    assert not delivery.session.words, "the channel needs no answer"
