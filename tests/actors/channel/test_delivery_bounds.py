"""Tests of the bounds of a delivery: messages, bytes, and blocks that are read again."""

from __future__ import annotations

from collections import deque
from typing import Any, cast

import pytest

from tests.actors.channel.test_ordered import OrderedChannelHarness
from tests.actors.conftest import ChannelHarness
from zsq.actors.channel.redelivery import collect
from zsq.actors.settings import options
from zsq.transport.block.block import pack, with_place
from zsq.transport.wire.protocol import DELAY_MS_MAX

A, B = (b"a",), (b"b",)
ALL: tuple[tuple[int, int], ...] = ()


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
        (DELAY_MS_MAX, DELAY_MS_MAX),
        (10 * DELAY_MS_MAX, DELAY_MS_MAX),
    ],
)
def test_a_delay_is_at_most_366_days(harness: ChannelHarness, asked: int, given: int) -> None:
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
