"""Tests of the headers of dead letters: the message's own headers stay, the limits hold for any
headers, and a redrive keeps the headers of the dead letter as history.
"""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zsq.transport.block.block_format import HEADERS_BYTES_MAX
from zsq.transport.wire import dead_letter as d
from zsq.transport.wire.codec import CHANNEL_HEADER, HEADERS_MAX, pack_headers, unpack_headers

ABOUT: dict[str, Any] = {
    d.TOPIC: "t",
    d.UUID: "u" * 32,
    d.CHANNEL: "c",
    d.ATTEMPTS_MADE: 3,
    d.REASON: d.ATTEMPTS,
    d.ERROR: "why",
    d.TIME: 1,
}


def packed(own: dict[str, Any] | bytes | None, **more: Any) -> dict[str, Any]:
    data = pack_headers(own) if isinstance(own, dict) else own
    found = d.pack_dead(data, ABOUT | more)
    assert len(found) <= HEADERS_BYTES_MAX
    return unpack_headers(found)


def test_a_dead_letter_keeps_the_headers_of_its_message() -> None:
    assert packed({"a": 1, "b": b"x"}) == {"a": 1, "b": b"x", **ABOUT}
    assert packed(None) == ABOUT


def test_a_letter_that_dies_again_tells_of_its_last_death() -> None:
    before = {"a": 1, d.ERROR: "old", d.LEFT_OUT: 7, CHANNEL_HEADER: "c", d.REDRIVEN + "topic": "t"}
    assert packed(before) == {"a": 1, d.REDRIVEN + "topic": "t", **ABOUT}


def test_the_error_is_cut_before_headers_are_left_out() -> None:
    room = HEADERS_BYTES_MAX - 600
    found = packed({"a": b"x" * room}, **{d.ERROR: "\u00e4" * 512})
    assert found["a"] == b"x" * room
    assert found[d.ERROR] == "\u00e4" * len(found[d.ERROR])
    assert 0 < len(found[d.ERROR]) < 512
    assert d.LEFT_OUT not in found


def test_the_oldest_frames_are_cut_before_the_error() -> None:
    room = HEADERS_BYTES_MAX - 3_000
    found = packed({"a": b"x" * room}, **{d.TRACEBACK: "old " * 500 + "new " * 500})
    assert (found["a"], found[d.ERROR]) == (b"x" * room, ABOUT[d.ERROR])
    assert 500 < len(found[d.TRACEBACK]) < 4_000
    assert found[d.TRACEBACK].endswith("new new ")
    states = []
    for more in range(2_000, 3_000, 2):
        found = packed(
            {"a": b"x" * (room + more)}, **{d.TRACEBACK: "old " * 1_000, d.ERROR: "e" * 99}
        )
        states.append((d.TRACEBACK not in found, found[d.ERROR] != "e" * 99, d.LEFT_OUT in found))
    assert sorted(set(states)) == [
        (False, False, False),
        (True, False, False),
        (True, True, False),
        (True, True, True),
    ]


def test_a_letter_that_dies_again_and_again_does_not_grow() -> None:
    letter: dict[str, Any] = {"a": 1}
    sizes = set()
    for _ in range(5):
        letter = packed(letter, **{d.TRACEBACK: "t" * 4_000, d.CONSUMER: "me"})
        sizes.add(len(pack_headers(letter)))
        letter = d.redriven(letter, "c")
        assert not [name for name in letter if "traceback" in name]
    assert len(sizes) == 2, "the first death, and all later ones"


def test_the_largest_headers_are_left_out_and_counted() -> None:
    found = packed({"a": b"x" * 8_000, "b": b"x" * 8_100, "c": 1})
    assert ("a" in found, "b" in found, found["c"], found[d.LEFT_OUT], found[d.ERROR]) == (
        True,
        False,
        1,
        1,
        "",
    )
    many = packed({f"h{i}": i for i in range(64)})
    assert len(many) == HEADERS_MAX - 2
    assert many[d.LEFT_OUT] == 64 - (len(many) - len(ABOUT) - 1)


@pytest.mark.parametrize(
    "own",
    [
        b"\xc1",
        msgpack.packb([1, 2]),
        msgpack.packb({1: 2}),
        msgpack.packb({b"a": 2}),
        b"\x81\xa1\xff\x01",
    ],
)
def test_headers_that_are_not_a_map_are_kept_unchanged(own: bytes) -> None:
    assert packed(own) == {d.UNREADABLE: own, **ABOUT}
    assert packed(own + b"x" * HEADERS_BYTES_MAX) == ABOUT


VALUES = st.one_of(
    st.text(max_size=400),
    st.binary(max_size=3_000),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.booleans(),
    st.none(),
)


@settings(max_examples=150, deadline=None)
@given(own=st.dictionaries(st.text(max_size=80), VALUES, max_size=64), error=st.text(max_size=512))
def test_a_dead_letter_and_its_redrive_fit_with_any_headers(
    own: dict[str, Any], error: str
) -> None:
    data = pack_headers(own)
    if len(data) > HEADERS_BYTES_MAX:
        return
    found = packed(data, **{d.ERROR: error, d.CHANNEL: "c" * 64, d.TOPIC: "t" * 64})
    back = d.redriven(found, "c" * 64)
    assert len(pack_headers(back)) <= HEADERS_BYTES_MAX
    assert {name for name in back if name.startswith(d.PREFIX)} == set()
    assert back[CHANNEL_HEADER] == "c" * 64


def test_a_redriven_letter_tells_its_history() -> None:
    back = d.redriven(
        {"a": 1, **ABOUT, d.REDRIVEN + "error": "older", d.REDRIVEN + "left-out": 3}, "c"
    )
    assert back == {
        "a": 1,
        CHANNEL_HEADER: "c",
        **{name.replace("zsq-dead-", "zsq-redriven-"): value for name, value in ABOUT.items()},
    }
    assert CHANNEL_HEADER not in d.redriven({"a": 1, CHANNEL_HEADER: "old", **ABOUT}, None)


def test_names_that_are_no_text_stay_when_a_letter_is_sent_back() -> None:
    """Another client library may write such names in its own dead letters."""
    headers: Any = {b"bytes": 1, d.TOPIC: "t", d.REDRIVEN + "topic": "old", CHANNEL_HEADER: "old"}
    assert d.redriven(headers, None) == {b"bytes": 1, d.REDRIVEN + "topic": "t"}


def test_a_dead_letter_and_a_redriven_message_have_no_id() -> None:
    """A redrive within the window of the ids would be called a duplicate, and be lost."""
    packed = d.pack_dead(pack_headers({"zsq-dedupe-id": "one", "a": 1}), {})
    assert unpack_headers(packed) == {"a": 1}
    assert d.redriven({"zsq-dedupe-id": "one", "a": 1}, None) == {"a": 1}
