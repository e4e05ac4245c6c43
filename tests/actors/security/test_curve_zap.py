"""Tests of the answers to libzmq's requests about connecting clients (the ZAP protocol)."""

from __future__ import annotations

import pytest
import zmq
from zmq.utils import z85

from zsq.actors.security.curve import answer_zap

PUBLIC = zmq.curve_keypair()[0]
KEY = z85.decode(PUBLIC)
ASKED = [b"1.0", b"7", b"zsq", b"10.0.0.9", b"", b"CURVE", KEY]


def changed(index: int, value: bytes) -> list[bytes]:
    return [*ASKED[:index], value, *ASKED[index + 1 :]]


def test_a_known_key_is_let_in_and_becomes_the_user_id() -> None:
    reply, why = answer_zap(ASKED, lambda key: key == PUBLIC.decode())
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
        *((changed(6, bytes(size)), b"400") for size in (0, 28, 31, 33, 36)),
    ],
)
def test_an_unexpected_zap_request_is_refused(frames: list[bytes], code: bytes) -> None:
    reply, why = answer_zap(frames, lambda key: True)
    assert reply[2] == code
    assert reply[4] == b""
    assert why


def test_an_unknown_key_is_refused_and_told_with_its_address() -> None:
    reply, why = answer_zap(ASKED, lambda key: False)
    assert reply == [b"1.0", b"7", b"400", b"unknown key", b"", b""]
    assert "10.0.0.9" in why
    assert PUBLIC.decode() in why
