"""Tests of a channel's filters: tags, addresses, age and samples. A message that is skipped is
counted once and is finished.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from zsq.actors.channel.filters import (
    EXPIRED,
    OTHER_CHANNEL,
    OTHER_TAG,
    WANTED,
    ChannelFilter,
    Gathering,
    count_skipped,
)
from zsq.actors.settings import options
from zsq.actors.statistics.schema import COUNTERS
from zsq.transport.block.block import Block, pack, with_place
from zsq.transport.settings import ChannelSettings
from zsq.transport.wire.codec import CHANNEL_HEADER, pack_headers
from zsq.transport.wire.dead_letter import with_address

if TYPE_CHECKING:
    from tests.actors.conftest import ChannelHarness

A, B = (b"a",), (b"b",)
ALL: tuple[tuple[int, int], ...] = ()
S = 1_000_000_000
NOW = 5_000 * S


@pytest.fixture
def make(harness: ChannelHarness) -> type[ChannelHarness]:
    return type(harness)


def tagged(*tags: str | None) -> Block:
    return pack([b"x"] * len(tags), tags=[None if tag is None else tag.encode() for tag in tags])


def addressed(*channels: str | None, tags: list[bytes | None] | None = None) -> Block:
    headers = [
        pack_headers({"n": 1} if channel is None else {"n": 1, CHANNEL_HEADER: channel})
        for channel in channels
    ]
    return with_address(pack([b"x"] * len(channels), headers=headers, tags=tags), headers)


def skipped(harness: ChannelHarness) -> dict[str, int]:
    names = ("tag_skipped_count", "addressed_skipped_count", "expired_count", "sampled_count")
    return {
        name.removesuffix("_count"): harness.channel.counters[name]
        for name in names
        if harness.channel.counters[name]
    }


# Masks


@pytest.mark.parametrize(
    ("tags", "of_messages", "mask"),
    [
        ("", ["a", None, "b"], None),
        ("*", ["a", None, "b"], None),
        ("a", ["a", "a"], None),
        ("a", ["a", "b", "a"], [WANTED, OTHER_TAG, WANTED]),
        ("a||b", ["a", "b", "c", None], [WANTED, WANTED, OTHER_TAG, OTHER_TAG]),
        # Tags are compared whole, not by prefix or hash.
        ("a", ["aa", "A", "", "a "], [OTHER_TAG] * 4),
        ("ä", ["ä", "a"], [WANTED, OTHER_TAG]),
        ("a", [None, None], [OTHER_TAG] * 2),
    ],
)
def test_tags_are_compared_whole(
    tags: str, of_messages: list[str | None], mask: list[int] | None
) -> None:
    choice = ChannelFilter("c", ChannelSettings(tags=tags), random.random)
    found = choice.mask(tagged(*of_messages), NOW)
    assert found == (None if mask is None else bytes(mask))


def test_a_block_without_tags_is_passed_by_a_channel_with_tags() -> None:
    assert ChannelFilter("c", ChannelSettings(tags="a"), random.random).mask(
        pack([b"a"] * 3), NOW
    ) == bytes([OTHER_TAG] * 3)


def test_tags_of_bytes_that_are_no_text_are_others() -> None:
    block = pack([b"x"] * 2, tags=[b"\xff", b"a"])
    assert ChannelFilter("c", ChannelSettings(tags="a"), random.random).mask(block, NOW) == bytes(
        [OTHER_TAG, WANTED]
    )


@pytest.mark.parametrize(
    ("age_s", "max_age_s", "old"),
    [
        (0, 10, False),
        (10, 10, False),
        (10.001, 10, True),
        (1e6, -1, False),
        (-50, 10, False),
        (0.2, 0.1, True),
    ],
)
def test_age_counts_from_the_storing_of_the_block(
    age_s: float, max_age_s: float, old: bool
) -> None:
    """The age counts from the time at which the block was stored. The times that messages carry do
    not matter.
    """
    block = with_place(pack([b"x"] * 3, times=[1, 2, 3]), 0, NOW - int(age_s * S))
    choice = ChannelFilter("c", ChannelSettings(max_age_s=max_age_s), random.random)
    assert choice.mask(block, NOW) == (bytes([EXPIRED] * 3) if old else None)


def test_the_first_reason_counts() -> None:
    block = with_place(addressed("c", "other", None, None, tags=[b"a", b"a", b"a", b"b"]), 0, 1)
    assert ChannelFilter("c", ChannelSettings(tags="a"), random.random).mask(block, NOW) == bytes(
        [WANTED, OTHER_CHANNEL, WANTED, OTHER_TAG]
    )
    choice = ChannelFilter("c", ChannelSettings(tags="a", max_age_s=1), random.random)
    assert choice.mask(block, NOW) == bytes([EXPIRED, OTHER_CHANNEL, EXPIRED, OTHER_TAG])
    counters = dict.fromkeys(COUNTERS, 0)
    count_skipped(counters, choice.mask(block, NOW) or b"", 1, 4)
    assert [
        counters[name] for name in ("tag_skipped_count", "addressed_skipped_count", "expired_count")
    ] == [1, 1, 1]


def test_a_block_is_looked_into_once_however_small_the_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    choice = ChannelFilter("c", ChannelSettings(tags="a"), random.random)
    looks: list[Block] = []
    look = ChannelFilter._look

    def note(self: ChannelFilter, block: Block) -> bytes | None:
        looks.append(block)
        return look(self, block)

    monkeypatch.setattr(ChannelFilter, "_look", note)
    first, second = tagged("a", "b"), with_place(tagged("b", "a"), 2, 0)
    for block in (first, first, first, second, second):
        choice.mask(block, NOW)
    assert looks == [first, second]


def test_a_block_that_needs_no_filter_is_delivered_uninspected(
    monkeypatch: pytest.MonkeyPatch, make: type[ChannelHarness]
) -> None:
    """The channel has a maximum age, and the block is younger than that. The block must be
    delivered as one whole part without a look into its messages.
    """
    monkeypatch.setattr(ChannelFilter, "_look", None)
    monkeypatch.setattr(Gathering, "add", None)
    harness = make(max_age_s=100)
    harness.join(A, 10_000)
    harness.take_in(
        pack(
            [b"x"] * 10_000,
            tags=[b"t"] * 10_000,
            headers=[pack_headers({CHANNEL_HEADER: "z"})] * 10_000,
        ),
        age_s=99,
    )
    assert harness.send_one().runs == ((0, 10_000, 1),), (
        "and an address counts only in a block with the flag"
    )


# Deliveries


def test_only_the_tags_of_the_channel_are_delivered_and_the_rest_is_finished(
    make: type[ChannelHarness],
) -> None:
    harness = make(tags="a")
    harness.join(A, 10)
    harness.take_in(tagged("a", "b", "a", "a", None, "b"))
    harness.take_in(tagged("b", "a", "b"))
    pending = harness.send_one()
    assert pending.runs == ((0, 1, 1), (2, 2, 1), (7, 1, 1)), "of both blocks, as one delivery"
    assert skipped(harness) == {"tag_skipped": 5}
    assert harness.stats() == (0, 4, 0)
    assert [hole[:2] for hole in harness.commit().holes_put] == [(0, 1), (2, 2), (7, 1)], (
        "what was passed leaves no row"
    )
    harness.channel.fin(A, pending.token, ALL)
    changes = harness.commit()
    assert (changes.next_offset, set(changes.holes_gone)) == (9, {0, 2, 7})
    assert harness.channel.counters["finish_count"] == 4


def test_consumers_share_what_is_wanted_and_nothing_is_counted_twice(
    make: type[ChannelHarness],
) -> None:
    harness = make(tags="a")
    harness.join(A, 2)
    harness.join(B, 1)
    harness.take_in(tagged("b", "a", "b", "a", "a", "b", "a"))
    assert harness.told(harness.send()) == [("a", ((1, 1, 1), (3, 1, 1))), ("b", ((4, 1, 1),))]
    assert skipped(harness) == {"tag_skipped": 3}, (
        "what lies in front of the next wanted one goes with what was taken before it"
    )
    assert harness.stats() == (1, 3, 0)


def test_runs_that_touch_over_two_blocks_are_one(make: type[ChannelHarness]) -> None:
    harness = make(tags="a")
    harness.join(A, 10)
    harness.take_in(tagged("b", "a"))
    harness.take_in(tagged("a", "b"))
    assert harness.send_one().runs == ((1, 2, 1),)


def test_a_delivery_of_many_pieces_is_bounded(
    make: type[ChannelHarness], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "GATHER_COUNT_MAX", 4)
    harness = make(tags="a")
    harness.join(A, 100)
    harness.take_in(tagged(*"abababababab"))
    assert [sum(run[1] for run in pending.runs) for pending in harness.send()] == [4, 2]
    assert harness.stats() == (0, 6, 0)


def test_a_delivery_of_many_pieces_is_bounded_in_bytes(
    make: type[ChannelHarness], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "GATHER_BYTES_MAX", 350)
    for sample_rate in (0, 99):
        harness = make(tags="a", random=lambda: 0.1)
        harness.join(A, 100, sample_rate=sample_rate)
        harness.take_in(pack([b"x" * 99] * 8, tags=[b"a", b"b"] * 4))
        harness.take_in(pack([b"x" * 999, b"", b"y"], tags=[b"a", b"b", b"a"]))
        sizes = [
            [
                len(block.body.values()[i] or b"")
                for block, start, stop in pending.parts
                for i in range(start, stop)
            ]
            for pending in harness.send()
        ]
        assert sizes == [[99] * 3, [99], [999], [1]], "a message that alone is larger goes alone"


def test_one_long_run_is_cut_and_not_gathered(make: type[ChannelHarness]) -> None:
    harness = make(tags="a")
    harness.join(A, 5_000)
    harness.take_in(tagged("b", *(["a"] * 6_000)))
    pending = harness.send_one()
    assert (pending.runs, len(pending.parts)) == (((1, 5_000, 1),), 1)


def test_an_addressed_message_is_its_channels_alone(make: type[ChannelHarness]) -> None:
    harness = make()
    harness.join(A, 10)
    harness.take_in(addressed(None, "c", "other", "c#ephemeral", None))
    assert harness.send_one().runs == ((0, 2, 1), (4, 1, 1))
    assert skipped(harness) == {"addressed_skipped": 2}


def test_old_messages_are_passed_and_counted(make: type[ChannelHarness]) -> None:
    harness = make(max_age_s=60)
    harness.join(A, 10)
    harness.take_in(pack([b"x"] * 3), age_s=61)
    harness.take_in(pack([b"x"] * 2), age_s=59)
    assert harness.send_one().runs == ((3, 2, 1),)
    assert skipped(harness) == {"expired": 3}
    assert harness.commit().next_offset == 5


def test_old_messages_are_passed_over_only_if_a_consumer_has_room(
    make: type[ChannelHarness],
) -> None:
    harness = make(max_age_s=60)
    harness.join(A, 0)
    harness.take_in(pack([b"x"] * 3), age_s=100)
    assert harness.send() == []
    assert harness.stats() == (3, 0, 0)


@pytest.mark.parametrize("delay_s", [0, 30])
def test_a_redelivery_that_comes_too_late_expires(make: type[ChannelHarness], delay_s: int) -> None:
    """The age is checked at the moment of sending, not when the message is returned. The message
    was either requeued at once or deferred and kept in the store.
    """
    harness = make(max_age_s=60)
    harness.join(A, 10)
    harness.take_in(pack([b"x"] * 3), age_s=25)
    harness.take_in(pack([b"x"] * 2), age_s=0)
    for pending in harness.send():
        harness.channel.req(A, pending.token, ALL, delay_s * 1_000, harness.wall_ns)
    harness.channel.set_ready(A, 0)
    harness.commit()
    harness.scan(40)
    harness.channel.set_ready(A, 10)
    harness.commit()
    assert skipped(harness) == {}
    assert harness.send_one().runs == ((3, 2, 2),)
    assert skipped(harness) == {"expired": 3}
    assert harness.stats() == (0, 2, 0)


def test_an_expired_redelivery_leaves_no_row(make: type[ChannelHarness]) -> None:
    harness = make(next_offset=10, holes=[(2, 3, 1, 0), (7, 1, 4, 0)], max_age_s=60)
    harness.join(A, 10)
    harness.commit()
    assert harness.send() == []
    assert harness.channel.supply.wanted == {2, 7}, "its age is known from its block"
    harness.channel.supply.shelve(with_place(pack([b"x"] * 6), 0, harness.wall_ns - 61 * S))
    harness.channel.supply.shelve(with_place(pack([b"x"] * 4), 6, harness.wall_ns - 61 * S))
    assert harness.send() == []
    assert harness.channel.supply.dirty
    assert set(harness.commit().holes_gone) == {2, 7}
    assert (harness.stats(), skipped(harness)) == ((0, 0, 0), {"expired": 4})


def test_only_the_old_part_of_a_redelivery_of_two_blocks_expires(
    make: type[ChannelHarness],
) -> None:
    harness = make(next_offset=10, holes=[(2, 6, 1, 0)], max_age_s=60)
    harness.join(A, 2)
    harness.commit()
    harness.send()
    harness.channel.supply.shelve(with_place(pack([b"x"] * 6), 0, harness.wall_ns - 61 * S))
    harness.send()
    harness.channel.supply.shelve(with_place(pack([b"x"] * 4), 6, harness.wall_ns - 59 * S))
    assert harness.send_one().runs == ((6, 2, 2),)
    assert skipped(harness) == {"expired": 4}


def test_a_redelivered_message_is_not_filtered_or_sampled_again(make: type[ChannelHarness]) -> None:
    numbers = iter([0.0] * 4)
    harness = make(random=lambda: next(numbers))
    harness.join(A, 10, sample_rate=50)
    harness.come(4)
    token = harness.send_one().token
    harness.channel.req(A, token, ALL, 0, harness.wall_ns)
    harness.commit()
    assert harness.send_one().runs == ((0, 4, 2),)
    assert skipped(harness) == {}


def test_settings_that_change_hold_at_once(make: type[ChannelHarness]) -> None:
    harness = make()
    harness.join(A, 1)
    harness.take_in(pack([b"x"] * 4), age_s=100)
    assert harness.send_one().runs == ((0, 1, 1),)
    harness.channel.configure(ChannelSettings(max_age_s=60))
    harness.channel.set_ready(A, 10)
    assert harness.send() == []
    assert skipped(harness) == {"expired": 3}
