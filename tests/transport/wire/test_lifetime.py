"""Tests of the headers for the lifetime and the revoke key of a message, and of their flags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from zsq import UsageError
from zsq.transport.block.block import Block, pack, with_place
from zsq.transport.block.block_format import EXPIRES, REVOCABLE
from zsq.transport.client.core.packing import pack_many
from zsq.transport.client.core.publish_arguments import lifetime_of
from zsq.transport.wire.codec import EXPIRES_HEADER, HeaderValue, pack_headers
from zsq.transport.wire.lifetime import (
    EXPIRES_MS_MAX,
    REVOKE_KEY_HEADER,
    aged,
    lifetimes_ms,
    revoke_keys,
)

S = 1_000_000_000


def block_of(*headers: Mapping[str, HeaderValue] | None) -> Block:
    """Return a block as a client packs it."""
    [block] = pack_many([b"x"] * len(headers), None, None, headers)
    return block


def expiring(*lives_ms: Any) -> Block:
    return block_of(*({EXPIRES_HEADER: value} if value is not None else None for value in lives_ms))


@pytest.mark.parametrize(
    ("headers", "flags"),
    [
        ({"a": 1}, 0),
        ({EXPIRES_HEADER: 5}, EXPIRES),
        ({REVOKE_KEY_HEADER: "k"}, REVOCABLE),
        ({REVOKE_KEY_HEADER: "k", EXPIRES_HEADER: 5}, EXPIRES | REVOCABLE),
    ],
)
def test_the_client_sets_the_flags_of_a_block_by_its_headers(
    headers: dict[str, HeaderValue], flags: int
) -> None:
    assert block_of(None, headers).header.flags == flags


@pytest.mark.parametrize(
    ("value", "lives_ms"),
    [
        (0, 0),
        (7, 7),
        ("7", 7),
        ("9" * 5_000, EXPIRES_MS_MAX),
        (1 << 62, EXPIRES_MS_MAX),
        (-1, None),
        (1.5, None),
        (True, None),
        ("", None),
        ("-1", None),
        (b"7", None),
    ],
)
def test_a_lifetime_that_is_not_valid_is_no_limit(value: Any, lives_ms: int | None) -> None:
    assert lifetimes_ms(expiring(value, None)) == [lives_ms, None]


def test_the_name_of_a_header_inside_of_a_value_means_nothing() -> None:
    headers = {"note": pack_headers({EXPIRES_HEADER: 1, REVOKE_KEY_HEADER: "k"})}
    block = block_of(headers)
    assert (lifetimes_ms(block), revoke_keys(block)) == ([None], [None])


@pytest.mark.parametrize(("value", "key"), [("k", "k"), ("é" * 128, "é" * 128), ("é" * 129, None), ("", None), (5, None)])  # fmt: skip
def test_a_revoke_key_is_a_text_of_up_to_256_bytes(value: Any, key: str | None) -> None:
    assert revoke_keys(block_of({REVOKE_KEY_HEADER: value}, None)) == [key, None]


def test_headers_without_the_flag_are_not_looked_at() -> None:
    """Dead letters keep their headers, and do not expire."""
    block = pack([b"x"], headers=[pack_headers({EXPIRES_HEADER: 1})])
    assert lifetimes_ms(block) == [None]


def test_the_lifetime_of_a_delayed_message_counts_from_its_publish() -> None:
    assert lifetime_of(10, 4_000, "k") == {EXPIRES_HEADER: 6_000, REVOKE_KEY_HEADER: "k"}
    assert lifetime_of(0.0001, 0, None) == {EXPIRES_HEADER: 1}
    assert lifetime_of(None, 4_000, None) == {}


@pytest.mark.parametrize("expires_in", [0, -1, float("nan"), float("inf"), 4, True, "5", 4e9])
def test_a_lifetime_that_cannot_be_meant_is_refused(expires_in: Any) -> None:
    """A deadline that has passed must not become a message that lives for ever."""
    with pytest.raises(UsageError):
        lifetime_of(expires_in, 4_000, None)


@pytest.mark.parametrize("key", ["", "x" * 257, b"k", 5, "\udc80"])
def test_a_revoke_key_that_is_not_valid_is_refused(key: Any) -> None:
    with pytest.raises(UsageError):
        lifetime_of(None, 0, key)


def test_a_message_that_comes_due_late_lives_shorter() -> None:
    block = with_place(expiring(5_000, None, 500), 7, 3 * S)
    late = aged(block, 700)
    late.check()
    assert lifetimes_ms(late) == [4_300, None, 0]
    assert (late.header.flags, late.first_offset, late.header.time_ns) == (EXPIRES, 7, 3 * S)
    assert late.body.values() == block.body.values()
    assert aged(block, 0) is block
    plain = pack([b"x"], headers=[pack_headers({EXPIRES_HEADER: 5})])
    assert aged(plain, 700) is plain
