"""Tests of messages for one channel: packing sets the flag, the broker finds the channels, and
other headers have no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from zsq.transport.block.block import Block, cut, open_block, pack
from zsq.transport.block.block_format import ADDRESSED
from zsq.transport.client.core.gather import Gather
from zsq.transport.client.core.packing import pack_many, packed
from zsq.transport.wire.codec import CHANNEL_HEADER, HeaderValue, pack_headers
from zsq.transport.wire.dead_letter import addressees, with_address

ONE: Mapping[str, HeaderValue] = {"a": 1, CHANNEL_HEADER: "one"}
OTHER: Mapping[str, HeaderValue] = {"a": 1, "zsq-dead-channel": "one"}


def flag(block: Block) -> bool:
    return bool(block.header.flags & ADDRESSED)


@pytest.mark.parametrize(
    ("headers", "addressed"),
    [
        ([None, None], False),
        ([OTHER, None], False),
        ([None, ONE], True),
        ([ONE, OTHER], True),
        (None, False),
    ],
)
def test_all_packers_set_the_flag(headers: list[Any] | None, addressed: bool) -> None:
    as_bytes = None if headers is None else [one and pack_headers(one) for one in headers]
    bodies = [b"x", b"y"]
    assert flag(packed(bodies, None, None, None, as_bytes)) == addressed
    assert flag(next(pack_many(bodies, None, None, headers))) == addressed
    gather = Gather(100, 0)
    for body, one in zip(bodies, as_bytes or [None, None], strict=True):
        gather.bodies.append(body)
        gather.add_attributes(None, None, one)
    block = gather.seal().block
    assert block is not None
    assert flag(block) == addressed


def test_only_blocks_with_addressed_messages_have_the_flag() -> None:
    headers: list[Mapping[str, HeaderValue] | None] = [None] * 25_000
    headers[12_000] = ONE
    blocks = list(pack_many([b"x"] * 25_000, None, None, headers))
    assert [flag(block) for block in blocks] == [False, True, False]


def test_the_flag_goes_with_the_wire_and_with_a_cut() -> None:
    packed_headers = [None, pack_headers(ONE)]
    block = with_address(pack([b"x", b"y"], headers=packed_headers), packed_headers)
    arrived = open_block(block.wire_header(), bytes(block.columns))
    assert flag(arrived)
    assert flag(cut(arrived, 1, 2))
    assert list(addressees(arrived)) == [(1, "one")]
    assert list(addressees(cut(arrived, 1, 2))) == [(0, "one")]


@pytest.mark.parametrize(
    "headers",
    [
        pack_headers({CHANNEL_HEADER: 5}),
        pack_headers({CHANNEL_HEADER: b"one"}),
        pack_headers({"note": CHANNEL_HEADER}),
        b"\xabzsq-channel",
        b"\x81\xabzsq-channel",
        b"\x81\xabzsq-channel\xc1",
        b"",
    ],
)
def test_a_header_that_names_no_channel_addresses_none(headers: bytes) -> None:
    column = [headers, pack_headers(ONE)]
    block = pack([b"x", b"y"], headers=column)
    assert list(addressees(with_address(block, column))) == [(1, "one")]
    assert list(addressees(block)) == [], "without the flag, no channel looks"


def test_a_block_without_headers_addresses_none() -> None:
    assert list(addressees(pack([b"x"]))) == []
