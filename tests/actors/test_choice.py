"""What a channel chooses, case by case: tags, addresses, age and samples; what is passed by is counted once, and finished."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from zsq.actors import options
from zsq.actors.channel_settings import ChannelSettings
from zsq.actors.choice import EXPIRED, OTHER_CHANNEL, OTHER_TAG, WANTED, Choice, Gathering, count_skipped
from zsq.actors.lease import COUNTERS
from zsq.transport.addressing import CHANNEL_HEADER, with_address
from zsq.transport.block import Block, pack, with_place
from zsq.transport.codec import pack_headers

if TYPE_CHECKING:
    from tests.actors.conftest import Desk

A, B = (b"a",), (b"b",)
ALL: tuple[tuple[int, int], ...] = ()
S = 1_000_000_000
NOW = 5_000 * S


@pytest.fixture
def make(desk: Desk) -> type[Desk]:
    return type(desk)


def tagged(*tags: str | None) -> Block:
    return pack([b"x"] * len(tags), tags=[None if tag is None else tag.encode() for tag in tags])


def addressed(*channels: str | None, tags: list[bytes | None] | None = None) -> Block:
    headers = [pack_headers({"n": 1} if channel is None else {"n": 1, CHANNEL_HEADER: channel}) for channel in channels]
    return with_address(pack([b"x"] * len(channels), headers=headers, tags=tags), headers)


def skipped(desk: Desk) -> dict[str, int]:
    names = ("tag_skipped_count", "addressed_skipped_count", "expired_count", "sampled_count")
    return {name.removesuffix("_count"): desk.channel.counters[name] for name in names if desk.channel.counters[name]}


# Masks


@pytest.mark.parametrize(
    ("tags", "of_messages", "mask"),
    [
        ("", ["a", None, "b"], None),
        ("*", ["a", None, "b"], None),
        ("a", ["a", "a"], None),
        ("a", ["a", "b", "a"], [WANTED, OTHER_TAG, WANTED]),
        ("a||b", ["a", "b", "c", None], [WANTED, WANTED, OTHER_TAG, OTHER_TAG]),
        ("a", ["aa", "A", "", "a "], [OTHER_TAG] * 4),  # whole, not by prefix or hash
        ("ä", ["ä", "a"], [WANTED, OTHER_TAG]),
        ("a", [None, None], [OTHER_TAG] * 2),
    ],
)
def test_tags_are_compared_whole(tags: str, of_messages: list[str | None], mask: list[int] | None) -> None:
    choice = Choice("c", ChannelSettings(tags=tags), random.random)
    found = choice.mask(tagged(*of_messages), NOW)
    assert found == (None if mask is None else bytes(mask))


def test_a_block_without_tags_is_passed_by_a_channel_with_tags() -> None:
    assert Choice("c", ChannelSettings(tags="a"), random.random).mask(pack([b"a"] * 3), NOW) == bytes([OTHER_TAG] * 3)


def test_tags_of_bytes_that_are_no_text_are_others() -> None:
    block = pack([b"x"] * 2, tags=[b"\xff", b"a"])
    assert Choice("c", ChannelSettings(tags="a"), random.random).mask(block, NOW) == bytes([OTHER_TAG, WANTED])


@pytest.mark.parametrize(
    ("age_s", "max_age_s", "old"),
    [(0, 10, False), (10, 10, False), (10.001, 10, True), (1e6, -1, False), (-50, 10, False), (0.2, 0.1, True)],
)
def test_age_counts_from_the_storing_of_the_block(age_s: float, max_age_s: float, old: bool) -> None:
    """Not from a time of their own that messages carry."""
    block = with_place(pack([b"x"] * 3, times=[1, 2, 3]), 0, NOW - int(age_s * S))
    choice = Choice("c", ChannelSettings(max_age_s=max_age_s), random.random)
    assert choice.mask(block, NOW) == (bytes([EXPIRED] * 3) if old else None)


def test_the_first_reason_counts() -> None:
    block = with_place(addressed("c", "other", None, None, tags=[b"a", b"a", b"a", b"b"]), 0, 1)
    assert Choice("c", ChannelSettings(tags="a"), random.random).mask(block, NOW) == bytes([WANTED, OTHER_CHANNEL, WANTED, OTHER_TAG])
    choice = Choice("c", ChannelSettings(tags="a", max_age_s=1), random.random)
    assert choice.mask(block, NOW) == bytes([EXPIRED, OTHER_CHANNEL, EXPIRED, OTHER_TAG])
    counters = dict.fromkeys(COUNTERS, 0)
    count_skipped(counters, choice.mask(block, NOW) or b"", 1, 4)
    assert [counters[name] for name in ("tag_skipped_count", "addressed_skipped_count", "expired_count")] == [1, 1, 1]


def test_a_block_is_looked_into_once_however_small_the_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = Choice("c", ChannelSettings(tags="a"), random.random)
    looks: list[Block] = []
    look = Choice._look

    def note(self: Choice, block: Block) -> bytes | None:
        looks.append(block)
        return look(self, block)

    monkeypatch.setattr(Choice, "_look", note)
    first, second = tagged("a", "b"), with_place(tagged("b", "a"), 2, 0)
    for block in (first, first, first, second, second):
        choice.mask(block, NOW)
    assert looks == [first, second]


def test_a_block_that_nobody_has_to_look_into_is_not_looked_into(monkeypatch: pytest.MonkeyPatch, make: type[Desk]) -> None:
    """Nor one of a channel with a maximal age, while it is young: it goes out as a cut, whole."""
    monkeypatch.setattr(Choice, "_look", None)
    monkeypatch.setattr(Gathering, "add", None)
    desk = make(max_age_s=100)
    desk.join(A, 10_000)
    desk.take_in(pack([b"x"] * 10_000, tags=[b"t"] * 10_000, headers=[pack_headers({CHANNEL_HEADER: "z"})] * 10_000), age_s=99)
    assert desk.send_one().runs == ((0, 10_000, 1),), "and an address counts only in a block with the flag"


# Deliveries


def test_only_the_tags_of_the_channel_are_delivered_and_the_rest_is_finished(make: type[Desk]) -> None:
    desk = make(tags="a")
    desk.join(A, 10)
    desk.take_in(tagged("a", "b", "a", "a", None, "b"))
    desk.take_in(tagged("b", "a", "b"))
    parcel = desk.send_one()
    assert parcel.runs == ((0, 1, 1), (2, 2, 1), (7, 1, 1)), "of both blocks, as one delivery"
    assert skipped(desk) == {"tag_skipped": 5}
    assert desk.stats() == (0, 4, 0)
    assert [hole[:2] for hole in desk.commit().holes_put] == [(0, 1), (2, 2), (7, 1)], "what was passed leaves no row"
    desk.channel.fin(A, parcel.token, ALL)
    changes = desk.commit()
    assert (changes.next_offset, set(changes.holes_gone)) == (9, {0, 2, 7})
    assert desk.channel.counters["finish_count"] == 4


def test_consumers_share_what_is_wanted_and_nothing_is_counted_twice(make: type[Desk]) -> None:
    desk = make(tags="a")
    desk.join(A, 2)
    desk.join(B, 1)
    desk.take_in(tagged("b", "a", "b", "a", "a", "b", "a"))
    assert desk.told(desk.send()) == [("a", ((1, 1, 1), (3, 1, 1))), ("b", ((4, 1, 1),))]
    assert skipped(desk) == {"tag_skipped": 3}, "what lies in front of the next wanted one goes with what was taken before it"
    assert desk.stats() == (1, 3, 0)


def test_runs_that_touch_over_two_blocks_are_one(make: type[Desk]) -> None:
    desk = make(tags="a")
    desk.join(A, 10)
    desk.take_in(tagged("b", "a"))
    desk.take_in(tagged("a", "b"))
    assert desk.send_one().runs == ((1, 2, 1),)


def test_a_delivery_of_many_pieces_is_bounded(make: type[Desk], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "GATHER_COUNT_MAX", 4)
    desk = make(tags="a")
    desk.join(A, 100)
    desk.take_in(tagged(*"abababababab"))
    assert [sum(run[1] for run in parcel.runs) for parcel in desk.send()] == [4, 2]
    assert desk.stats() == (0, 6, 0)


def test_a_delivery_of_many_pieces_is_bounded_in_bytes(make: type[Desk], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "GATHER_BYTES_MAX", 350)
    for sample_rate in (0, 99):
        desk = make(tags="a", random=lambda: 0.1)
        desk.join(A, 100, sample_rate=sample_rate)
        desk.take_in(pack([b"x" * 99] * 8, tags=[b"a", b"b"] * 4))
        desk.take_in(pack([b"x" * 999, b"", b"y"], tags=[b"a", b"b", b"a"]))
        sizes = [
            [len(block.body.values()[i] or b"") for block, start, stop in parcel.parts for i in range(start, stop)]
            for parcel in desk.send()
        ]
        assert sizes == [[99] * 3, [99], [999], [1]], "a message that alone is larger goes alone"


def test_one_long_run_is_cut_and_not_gathered(make: type[Desk]) -> None:
    desk = make(tags="a")
    desk.join(A, 5_000)
    desk.take_in(tagged("b", *(["a"] * 6_000)))
    parcel = desk.send_one()
    assert (parcel.runs, len(parcel.parts)) == (((1, 5_000, 1),), 1)


def test_an_addressed_message_is_its_channels_alone(make: type[Desk]) -> None:
    desk = make()
    desk.join(A, 10)
    desk.take_in(addressed(None, "c", "other", "c#ephemeral", None))
    assert desk.send_one().runs == ((0, 2, 1), (4, 1, 1))
    assert skipped(desk) == {"addressed_skipped": 2}


def test_old_messages_are_passed_and_counted(make: type[Desk]) -> None:
    desk = make(max_age_s=60)
    desk.join(A, 10)
    desk.take_in(pack([b"x"] * 3), age_s=61)
    desk.take_in(pack([b"x"] * 2), age_s=59)
    assert desk.send_one().runs == ((3, 2, 1),)
    assert skipped(desk) == {"expired": 3}
    assert desk.commit().next_offset == 5


def test_they_are_passed_when_somebody_would_get_them_only(make: type[Desk]) -> None:
    desk = make(max_age_s=60)
    desk.join(A, 0)
    desk.take_in(pack([b"x"] * 3), age_s=100)
    assert desk.send() == []
    assert desk.stats() == (3, 0, 0)


@pytest.mark.parametrize("delay_s", [0, 30])
def test_a_redelivery_that_comes_too_late_expires(make: type[Desk], delay_s: int) -> None:
    """At the moment it would be sent, not when it is given back; requeued, or deferred and in the store meanwhile."""
    desk = make(max_age_s=60)
    desk.join(A, 10)
    desk.take_in(pack([b"x"] * 3), age_s=25)
    desk.take_in(pack([b"x"] * 2), age_s=0)
    for parcel in desk.send():
        desk.channel.req(A, parcel.token, ALL, delay_s * 1_000, desk.wall_ns)
    desk.channel.set_ready(A, 0)
    desk.commit()
    desk.scan(40)
    desk.channel.set_ready(A, 10)
    desk.commit()
    assert skipped(desk) == {}
    assert desk.send_one().runs == ((3, 2, 2),)
    assert skipped(desk) == {"expired": 3}
    assert desk.stats() == (0, 2, 0)


def test_an_expired_redelivery_leaves_no_row(make: type[Desk]) -> None:
    desk = make(next_offset=10, holes=[(2, 3, 1, 0), (7, 1, 4, 0)], max_age_s=60)
    desk.join(A, 10)
    desk.commit()
    assert desk.send() == []
    assert desk.channel.supply.wanted == {2, 7}, "its age is known from its block"
    desk.channel.supply.shelve(with_place(pack([b"x"] * 6), 0, desk.wall_ns - 61 * S))
    desk.channel.supply.shelve(with_place(pack([b"x"] * 4), 6, desk.wall_ns - 61 * S))
    assert desk.send() == []
    assert desk.channel.supply.dirty
    assert set(desk.commit().holes_gone) == {2, 7}
    assert (desk.stats(), skipped(desk)) == ((0, 0, 0), {"expired": 4})


def test_of_a_redelivery_over_two_blocks_only_the_old_part_expires(make: type[Desk]) -> None:
    desk = make(next_offset=10, holes=[(2, 6, 1, 0)], max_age_s=60)
    desk.join(A, 2)
    desk.commit()
    desk.send()
    desk.channel.supply.shelve(with_place(pack([b"x"] * 6), 0, desk.wall_ns - 61 * S))
    desk.send()
    desk.channel.supply.shelve(with_place(pack([b"x"] * 4), 6, desk.wall_ns - 59 * S))
    assert desk.send_one().runs == ((6, 2, 2),)
    assert skipped(desk) == {"expired": 4}


def test_what_was_delivered_once_is_not_asked_for_its_tag_or_a_sample_again(make: type[Desk]) -> None:
    numbers = iter([0.0] * 4)
    desk = make(random=lambda: next(numbers))
    desk.join(A, 10, sample_rate=50)
    desk.come(4)
    token = desk.send_one().token
    desk.channel.req(A, token, ALL, 0, desk.wall_ns)
    desk.commit()
    assert desk.send_one().runs == ((0, 4, 2),)
    assert skipped(desk) == {}


def test_settings_that_change_hold_at_once(make: type[Desk]) -> None:
    desk = make()
    desk.join(A, 1)
    desk.take_in(pack([b"x"] * 4), age_s=100)
    assert desk.send_one().runs == ((0, 1, 1),)
    desk.channel.configure(ChannelSettings(max_age_s=60))
    desk.channel.set_ready(A, 10)
    assert desk.send() == []
    assert skipped(desk) == {"expired": 3}
