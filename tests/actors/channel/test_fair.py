"""Tests of fair channels: turns of the keys, their weights and limits, redeliveries, what is
bounded, and what happens at a start or when the setting changes.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from tests.actors.conftest import ChannelHarness
from zsq.actors.channel.core import ChannelCore
from zsq.actors.channel.fair import FairSupply
from zsq.actors.channel.lease import Departure, Subscriber
from zsq.actors.settings import options
from zsq.transport.block.block import Block, pack, with_place
from zsq.transport.settings import ChannelSettings

A, B = (b"a",), (b"b",)
S = 1_000_000_000


def block_of(keys: str, *, tags: bool = False) -> Block:
    """Return a block of messages with these keys, one character each. A dot is no key."""
    values = [None if key == "." else key.encode() for key in keys]
    column: dict[str, Any] = {"tags" if tags else "keys": values}
    return pack([b"x"] * len(keys), **column)


class FairHarness(ChannelHarness):
    """A harness that publishes messages by their keys: `take("aab.")` is a block of four."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**{"fair_by": "key", **given})
        self.blocks: list[Block] = []
        self.keys = ""

    def take(self, keys: str, age_s: float = 0.0) -> None:
        self.blocks.append(with_place(block_of(keys), self.end, 0))
        self.keys += keys
        self.take_in(block_of(keys), age_s)

    def offsets(self) -> list[int]:
        return [
            start + i
            for pending in self.send()
            for start, count, _ in pending.runs
            for i in range(count)
        ]

    def sent(self) -> str:
        """Return the keys of what is delivered now, in their order."""
        return "".join(self.keys[offset] for offset in self.offsets())

    def one_by_one(self, count: int) -> str:
        """Return the keys of what a consumer of one message at a time receives and finishes."""
        return "".join(self.keys[offset] for offset in self.one_by_one_offsets(count))

    def one_by_one_offsets(self, count: int) -> list[int]:
        found = []
        for _ in range(count):
            self.channel.rest()
            pending = self.channel.next_delivery(self.now_ns, self.wall_ns)
            if pending is None:
                self.read()
                pending = self.channel.next_delivery(self.now_ns, self.wall_ns)
            assert pending is not None
            found.append(pending.runs[0][0])
            self.channel.fin(pending.peer, pending.token, ())
        return found

    def read(self) -> list[int]:
        wanted = sorted(self.channel.supply.wanted)
        for offset in wanted:
            (block,) = (b for b in self.blocks if b.first_offset <= offset < b.next_offset)
            self.channel.supply.shelve(block)
        return wanted

    def again(self) -> None:
        """Start the channel again with the rows that its last commit left."""
        changes = self.commit()
        live = [hole for hole in changes.holes_put if not hole[3]]
        self.channel = ChannelCore(
            6, changes.next_offset, live, {}, False, None, self.channel.settings, "c"
        )


def fair(ready: int = 1, **given: Any) -> FairHarness:
    harness = FairHarness(**given)
    harness.join(A, ready)
    return harness


def test_a_new_key_waits_for_one_message_of_each_other() -> None:
    channel = fair()
    channel.take("a" * 1_000 + "b" * 10)
    assert channel.one_by_one(4) == "abab"
    channel.take("c")
    assert channel.one_by_one(5) == "abcab"


def test_the_messages_of_a_key_keep_their_order() -> None:
    channel = fair()
    channel.take("aabbaabba")
    offsets = channel.one_by_one_offsets(9)
    for key in "ab":
        of_key = [offset for offset in offsets if channel.keys[offset] == key]
        assert of_key == sorted(of_key)


def test_a_large_delivery_begins_with_each_key_and_has_equal_shares() -> None:
    channel = fair(ready=100)
    channel.take("a" * 300 + "b" * 300 + "c")
    keys = channel.sent()
    assert keys[:3] == "abc"
    assert abs(keys.count("a") - keys.count("b")) <= 1
    assert len(keys) == 100


def test_weights_are_shares_for_small_and_for_large_deliveries() -> None:
    for ready in (1, 3, 100):
        channel = fair(ready=ready, fair_weights="g=4")
        channel.take("f" * 400 + "g" * 400)
        keys = ""
        while len(keys) < 300:
            for pending in channel.send():
                for start, count, _ in pending.runs:
                    keys += channel.keys[start : start + count]
                channel.channel.fin(A, pending.token, ())
            channel.channel.rest()
        assert keys.count("g") / len(keys) == pytest.approx(0.8, abs=0.03), ready


def test_messages_without_a_key_neither_wait_for_a_key_nor_let_it_wait() -> None:
    channel = fair()
    channel.take("a" * 100 + ".")
    assert channel.one_by_one(2) == "a."
    channel.take("." * 100 + "b")
    assert "b" in channel.one_by_one(options.FAIR_LOOSE_WEIGHT + 3)


def test_keys_that_come_once_do_not_stop_a_key_that_is_in_line() -> None:
    channel = fair()
    channel.take("a" * 10)
    for number in range(40):
        channel.take(chr(0x4E00 + number))
    assert channel.one_by_one(42).count("a") == 2


def test_tags_can_be_the_tenants() -> None:
    channel = ChannelHarness(fair_by="tag")
    channel.join(A, 1)
    channel.take_in(block_of("a" * 50 + "b", tags=True))
    got = []
    for _ in range(2):
        (pending,) = channel.send()
        got.append(pending.runs[0][0])
        channel.channel.fin(A, pending.token, ())
    assert got == [0, 50]


def test_one_key_alone_is_delivered_in_whole_runs() -> None:
    channel = fair(ready=10_000)
    channel.take("a" * 5_000)
    (pending,) = channel.send()
    assert pending.runs == ((0, 5_000, 1),)


def test_a_key_with_many_messages_in_a_row_takes_one_row_and_others_behind_are_found() -> None:
    channel = fair()
    for _ in range(50):
        channel.take("a" * 1_000)
    channel.take("b")
    while channel.channel.supply.statistics(channel.end).get("tenant_count") != 2:
        channel.channel.rest()
        channel.channel.supply.look_ahead(0, channel.wall_ns)
    assert channel.one_by_one(2) == "ab"
    assert len(channel.commit().holes_put) <= 3


def test_beyond_the_window_messages_wait_in_the_order_of_arrival() -> None:
    with mock.patch.object(options, "PARKED_ROWS_MAX", 20):
        channel = fair()
        channel.take("ab" * 50 + "c")
        keys = channel.one_by_one(85)
        assert "c" in keys
        assert keys.index("c") > 70, "it is found when the rows before it are gone"
        assert channel.channel.supply.statistics(101)["parked_count"] <= 21


def test_a_key_has_only_its_messages_in_flight_and_others_go_on() -> None:
    channel = fair(ready=100, max_in_flight_per_key=2)
    channel.take("a" * 10 + "b" * 3 + "...")
    assert sorted(channel.sent()) == sorted("aabb...")
    assert channel.channel.supply.tenants()[0] == {"key": "a", "waiting": 8, "limited": "in flight"}
    assert limits(channel) == ["in flight", "in flight"]
    channel.channel.unsubscribe(A, Departure.LEFT)
    assert limits(channel) == ["", ""], "without a consumer, no limit is the reason"


def limits(channel: FairHarness) -> list[str]:
    details = channel.channel.details(channel.now_ns, channel.wall_ns)
    return [tenant["limited"] for tenant in details["tenants"]]


@pytest.mark.parametrize("how", ["finish", "requeue", "later", "reject", "lost", "left", "skip"])
def test_each_end_of_a_message_makes_room_for_the_next_of_its_key(how: str) -> None:
    channel = fair(ready=100, max_in_flight_per_key=1)
    channel.join(B, 0)
    channel.take("aa")
    (pending,) = channel.send()
    core = channel.channel
    if how == "finish":
        core.fin(A, pending.token, ())
    elif how == "requeue":
        core.req(A, pending.token, (), 0, channel.wall_ns)
    elif how == "later":
        core.req(A, pending.token, (), 50_000, channel.wall_ns)
    elif how == "reject":
        core.req(A, pending.token, (), -3, channel.wall_ns)
    elif how == "skip":
        core.skip_messages(((0, 1),), ())
    else:
        core.unsubscribe(A, Departure.LOST if how == "lost" else Departure.LEFT)
        core.set_ready(B, 10)
    channel.commit()
    assert len(channel.offsets()) == 1
    channel.commit()
    assert channel.send() == [], "again only one"


def test_a_redelivery_waits_for_the_limit_of_its_key() -> None:
    channel = fair(ready=100, max_in_flight_per_key=1)
    channel.take("aab")
    first, *_ = channel.send()
    channel.channel.req(A, first.token, ((0, 1),), 1, channel.wall_ns)
    (second,) = channel.send()
    assert second.runs[0][0] == 1
    channel.commit()
    channel.scan(1)
    channel.ask()
    channel.commit()
    assert channel.send() == [], "the other message of this key is in flight"
    channel.channel.fin(A, second.token, ())
    (again,) = channel.send()
    assert again.runs == ((0, 1, 2),)


def test_a_key_over_its_rate_waits_and_others_go_on() -> None:
    channel = fair(ready=100, max_rate_per_key=1.0)
    channel.take("aaaabb..")
    assert sorted(channel.sent()) == sorted("ab..")
    assert channel.channel.limit_due_ns(channel.now_ns) == pytest.approx(
        channel.now_ns + S, abs=1_000
    )
    assert channel.channel.supply.tenants()[0] == {"key": "a", "waiting": 3, "limited": "rate"}
    channel.now_ns = channel.channel.limit_due_ns(channel.now_ns)
    assert sorted(channel.sent()) == ["a", "b"]
    channel.channel.set_ready(A, 1)  # it has no room, so the rate is not the reason for long
    assert limits(channel) == ["rate"]
    channel.now_ns += 5 * S
    assert channel.sent() == ""
    assert limits(channel) == [""]
    assert channel.channel.statistics(8)["limited_since_s"] is None, "that is about the channel"


def test_the_bucket_of_a_key_is_remembered_until_it_is_full_and_bounded() -> None:
    channel = fair(ready=100, max_rate_per_key=1.0)
    supply = channel.channel.supply
    assert isinstance(supply, FairSupply)
    channel.take("ab")
    assert channel.sent() == "ab"
    channel.take("a")
    assert channel.sent() == "", "its bucket is not full"
    channel.now_ns += 3 * S
    assert channel.sent() == "a"
    channel.now_ns += 3 * S
    channel.take("c")
    channel.sent()
    assert supply.statistics(channel.end)["tenant_count"] == 0
    with mock.patch.object(options, "FAIR_BUCKETS_MAX", 2):
        channel.take("defgh")
        channel.sent()
        channel.take("dh")
        assert channel.sent() == "d", "the oldest bucket was forgotten, the newest is not"


def test_a_key_that_always_fails_does_not_take_the_turns_of_others() -> None:
    channel = fair()
    channel.take("a" * 20 + "b" * 20)
    got = ""
    for _ in range(20):
        channel.channel.rest()
        pending = channel.channel.next_delivery(channel.now_ns, channel.wall_ns)
        assert pending is not None
        key = channel.keys[pending.runs[0][0]]
        got += key
        if key == "a":
            channel.channel.req(A, pending.token, (), 0, channel.wall_ns)
        else:
            channel.channel.fin(A, pending.token, ())
        channel.commit()
    assert got.count("b") == 10
    failed = {run[0] for run, error in channel.channel.supply.failures.newest() if error}
    assert len(failed) >= 5, "and its new messages come between those that came back"


def test_suspects_of_a_key_wait_while_others_of_it_are_in_flight() -> None:
    channel = fair(ready=1, max_in_flight_per_key=1, max_attempts=5)
    channel.take("aab")
    core = channel.channel
    assert channel.offsets() == [0]
    core.unsubscribe(A)
    channel.join(A, 1)
    channel.join(B, 1)
    assert channel.offsets() == [2, 1]
    channel.commit()
    core.fin(A, next(iter(core.consumers[A].tokens)), ())
    assert channel.send() == [], "another message of its key is in flight"
    core.fin(B, next(iter(core.consumers[B].tokens)), ())
    (apart,) = channel.send()
    assert (apart.runs, apart.alone) == (((0, 1, 2),), True)


def with_suspects(keys: str) -> FairHarness:
    """Return a channel that has lost its consumer with all of these messages, with two others.
    Each key may have one message in flight from now on.
    """
    channel = fair(ready=len(keys), max_attempts=5)
    channel.take(keys)
    assert len(channel.offsets()) == len(keys)
    channel.channel.unsubscribe(A)
    channel.channel.configure(
        ChannelSettings(fair_by="key", max_attempts=5, max_in_flight_per_key=1)
    )
    channel.commit()
    channel.join(A, 1)
    channel.join(B, 1)
    return channel


def busy(channel: FairHarness) -> Subscriber:
    (consumer,) = [one for one in channel.channel.consumers.values() if one.in_flight]
    return consumer


def test_suspects_of_other_keys_do_not_wait_for_the_one_that_is_busy() -> None:
    channel = with_suspects("aab")
    assert channel.offsets() == [0]
    channel.channel.set_ready(busy(channel).peer, 0)  # its handler works, and another one sifts
    assert channel.offsets() == [2], "a second message of `a` would be one too many"


def test_a_consumer_works_for_other_keys_while_the_keys_of_all_suspects_are_busy() -> None:
    channel = with_suspects("aa")
    assert channel.offsets() == [0]
    first = busy(channel)
    channel.channel.set_ready(first.peer, 0)
    channel.take("cc")
    assert channel.offsets() == [2]
    channel.channel.fin(first.peer, next(iter(first.tokens)), ())
    other = busy(channel)
    channel.channel.fin(other.peer, next(iter(other.tokens)), ())
    assert channel.offsets() == [1]


@pytest.mark.parametrize("how", ["not in memory", "skipped", "expired"])
def test_no_suspect_of_a_busy_key_goes_in_place_of_another(how: str) -> None:
    """The first suspect cannot go, and consumers have enough messages of the key of the next."""
    given: Any = {"max_attempts": 5, "max_age_s": 60 if how == "expired" else -1}
    channel = fair(ready=1, max_in_flight_per_key=2, **given)
    channel.take("a")
    assert channel.offsets() == [0]
    channel.join(B, 3)
    channel.take("b", age_s=30)
    channel.take("ca")
    core = channel.channel
    assert channel.offsets() == [1, 2, 3]
    core.fin(B, max(core.consumers[B].tokens), ((2, 1),))
    core.configure(ChannelSettings(fair_by="key", max_in_flight_per_key=1, **given))
    core.unsubscribe(B)
    channel.commit()
    channel.join(B, 1)
    if how == "skipped":
        core.skip_messages(((1, 1),), ())
    elif how == "expired":
        channel.wall_ns += 40 * S
    else:
        core.supply.drop_blocks()
        core.supply.shelve(channel.blocks[2])
    assert channel.send() == []
    core.fin(A, next(iter(core.consumers[A].tokens)), ())
    core.set_ready(A, 0)
    channel.read()
    assert channel.offsets() == ([1] if how == "not in memory" else [3])


def test_a_key_with_a_suspect_in_flight_is_not_forgotten_when_its_bucket_is_full() -> None:
    channel = fair(ready=1, max_attempts=5, max_rate_per_key=10.0, max_in_flight_per_key=1)
    channel.take("a")
    assert channel.offsets() == [0]
    channel.channel.unsubscribe(A)
    channel.commit()
    channel.join(A, 1)
    assert channel.offsets() == [0], "a suspect, whose key waits for nothing but its bucket"
    channel.now_ns += S
    channel.join(B, 1)
    assert channel.offsets() == []
    channel.take("ba")
    assert channel.offsets() == [1]
    channel.channel.fin(B, next(iter(channel.channel.consumers[B].tokens)), ())
    assert channel.offsets() == []


def test_after_a_start_no_message_overtakes_an_earlier_one_of_its_key() -> None:
    channel = fair()
    for _ in range(3):
        channel.take("a" * 4 + "b" * 4)
    channel.one_by_one(2)
    channel.again()
    channel.join(A, 1)
    channel.channel.rest()
    assert channel.send() == []
    channel.channel.supply.shelve(channel.blocks[2])
    assert channel.send() == [], "the blocks before it are not read"
    for block in channel.blocks[:2]:
        channel.channel.supply.shelve(block)
    assert channel.one_by_one_offsets(4)[::2] in ([1, 2], [5, 6])


def test_messages_of_many_keys_that_alternate_are_a_few_rows_of_the_state_store() -> None:
    channel = fair(ready=10)
    for _ in range(10):
        channel.take("abcde" * 20)
    assert len(channel.offsets()) == 10
    rows = channel.commit().holes_put
    assert len(rows) <= 11, "those in flight, and what is between and behind them"
    assert sum(count for _, count, *_ in rows) == 1_000


def test_a_start_finds_the_order_again() -> None:
    channel = fair()
    channel.take("a" * 20 + "b" * 20)
    assert channel.one_by_one(4) == "abab"
    channel.again()
    channel.join(A, 1)
    offsets = channel.one_by_one_offsets(36)
    assert offsets[:2] in ([2, 22], [22, 2])
    assert sorted(offsets) == [*range(2, 20), *range(22, 40)]
    assert channel.stats() == (0, 0, 0)


def test_a_running_channel_becomes_fair_and_plain_again() -> None:
    channel = fair(fair_by="none")
    channel.take("a" * 20 + "b" * 5)
    assert channel.one_by_one(2) == "aa"
    channel.channel.configure(ChannelSettings(fair_by="key"))
    assert channel.one_by_one(4) in ("abab", "baba")
    channel.channel.configure(ChannelSettings())
    rest = channel.one_by_one(19)
    assert sorted(rest) == sorted("a" * 16 + "b" * 3)
    assert channel.send() == []
    assert channel.stats() == (0, 0, 0)
