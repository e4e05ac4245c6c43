"""Tests of the parser of NSQ's commands: the result does not depend on how the bytes are cut, sizes
are limited, and it raises only its own errors.
"""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.nsq_client import ID, mpub, pub, sized

from zsq.transport.nsq import parser as cutting
from zsq.transport.nsq.commands import Command, Fins, Mpub, Nop
from zsq.transport.nsq.errors import NsqError
from zsq.transport.nsq.limits import IDENTITY_BYTES_MAX, LINE_BYTES_MAX, NsqLimits
from zsq.transport.nsq.parser import Parser

LIMITS = NsqLimits()
SMALL = NsqLimits(max_msg_size=50, max_body_size=200, max_rdy_count=10)
FIN = b"FIN " + ID + b"\n"


def put_in(data: bytes, at: int, bad: bytes) -> bytes:
    at %= len(data)
    return data[:at] + bad + data[at:]


names = st.sampled_from([b"t", b"orders.new", b"x" * 64, b"a#ephemeral"])
bodies = st.binary(min_size=1, max_size=40)
ids = st.binary(min_size=16, max_size=16).filter(lambda id: not set(id) & set(b" \r\n"))
whole = st.one_of(
    st.sampled_from(
        [
            b"NOP\n",
            b"NOP\r\n",
            b"CLS\n",
            b"RDY 3\n",
            b"SUB t c\n",
            b"REQ " + ID + b" 10\n",
            b"TOUCH " + ID + b"\n",
        ]
    ),
    st.lists(ids, min_size=1, max_size=40).map(
        lambda run: b"".join(b"FIN " + id + b"\n" for id in run)
    ),
    st.builds(pub, names, bodies),
    st.lists(bodies, min_size=1, max_size=20).flatmap(
        lambda many: st.builds(lambda name: mpub(name, *many), names)
    ),
    st.builds(lambda name, body, n: mpub(name, *[body] * n), names, bodies, st.integers(1, 30)),
    st.builds(lambda name, body: b"DPUB " + name + b" 7\n" + sized(body), names, bodies),
    bodies.map(lambda body: b"IDENTIFY\n" + sized(body)),
    bodies.map(lambda body: b"AUTH\n" + sized(body)),
)
nearly = st.one_of(
    whole,
    st.builds(
        lambda data, at, bad: data[: at % len(data)] + bad + data[at % len(data) :],
        whole,
        st.integers(0, 999),
        st.binary(max_size=5),
    ),
    st.binary(max_size=30),
)


def parsed(pieces: list[bytes], limits: NsqLimits = LIMITS) -> list[Command | str]:
    """Return all commands, with each FIN separately and consecutive NOPs as one, and the error that
    ends them.
    """
    parser = Parser(limits)
    found: list[Command | str] = []
    try:
        for piece in pieces:
            for command in parser.feed(piece):
                if isinstance(command, Fins):
                    found += [Fins([id]) for id in command.ids]
                elif not (isinstance(command, Nop) and found and isinstance(found[-1], Nop)):
                    found.append(command)
    except NsqError as error:
        found.append(f"{'fatal' if error.fatal else ''} {error}")
    return found


def cut(data: bytes, places: list[int]) -> list[bytes]:
    at = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[start:stop] for start, stop in pairwise(at)]


@given(st.lists(whole, max_size=12).map(b"".join), st.lists(st.integers(0, 1 << 20), max_size=12))
def test_commands_are_the_same_however_their_bytes_are_divided(
    data: bytes, places: list[int]
) -> None:
    expected = parsed([data])
    assert parsed(cut(data, places)) == expected
    assert parsed([data[i : i + 1] for i in range(len(data))]) == expected


@given(st.lists(nearly, max_size=8).map(b"".join), st.lists(st.integers(0, 1 << 20), max_size=12))
@example(mpub(b"t", b"x" * 30, b"y" * 30, size=3), [])
@example(mpub(b"t", b"x" * 30, b"y" * 31, size=150) + b"NOP\n", [])
@example(FIN * 3 + b"FIN 0123456789abcde\r\n" + FIN, [])
@example(FIN * 3 + b"FIN 01234567 9abcdef\n" + FIN, [])
@example(FIN * 3 + b"FIN 01234567\n9abcdef\n" + FIN, [])
def test_errors_are_the_same_however_the_bytes_are_cut(data: bytes, places: list[int]) -> None:
    expected = parsed([data], SMALL)
    assert parsed(cut(data, places), SMALL) == expected
    assert parsed([data[i : i + 1] for i in range(len(data))], SMALL) == expected


@given(st.binary(max_size=300))
def test_garbage_raises_nothing_but_nsq_errors(data: bytes) -> None:
    parsed([data], SMALL)


@given(st.lists(bodies, min_size=1, max_size=30))
def test_mpub_gives_the_messages_that_were_packed(many: list[bytes]) -> None:
    assert parsed([mpub(b"t", *many)]) == [Mpub("t", many, sum(map(len, many)))]


def test_thousands_of_messages_in_one_command_are_parsed() -> None:
    many = [b"%04d" % i for i in range(5000)]
    assert parsed([mpub(b"t", *many)]) == [Mpub("t", many, 20000)]
    # The last message is where it would be if all messages had four bytes.
    odd = [
        *many[:1500],
        b"odd",
        b"uneve",
        *many[1500:],
    ]
    assert parsed([mpub(b"t", *odd)]) == [Mpub("t", odd, 20008)]
    assert parsed([FIN * 5000]) == [Fins([ID])] * 5000


def test_ids_keep_their_places() -> None:
    run = [b"%016x" % i for i in range(3000)]
    (command,) = Parser(LIMITS).feed(b"".join(b"FIN " + id + b"\n" for id in run))
    assert command == Fins(run)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 1000, 3000])
def test_fins_that_fill_a_read_are_cut_without_a_search(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most clients send FINs in this form. Searching each byte for the end of a word would cost the
    gateway several times as much.
    """
    monkeypatch.setattr(cutting, "_FIN_RUN", None)
    assert list(Parser(LIMITS).feed(FIN * count)) == [Fins([ID] * count)]


def test_each_command_is_looked_at_when_the_one_before_was_carried_out() -> None:
    seen: list[bytes] = []
    parser = Parser(LIMITS, seen.append)
    commands = parser.feed(b"NOP\nIDENTIFY\n" + sized(b"{}") + b"\x16\x03\x01nothing of NSQ's")
    next(commands)
    next(commands)
    assert seen == [b"NOP", b"IDENTIFY"]
    assert parser.take_rest() == b"\x16\x03\x01nothing of NSQ's"
    assert (parser.take(), parser.held) == (None, 0)


@pytest.mark.parametrize(
    "first", [b"PUB t\n\0\0\0\x05he", b"PUB", mpub(b"t", b"abc", b"de")[:-1], b""]
)
def test_the_rest_is_all_that_was_not_taken(first: bytes) -> None:
    parser = Parser(LIMITS)
    assert list(parser.feed(b"NOP\n" + first)) == [()]
    assert parser.held == len(first)
    assert parser.take_rest() == first
    other = mpub(b"t", b"a", b"bcd")
    assert list(parser.feed(b"NOP\n" + other[:-1])) == [()]
    assert list(parser.feed(other[-1:])) == [("t", [b"a", b"bcd"], 4)]


def test_untaken_commands_stay_when_more_bytes_arrive() -> None:
    parser = Parser(LIMITS)
    parser.push(b"RDY 1\nRDY 2\nRD")
    assert parser.take() == (1,)
    parser.push(b"Y 3\n")
    assert [parser.take(), parser.take(), parser.take()] == [(2,), (3,), None]


@pytest.mark.parametrize(
    "data",
    [pub(b"t", b"x" * 1000), mpub(b"t", *[b"x" * 20] * 50), mpub(b"t", b"x", *[b"xy"] * 300)],
)
def test_a_command_that_comes_byte_by_byte_is_not_looked_at_for_each(data: bytes) -> None:
    looks: list[bytes] = []
    parser = Parser(LIMITS, looks.append)
    assert sum(len(list(parser.feed(data[i : i + 1]))) for i in range(len(data))) == 1
    assert len(looks) <= 4  # it looks at the sizes and at the count, and once at the end


# Bounds


def swallow(parser: Parser, pieces: Iterable[bytes]) -> None:
    for piece in pieces:
        assert parser.held < LINE_BYTES_MAX or len(piece) > 1000
        list(parser.feed(piece))


@pytest.mark.parametrize("piece", [b"x", b"FIN ", b"a" * 1000])
def test_a_line_without_an_end_is_refused_and_not_kept(piece: bytes) -> None:
    parser = Parser(LIMITS)
    with pytest.raises(NsqError) as caught:
        swallow(parser, [piece] * LINE_BYTES_MAX)
    assert caught.value.data == b""


def test_a_line_over_the_limit_is_refused() -> None:
    limits = NsqLimits()
    line = b"NOP " + b"x" * (LINE_BYTES_MAX - 5) + b"\n"
    assert parsed([line], limits) == [()]
    assert parsed([line[:-1], b"\n"], limits) == [()]
    assert parsed([line[:4] + b"x" + line[4:]], limits) == [
        "fatal the line of a command is too long"
    ]


HEAD = struct.pack(">ii", 5 << 20, 1_000_000)
HUGE = [
    (b"PUB t\n\x7f\xff\xff\xff", 1),
    (b"MPUB t\n\x7f\xff\xff\xff", 1),
    (b"IDENTIFY\n\x7f\xff\xff\xff", 1),
    (b"MPUB t\n" + HEAD + b"\x7f\xff\xff\xff", 1),
    # The fifth message does not fit into the size that the command announces.
    (
        b"MPUB t\n" + HEAD + (b"\0\x10\0\0" + b"x" * (1 << 20)) * 6,
        6,
    ),
]


def test_bodies_of_identify_and_auth_are_limited() -> None:
    """IDENTIFY and AUTH come before the client is known."""
    for name in (b"IDENTIFY", b"AUTH"):
        assert len(parsed([name + b"\n" + sized(bytes(IDENTITY_BYTES_MAX))])) == 1
        too_big = f"{name.decode()} body too big {IDENTITY_BYTES_MAX + 1} > {IDENTITY_BYTES_MAX}"
        assert parsed([name + b"\n" + struct.pack(">i", IDENTITY_BYTES_MAX + 1)]) == [
            f"fatal E_BAD_BODY {too_big}"
        ]


def test_a_run_of_nops_is_one_command() -> None:
    parser = Parser(LIMITS)
    assert list(parser.feed(b"NOP\n" * 10_000 + b"RDY 3\nNOP\n")) == [(), (3,), ()]


@pytest.mark.parametrize(("data", "mebibytes"), HUGE, ids=[repr(row[0][:24]) for row in HUGE])
def test_sizes_are_judged_before_their_bytes_come(data: bytes, mebibytes: int) -> None:
    parser = Parser(LIMITS)
    tracemalloc.start()
    try:
        with pytest.raises(NsqError):
            swallow(parser, (data[at : at + 4096] for at in range(0, len(data), 4096)))
        assert tracemalloc.get_traced_memory()[1] < (mebibytes * 2 + 1) << 20
    finally:
        tracemalloc.stop()


def test_the_largest_mpub_of_the_smallest_messages_is_held_in_few_bytes() -> None:
    limits = NsqLimits(max_body_size=1 << 18)
    count = limits.mpub_count_max
    data = mpub(b"t", *[b"x"] * count)
    parser = Parser(limits)
    tracemalloc.start()
    try:
        for at in range(0, len(data) - 1, 4096):
            assert list(parser.feed(data[at : min(at + (4096), len(data) - 1)])) == []
        assert tracemalloc.get_traced_memory()[1] < 4 * limits.max_body_size
        (command,) = parser.feed(data[-1:])
        assert isinstance(command, Mpub)
        assert command.bodies == [b"x"] * count
        assert tracemalloc.get_traced_memory()[1] < 12 * limits.max_body_size
    finally:
        tracemalloc.stop()
    assert parser.held == 0
