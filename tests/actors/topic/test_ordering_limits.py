"""Tests of a topic's limits: appends, blocks that wait for an append, credit, producers, and
remembered answers.
"""

from __future__ import annotations

import pytest
from support.ordering import ID, NOW, A, S, append, block, brief, greeted, publish

from zsq.actors.settings import options
from zsq.actors.topic.ordering import Ordering
from zsq.transport.errors import E_DISK_FULL, E_LIMIT

LITTLE = options.APPEND_BYTES_LITTLE


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each append start as soon as a block is ready, so that several appends are in
    progress.
    """
    monkeypatch.setattr(options, "APPEND_BYTES_LITTLE", 0)


def test_appends_are_bounded_in_bytes_and_in_number() -> None:
    ordering = greeted()
    large = options.APPEND_BYTES_MAX // 2
    sequence = 0
    for _ in range(options.APPENDS_OUT_MAX + 1):
        ordering._links[A].out_bytes = 0
        for _ in range(2):
            assert (
                ordering.publish(A, block(sequence, size=large // 2, count=2 - sequence % 2), NOW)
                == []
            )
            sequence += 1
    sizes = []
    while (handed := ordering.next_append()) is not None:
        sizes.append(sum(one.length for one in handed[1]))
    assert len(sizes) == options.APPENDS_OUT_MAX
    assert max(sizes) <= options.APPEND_BYTES_MAX
    ordering.appended(1, 0)
    assert ordering.next_append() is not None


def test_a_small_append_waits_for_the_answer_to_the_previous_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If many clients publish one message each, one append must take the blocks of all of them.
    Without the wait, eight appends would each take an eighth of the blocks.
    """
    monkeypatch.setattr(options, "APPEND_BYTES_LITTLE", LITTLE)
    ordering = greeted()
    publish(ordering, 0)
    first = append(ordering)
    publish(ordering, 1, 2)
    assert ordering.next_append() is None
    assert not ordering.idle()
    ordering.appended(first, 0)
    handed = ordering.next_append()
    assert handed is not None
    assert [one.header.sequence for one in handed[1]] == [1, 2]
    publish(ordering, 3)
    ordering.publish(A, block(4, size=LITTLE), NOW)
    last = ordering.next_append()
    assert last is not None, "that is no little"
    publish(ordering, 5)
    assert ordering.next_append() is None, "what has gone is not counted"
    ordering.failed(last[0], E_DISK_FULL, "full")
    publish(ordering, 3)
    assert ordering.next_append() is None, "nor what has failed"
    ordering.appended(handed[0], 1)
    assert ordering.next_append() is not None


def test_an_append_of_many_blocks_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "APPEND_BYTES_LITTLE", LITTLE)
    monkeypatch.setattr("zsq.actors.topic.ordering.BLOCKS_AN_APPEND", 3)
    ordering = greeted()
    publish(ordering, 0)
    append(ordering)
    publish(ordering, 1, 2)
    assert ordering.next_append() is None
    publish(ordering, 3)
    assert ordering.next_append() is not None


def test_more_than_the_credit_is_refused() -> None:
    ordering = greeted()
    ordering._links[A].credit_bytes = 250
    assert publish(ordering, 0, 1) == []
    assert brief(publish(ordering, 2)) == [(b"a", (2, 2, E_LIMIT))]
    ordering.appended(append(ordering), 0)
    assert publish(ordering, 2) == []
    ordering.appended(append(ordering), 2)
    assert ordering.publish(A, block(3, size=1_000), NOW) == [], "one block always"


def test_the_pool_of_credit_is_shared_and_credit_returns_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(options, "PRODUCERS_MAX", 1_000)
    ordering = Ordering({})
    credits: list[int] = []
    while (
        welcome := ordering.hello((b"%d" % len(credits),), len(credits) + 1, 30 * S, NOW)
    ) is not None:
        credits.append(welcome[1])
    assert len(credits) == 1_000, "the last ones too"
    assert credits == sorted(credits, reverse=True)
    assert (credits[0], credits[-1]) == (options.CREDIT_BYTES, options.CREDIT_BYTES_LEAST)
    assert credits[100] > options.CREDIT_BYTES_MIN
    assert (
        sum(credits)
        <= options.CREDIT_POOL_BYTES
        + options.CREDIT_BYTES_MIN
        + len(credits) * options.CREDIT_BYTES_LEAST
    )
    ordering.bye((b"999",))
    assert ordering.hello(A, ID, 30 * S, NOW) == (0, options.CREDIT_BYTES_LEAST)
    assert ordering.publish(A, block(0, size=options.CREDIT_BYTES_LEAST), NOW) == [], (
        "one block always"
    )
    for number in range(999):
        ordering.bye((b"%d" % number,))
    assert ordering.hello(A, ID, 30 * S, NOW) == (1, options.CREDIT_BYTES), "it is given back"


def test_the_producer_not_used_for_longest_is_forgotten_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(options, "PRODUCERS_MAX", 2)
    ordering = Ordering({1: (5, []), 2: (5, [])})
    assert ordering.hello((b"b",), 2, 30 * S, NOW) is not None
    assert ordering.hello(A, ID, 30 * S, NOW) is not None
    assert brief(publish(ordering, 0)) == []
    ordering.bye(A)
    known = ordering.hello((b"c",), 1, 30 * S, NOW)
    assert known is not None
    assert known[0] == 0, "1 had no link; it begins anew"
    known = ordering.hello((b"b",), 2, 30 * S, NOW)
    assert known is not None
    assert known[0] == 5, "2 has a link and is remembered"


def test_blocks_of_too_many_active_producers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "PRODUCERS_MAX", 2)
    ordering = Ordering({1: (5, []), 2: (5, [])})
    for peer, producer_id in (((b"b",), 1), ((b"c",), 2)):
        assert ordering.hello(peer, producer_id, 30 * S, NOW) is not None
    monkeypatch.setattr(options, "PRODUCERS_MAX", 3)
    assert ordering.hello(A, ID, 30 * S, NOW) is not None
    monkeypatch.setattr(options, "PRODUCERS_MAX", 2)
    assert brief(publish(ordering, 0)) == [(b"a", (0, 0, E_LIMIT))]


def test_held_blocks_are_bounded_however_often_a_producer_reconnects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A producer that sends Hello again gets its credit back while its earlier blocks still wait.
    So the topic must also count the bytes that it holds.
    """
    ordering = Ordering({})
    for sequence in range(3):
        assert ordering.hello(A, ID, 30 * S, NOW) is not None
        if sequence == 2:
            monkeypatch.setattr(options, "CREDIT_POOL_BYTES", 1)
        found = brief(publish(ordering, sequence))
        assert found == ([] if sequence < 2 else [(b"a", (2, 2, E_LIMIT))])


def test_the_number_of_remembered_answers_is_bounded() -> None:
    ordering = greeted()
    for sequence in range(options.RECENT_SEQUENCES + 1):
        publish(ordering, sequence)
        ordering.appended(append(ordering), sequence)
    assert brief(publish(ordering, 0, 1)) == [(b"a", ((0, -1),)), (b"a", ((1, 1),))]


def test_no_producer_is_forgotten_while_there_is_room() -> None:
    """If the topic forgot a producer, blocks that the producer sends again after a lost connection
    would be stored twice.
    """
    ordering = Ordering({1: (5, [])})
    assert ordering.hello(A, ID, 30 * S, NOW) is not None
    assert brief(publish(ordering, 0)) == []
    known = ordering.hello((b"c",), 1, 30 * S, NOW)
    assert known is not None
    assert known[0] == 5
