"""Tests of samples, and of blocks in which no message is wanted: the shares are exact, a turn is
bounded, and each message is either delivered once or counted once.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsq.actors.settings import options
from zsq.transport.block.block import Block, pack

if TYPE_CHECKING:
    from tests.actors.conftest import ChannelHarness

A, B = (b"a",), (b"b",)
ALL: tuple[tuple[int, int], ...] = ()


@pytest.fixture
def make(harness: ChannelHarness) -> type[ChannelHarness]:
    return type(harness)


def tagged(*tags: str | None) -> Block:
    return pack([b"x"] * len(tags), tags=[None if tag is None else tag.encode() for tag in tags])


# Samples


@pytest.mark.parametrize("rate", [1, 10, 50, 99])
def test_a_sample_is_as_large_as_was_said(make: type[ChannelHarness], rate: int) -> None:
    """The share is the rate in percent. NSQ delivers one percentage point more."""
    harness = make(random=random.Random(rate).random)
    harness.join(A, 100_000, sample_rate=rate)
    count = 60_000
    for _ in range(count // 2_000):
        harness.come(2_000)
        for pending in harness.send():
            harness.channel.fin(A, pending.token, ALL)
        harness.channel.rest()
    finished = harness.channel.counters["finish_count"]
    assert finished + harness.channel.counters["sampled_count"] == count
    assert harness.stats() == (0, 0, 0)
    deviation = (count * rate / 100 * (1 - rate / 100)) ** 0.5
    assert abs(finished - count * rate / 100) < 4 * deviation < count / 100, (
        "4 sigma, and that is less than one percent"
    )
    assert (
        harness.channel.consumers[A].statistics(0)["sampled_count"]
        == harness.channel.counters["sampled_count"]
    )


def test_a_sample_of_one_percent_is_exactly_what_is_drawn_below_it(
    make: type[ChannelHarness],
) -> None:
    """The random number 0.01 itself is not in a sample of one percent."""
    numbers = iter([0.0, 0.00999, 0.01, 0.5, 0.999])
    harness = make(random=lambda: next(numbers))
    harness.join(A, 10, sample_rate=1)
    harness.come(5)
    assert harness.send_one().runs == ((0, 2, 1),)


def test_a_sampling_consumer_does_not_rush_through_what_others_wait_for(
    make: type[ChannelHarness],
) -> None:
    harness = make(random=random.Random(3).random)
    harness.join(A, 100, sample_rate=1)
    harness.join(B, 100)
    for _ in range(200):
        harness.come(50)
        for pending in harness.send():
            harness.channel.fin(pending.peer, pending.token, ALL)
        harness.channel.rest()
    offered = harness.channel.consumers[A].finish_count + harness.channel.consumers[A].sampled_count
    assert 0.45 < offered / 10_000 < 0.55
    assert offered + harness.channel.consumers[B].finish_count == 10_000


# Blocks in which no message is wanted


@pytest.mark.parametrize("setting", [{"tags": "a"}, {"max_age_s": 1.0}])
def test_a_window_of_which_nothing_is_wanted_is_passed_in_bounded_turns(
    make: type[ChannelHarness], monkeypatch: pytest.MonkeyPatch, setting: dict[str, Any]
) -> None:
    monkeypatch.setattr(options, "LOOKS_MAX", 1_000)
    harness = make(**setting)
    harness.channel.rest()
    harness.join(A, 10)
    for _ in range(100):
        harness.take_in(tagged(*(["b"] * 100)), age_s=100)
    turns = 0
    harness.commit()
    while harness.channel.supply.next_offset < 10_000:
        before = harness.channel.supply.next_offset
        harness.channel.rest()
        assert harness.send() == []
        assert 0 < harness.channel.supply.next_offset - before <= 1_100
        assert harness.channel.has_more()
        turns += 1
    assert turns >= 9
    harness.channel.rest()
    assert harness.send() == []
    assert not harness.channel.has_more()
    assert harness.channel.supply.dirty
    changes = harness.commit()
    assert (changes.next_offset, changes.holes_put, harness.stats()) == (10_000, (), (0, 0, 0))
    counters = harness.channel.counters
    assert counters["tag_skipped_count"] + counters["expired_count"] == 10_000


def test_messages_behind_many_unwanted_ones_come_in_a_later_turn(
    make: type[ChannelHarness], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "LOOKS_MAX", 50)
    harness = make(tags="a")
    harness.channel.rest()
    harness.join(A, 10)
    harness.take_in(tagged(*(["b"] * 100)))
    harness.take_in(tagged("a"))
    assert harness.send() == []
    harness.channel.rest()
    assert harness.send_one().runs == ((100, 1, 1),)


@given(
    blocks=st.lists(
        st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=12),
        min_size=1,
        max_size=8,
    ),
    rooms=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    rate=st.sampled_from([0, 0, 30, 99]),
    seed=st.integers(0, 99),
)
def test_each_message_is_delivered_once_or_counted_once(
    blocks: list[list[str | None]], rooms: list[int], rate: int, seed: int
) -> None:
    from tests.actors.conftest import ChannelHarness as Made

    harness = Made(tags="a||c", random=random.Random(seed).random)
    for number, room in enumerate(rooms):
        harness.join((b"%d" % number,), room, sample_rate=rate if number == 0 else 0)
    for tags in blocks:
        harness.take_in(tagged(*tags))
    flat = [tag for tags in blocks for tag in tags]
    got: list[int] = []
    for _ in range(200):
        harness.channel.rest()
        pending_blocks = harness.send()
        for pending in pending_blocks:
            got += [
                offset for start, count, _ in pending.runs for offset in range(start, start + count)
            ]
            harness.channel.fin(pending.peer, pending.token, ALL)
    wanted = [offset for offset, tag in enumerate(flat) if tag in ("a", "c")]
    assert len(set(got)) == len(got)
    assert set(got) <= set(wanted)
    assert len(got) + harness.channel.counters["sampled_count"] == len(wanted)
    assert harness.channel.counters["tag_skipped_count"] == len(flat) - len(wanted)
    assert harness.stats() == (0, 0, 0)
