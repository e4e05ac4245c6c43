"""Tests of NSQ's frames and ids: bytes that are made in bulk are compared with bytes made by
hand.
"""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zsq.transport.client.core.message import OFFSET_BITS
from zsq.transport.names import PART_SHIFT, PARTS_MAX
from zsq.transport.nsq.errors import NsqError, quoted, shown
from zsq.transport.nsq.wire import (
    CLOSE_WAIT,
    ERROR,
    HEARTBEAT,
    OK,
    RESPONSE,
    encode_messages,
    error_frame,
    frame,
    id_base,
    message_id,
    message_ids,
    message_offsets,
)

offset = st.integers(0, (1 << 64) - 1)
time_ns = st.integers(0, (1 << 63) - 1)
message = st.tuples(st.binary(min_size=1, max_size=30), offset, st.integers(1, 70_000), time_ns)


def by_hand(body: bytes, offset: int, attempts: int, time: int) -> bytes:
    data = struct.pack(">qH", time, min(attempts, 65535)) + b"%016x" % offset + body
    return struct.pack(">ii", len(data) + 4, 2) + data


def test_frames_have_the_bytes_that_nsqd_sends() -> None:
    assert frame(RESPONSE, b"OK") == OK == b"\0\0\0\x06\0\0\0\0OK"
    assert CLOSE_WAIT == b"\0\0\0\x0e\0\0\0\0CLOSE_WAIT"
    assert HEARTBEAT == b"\0\0\0\x0f\0\0\0\0_heartbeat_"
    assert frame(ERROR, b"") == b"\0\0\0\x04\0\0\0\x01"


def test_an_error_frame_holds_code_and_text() -> None:
    assert error_frame(NsqError("E_X", "of \udcff")) == b"\0\0\0\x0c\0\0\0\x01E_X of \xff"
    assert error_frame(NsqError("E_X")) == b"\0\0\0\x07\0\0\0\x01E_X"
    assert error_frame(NsqError("", "only for the log")) == b""


@given(st.lists(message, max_size=20))
def test_messages_packed_in_bulk_equal_those_by_hand(
    messages: list[tuple[bytes, int, int, int]],
) -> None:
    bodies, offsets, attempts, times = zip(*messages, strict=True) if messages else ((), (), (), ())
    assert encode_messages(bodies, message_ids(offsets), attempts, times) == b"".join(
        by_hand(*one) for one in messages
    )


@example([b"abc", b"def"], 1, 65536, 1)
@example([b"abc", b"defg"], 1, 65536, 1)
@given(
    st.lists(st.binary(min_size=3, max_size=4), min_size=1, max_size=20),
    offset,
    st.integers(1, 70_000),
    time_ns,
)
def test_one_time_and_one_attempt_stand_for_all_messages(
    bodies: list[bytes], first: int, attempts: int, time: int
) -> None:
    offsets = [(first + i) % (1 << 64) for i in range(len(bodies))]
    expected = b"".join(
        by_hand(body, offset, attempts, time) for body, offset in zip(bodies, offsets, strict=True)
    )
    same = len(bodies)
    assert encode_messages(bodies, message_ids(offsets), attempts, time) == expected
    assert encode_messages(bodies, message_ids(offsets), [attempts] * same, time) == expected
    assert encode_messages(bodies, message_ids(offsets), attempts, [time] * same) == expected


def test_more_bodies_than_ids_are_refused() -> None:
    with pytest.raises(ValueError):
        encode_messages([b"a", b"b"], message_ids([1]), 1, 1)
    with pytest.raises(ValueError):
        encode_messages([b"a", b"bb"], message_ids([1]), 1, 1)
    with pytest.raises(ValueError):
        encode_messages([b"a"], message_ids([1, 2]), [1], 1)


@given(st.lists(offset, max_size=20))
def test_message_ids_give_their_offsets_back(offsets: list[int]) -> None:
    ids = message_ids(offsets)
    assert list(ids) == [message_id(one) for one in offsets]
    assert list(message_offsets(ids)) == offsets


@pytest.mark.parametrize(
    ("part", "offset", "found"),
    [
        (None, 5, b"0000000000000005"),
        (0, 5, b"0000000000000005"),
        (3, 5, b"0300000000000005"),
        (PARTS_MAX - 1, (1 << OFFSET_BITS) - 1, b"ff3fffffffffffff"),
    ],
)
def test_an_id_names_the_part(part: int | None, offset: int, found: bytes) -> None:
    assert message_ids([id_base(part) + offset]) == (found,)
    assert message_id(id_base(part) + offset) == found


place = st.tuples(st.integers(0, PARTS_MAX - 1), st.integers(0, (1 << OFFSET_BITS) - 1))


@given(st.sets(place, max_size=20))
def test_ids_of_parts_are_unique_and_give_their_offsets_back(places: set[tuple[int, int]]) -> None:
    ids = message_ids([id_base(part) + offset for part, offset in sorted(places)])
    assert len(set(ids)) == len(places)
    numbers = message_offsets(ids)
    assert [divmod(number, 1 << PART_SHIFT) for number in numbers] == sorted(places)


@pytest.mark.parametrize(
    "ids",
    [
        [b"x" * 16],
        [b"0" * 15],
        [b"0" * 17],
        [b"\xff" * 16],
        [b" " * 16],
        [b"00 " * 5 + b"0"],
        [b"0" * 14 + b" 0"],
    ],
)
def test_each_id_that_no_message_has_is_refused(ids: list[bytes]) -> None:
    with pytest.raises(ValueError):
        message_offsets(ids)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"a b", '"a b"'),
        (b'"\\', r'"\"\\"'),
        (b"\a\b\f\n\r\t\v\0\x7f", r'"\a\b\f\n\r\t\v\x00\x7f"'),
        ("é€\U0001f600".encode(), '"é€\U0001f600"'),
        ("\xa0\u200b\ufffd\U000e0001".encode(), '"\\u00a0\\u200b\ufffd\\U000e0001"'),
        (b"\xff\xc3", r'"\xff\xc3"'),
    ],
)
def test_names_are_quoted_as_go_does(raw: bytes, text: str) -> None:
    assert quoted(raw) == text


@given(st.binary(max_size=50))
def test_bytes_of_a_client_are_returned_unchanged_in_an_error(raw: bytes) -> None:
    assert NsqError("E_X", shown(raw)).data == (b"E_X " + raw if raw else b"E_X")
