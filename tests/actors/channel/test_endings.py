"""Tests of messages that have ended: when they do, and how long revoked keys are kept."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from zsq import Refused
from zsq.actors.channel.endings import Endings
from zsq.actors.settings import options
from zsq.transport.block.block import Block, pack, with_place
from zsq.transport.client.core.packing import pack_many
from zsq.transport.wire.codec import EXPIRES_HEADER, HeaderValue
from zsq.transport.wire.lifetime import REVOKE_KEY_HEADER

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
