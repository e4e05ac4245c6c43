"""Tests of the codec: every protocol message is encoded and decoded, and garbage is refused."""

from __future__ import annotations

import contextlib
import dataclasses
import tracemalloc
from collections.abc import Callable
from typing import Any, get_origin, get_type_hints, is_typeddict

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zsq.transport.block.block import pack
from zsq.transport.errors import E_BAD_COMMAND, CorruptBlock, UsageError, ZsqError, from_wire
from zsq.transport.wire import codec, sockets
from zsq.transport.wire.protocol import OPTIONS_BYTES_MAX, WORDS, Done, Manage, Wire

integers = st.integers(-(1 << 63), (1 << 64) - 1)
leaves = st.none() | st.booleans() | integers | st.text(max_size=20) | st.binary(max_size=20)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
)
BY_KIND: dict[Any, st.SearchStrategy[Any]] = {
    int: integers,
    str: st.text(max_size=50),
    bytes: st.binary(max_size=50),
    bool: st.booleans(),
    float: st.floats(allow_nan=False),
    tuple: st.lists(
        st.lists(integers, min_size=2, max_size=3).map(tuple) | st.text(max_size=9), max_size=20
    ).map(tuple),
    dict: st.dictionaries(st.text(max_size=9), values, max_size=5),
}


def refused(call: Callable[[], Any]) -> Any:
    """Return the result of the call, or None if it raises UsageError E_BAD_COMMAND. Any other error
    fails the test.
    """
    try:
        return call()
    except UsageError as error:
        if error.code != E_BAD_COMMAND:
            raise
        return None


def words_of(message: type[Wire]) -> st.SearchStrategy[Wire]:
    return st.builds(message, *(BY_KIND[kind] for kind in codec.field_kinds(message).values()))


@pytest.mark.parametrize("message", WORDS.values(), ids=lambda message: message.__name__)
def test_each_message_comes_back_as_it_was_encoded(message: type[Wire]) -> None:
    @settings(max_examples=25, deadline=None)
    @given(words_of(message))
    def check(made: Wire) -> None:
        frame = codec.encode(made)
        assert codec.decode(frame) == made
        assert codec.decode(memoryview(frame)) == made

    check()


@pytest.mark.parametrize("message", WORDS.values(), ids=lambda message: message.__name__)
def test_the_kind_of_each_field_is_that_of_its_annotation(message: type[Wire]) -> None:
    """The codec reads the text of the annotation, because to evaluate it would delay each start."""
    hints = get_type_hints(message)
    kinds = {field.name: hints[field.name] for field in dataclasses.fields(message)}
    assert codec.field_kinds(message) == {
        name: dict if is_typeddict(kind) else get_origin(kind) or kind
        for name, kind in kinds.items()
    }


def test_opcodes_are_unique_and_can_be_read_without_unpacking() -> None:
    """The gateway reads the kind of a message from the first bytes of its control frame."""
    assert max(len(dataclasses.fields(message)) for message in WORDS.values()) < 15, (
        "so the array's own head is one byte"
    )
    assert len({message.op for message in WORDS.values()}) == len(WORDS)
    assert all(0 < op < 1 << 16 for op in WORDS)
    assert all(codec.opcode(codec.encode(message())) == op for op, message in bare_words().items())


def bare_words() -> dict[int, type[Wire]]:
    """Return the messages that need no arguments."""
    return {op: word for op, word in WORDS.items() if can_be_bare(word)}


def can_be_bare(word: type[Wire]) -> bool:
    return all(
        field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        for field in dataclasses.fields(word)
    )


@pytest.mark.parametrize("op", [1, 0x7F, 0x80, 0xFF, 0x100, 0xFFFF])
def test_an_opcode_is_read_as_it_is_packed(op: int) -> None:
    assert codec.opcode(msgpack.packb((op, "field"))) == op


@pytest.mark.parametrize(
    "frame",
    [
        b"", b"\x91", b"\x91\xcc", b"\x91\xcd\x01", b"\xa1\x05", b"\xdc\x00\x01\x05",
        b"\x91\xcc\x05", b"\x91\xcd\x00\x05", b"\x91\xcd\x00\xff", b"\x91\xff", b"\x91\xce\x00\x00\x01\x00",
    ],
)  # fmt: skip
def test_an_opcode_in_another_form_is_none(frame: bytes) -> None:
    """Otherwise a gateway could let a message through that the actor takes for another one."""
    assert codec.opcode(frame) == 0


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=200))
def test_garbage_raises_nothing_but_usage_errors(frame: bytes) -> None:
    refused(lambda: codec.decode(frame))


@settings(max_examples=300, deadline=None)
@given(values)
def test_other_values_are_told_apart(value: Any) -> None:
    message = refused(lambda: codec.decode(codec.pack_value(value)))
    assert message is None or type(message) in WORDS.values()


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(WORDS)).flatmap(lambda op: words_of(WORDS[op])), st.data())
def test_a_changed_frame_raises_no_error_but_bad_command(
    message: Wire, data: st.DataObject
) -> None:
    frame = bytearray(codec.encode(message))
    frame[data.draw(st.integers(0, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
    refused(lambda: codec.decode(bytes(frame)))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=100), max_size=6))
def test_garbage_block_frames_raise_no_unexpected_error(frames: list[bytes]) -> None:
    with contextlib.suppress(UsageError, CorruptBlock):
        codec.frames_blocks(frames)


def test_blocks_come_back_from_their_frames() -> None:
    blocks = [pack([b"a", b"b"], keys=[None, b"k"], sequence=7), pack([b"c"])]
    found = codec.frames_blocks(codec.block_frames(blocks))
    assert [block.header for block in found] == [block.header for block in blocks]
    assert [bytes(block.columns) for block in found] == [bytes(block.columns) for block in blocks]


class Frame:
    """A message part as ZeroMQ returns it."""

    def __init__(self, data: bytes) -> None:
        self.bytes = data
        self.buffer = memoryview(data)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=20), max_size=12))
def test_garbage_frames_are_refused_or_opened_whole(frames: list[bytes]) -> None:
    opened = refused(lambda: sockets.open_frames([Frame(frame) for frame in frames]))
    if opened is not None:
        envelope, message, rest = opened
        assert len(envelope) + 2 + len(rest) == len(frames)
        assert type(message) in WORDS.values()


def test_headers_come_back_and_wrong_ones_are_refused() -> None:
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

    for code in (
        "E_BAD_NAME",
        "E_NOT_FOUND",
        "E_DISK_FULL",
        "E_LEASE",
        "E_CHECKSUM",
        "E_TIMEOUT",
        "E_NEW_AND_UNKNOWN",
    ):
        error = from_wire(code, "text")
        assert isinstance(error, ZsqError)
        assert (error.code, str(error)) == (code, f"{code} text")
        assert type(copy.copy(error)) is type(error)


@pytest.mark.parametrize("depth", [codec.NESTED_MAX + 1, 200, 900, 1_015, 1_023])
@pytest.mark.parametrize("level", [b"\x91", b"\x81\xa1a"])
def test_data_that_is_nested_too_deeply_is_refused(depth: int, level: bytes) -> None:
    """Python cannot print such data, and msgpack cannot encode it again. In an earlier version,
    such data ended the process that decoded it.
    """
    frames = [
        level * (depth - 1) + b"\x80",
        b"\x93\x02\x01" + level * depth + b"\x80",
        b"\x93\x02\x01\x82\x05\x06\xa1a" + level * depth + b"\x80",
    ]
    for frame in frames:
        with pytest.raises(UsageError, match="E_BAD_COMMAND"):
            codec.decode(frame)


def test_nested_data_is_encoded_and_decoded_unchanged() -> None:
    data: dict[str, Any] = {"a": 1}
    for _ in range(codec.NESTED_MAX - 3):
        data = {"a": (), "b": data} if len(data) == 1 else {"a": data}
    assert codec.decode(codec.encode(Done(1, data))) == Done(1, data)
    many = Done(1, {"rows": tuple((i, i) for i in range(1_000))})
    assert codec.decode(codec.encode(many)) == many


@pytest.mark.parametrize("unpack", [codec.decode, codec.unpack_headers])
def test_a_list_takes_memory_for_what_is_there(unpack: Callable[[bytes], Any]) -> None:
    """msgpack before 1.2.4 takes 800 MB for this frame."""
    frame = (b"\xdd" + (100_000).to_bytes(4, "big")) * 1_000
    frame += bytes(100_000 - len(frame))
    tracemalloc.start()
    try:
        with pytest.raises(UsageError):
            unpack(frame)
        assert tracemalloc.get_traced_memory()[1] < 4 * 1024 * 1024
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("frame", "request_number"),
    [
        (b"\x92\x7f\x07", 7),
        (b"\x93\x7f\xcc\xc8\xa1x", 200),
        (b"\x92\x7f\xcd\x01\x00", 256),
        (b"\x92\x7f\xce\x00\x01\x11\x71", 70_001),
        (b"\x92\xcd\x27\x10\xcf" + (1 << 40).to_bytes(8, "big"), 1 << 40),  # opcode 10,000
        (b"\x92\xcc\xfe\x07", 7),  # opcode 254
        (codec.encode(Done(9, {})) + b"garbage", 9),
        (b"\x93\x14\x01\x02", 0),  # Hello has no request
        (b"\x91\x7f", 0),
        (b"\x92\x7f\xce\x00\x01", 0),  # cut
        (b"\x92\x7f\xff", 0),  # -1
        (b"\x92\x7f\xdd\x05\xff\xff\xff", 0),  # a list of 100 million, of which none is there
        (b"\x92\x7f" + b"\x81" * 50, 0),
        (b"\x92\x00\x07", 0),
        (b"garbage", 0),
        (b"", 0),
    ],
)
def test_the_request_of_a_frame_that_is_refused_is_found(frame: bytes, request_number: int) -> None:
    assert codec.request_of(memoryview(frame)) == request_number


@given(st.binary(max_size=40))
def test_no_bytes_make_a_request_that_cannot_be_answered(frame: bytes) -> None:
    codec.encode(Done(codec.request_of(frame), {}))


def test_lists_of_rows_are_cut_to_a_size_and_say_how_many_are_left_out() -> None:
    rows = [{"name": "x" * 100, "number": number} for number in range(1_000)]
    found: Any = codec.fitting({"clients": rows, "bins": [1, 2, 3], "count": 1_000}, 10_000)
    assert 50 < len(found["clients"]) < 100
    assert found["clients"] == rows[: len(found["clients"])]
    assert found["clients_left_out"] == 1_000 - len(found["clients"])
    assert (found["bins"], found["count"]) == ([1, 2, 3], 1_000)
    assert len(codec.pack_value(found)) < 10_500
    assert codec.fitting({"clients": rows}, 10**6) == {"clients": rows}


def test_a_command_with_options_has_at_most_64_kib(monkeypatch: pytest.MonkeyPatch) -> None:
    """A larger command is refused before it is unpacked. It is also refused when it is encoded, so
    its sender gets an error.
    """
    fits = Manage(1, "configure", "t", "", {"keys": "x" * (OPTIONS_BYTES_MAX - 100)})
    assert codec.decode(codec.encode(fits)) == fits
    large = msgpack.packb(
        (Manage.op, 1, "configure", "t", "", {"keys": "x" * OPTIONS_BYTES_MAX}, {})
    )

    with monkeypatch.context() as patched:
        patched.setattr(codec, "_unpack", lambda *_, **__: pytest.fail("it was unpacked"))
        for frame in (large, memoryview(large)):
            with pytest.raises(
                UsageError, match=r"Manage of 655\d\d bytes is over the limit of 65536"
            ):
                codec.decode(frame)
    with pytest.raises(UsageError, match="over the limit of 65536") as caught:
        codec.encode(Manage(1, "configure", "t", "", {"keys": "x" * OPTIONS_BYTES_MAX}))
    assert caught.value.code == "E_TOO_BIG"
    done = Done(1, {"x": "x" * OPTIONS_BYTES_MAX})
    assert codec.decode(codec.encode(done)) == done


@pytest.mark.parametrize("head", [b"\xdc\x00\x07\x0c", b"\x97\xcc\x0c", b"\x97\xd0\x0c"])
def test_a_large_command_in_another_packing_is_refused_too(head: bytes) -> None:
    rest = b"".join(
        msgpack.packb(value)
        for value in (1, "configure", "t", "", {"k": "x" * OPTIONS_BYTES_MAX}, {})
    )
    with pytest.raises(UsageError):
        codec.decode(head + rest)


def test_options_of_many_empty_maps_are_refused() -> None:
    """Each map takes one byte in the frame, and 64 bytes in memory."""
    with pytest.raises(UsageError, match="more than 1000 lists and maps") as caught:
        codec.decode(codec.encode(Manage(1, "configure", "t", "", {"x": ({},) * 1_000})))
    assert caught.value.code == "E_TOO_BIG"
    few = Manage(1, "configure", "t", "", {"x": ({},) * 990})
    assert codec.decode(codec.encode(few)) == few
