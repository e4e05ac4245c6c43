"""Every word there and back, and garbage that is told apart from words."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zsq.transport import codec, sockets
from zsq.transport.block import pack
from zsq.transport.errors import E_BAD_COMMAND, CorruptBlock, UsageError, ZsqError, from_wire
from zsq.transport.protocol import WORDS, Wire

integers = st.integers(-(1 << 63), (1 << 64) - 1)
leaves = st.none() | st.booleans() | integers | st.text(max_size=20) | st.binary(max_size=20)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4).map(tuple) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)
BY_KIND: dict[Any, st.SearchStrategy[Any]] = {
    int: integers,
    str: st.text(max_size=50),
    bytes: st.binary(max_size=50),
    bool: st.booleans(),
    float: st.floats(allow_nan=False),
    tuple: st.lists(st.lists(integers, min_size=2, max_size=3).map(tuple) | st.text(max_size=9), max_size=20).map(tuple),
    dict: st.dictionaries(st.text(max_size=9), values, max_size=5),
}


def refused(call: Callable[[], Any]) -> Any:
    """What it returns, or None where it is a UsageError E_BAD_COMMAND; any other error is a failure."""
    try:
        return call()
    except UsageError as error:
        if error.code != E_BAD_COMMAND:
            raise
        return None


def words_of(word: type[Wire]) -> st.SearchStrategy[Wire]:
    hints = get_type_hints(word)
    kinds = [getattr(hints[field.name], "__origin__", hints[field.name]) for field in dataclasses.fields(word)]
    return st.builds(word, *(BY_KIND[kind] for kind in kinds))


@pytest.mark.parametrize("word", WORDS.values(), ids=lambda word: word.__name__)
def test_there_and_back(word: type[Wire]) -> None:
    @settings(max_examples=25, deadline=None)
    @given(words_of(word))
    def check(made: Wire) -> None:
        frame = codec.encode(made)
        assert codec.decode(frame) == made
        assert codec.decode(memoryview(frame)) == made

    check()


def test_opcodes_are_one_byte_and_unique() -> None:
    """The gateway tells words by the second byte of their control frame."""
    assert codec.encode(WORDS[1]())[1] == 1
    assert max(len(dataclasses.fields(word)) for word in WORDS.values()) < 15, "so the array's own head is one byte"
    assert len({word.op for word in WORDS.values()}) == len(WORDS)
    assert all(0 < op < 128 for op in WORDS)


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=200))
def test_garbage_is_a_usage_error_and_nothing_else(frame: bytes) -> None:
    refused(lambda: codec.decode(frame))


@settings(max_examples=300, deadline=None)
@given(values)
def test_other_values_are_told_apart(value: Any) -> None:
    word = refused(lambda: codec.decode(codec.pack_value(value)))
    assert word is None or type(word) in WORDS.values()


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(WORDS)).flatmap(lambda op: words_of(WORDS[op])), st.data())
def test_changed_frames(word: Wire, data: st.DataObject) -> None:
    frame = bytearray(codec.encode(word))
    frame[data.draw(st.integers(0, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
    refused(lambda: codec.decode(bytes(frame)))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=100), max_size=6))
def test_garbage_block_frames(frames: list[bytes]) -> None:
    with contextlib.suppress(UsageError, CorruptBlock):
        codec.frames_blocks(frames)


def test_blocks_there_and_back() -> None:
    blocks = [pack([b"a", b"b"], keys=[None, b"k"], sequence=7), pack([b"c"])]
    found = codec.frames_blocks(codec.block_frames(blocks))
    assert [block.header for block in found] == [block.header for block in blocks]
    assert [bytes(block.columns) for block in found] == [bytes(block.columns) for block in blocks]


class Frame:
    """What ZeroMQ hands out."""

    def __init__(self, data: bytes) -> None:
        self.bytes = data
        self.buffer = memoryview(data)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=20), max_size=12))
def test_garbage_messages(frames: list[bytes]) -> None:
    opened = refused(lambda: sockets.open_frames([Frame(frame) for frame in frames]))
    if opened is not None:
        envelope, word, rest = opened
        assert len(envelope) + 2 + len(rest) == len(frames)
        assert type(word) in WORDS.values()


def test_headers_there_and_back() -> None:
    headers: dict[str, codec.HeaderValue] = {"a": 1, "b": b"x", "c": "ä", "d": None, "e": 1.5}
    assert codec.unpack_headers(codec.pack_headers(headers)) == headers
    assert codec.unpack_headers(None) == codec.unpack_headers(b"") == {}
    for wrong in (b"\xc1", b"\x01", b"\x81"):
        with pytest.raises(UsageError):
            codec.unpack_headers(wrong)
    with pytest.raises(UsageError):
        codec.pack_headers({str(i): i for i in range(65)})


def test_errors_keep_their_code_over_the_wire() -> None:
    import copy

    for code in ("E_BAD_NAME", "E_NOT_FOUND", "E_DISK_FULL", "E_LEASE", "E_CHECKSUM", "E_TIMEOUT", "E_NEW_AND_UNKNOWN"):
        error = from_wire(code, "text")
        assert isinstance(error, ZsqError)
        assert (error.code, str(error)) == (code, f"{code} text")
        assert type(copy.copy(error)) is type(error)
