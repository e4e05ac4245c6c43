"""Tests of the format of ticks, boundaries, and the identity of a copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsq.storage.bucket.shipping.tick_format import (
    HEAD_BYTES,
    TAKEOVER,
    TICK,
    WINDOW,
    Boundary,
    Copy,
    Index,
    Piece,
    Range,
    Tail,
    advanced,
    after,
    boundary_object,
    decode_boundary,
    decode_copy,
    decode_head,
    decode_index,
    encode_boundary,
    encode_copy,
    encode_tick,
    log_object,
    number_of,
    state_object,
)
from zsq.storage.errors import Damaged, ForeignDirectory

UUID: Final = "00112233445566778899aabbccddeeff"
PIECE: Final = Piece(UUID, 7, 1, True, "", 30, 90, 0, (Range(0, 0, 5), Range(20, 0, 3)), 4)
TAIL: Final = Tail(7, 1, 30, 90, 20, 3, 12, "", {0: 12, 20: 13})


def index_of(
    kind: int = TICK, pieces: tuple[Piece, ...] = (), tails: dict[str, Tail] | None = None
) -> Index:
    return Index(
        kind, 12, 3, "c" * 32, "d" * 32, "host", 1_800_000_000_000_000_000, "before", 4, (), 9,
        pieces, tails,
    )  # fmt: skip


def test_names_have_numbers_of_20_digits() -> None:
    assert log_object(42) == "log/00000000000000000042"
    assert boundary_object(42) == "boundary/00000000000000000042"
    assert state_object(UUID, 255, 1) == f"state/{UUID}/00000000000000ff.00000001"
    assert [number_of(name) for name in (log_object(7), "log/7", "log/" + "x" * 20, "")] == [
        7, -1, -1, -1,
    ]  # fmt: skip


def test_a_tick_comes_back_with_its_pieces_and_its_registry() -> None:
    other = PIECE._replace(
        uuid="f" * 32, begins=False, base=state_object("f" * 32, 7, 1), ranges=(), change_bytes=2
    )
    made = encode_tick(
        index_of(pieces=(PIECE, other), tails={UUID: TAIL}), (b"0123456789ab", b"xy"), b"registry"
    )
    found = decode_index(made.data)
    assert found.index == made.index
    assert found.digest == made.digest
    assert found.index.tails == {UUID: TAIL}
    first, second = found.index.pieces
    body = found.body
    assert made.data[body + first.position :][: first.size] == b"0123456789ab"
    assert made.data[body + second.position :][: second.size] == b"xy"
    position, size, _ = found.index.registry
    assert made.data[body + position :][:size] == b"registry"
    assert (first.range_bytes, first.size) == (8, 12)


def test_the_index_alone_can_be_decoded() -> None:
    made = encode_tick(index_of(pieces=(PIECE,)), (bytes(12),))
    body = decode_head(made.data[:HEAD_BYTES]).body
    assert decode_index(made.data[:body]).digest == made.digest
    assert after(made.index) == 13
    assert after(index_of(TAKEOVER)) == 13 + WINDOW


def test_the_digest_covers_the_pieces() -> None:
    one = encode_tick(index_of(pieces=(PIECE,)), (b"0123456789ab",))
    other = encode_tick(index_of(pieces=(PIECE,)), (b"0123456789aB",))
    assert one.digest != other.digest


def test_every_truncation_and_every_flipped_bit_of_head_and_index_is_noticed() -> None:
    made = encode_tick(index_of(pieces=(PIECE,), tails={UUID: TAIL}), (bytes(12),))
    body = decode_head(made.data).body
    for size in range(body):
        with pytest.raises(Damaged):
            decode_index(made.data[:size])
    for bit in range(body * 8):
        data = bytearray(made.data)
        data[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises((Damaged, ForeignDirectory)):
            decode_index(bytes(data))


@given(st.binary(max_size=200))
def test_any_bytes_are_damaged(data: bytes) -> None:
    with pytest.raises((Damaged, ForeignDirectory)):
        decode_index(data)


@dataclass
class Line:
    """A document that is encoded as a line."""

    data: bytes

    def flips(self) -> list[bytes]:
        return [
            self.data[:at] + bytes([self.data[at] ^ 1 << bit]) + self.data[at + 1 :]
            for at in range(len(self.data))
            for bit in range(8)
        ] + [self.data[:size] for size in range(len(self.data))]


def test_a_boundary_comes_back() -> None:
    found = Boundary(12, "digest", 3, 40, 5)
    assert decode_boundary(encode_boundary(found)) == found
    for data in Line(encode_boundary(found)).flips():
        with pytest.raises((Damaged, ForeignDirectory)):
            decode_boundary(data)


def test_a_copy_comes_back() -> None:
    for found in (Copy("c" * 32, "d" * 32), Copy("c" * 32, "d" * 32, 17, "digest")):
        assert decode_copy(encode_copy(found)) == found
        for data in Line(encode_copy(found)).flips():
            with pytest.raises((Damaged, ForeignDirectory)):
                decode_copy(data)


def test_a_tail_follows_the_pieces() -> None:
    tail = advanced(None, PIECE, 12)
    assert tail == Tail(7, 1, 30, 90, 20, 3, 12, "", {0: 12, 20: 12})
    assert tail.needed == 12
    more = PIECE._replace(
        sequence=2, begins=False, end=50, kept_from=20, ranges=(Range(20, 3, 9), Range(40, 0, 1))
    )
    tail = advanced(tail, more, 15)
    assert tail == Tail(7, 2, 50, 90, 40, 1, 12, "", {20: 12, 40: 15})
    again = PIECE._replace(stream=8, base="state/x", kept_from=40, ranges=(), end=50, reserved=99)
    tail = advanced(tail, again, 20)
    assert tail == Tail(8, 1, 50, 99, 40, 1, 20, "state/x", {40: 15})
    assert tail.needed == 15
