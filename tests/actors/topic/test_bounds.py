"""Tests of the bounds of what a topic grants to producers and sends to channels."""

from __future__ import annotations

import pytest

from zsq.actors.settings import options
from zsq.actors.topic import fanout
from zsq.actors.topic.fanout import Fanout
from zsq.actors.topic.ordering import Ordering
from zsq.transport.block.block import pack

A = (b"a",)


def test_a_run_has_a_bounded_number_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "_RUN_BLOCKS_MAX", 3)
    ring = Fanout(0)
    for _ in range(7):
        ring.add(pack([b"x"]), ring.head, 1)
    assert ring.attach(A, 0, 1 << 40)
    assert [len(blocks) for _, blocks in ring.offers()] == [3, 3, 1]


def test_one_producers_credit_is_bounded_however_large_the_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(options, "CREDIT_POOL_BYTES", 100 * options.CREDIT_BYTES)
    assert Ordering({}).hello(A, 1, 1, 1) == (0, options.CREDIT_BYTES)


def test_more_is_under_way_while_answers_come_from_the_bucket() -> None:
    """They take longer. With the usual bounds, one producer could not use the bucket."""
    shipped = [True]
    ordering = Ordering({}, lambda: shipped[0])
    assert ordering.hello(A, 1, 1, 1) == (0, options.CREDIT_BYTES_SHIPPED)
    for sequence in range(options.APPENDS_OUT_SHIPPED + 1):
        body = b"x" * options.APPEND_BYTES_LITTLE
        ordering.publish(A, pack([body], producer_id=1, sequence=sequence), 1)
        if sequence < options.APPENDS_OUT_SHIPPED:
            assert ordering.next_append() is not None
    assert ordering.next_append() is None
    shipped[0] = False
    welcome = ordering.hello((b"b",), 2, 1, 1)
    assert welcome is not None
    assert welcome[1] <= options.CREDIT_BYTES


def test_a_producer_is_remembered_for_a_week() -> None:
    week_ns = options.PRODUCER_KEPT_S * 10**9
    ordering = Ordering({1: (5, ())})
    for now_ns in (10**9, 2 * 10**9, week_ns):
        ordering.expire(now_ns)
    assert ordering.hello(A, 1, 1, week_ns) == (5, options.CREDIT_BYTES)
    ordering.bye(A)
    ordering.expire(2 * week_ns)
    assert ordering.hello(A, 1, 1, 2 * week_ns) == (5, options.CREDIT_BYTES)
    ordering.bye(A)
    ordering.expire(3 * week_ns + 1)
    assert ordering.hello(A, 1, 1, 3 * week_ns + 1) == (0, options.CREDIT_BYTES)


def test_the_oldest_producer_is_forgotten_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(options, "PRODUCERS_MAX", 2)
    ordering = Ordering({1: (1, ()), 2: (1, ()), 3: (1, ())})
    ordering._forget_oldest()
    assert len(ordering._producers) == 2
