"""Tests of limits at their edges: what a delivery, a commit, a topic's group and a scan take at
once.
"""

from __future__ import annotations

from collections import deque
from typing import Any, cast

import pytest
from support.group import Broker

from tests.actors.channel.test_ordered import OrderedChannelHarness
from tests.actors.conftest import ChannelHarness
from tests.actors.scan.test_scan_rounds import Bench
from zsq.actors.channel.redelivery import collect
from zsq.actors.scan.scan_rounds import DIRTY
from zsq.actors.settings import options
from zsq.actors.storage import stages
from zsq.actors.topic import fanout
from zsq.actors.topic.fanout import Fanout
from zsq.actors.topic.ordering import Ordering
from zsq.transport.block.block import pack, with_place
from zsq.transport.errors import E_BAD_ARGUMENT, E_CLOSING, E_LIMIT, UsageError
from zsq.transport.wire.protocol import REQUEUE_DELAY_MS_MAX

A, B = (b"a",), (b"b",)
ALL: tuple[tuple[int, int], ...] = ()


# Deliveries


def test_a_full_delivery_asks_for_no_more_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "GATHER_BYTES_MAX", 1_000)
    block, wanted = with_place(pack([b"x" * 2_000]), 0, 0), set[int]()
    parts, runs = collect(deque([(0, 1, 1), (1, 1, 1)]), 10, {0: block}.get, wanted)
    assert (len(parts), runs, wanted) == (1, [(0, 1, 1)], set())


def test_the_messages_of_one_redelivery_are_bounded(
    harness: ChannelHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "GATHER_COUNT_MAX", 4)
    harness.join(A, 10)
    harness.come(10)
    harness.channel.req(A, harness.send_one().token, ALL, 0, harness.wall_ns)
    harness.commit()
    harness.channel.supply.shelve(harness.block_at(0, 10))
    assert [sum(run[1] for run in pending.runs) for pending in harness.send()] == [4, 4, 2]


def keyed(ready: int = 100) -> OrderedChannelHarness:
    harness = OrderedChannelHarness()
    harness.join(A, ready)
    return harness


def test_an_ordered_channel_sorts_no_more_than_it_may_send(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "ORDERED_AHEAD", 4)
    harness = keyed(ready=1)
    for number in range(10):
        harness.take_keys("abcdefghijklmnopqrst"[2 * number : 2 * number + 2])
    harness.send()
    slots = cast("Any", harness.channel.supply)._slots
    assert 0 < slots.available <= options.ORDERED_AHEAD + 1, "a block is sorted whole"


def test_an_ordered_delivery_asks_for_a_bounded_number_of_missing_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An ordered delivery requests a limited number of blocks that are no longer in memory, and
    looks at the rest later.
    """
    harness = keyed()
    supply = cast("Any", harness.channel.supply)
    harness.take_keys("abcdefghij")
    monkeypatch.setattr(options, "ORDERED_MISSED_MAX", 3)
    asked: list[int] = []
    monkeypatch.setattr(supply, "_find", lambda offset: None)
    monkeypatch.setattr(supply, "_want", asked.append)
    harness.send()
    assert asked
    assert len(asked) % 3 == 0
    assert len(set(asked)) == 3


def test_a_full_ordered_delivery_asks_for_no_more_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "GATHER_BYTES_MAX", 1_000)
    harness = keyed()
    harness.take_in(with_place(pack([b"x" * 2_000], keys=[b"a"]), 0, 0))
    harness.take_in(with_place(pack([b"y"], keys=[b"b"]), 1, 0))
    supply = cast("Any", harness.channel.supply)
    find = supply._find
    asked: list[int] = []
    monkeypatch.setattr(
        supply, "_find", lambda offset: find(offset) if offset == 0 else asked.append(offset)
    )
    assert harness.channel.next_delivery(harness.now_ns, harness.wall_ns) is not None
    assert asked == []


def test_a_long_run_without_keys_is_a_delivery_of_its_own() -> None:
    harness = keyed(ready=1_000)
    long = options.ORDERED_ALONE
    harness.take_keys("a" + "." * (long - 1))
    assert [pending.runs for pending in harness.send()] == [((0, long, 1),)]
    harness.take_keys("b" + "." * long)
    assert [pending.runs for pending in harness.send()] == [((long, 1, 1),), ((long + 1, long, 1),)]


def test_an_ordered_delivery_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "GATHER_BYTES_MAX", 1_000)
    harness = keyed()
    harness.take_in(pack([b"x" * 400] * 5, keys=[b"a", b"b", b"c", b"d", b"e"]))
    assert [sum(run[1] for run in pending.runs) for pending in harness.send()] == [2, 2, 1]


def test_the_blocks_read_for_redelivery_are_bounded() -> None:
    wanted: set[int] = set()
    again = deque((10 * number, 1, 1) for number in range(3 * options.FETCHES_MAX))
    before = list(again)
    assert collect(again, 100, lambda offset: None, wanted) == ([], [])
    assert len(wanted) == options.FETCHES_MAX
    assert list(again) == before


def test_a_redelivery_of_several_blocks_is_bounded_in_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The messages are sent as one block. Those that do not fit into it wait for the next delivery
    and are not lost.
    """
    monkeypatch.setattr(options, "GATHER_BYTES_MAX", 1_000)
    blocks = {
        first: with_place(pack([b"x" * size]), first, 0)
        for first, size in enumerate((400, 400, 700, 2_000, 100))
    }
    again = deque((first, 1, 2) for first in blocks)
    sent = []
    while again:
        parts, runs = collect(again, 10, blocks.get, set())
        assert [block.first_offset for block, _, _ in parts] == [run[0] for run in runs]
        sent.append([run[0] for run in runs])
    assert sent == [[0, 1], [2], [3], [4]]


def test_the_blocks_read_for_free_keys_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = keyed()
    supply = cast("Any", harness.channel.supply)
    for letter in "abcdefghij":
        harness.take_keys(letter)
    monkeypatch.setattr(supply, "_find", lambda offset: None)
    supply._near = 1
    assert harness.send() == []
    assert supply.wanted == {*range(options.FETCHES_MAX)}


def test_a_block_that_arrived_removes_only_its_own_offsets_from_the_wanted(
    harness: ChannelHarness,
) -> None:
    supply = harness.channel.supply
    supply.wanted.update({1, 3, 4, 100})
    supply.shelve(harness.block_at(0, 4))
    assert supply.wanted == {4, 100}
    supply.wanted.update({5, 6})
    supply.lost(4, 6)
    assert supply.wanted == {6, 100}


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        (REQUEUE_DELAY_MS_MAX, REQUEUE_DELAY_MS_MAX),
        (10 * REQUEUE_DELAY_MS_MAX, REQUEUE_DELAY_MS_MAX),
    ],
)
def test_a_delay_is_at_most_an_hour(harness: ChannelHarness, asked: int, given: int) -> None:
    harness.join(A, 1)
    harness.come(1)
    assert not harness.channel.req(A, harness.send_one().token, ALL, asked, harness.wall_ns)
    harness.commit()
    assert [row[3] for row in harness.kept.values()] == [harness.wall_ns + given * 1_000_000]


def test_an_answer_from_another_consumer_does_not_change_a_lease(harness: ChannelHarness) -> None:
    harness.join(A, 1)
    harness.come(1)
    token = harness.send_one().token
    assert harness.channel.req(B, token, [(0, 1)], 0, harness.wall_ns) == ((0, 1),)
    assert harness.channel.fin(B, token, [(0, 1)], harness.wall_ns) == ((0, 1),)
    assert harness.stats() == (0, 1, 0)


# What a topic grants


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


# A topic's group


def test_the_number_of_channels_of_a_topic_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "CHANNELS_MAX", 2)
    broker = Broker()
    for name in ("a", "b", "c"):
        broker.want(name)
    assert [error.code for error in broker.answers if error] == [E_LIMIT]
    assert {*broker.group.channels} == {"a", "b"}


def test_the_number_of_requests_that_wait_for_a_topic_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(options, "WAITERS_MAX", 2)
    broker = Broker()
    for _ in range(3):
        broker.want("a")
    assert [error.code for error in broker.answers if error] == [E_LIMIT]
    broker.up("a")
    assert broker.answers[1:] == [None, None]


def test_requests_that_wait_for_a_deleted_channel_to_return_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(options, "WAITERS_MAX", 2)
    broker = Broker()
    broker.group.deleting.add("c#ephemeral")
    for _ in range(3):
        broker.want("c#ephemeral")
    assert [error.code for error in broker.answers if error] == [E_CLOSING]


# Stages, scans


def test_a_commit_names_a_bounded_number_of_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "STAGE_PARTS_MAX", 2)
    table = cast("Any", stages.Stages.__new__(stages.Stages))
    with pytest.raises(UsageError, match="at most 2 parts") as refused:
        table.check_parts(None, [()] * 3)
    assert refused.value.code == E_BAD_ARGUMENT
    with pytest.raises(UsageError, match="a part must be"):
        table.check_parts(None, [()] * 2)


def test_a_report_after_the_end_of_a_round_does_not_count_for_the_next() -> None:
    """The late report says that all its channels were dirty. The next round has no dirty channels,
    so the late report must not make another round follow at once.
    """
    bench = Bench(40, "a", "b")
    first = bench.begin()
    late = first[0]
    bench.report(first[1])
    # The first report is overdue, and the round ended without it.
    bench.begin(options.SCAN_REPORT_MS + 1)
    second = bench.begin(options.SCAN_INTERVAL_MS)
    before = bench.rounds._answers, bench.rounds._dirty
    mine = {key for order in second for key, _ in order.targets}
    results = [(key, DIRTY, bench.now) for key, _ in late.targets if key not in mine]
    bench.report_of(late, *results)
    assert (bench.rounds._answers, bench.rounds._dirty) == before


def test_a_target_asked_again_is_not_lost_with_its_first_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(4, "a", "b")
    first = bench.begin()
    bench.report(first[1])
    again: set[int] = set()
    for _ in range(3):
        for order in bench.begin(options.SCAN_REPORT_MS + 1):
            assert order.worker == "b"
            again |= {key for key, _ in order.targets} & {key for key, _ in first[0].targets}
    assert again
    lost: list[int] = []
    monkeypatch.setattr(bench.plan, "lost", lambda key, now_ns: lost.append(key))
    bench.rounds.set_workers(["b"], bench.now)
    assert not again & {*lost}
