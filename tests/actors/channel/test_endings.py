"""Tests of messages that have ended: when they do, and how long revoked keys are kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.actors.conftest import ChannelHarness
from zsq import Refused
from zsq.actors.channel.endings import Endings, HeldExpiries
from zsq.actors.settings import options
from zsq.transport.block.block import Block, pack, with_place
from zsq.transport.client.core.packing import pack_many
from zsq.transport.wire.codec import EXPIRES_HEADER, HeaderValue
from zsq.transport.wire.lifetime import REVOKE_KEY_HEADER, lifetimes_ms

S = 1_000_000_000
EXPIRED, CANCELLED = 3, 5


def block_at(offset: int, *headers: Mapping[str, HeaderValue] | None) -> Block:
    [block] = pack_many([b"x"] * len(headers), None, None, headers)
    return with_place(block, offset, 100 * S)


def keyed(offset: int, *keys: str) -> Block:
    return block_at(offset, *({REVOKE_KEY_HEADER: key} for key in keys))


@pytest.fixture
def endings() -> Endings:
    return Endings(EXPIRED, CANCELLED)


def test_a_message_expires_exactly_after_its_lifetime(endings: Endings) -> None:
    block = block_at(0, {EXPIRES_HEADER: 1_000}, None, {EXPIRES_HEADER: 2_000})
    assert endings.mask(block, 101 * S - 1) is None
    assert endings.mask(block, 101 * S) == bytes([EXPIRED, 0, 0])
    assert endings.mask(block, 200 * S) == bytes([EXPIRED, 0, EXPIRED])


def test_the_age_of_the_channel_and_the_lifetime_apply_both(endings: Endings) -> None:
    endings.max_age_ns = 5 * S
    block = block_at(0, {EXPIRES_HEADER: 60_000}, {EXPIRES_HEADER: 1_000})
    assert endings.mask(block, 102 * S) == bytes([0, EXPIRED])
    assert endings.mask(block, 106 * S) == bytes([EXPIRED] * 2)


def test_the_lifetime_of_the_topic_is_for_messages_without_one_of_their_own(
    endings: Endings,
) -> None:
    plain, mixed = block_at(0, None, None), block_at(2, {EXPIRES_HEADER: 9_000}, None)
    assert endings.mask(mixed, 200 * S) == bytes([EXPIRED, 0])
    endings.set_lifetime(2)
    assert endings.mask(plain, 102 * S - 1) is None
    assert endings.mask(plain, 102 * S) == bytes([EXPIRED] * 2)
    assert endings.mask(mixed, 102 * S) == bytes([0, EXPIRED])
    assert endings.mask(mixed, 109 * S) == bytes([EXPIRED] * 2)
    endings.max_age_ns = 1 * S
    assert endings.mask(plain, 101 * S + 1) == bytes([EXPIRED] * 2)
    endings.max_age_ns = 0
    endings.set_lifetime(-1)
    assert endings.mask(plain, 200 * S) is None
    assert endings.mask(mixed, 102 * S) is None


def test_held_messages_expire_with_the_lifetime_of_the_topic(endings: Endings) -> None:
    held = HeldExpiries(endings)
    endings.set_lifetime(2)
    plain, mixed = block_at(0, None, None, None), block_at(3, {EXPIRES_HEADER: 9_000}, None)
    held.add(1, [(plain, 1, 3), (mixed, 0, 2)], {1})
    assert held.next_ns == 102 * S
    assert held.due(102 * S) == {1: [(1, 2), (4, 1)]}
    assert held.due(109 * S) == {1: [(3, 1)]}


def test_a_revoked_key_cancels_the_messages_below_its_end(endings: Endings) -> None:
    endings.revoke(["a"], 12)
    assert endings.mask(keyed(10, "a", "b", "a"), 0) == bytes([CANCELLED, 0, 0])
    assert endings.mask(keyed(12, "a"), 0) is None
    endings.revoke(["a", "b"], 20)
    assert endings.mask(keyed(10, "a", "b", "a"), 0) == bytes([CANCELLED] * 3)


def test_a_message_that_is_expired_and_revoked_is_cancelled(endings: Endings) -> None:
    """So it is no dead letter of a channel that keeps what expires."""
    endings.revoke(["a"], 9)
    block = block_at(0, {EXPIRES_HEADER: 0, REVOKE_KEY_HEADER: "a"}, {EXPIRES_HEADER: 0})
    assert endings.mask(block, 100 * S) == bytes([CANCELLED, EXPIRED])


def test_a_revocation_is_forgotten_when_nothing_below_its_end_is_left(endings: Endings) -> None:
    endings.revoke(["a"], 10)
    endings.revoke(["b"], 20)
    endings.forget_below(9)
    assert endings.revoked == {"a": 10, "b": 20}
    endings.forget_below(10)
    assert endings.revoked == {"b": 20}
    endings.forget_below(20)
    assert endings.mask(keyed(0, "a", "b"), 0) is None


def test_the_number_of_revoked_keys_is_limited(endings: Endings) -> None:
    endings.revoke((f"k{number}" for number in range(options.REVOKED_MAX)), 10)
    with pytest.raises(Refused, match=r"at most 1,000 revoked keys"):
        endings.revoke(["one more"], 10)
    endings.revoke(["k0"], 11)
    assert (len(endings.revoked), endings.revoked["k0"]) == (options.REVOKED_MAX, 11)


def test_a_block_without_the_flag_is_not_looked_at(
    endings: Endings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A channel pays for what it uses: no header is unpacked without need."""

    def unpack(_: object) -> None:
        raise AssertionError("a header was looked at")

    monkeypatch.setattr("zsq.transport.wire.lifetime.unpack_headers", unpack)
    endings.revoke(["a"], 10)
    plain = with_place(pack([b"x"]), 0, 0)
    assert not endings.looks_at(plain)
    assert endings.mask(plain, 200 * S) is None
    behind = keyed(10, "a")
    assert not endings.looks_at(behind)
    assert endings.mask(behind, 200 * S) is None
    endings.forget_below(10)
    before = keyed(0, "a")
    assert not endings.looks_at(before)
    assert endings.mask(before, 200 * S) is None


# In a channel

PEERS = [(b"a",), (b"b",)]
KINDS: list[dict[str, Any]] = [{}, {"ordered": True}, {"priorities": 2}]
ALL: tuple[()] = ()


def of_a_key(*headers: Mapping[str, HeaderValue] | None) -> Block:
    [block] = pack_many([b"x"] * len(headers), [b"key"] * len(headers), None, headers)
    return block


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("buries", [False, True])
def test_what_expires_while_it_waits_counts_once(kind: dict[str, Any], buries: bool) -> None:
    """One has expired when the channel reads it, and one while another one was with a consumer."""
    harness = ChannelHarness(dead_letter_expired=buries, **kind)
    channel, dying = harness.channel, harness.channel.supply.dying
    harness.join(PEERS[0], 1)
    lives: list[Mapping[str, HeaderValue] | None] = [
        None,
        {EXPIRES_HEADER: 0},
        {EXPIRES_HEADER: 5_000},
        None,
    ]
    harness.take_in(of_a_key(*lives))
    first = harness.send_one()
    harness.scan(6)
    channel.fin(PEERS[0], first.token, ALL)
    bodies = 0
    for _ in range(4):
        channel.rest()
        for sent in harness.send():
            bodies += sent.block.count
            channel.fin(PEERS[0], sent.token, ALL)
        if dying.waiting:
            assert bodies == 0 or not channel.settings.ordered, "the key waits for its dead letter"
            assert {dead.death.reason for dead in channel.supply.next_dead()} == {"expired"}
            channel.supply.dead()
    assert bodies == 1
    counted = (channel.counters["expired_count"], channel.counters["dead_letter_count"])
    assert counted == ((0, 2) if buries else (2, 0))
    assert channel.statistics(4)["depth"] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_revoked_while_it_waits_counts_once(kind: dict[str, Any]) -> None:
    harness = ChannelHarness(dead_letter_expired=True, **kind)
    channel = harness.channel
    harness.join(PEERS[0], 1)
    harness.take_in(of_a_key(None, {REVOKE_KEY_HEADER: "k"}, {REVOKE_KEY_HEADER: "k"}, None))
    first = harness.send_one()
    channel.revoke(["k"], 4)
    channel.fin(PEERS[0], first.token, ALL)
    channel.rest()
    last = harness.send_one()
    assert last.runs == ((3, 1, 1),)
    assert channel.counters["cancelled_count"] == 2
    assert not channel.supply.dying.waiting
    harness.commit()
    assert channel.supply.choice.endings.revoked == {"k": 4}, "the last one is below the end"
    channel.fin(PEERS[0], last.token, ALL)
    harness.commit()
    assert channel.supply.choice.endings.revoked == {}


def test_the_cost_of_a_block_does_not_grow_with_the_pieces_in_which_it_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each message comes again by itself, and its headers are read once for all of them."""
    count = 300
    harness = ChannelHarness()
    harness.join(PEERS[0], count, reports=True)
    headers: Mapping[str, HeaderValue] = {EXPIRES_HEADER: 60_000, REVOKE_KEY_HEADER: "k"}
    harness.take_in(block_at(0, *[headers] * count), age_s=1)
    first = harness.send_one()
    looked: list[Block] = []

    def noted(block: Block) -> list[int | None]:
        looked.append(block)
        return lifetimes_ms(block)

    monkeypatch.setattr("zsq.actors.channel.endings.lifetimes_ms", noted)
    harness.channel.revoke(["other"], count)
    for offset in range(0, count, 2):
        harness.channel.req(PEERS[0], first.token, ((offset, 1),), 0, harness.wall_ns)
    harness.commit()
    assert sum(sent.block.count for sent in harness.send()) == count // 2
    assert len(looked) <= 1
    harness.scan(60)
    told = harness.channel.expire_held(harness.wall_ns)
    assert sum(size for _, ranges in told for _, size in ranges) == count
    assert harness.channel.counters["expired_count"] == count
    assert harness.channel.in_flight == 0


def test_deliveries_that_are_answered_leave_no_rows_until_they_expire(endings: Endings) -> None:
    held = HeldExpiries(endings)
    for token in range(5_000):
        block = block_at(token, {EXPIRES_HEADER: 86_400_000 + token})
        held.add(token, [(block, 0, 1)], range(token - 5, token + 1))
    assert len(held) <= 1_010
    assert held.due(86_500 * S) == {}
    assert list(held.due(90_000 * S))[-6:] == [*range(4_994, 5_000)]


def test_an_expiry_is_planned_by_the_wall_clock_also_if_that_was_set_back() -> None:
    """Due times count by a clock that nobody sets. With that one, an expiry would be due all the
    time until the wall clock came there again, and the scans would never rest.
    """
    harness = ChannelHarness()
    harness.join(PEERS[0], 1, reports=True)
    harness.take_in(block_at(0, {EXPIRES_HEADER: 60_000}), age_s=1)
    harness.send_one()
    later_ns, hour_ns = harness.wall_ns + 61 * S, 3_600 * S
    assert harness.channel.expire_held(later_ns - hour_ns) == []
    assert harness.channel.next_due(harness.now_ns, later_ns, later_ns - hour_ns) > harness.now_ns
    assert harness.channel.next_due(harness.now_ns, later_ns - hour_ns, later_ns) < harness.now_ns
    assert len(harness.channel.expire_held(later_ns)) == 1
