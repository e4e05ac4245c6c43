"""Tests of a topic's order of blocks: sequences, repeats, failed appends, and expiry."""

from __future__ import annotations

import pytest
from support.ordering import ID, NOW, A, B, C, S, append, block, brief, greeted, publish

from zsq.actors.settings import options
from zsq.actors.topic.ordering import Ordering, Reply
from zsq.transport.errors import E_DISK_FULL, E_HELLO, E_SEQUENCE
from zsq.transport.wire.protocol import Unstored


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each append start as soon as a block is ready, so that several appends are in
    progress.
    """
    monkeypatch.setattr(options, "APPEND_BYTES_LITTLE", 0)


@pytest.mark.parametrize(
    ("sequences", "answers"),
    [
        ((0, 1, 2), []),
        ((0, 0, 1, 0), []),  # a repeat of a pending block waits for the first answer
        ((0, 2), [(2, 1, E_SEQUENCE)]),
        ((1,), [(1, 0, E_SEQUENCE)]),
        ((0, 2, 3, 1, 2), [(2, 1, E_SEQUENCE), (3, 1, E_SEQUENCE)]),
        ((2**64 - 1,), [(2**64 - 1, 0, E_SEQUENCE)]),
    ],
)
def test_only_the_next_sequence_is_accepted(
    sequences: tuple[int, ...], answers: list[tuple[int, int, str]]
) -> None:
    ordering = greeted()
    assert [answer for _, answer in brief(publish(ordering, *sequences))] == answers
    handed = ordering.next_append()
    taken = [placed.header.sequence for placed in handed[1]] if handed else []
    assert taken == list(range(len(taken)))


@pytest.mark.parametrize(
    ("known", "sequence", "answer"),
    [
        ((3, [(1, 10), (2, 20)]), 2, ((2, 20),)),
        ((3, [(1, 10), (2, 20)]), 1, ((1, 10),)),
        # The block is stored, but its offset is no longer remembered.
        ((3, [(1, 10), (2, 20)]), 0, ((0, -1),)),
        ((3, [(1, 10), (2, 20)]), 4, (4, 3, E_SEQUENCE)),
    ],
)
def test_a_recovered_block_that_is_repeated_is_answered_like_before(
    known: tuple[int, list[tuple[int, int]]], sequence: int, answer: object
) -> None:
    ordering = greeted({ID: known})
    assert brief(publish(ordering, sequence)) == [(b"a", answer)]
    assert ordering.next_append() is None
    assert ordering.hello(B, ID, 30 * S, NOW) == (3, options.CREDIT_BYTES)


def test_stored_blocks_are_answered_with_their_offsets_and_passed_on() -> None:
    ordering = greeted()
    for sequence, count in enumerate((5, 1, 2)):
        ordering.publish(A, block(sequence, count=count), NOW)
    assert not ordering.idle()
    replies, placed = ordering.appended(append(ordering), 100)
    assert brief(replies) == [(b"a", ((0, 100), (1, 105), (2, 106)))]
    assert [(placed_block.header.sequence, offset) for placed_block, offset in placed] == [
        (0, 100),
        (1, 105),
        (2, 106),
    ]
    assert ordering.idle()
    assert brief(publish(ordering, 1)) == [(b"a", ((1, 105),))]
    assert ordering.appended(1, 100) == ([], []), "answered already"


def test_a_block_repeated_on_a_new_link_is_answered_on_that_link() -> None:
    ordering = greeted()
    publish(ordering, 0, 1)
    assert ordering.hello(B, ID, 30 * S, NOW) == (2, options.CREDIT_BYTES)
    assert publish(ordering, 0, peer=B) == []
    replies, placed = ordering.appended(append(ordering), 0)
    assert (b"b", ((0, 0),)) in brief(replies)
    assert len(placed) == 2


@pytest.mark.parametrize("peer", [A, B])
def test_a_block_without_a_hello_is_refused(peer: tuple[bytes, ...]) -> None:
    ordering = Ordering({})
    ordering.hello(A, ID + 1, 30 * S, NOW)
    assert brief(publish(ordering, 0, peer=peer)) == [(peer[0], (0, -1, E_HELLO))]


# Failures


def test_a_failed_append_fails_all_blocks_that_wait_behind_it() -> None:
    ordering = greeted()
    ordering.hello(B, ID + 1, 30 * S, NOW)
    publish(ordering, 0, 1)
    first = append(ordering)
    publish(ordering, 2)
    ordering.publish(B, block(0, producer_id=ID + 1), NOW)
    publish(ordering, 3)
    replies = ordering.failed(first, E_DISK_FULL, "full")
    assert brief(replies) == [
        (b"a", (0, 0, E_DISK_FULL)),
        (b"a", (1, 0, E_DISK_FULL)),
        (b"a", (2, 0, E_DISK_FULL)),
        (b"b", (0, 0, E_DISK_FULL)),
        (b"a", (3, 0, E_DISK_FULL)),
    ]
    assert ordering.idle()
    assert ordering.next_append() is None
    assert ordering.failed(first + 1, E_DISK_FULL, "full") == [], "its blocks were answered"
    assert ordering._links[A].out_bytes == 0
    assert publish(ordering, 0, 1) == []


def test_a_failure_of_an_append_that_was_answered_is_ignored() -> None:
    ordering = greeted()
    publish(ordering, 0)
    first = append(ordering)
    ordering.appended(first, 0)
    publish(ordering, 1)
    second = append(ordering)
    assert ordering.failed(first, E_DISK_FULL, "full") == []
    assert brief(ordering.appended(second, 1)[0]) == [(b"a", ((1, 1),))]


def test_appends_before_a_failed_one_are_stored() -> None:
    """Storage answers a failed write at once, but it answers the writes before it only after their
    sync.
    """
    ordering = greeted()
    publish(ordering, 0)
    first = append(ordering)
    publish(ordering, 1)
    second = append(ordering)
    publish(ordering, 2)
    assert brief(ordering.failed(second, E_DISK_FULL, "full")) == [
        (b"a", (1, 1, E_DISK_FULL)),
        (b"a", (2, 1, E_DISK_FULL)),
    ]
    assert publish(ordering, 0) == [], "still pending"
    assert not ordering.idle()
    replies, placed = ordering.appended(first, 40)
    assert brief(replies) == [(b"a", ((0, 40),))]
    assert len(placed) == 1
    assert publish(ordering, 1) == []


# Time


def test_silent_links_end_and_links_with_heartbeats_stay() -> None:
    ordering = greeted()
    ordering.hello(C, ID + 1, 10 * S, NOW)
    ordering.expire(NOW + 20 * S)
    assert ordering.peers() == [A, C]
    assert ordering.seen(A, NOW + 15 * S)
    ordering.expire(NOW + 61 * S)
    assert ordering.peers() == [A]
    assert not ordering.seen(C, NOW)
    ordering.expire(NOW + 76 * S)
    assert ordering.peers() == []


def test_links_through_a_gateway_end_with_it() -> None:
    ordering = greeted()
    ordering.hello(C, ID + 1, 10 * S, NOW)
    ordering.gone(b"gateway-1")
    assert ordering.peers() == [A]


def test_producers_are_forgotten_a_week_after_their_last_use() -> None:
    """Producers that were recovered and have not been heard from since are forgotten, too."""
    week = options.PRODUCER_KEPT_S * S
    ordering = greeted({1: (5, [])})
    publish(ordering, 0)
    ordering.expire(NOW)
    ordering.bye(A)
    ordering.expire(NOW + week + 1)
    assert 1 not in ordering._producers
    assert ID in ordering._producers, "a block of it is pending"
    ordering.appended(append(ordering), 0)
    ordering.expire(NOW + week + 1)
    assert not ordering._producers


def test_a_producer_with_a_link_is_not_forgotten() -> None:
    ordering = greeted({ID: (5, [])})
    later = NOW + 2 * options.PRODUCER_KEPT_S * S
    ordering.seen(A, later)
    ordering.expire(later)
    assert brief(publish(ordering, 4)) == [(b"a", ((4, -1),))]
    assert ordering.statistics() == {"producers": 1, "pending_appends": 0, "queued_blocks": 0}


def test_a_refusal_names_the_sequence_and_the_expected_one() -> None:
    (reply,) = publish(greeted(), 9)
    assert isinstance(reply.message, Unstored)
    assert "sequence 9, but 0 is expected" in reply.message.text


# Delayed blocks


def later(
    ordering: Ordering, *sequences: int, peer: tuple[bytes, ...] = A, producer_id: int = ID
) -> list[Reply]:
    return [
        reply
        for sequence in sequences
        for reply in ordering.publish(
            peer, block(sequence, producer_id=producer_id), NOW, delay_ms=60_000
        )
    ]


def handed(ordering: Ordering) -> tuple[list[int], list[int]]:
    """Return the sequences that go to storage now: plain blocks, and the delayed blocks behind
    them.
    """
    plain: list[int] = []
    while (append := ordering.next_append()) is not None:
        plain += [one.header.sequence for one in append[1]]
    delayed = ordering.next_delayed()
    if delayed is None:
        return plain, []
    assert delayed[2] == [60_000] * len(delayed[1])
    return plain, [one.header.sequence for one in delayed[1]]


def test_plain_and_delayed_blocks_of_a_producer_stay_in_order() -> None:
    ordering = greeted()
    ordering.hello(B, ID + 1, 30 * S, NOW)
    assert (
        publish(ordering, 0)
        == later(ordering, 1, 2)
        == publish(ordering, 3)
        == later(ordering, 4)
        == []
    )
    ordering.publish(B, block(0, producer_id=ID + 1), NOW)
    assert handed(ordering) == ([0, 0], [1, 2]), "others pass"
    ordering.publish(B, block(1, producer_id=ID + 1), NOW)
    later(ordering, 2, peer=B, producer_id=ID + 1)
    assert handed(ordering) == ([1], []), "one request of delayed blocks at a time"
    assert not ordering.idle()
    assert brief(ordering.kept(2, [(9, 50), (9, 51)])) == [(b"a", (1, 9, 50)), (b"a", (2, 9, 51))]
    assert handed(ordering) == ([3], [2, 4])


def test_a_repeated_delayed_block_is_answered_like_before() -> None:
    ordering = greeted({ID: (7, [(4, 40), (5, 9, 50)])})
    assert brief(later(ordering, 5)) == [(b"a", (5, 9, 50))]
    assert brief(later(ordering, 3)) == [(b"a", (3, -1, -1))], (
        "kept, but under which key is no longer remembered"
    )
    assert brief(publish(ordering, 4)) == [(b"a", ((4, 40),))]
    assert later(ordering, 7, 7) == []
    assert handed(ordering) == ([], [7])
    assert brief(ordering.kept(1, [(9, 52)])) == [(b"a", (7, 9, 52))]
    assert brief(later(ordering, 7)) == [(b"a", (7, 9, 52))]
    assert ordering.kept(1, [(9, 52)]) == [], "answered already"


def test_failed_delayed_blocks_affect_only_their_own_producers() -> None:
    ordering = greeted()
    ordering.hello(B, ID + 1, 30 * S, NOW)
    later(ordering, 0)
    publish(ordering, 1)
    later(ordering, 2)
    ordering.publish(B, block(0, producer_id=ID + 1), NOW)
    assert handed(ordering) == ([0], [0])
    ordering.publish(B, block(1, producer_id=ID + 1), NOW)
    full = ordering.failed(2, E_DISK_FULL, "full")
    assert brief(full) == [(b"a", (sequence, 0, E_DISK_FULL)) for sequence in (0, 1, 2)]
    assert handed(ordering) == ([1], [])
    assert later(ordering, 0) == []
    assert handed(ordering) == ([], [0])
    assert ordering._links[A].out_bytes == block(0).length


def test_a_failed_append_fails_only_the_delayed_blocks_after_it() -> None:
    ordering = greeted()
    ordering.hello(B, ID + 1, 30 * S, NOW)
    later(ordering, 0, peer=B, producer_id=ID + 1)
    assert handed(ordering) == ([], [0])
    publish(ordering, 0)
    later(ordering, 1)
    assert handed(ordering) == ([0], [])
    assert [answer for _, answer in brief(ordering.failed(2, E_DISK_FULL, "full"))] == [
        (0, 0, E_DISK_FULL),
        (1, 0, E_DISK_FULL),
    ]
    assert brief(ordering.kept(1, [(9, 5)])) == [(b"b", (0, 9, 5))], "it was before"
    assert handed(ordering) == ([], []), "the producer sends both again"
    assert ordering.idle()
    assert ordering.statistics() == {"producers": 2, "pending_appends": 0, "queued_blocks": 0}


def test_the_bytes_of_one_request_of_delayed_blocks_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ordering = greeted()
    monkeypatch.setattr(options, "APPEND_BYTES_MAX", 2 * block(0).length)
    later(ordering, 0, 1, 2)
    assert handed(ordering) == ([], [0, 1])
    publish(ordering, 3)
    ordering.kept(1, [(9, 1), (9, 2)])
    assert handed(ordering) == ([], [2]), "what is left of them goes before what came after"
    ordering.kept(2, [(9, 3)])
    assert handed(ordering) == ([3], [])
