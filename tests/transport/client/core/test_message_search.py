"""Tests of matching: which messages of a block fit, against a plain loop over them, and that the
work pauses.
"""

from __future__ import annotations

import json
import random
import time
from typing import Any

import msgpack
import pytest

from zsq.transport.block.block import Block, Limits, pack
from zsq.transport.client.core import message_search as matching
from zsq.transport.client.core.message_search import (
    PAUSE,
    Named,
    SearchConditions,
    Undecoded,
    decoded,
    matches,
    named,
)
from zsq.transport.wire.codec import pack_headers

LARGE = Limits(max_msg_size=8 * 1024 * 1024 - 1024)


def found(
    block: Block, wanted: SearchConditions, start: int = 0, stop: int | None = None
) -> list[int]:
    stop = block.count if stop is None else stop
    return [one for one in matches(block, start, stop, wanted, Undecoded()) if one != PAUSE]


def of(*bodies: Any) -> Block:
    return pack([body if isinstance(body, bytes) else json.dumps(body).encode() for body in bodies])


@pytest.mark.parametrize(
    ("bodies", "wanted", "indexes"),
    [
        ([b"abc", b"b", b"cab"], SearchConditions("ab"), [0, 2]),
        ([b"a", b"b", b"ab"], SearchConditions("ab"), [2]),  # a hit across two messages is none
        ([b"aab", b"b", b"aab"], SearchConditions("bb"), []),
        ([b"aaaa", b"aaa"], SearchConditions("aaaa"), [0]),
        ([b"", b"x", b"", b"x"], SearchConditions("x"), [1, 3]),
        ([b"Error", b"ERROR"], SearchConditions("error"), []),
        ([b"Error", b"ERROR", b"err"], SearchConditions("eRRor", ignore_case=True), [0, 1]),
        (
            ["\u00c9T\u00c9".encode(), b"x"],
            SearchConditions("\u00e9t\u00e9", ignore_case=True),
            [0],
        ),
        ([b"STRASSE", b"x"], SearchConditions("stra\u00dfe", ignore_case=True), [0]),
        ([b"\xff\xfeerr", b"x"], SearchConditions("ERR\u00e9", ignore_case=True), []),
        ([b"a", b"b"], SearchConditions(), [0, 1]),
        ([b"a", b"b"], SearchConditions(key=b"k"), []),
        ([b"a"], SearchConditions(tag=b"t"), []),
        ([b"a"], SearchConditions(header=Named("h")), []),
    ],
)
def test_text_is_found_in_single_messages(
    bodies: list[bytes], wanted: SearchConditions, indexes: list[int]
) -> None:
    assert found(pack(bodies), wanted) == indexes


def test_keys_tags_and_headers_are_compared_whole() -> None:
    headers = [
        pack_headers({"h": "x", "n": 7}),
        pack_headers({"h": b"x"}),
        pack_headers({"hh": "x"}),
        None,
        b"\xc1broken h",
    ]
    block = pack(
        [b"1", b"2", b"3", b"4", b"5"],
        keys=[b"k", b"kk", None, b"", b"k"],
        tags=[b"t", None, b"t", b"tt", b"t"],
        headers=headers,
    )
    assert found(block, SearchConditions(key=b"k")) == [0, 4]
    assert found(block, SearchConditions(key=b"")) == [3]
    assert found(block, SearchConditions(tag=b"t")) == [0, 2, 4]
    assert found(block, SearchConditions(tag=b"t", key=b"k")) == [0, 4]
    assert found(block, SearchConditions("5", tag=b"t", key=b"k")) == [4]
    assert found(block, SearchConditions(header=Named("h", "x"))) == [0, 1]
    assert found(block, SearchConditions(header=Named("h"))) == [0, 1]
    assert found(block, SearchConditions(header=Named("n", "7"))) == [0]
    assert found(block, SearchConditions(header=Named("n", "8"))) == []


@pytest.mark.parametrize(
    ("path", "bodies", "indexes"),
    [
        ("user.id=7", [{"user": {"id": 7}}, {"user": {"id": "7"}}, {"user": 7}, {"id": 7}], [0, 1]),
        ("a.1.b=x", [{"a": [0, {"b": "x"}]}, {"a": {"1": {"b": "x"}}}, {"a": []}], [0, 1]),
        ("ok=true", [{"ok": True}, {"ok": 1}, {"ok": "true"}, {"ok": False}], [0, 2]),
        ("v=null", [{"v": None}, {}, {"v": 0}], [0]),
        ("v=1.5", [{"v": 1.5}, {"v": "1.5"}, {"v": 15}], [0, 1]),
        ("v", [{"v": None}, {"v": {}}, {}, [1], 5], [0, 1]),
        ("v=", [{"v": ""}, {"v": "x"}], [0]),
        ("v=x=y", [{"v": "x=y"}], [0]),
        ("v=7", [msgpack.packb({"v": 7}), msgpack.packb({b"v": b"7"}), b"\xc1", b"{"], [0, 1]),
        ("v=12345678901234567890123", [{"v": 12345678901234567890123}], [0]),
        ("0=a", [["a"], {"0": "a"}, msgpack.packb(["a"])], [0, 1, 2]),
        ("99999999999=a", [["a"]], []),
        ("v=1", [b"[" * 60_000, b"\x91" * 60_000, b'{"v":' + b"1" * 60_000 + b"}"], []),
    ],
)
def test_a_field_is_found_in_json_and_msgpack(
    path: str, bodies: list[Any], indexes: list[int]
) -> None:
    assert found(of(*bodies), SearchConditions(field=named(path, "field"))) == indexes


def test_large_bodies_are_not_decoded_and_counted() -> None:
    undecoded = Undecoded()
    block = of({"v": 1, "x": "y" * matching.FIELD_BYTES_MAX}, {"v": 1})
    wanted = SearchConditions(field=Named("v", "1"))
    assert [one for one in matches(block, 0, 2, wanted, undecoded) if one != PAUSE] == [1]
    assert undecoded.count == 1


def test_a_list_that_only_claims_to_be_long_takes_no_memory() -> None:
    with pytest.raises(ValueError, match="incomplete"):
        decoded(b"\xdd\xff\xff\xff\xff" * 400)


def test_a_search_agrees_with_a_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "WINDOW_BYTES", 7)
    chance = random.Random(7)
    for _ in range(300):
        bodies = [
            bytes(chance.choices(b"abA", k=chance.randrange(6)))
            for _ in range(chance.randrange(1, 20))
        ]
        needle = "".join(chance.choices("abA", k=chance.randrange(1, 4)))
        start = chance.randrange(len(bodies))
        stop = chance.randrange(start, len(bodies)) + 1
        for ignores in (False, True):
            wanted = [
                at
                for at in range(start, stop)
                if (needle.lower() if ignores else needle).encode()
                in (bodies[at].lower() if ignores else bodies[at])
            ]
            assert found(pack(bodies), SearchConditions(needle, ignores), start, stop) == wanted


@pytest.mark.parametrize(
    ("bodies", "wanted"),
    [
        ([b"x" * (4 * 1024 * 1024)], SearchConditions("y")),
        ([b"x" * (4 * 1024 * 1024)], SearchConditions("Y", ignore_case=True)),
        ([b"x" * 500] * 2_000, SearchConditions("\u00e9", ignore_case=True)),
        ([b'{"a": [1, 2, 3]}'] * 5_000, SearchConditions(field=Named("b"))),
        ([b"x"] * 10_000, SearchConditions(header=Named("b"))),
    ],
    ids=["text", "any case", "folded", "field", "header"],
)
def test_a_search_pauses_often(bodies: list[bytes], wanted: SearchConditions) -> None:
    """The work between two pauses is bounded. The bound is far above the usual millisecond,
    because other processes may run in between."""
    headers = [pack_headers({"a": 1})] * len(bodies) if wanted.header else None
    block = pack(bodies, headers=headers, limits=LARGE)
    longest_s, then_s, pauses = 0.0, time.thread_time(), 0
    for one in matches(block, 0, block.count, wanted, Undecoded()):
        assert one == PAUSE
        longest_s, then_s = max(longest_s, time.thread_time() - then_s), time.thread_time()
        pauses += 1
    assert pauses > 1
    assert longest_s < 0.05


@pytest.mark.parametrize("text", ["", "=x", ".".join("a" * 40), "a=" + "x" * 1_000])
def test_a_wrong_field_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="field must"):
        named(text, "field")
