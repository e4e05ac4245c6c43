"""Answers to libzmq's questions about who connects."""

from __future__ import annotations

import pytest
import zmq
from zmq.utils import z85

from zsq.actors import zap
from zsq.transport.z85 import encode_key

PUBLIC = zmq.curve_keypair()[0]
KEY = z85.decode(PUBLIC)
ASKED = [b"1.0", b"7", b"zsq", b"10.0.0.9", b"", b"CURVE", KEY]


def changed(index: int, value: bytes) -> list[bytes]:
    return [*ASKED[:index], value, *ASKED[index + 1 :]]


def test_a_known_key_is_let_in_and_becomes_the_user_id() -> None:
    reply, why = zap.answer(ASKED, lambda key: key == PUBLIC.decode())
    assert reply == [b"1.0", b"7", b"200", b"OK", PUBLIC, b""]
    assert why == ""


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (ASKED[:-1], b"500"),
        ([*ASKED, b"more"], b"500"),
        (changed(0, b"2.0"), b"500"),
        ([], b"500"),
        (changed(2, b""), b"400"),
        (changed(2, b"other"), b"400"),
        (changed(5, b"NULL"), b"400"),
        (changed(5, b"PLAIN"), b"400"),
        (changed(6, KEY[:-1]), b"400"),
    ],
)
def test_what_is_asked_otherwise_is_refused_whoever_is_known(frames: list[bytes], code: bytes) -> None:
    reply, why = zap.answer(frames, lambda key: True)
    assert reply[2] == code
    assert reply[4] == b""
    assert why


def test_an_unknown_key_is_refused_and_told_with_its_address() -> None:
    reply, why = zap.answer(ASKED, lambda key: False)
    assert reply == [b"1.0", b"7", b"400", b"unknown key", b"", b""]
    assert "10.0.0.9" in why
    assert PUBLIC.decode() in why


def test_keys_are_written_as_zeromq_writes_them() -> None:
    assert encode_key(KEY) == PUBLIC.decode()
    assert encode_key(bytes(32)) == z85.encode(bytes(32)).decode()
    assert encode_key(b"\xff" * 32) == z85.encode(b"\xff" * 32).decode()


@pytest.mark.parametrize("size", [0, 28, 31, 33, 36])
def test_what_is_no_key_is_not_written_as_one(size: int) -> None:
    """It might be written as another's: the end would be cut off, or made up."""
    with pytest.raises(ValueError, match=f"a key has 32 bytes, not {size}"):
        encode_key(bytes(size))
