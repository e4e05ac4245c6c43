"""Tests of the output of one NSQ connection, on a transport that only records: what is collected
within one turn of the loop, and how much at most.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from zsq.actors.gateways.nsq import connection as module
from zsq.actors.gateways.nsq.connection import _FLUSH_BYTES, Connection
from zsq.actors.gateways.nsq.intake import Intake
from zsq.transport.nsq.limits import NsqLimits


class Layer:
    """A layer that puts a mark before the bytes that it packs."""

    ended = held = False
    cost = kept = 0

    def receive(self, data: bytes) -> bytes:
        return data

    def send(self, data: bytes) -> bytes:
        return b"!" + data


class Way:
    def __init__(self) -> None:
        self.later: list[Callable[[], None]] = []
        self.out: list[bytes] = []
        loop = SimpleNamespace(call_soon=self.later.append)
        intake = Intake(cast("Any", loop), {})
        gateway = SimpleNamespace(
            loop=loop,
            limits=NsqLimits(),
            gatherer=SimpleNamespace(full=False),
            paused={},
            intake=intake,
        )
        self.connection = Connection(cast("Any", gateway))
        self.connection._transport = cast("Any", SimpleNamespace(write=self.out.append))

    def turn(self) -> list[bytes]:
        """Return what was written by the end of the loop's turn."""
        later, self.later[:] = [*self.later], []
        for one in later:
            one()
        found, self.out[:] = [*self.out], []
        return found


@pytest.fixture
def way() -> Way:
    return Way()


def test_without_layers_all_is_written_at_once(way: Way) -> None:
    way.connection._write(b"a")
    assert way.out == [b"a"]


def test_the_output_of_a_turn_is_packed_together_up_to_one_write(way: Way) -> None:
    """When enough bytes for one write are collected, they are packed and sent within the turn. So a
    thousand deliveries in one turn are not held twice.
    """
    way.connection.layers.push(Layer())
    way.connection._bare = False
    for part in (b"a", b"b"):
        way.connection._write(part)
    assert way.out == []
    assert way.turn() == [b"!ab"]
    half = bytes(_FLUSH_BYTES // 2)
    for _ in range(5):
        way.connection._write(half)
    assert way.out == [b"!" + 2 * half] * 2
    assert way.turn() == [*[b"!" + 2 * half] * 2, b"!" + half]
    assert way.turn() == []


def test_a_stranger_is_disconnected_when_it_has_sent_too_much(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_GUEST_BYTES_MAX", 10)
    failed: list[str] = []
    monkeypatch.setattr(way.connection, "fail", failed.append)
    assert way.connection._let_speak(11), "here nobody must authenticate"
    monkeypatch.setattr(way.connection.gateway, "limits", NsqLimits(auth_required=True))
    assert way.connection._let_speak(6)
    assert way.connection._let_speak(4)
    assert failed == []
    assert not way.connection._let_speak(1)
    assert failed == ["it sent more than 10 bytes before it authenticated"]
