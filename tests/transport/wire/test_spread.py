"""Tests of the parts of keys, and of the way to a part."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsq.transport.errors import E_PARTS, Refused, UsageError
from zsq.transport.wire.address import Space, space_of
from zsq.transport.wire.addresses import Rotation, parse_all
from zsq.transport.wire.protocol import Spread
from zsq.transport.wire.spread import (
    HasParts,
    KeyParts,
    addresses_of,
    checked,
    near,
    part_of_hash,
    parts_of_keys,
    removed_part,
    way_to,
)

A, B, C = (f"tcp://127.0.0.1:{port}" for port in (1, 2, 3))
SPREAD = Spread(1, "clicks", "u", ((0, 0), (1, 4), (2, 0)), ((0, (A,)), (4, (B, C))))


@pytest.mark.parametrize(
    ("number", "count", "part"),
    [(1, 1, 0), (42, 57, 43), (0xDEAD10CC, 1, 0), (0xDEAD10CC, 666, 361), (256, 1024, 520)],
)
def test_jump_consistent_hash_is_that_of_other_implementations(
    number: int, count: int, part: int
) -> None:
    assert part_of_hash(number, count) == part


@pytest.mark.parametrize(
    ("key", "part"), [(b"", 0), (b"a", 7), (b"user-1", 5), (b"user-2", 5), ("é".encode(), 6)]
)
def test_the_part_of_a_key_never_changes(key: bytes, part: int) -> None:
    """Messages of a key are in order only if all versions and languages agree."""
    assert KeyParts(8).of(key) == part


@given(st.binary(max_size=40), st.integers(1, 64))
def test_keys_move_only_to_new_parts(key: bytes, count: int) -> None:
    before, after = KeyParts(count).of(key), KeyParts(count + 1).of(key)
    assert 0 <= before < count
    assert after in (before, count)


@given(st.lists(st.binary(max_size=3), max_size=50), st.integers(1, 9))
def test_remembered_keys_have_the_same_part(keys: list[bytes], count: int) -> None:
    parts = KeyParts(count)
    assert [parts.of(key) for key in keys * 2] == [KeyParts(count).of(key) for key in keys * 2]


@given(st.binary(max_size=8), st.sets(st.integers(0, 7), max_size=7), st.integers(0, 7))
def test_only_the_keys_of_a_part_move_when_it_is_closed(
    key: bytes, closed: set[int], part: int
) -> None:
    usual, found = KeyParts(8).of(key), KeyParts(8, closed).of(key)
    assert found not in closed
    assert (found == usual) == (usual not in closed)


def test_a_topic_whose_parts_are_all_closed_takes_no_messages() -> None:
    with pytest.raises(Refused, match="all 3 parts of topic clicks are closed"):
        parts_of_keys(replace(SPREAD, closed=(0, 1, 2)))


def test_the_way_to_a_part_ends_at_the_addresses_of_the_user() -> None:
    home = parse_all([C, "tcp://127.0.0.1:4"], transport="tcp")
    way = way_to(home, "clicks#1", SPREAD, Space.MACHINE)
    assert way is not None
    assert [one.url for one in way.each] == [B, C, "tcp://127.0.0.1:4"]
    assert way.present.url == B
    assert way.several
    assert not any(one.auto for one in way.each)


@pytest.mark.parametrize("home", ["tcp://10.0.0.1:1", "ipc:///data/run"])
@pytest.mark.parametrize("url", ["ipc:///data/other/run", "inproc://a", ""])
def test_a_broker_names_only_tcp_addresses(home: str, url: str) -> None:
    """An ipc:// address would lead to any other broker of this user, with all permissions."""
    with pytest.raises(UsageError, match=r"E_BAD_COMMAND .* only tcp:// is accepted"):
        near(parse_all(home), (url,), Space.MACHINE)


def test_what_a_broker_names_reaches_as_far_as_itself_unless_the_user_gave_it() -> None:
    home = parse_all(["tcp://10.0.0.1:1", A], transport="tcp")
    found = near(home, (A, B), Space.SITE)
    assert [(one.url, one.least) for one in found.each] == [(A, Space.MACHINE), (B, Space.SITE)]


@pytest.mark.parametrize(
    ("host", "space"),
    [
        ("127.0.0.1", Space.MACHINE),
        ("127.9.9.9", Space.MACHINE),
        ("::1", Space.MACHINE),
        ("::ffff:127.0.0.1", Space.MACHINE),
        ("0.0.0.0", Space.MACHINE),
        ("::", Space.MACHINE),
        ("169.254.169.254", Space.LINK),
        ("fe80::1%eth0", Space.LINK),
        ("224.0.0.1", Space.LINK),
        ("10.1.2.3", Space.SITE),
        ("192.168.0.1", Space.SITE),
        ("100.64.0.1", Space.SITE),
        ("fd00::1", Space.SITE),
        ("8.8.8.8", Space.WORLD),
        ("2600::1", Space.WORLD),
    ],
)
def test_each_address_has_a_space(host: str, space: Space) -> None:
    assert space_of(host) is space


def test_there_is_no_way_to_a_whole_topic_or_a_part_that_is_missing() -> None:
    home = parse_all(A)
    assert way_to(home, "clicks", SPREAD, Space.MACHINE) is None
    assert way_to(home, "clicks#3", SPREAD, Space.MACHINE) is None
    assert addresses_of(SPREAD, 3) == ()


def test_a_way_is_not_remembered_for_other_clients() -> None:
    way = way_to(parse_all(A), "clicks#1", SPREAD, Space.MACHINE)
    assert way is not None
    way.failed(way.present, "gone")
    assert not way.reached(way.present)
    assert Rotation(way.given).present.url == B, "the next client begins with the first address"


@pytest.mark.parametrize(
    "wrong",
    [
        {"parts": ()},
        {"parts": ((0, 0), (2, 0))},
        {"parts": ((0, 0), (0, 0))},
        {"parts": ((0,),)},
        {"parts": ("ab",)},
        {"parts": tuple((number, 0) for number in range(257))},
        {"brokers": ((0, "tcp://a:1"),)},
        {"brokers": ((0, (7,)),)},
        {"brokers": (5,)},
        {"brokers": (("0", (A,)),)},
        {"closed": ("0",)},
        {"removed": (0,)},
        {"removed": (4,)},
        {"removed": ("3",)},
        {"parts": (), "removed": (0, 1, 2)},
        {"removed": tuple(range(3, 257))},
    ],
)
def test_a_spread_that_cannot_be_used_is_refused(wrong: dict[str, Any]) -> None:
    assert checked(SPREAD) == SPREAD
    with pytest.raises(UsageError, match="E_BAD_COMMAND"):
        checked(replace(SPREAD, **wrong))


def test_a_part_that_was_removed_counts_for_keys_as_a_closed_one() -> None:
    closed = replace(SPREAD, closed=(1,))
    gone = replace(SPREAD, parts=((0, 0), (2, 0)), removed=(1,))
    assert checked(gone) == gone
    for key in (b"%d" % number for number in range(200)):
        assert parts_of_keys(gone).of(key) == parts_of_keys(closed).of(key) != 1
    assert way_to(parse_all(A), "clicks#1", gone, Space.MACHINE) is None
    error = removed_part("clicks#1", gone)
    assert error is not None
    assert "part clicks#1 was removed" in error.text
    assert removed_part("clicks#2", gone) is removed_part("clicks", gone) is None
    first = replace(SPREAD, parts=((1, 4), (2, 0)), removed=(0,))
    assert "such as clicks#1" in HasParts(first).text
    with pytest.raises(Refused, match=r"all 2 parts .*zsq topic open clicks#1"):
        parts_of_keys(replace(first, closed=(1, 2)))


def test_the_error_for_a_topic_with_parts_says_what_to_name() -> None:
    error = HasParts(SPREAD)
    assert error.code == E_PARTS
    assert "clicks has 3 parts at 2 brokers" in error.text
    assert "clicks#0" in error.text
    alone = HasParts(replace(SPREAD, brokers=SPREAD.brokers[:1], parts=((0, 0),)))
    assert "clicks has 1 part at 1 broker, and" in alone.text
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, HasParts)
    assert isinstance(again, UsageError)
    assert again.spread == SPREAD
