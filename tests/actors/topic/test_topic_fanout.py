"""Tests of the topic's ring of blocks, and of each channel's position in it."""

from __future__ import annotations

import pytest

from zsq.actors.settings import options
from zsq.actors.topic.fanout import Fanout
from zsq.transport.block.block import pack
from zsq.transport.wire.protocol import RUN_BYTES_MAX

A, B = (b"a",), (b"b",)
PLENTY = 1 << 40
SMALL = pack([b"x"] * 10)


def add(fanout: Fanout, *, blocks: int = 1, size: int = 1) -> None:
    for _ in range(blocks):
        fanout.add(pack([b"x" * size] * 10), fanout.head, 1)


def sent(fanout: Fanout) -> list[tuple[str, list[int]]]:
    """Return (channel, first offsets of its blocks). An empty list means that the channel is told
    that it is behind.
    """
    return [
        (peer[0].decode(), [block.first_offset for block in blocks])
        for peer, blocks in fanout.offers()
    ]


@pytest.mark.parametrize(
    ("start", "attached", "offers"),
    [
        (40, True, []),
        (30, True, [30]),
        (35, True, [30]),
        (10, True, [10, 20, 30]),
        (9, False, None),
        (-1, True, []),
    ],
)
def test_a_channel_attaches_at_its_own_offset_if_the_ring_has_it(
    start: int, attached: bool, offers: list[int] | None
) -> None:
    fanout = Fanout(10)
    add(fanout, blocks=3)
    assert fanout.attach(A, start, PLENTY) is attached
    assert sent(fanout) == ([("a", offers)] if offers else [])
    assert sent(fanout) == []
    add(fanout)
    assert sent(fanout) == ([("a", [40])] if start >= 0 and attached else [])


def test_credit_is_exceeded_by_at_most_one_block() -> None:
    fanout = Fanout(0)
    add(fanout, blocks=5)
    assert fanout.attach(A, 0, SMALL.length + 1)
    assert sent(fanout) == [("a", [0, 10])]
    assert fanout.credit(A, SMALL.length)  # an older message that arrives late
    assert sent(fanout) == []
    assert fanout.credit(A, 2 * SMALL.length + 1)
    assert sent(fanout) == [("a", [20])]


def test_the_bytes_of_one_offer_are_bounded() -> None:
    fanout = Fanout(0)
    add(fanout, blocks=5, size=RUN_BYTES_MAX // 25)
    add(fanout, size=RUN_BYTES_MAX)
    add(fanout)
    assert fanout.attach(A, 0, PLENTY)
    assert sent(fanout) == [("a", [0, 10]), ("a", [20, 30]), ("a", [40]), ("a", [50]), ("a", [60])]


def test_a_slow_channel_is_told_once_it_is_behind_and_the_ring_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(options, "RING_BYTES_MAX", 3 * SMALL.length)
    fanout = Fanout(0)
    assert fanout.attach(A, 0, 1)
    assert fanout.attach(B, 0, PLENTY)
    add(fanout)
    assert sent(fanout) == [("a", [0]), ("b", [0])]
    for turn in range(1, 8):
        add(fanout)
        assert sent(fanout) == [("b", [turn * 10])]
        fanout.trim()
        assert (
            fanout._ring_bytes
            == sum(block.length for block in fanout._ring)
            <= options.RING_BYTES_MAX
        )
    assert fanout.credit(A, PLENTY)
    assert sent(fanout) == [("a", [])]
    assert sent(fanout) == []


def test_the_ring_is_emptied_while_no_channel_is_attached() -> None:
    fanout = Fanout(0)
    assert fanout.attach(A, 0, PLENTY)
    add(fanout)
    fanout.trim()
    assert len(fanout._ring) == 1
    assert fanout.attach(A, -1, 0)
    fanout.trim()
    assert len(fanout._ring) == 0
    assert fanout.places() == [A], "it is still told the head"
    assert not fanout.attach(A, 0, PLENTY)


def test_a_paused_topic_offers_only_messages_from_before_the_pause() -> None:
    fanout = Fanout(0)
    assert fanout.attach(A, 0, PLENTY)
    add(fanout)
    fanout.visible_end = 10
    add(fanout)
    assert fanout.end == 10
    assert sent(fanout) == [("a", [0])]
    fanout.visible_end = -1
    assert sent(fanout) == [("a", [10])]


def test_a_channel_at_the_end_of_a_paused_topic_waits_there() -> None:
    """The blocks behind that end have left the ring. If the channel were told to read them from
    storage, it would read nothing, again and again.
    """
    fanout = Fanout(0)
    add(fanout)
    fanout.visible_end = 10
    add(fanout)
    fanout.trim()
    assert fanout.attach(A, 10, PLENTY)
    assert sent(fanout) == []
    add(fanout)
    assert sent(fanout) == []
    fanout.visible_end = -1
    assert sent(fanout) == [("a", [])]


def test_a_detached_channel_that_grants_credit_is_told_that_it_is_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The channel cannot know that it was detached, because it received no message. The blocks that
    it received before still count against the credit that it grants.
    """
    monkeypatch.setattr(options, "WINDOW_BYTES_MAX", SMALL.length)
    fanout = Fanout(0)
    assert fanout.attach(A, 0, 9 * SMALL.length)
    add(fanout, blocks=3)
    fanout.offers()
    fanout.detach(A)
    assert not fanout.credit(A, 10 * SMALL.length)
    assert fanout.attach(A, -1, 0)
    assert fanout.attach(A, 0, 10 * SMALL.length)
    assert sent(fanout) == [("a", [0])]


@pytest.mark.parametrize(
    ("next_offset", "told", "then"),
    [(20, [("a", [])], []), (10, [("a", [])], []), (-1, [], []), (100, [], [("a", [100, 110])])],
)
def test_blocks_committed_by_storage_itself_are_read_from_storage(
    next_offset: int, told: list[tuple[str, list[int]]], then: list[tuple[str, list[int]]]
) -> None:
    """The channel is attached at the head, within the ring, or not at all, or it has read the
    blocks before the topic learned of them.
    """
    fanout = Fanout(0)
    add(fanout, blocks=2)
    assert fanout.attach(A, next_offset, PLENTY)
    assert fanout.advance(100)
    assert (fanout.head, len(fanout._ring), fanout._ring_bytes) == (100, 0, 0)
    assert sent(fanout) == told
    assert not fanout.advance(100)
    assert not fanout.attach(B, 99, PLENTY)
    assert fanout.attach(B, 100, PLENTY)
    add(fanout, blocks=2)
    assert sent(fanout) == [*then, ("b", [100, 110])]
    fanout.trim()
    add(fanout)
    assert ("b", [120]) in sent(fanout)


def test_a_channel_without_credit_is_told_it_is_behind_when_it_grants_some() -> None:
    fanout = Fanout(0)
    assert fanout.attach(A, 0, 1)
    add(fanout, blocks=2)
    assert sent(fanout) == [("a", [0])]
    assert fanout.advance(100)
    assert sent(fanout) == []
    assert fanout.credit(A, PLENTY)
    assert sent(fanout) == [("a", [])]


def test_a_paused_topic_does_not_announce_committed_stages() -> None:
    fanout = Fanout(0, visible_end=0)
    assert fanout.attach(A, 0, PLENTY)
    assert fanout.advance(100)
    assert fanout.end == 0
    assert sent(fanout) == []
    fanout.visible_end = -1
    assert sent(fanout) == [("a", [])]
