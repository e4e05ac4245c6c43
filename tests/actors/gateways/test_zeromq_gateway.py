"""Tests of the ZeroMQ gateway with sockets that only record what was sent: which messages it
forwards, which it drops, and its limits.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, cast

import pytest
import zmq

from zsq.actors.gateways import zeromq as gateway
from zsq.actors.gateways.questions import Questions
from zsq.actors.gateways.stage_owners import StageOwners
from zsq.actors.gateways.unread import Unread
from zsq.actors.gateways.zeromq import PushRoute, ZeroMqGateway
from zsq.actors.security.curve import CurveAuthentication
from zsq.actors.settings import options
from zsq.actors.settings.options import SecurityOptions
from zsq.actors.settings.starts import ZeroMqStart
from zsq.transport.errors import E_LIMIT
from zsq.transport.wire import protocol as p
from zsq.transport.wire.codec import decode, encode


class Wire:
    """A replacement for a port. `frames` are the next frames to receive."""

    def __init__(self) -> None:
        self.socket = self
        self.frames: list[list[bytes]] = []
        self.sent: list[list[bytes]] = []
        self.marks: list[int] = []
        self.takes = True

    def recv_multipart(self, flags: int, *, copy: bool) -> list[Any]:
        if not self.frames:
            raise zmq.Again
        return [Frame(frame) for frame in self.frames.pop(0)]

    def send_frames(self, frames: list[Any]) -> bool:
        self.sent.append([bytes(getattr(frame, "bytes", frame)) for frame in frames])
        return self.takes

    def send(self, envelope: tuple[bytes, ...], message: p.Wire) -> bool:
        return self.send_frames([*envelope, b"", encode(message)])

    def setsockopt(self, option: int, value: int) -> None:
        assert option == zmq.SNDHWM
        self.marks.append(value)

    def words(self) -> list[p.Wire]:
        found, self.sent = [decode(frames[frames.index(b"") + 1]) for frames in self.sent], []
        return found


class Frame:
    """A replacement for a zmq.Frame."""

    def __init__(self, data: bytes) -> None:
        self.bytes = data
        self.buffer = memoryview(data)

    def __len__(self) -> int:
        return len(self.bytes)

    def get(self, name: str | int) -> str | int:
        return "10.0.0.9" if name == "Peer-Address" else 9


class Gate:
    def __init__(self) -> None:
        self.front, self.pushes, self.topic, self.asking = Wire(), Wire(), Wire(), Wire()
        self.noted: list[tuple[tuple[bytes, ...], int]] = []
        self.gateway = ZeroMqGateway(
            7, "gateway", ZeroMqStart(supervisor="ipc://supervisor", listen="", push="")
        )
        parts: dict[str, Any] = {
            "ends": self,
            "front": self.front, "pushes": self.pushes, "asking": self.asking, "routes": {}, "links": {},
            "actors": {}, "_seen": {}, "_moved": {},
            "_opens": {}, "run_directory": {}, "lookups": Questions(), "questions": Questions(),
            "pushes_dropped": 0, "open_dealer": lambda endpoint, name=b"": self.topic, "_routing_id": bytes,
        }  # fmt: skip
        vars(self.gateway).update(
            parts
            | {
                "doors": CurveAuthentication(SecurityOptions()),
                "unread": Unread(),
                "owners": StageOwners(),
                "zap": None,
            }
        )

    def note(self, peer: tuple[bytes, ...], descriptor: int) -> None:
        self.noted.append((peer, descriptor))

    def hear(self, client: bytes, message: p.Wire, *blocks: bytes) -> None:
        self.front.frames.append([client, b"", encode(message), *blocks])
        self.gateway._forward_in()

    def open(self, client: bytes) -> None:
        self.hear(client, p.Open(1, "topic", "t", "", False, {}))
        asked = self.asking.words()
        if asked:
            done = p.Done(cast("Any", asked[0]).request, {"topic": "ipc://t", "uuid": "u"})
            self.gateway.on_done(cast("Any", self.asking), cast("Any", None), done)


@pytest.fixture
def gate() -> Gate:
    return Gate()


def test_a_message_with_too_many_frames_is_not_forwarded(gate: Gate) -> None:
    gate.open(b"a")
    pub = p.Pub()
    gate.topic.sent.clear()
    gate.hear(b"a", pub, *[b"x"] * (p.FRAMES_MAX - 3))
    assert len(gate.topic.sent) == 1
    gate.hear(b"a", pub, *[b"x"] * (p.FRAMES_MAX - 2))
    gate.front.frames.append([b"a", b""])
    gate.gateway._forward_in()
    assert len(gate.topic.sent) == 1


def test_a_link_over_the_limit_is_refused_until_another_ends(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "LINKS_MAX", 2)
    for client in (b"a", b"b"):
        gate.open(client)
        assert [type(message) for message in gate.front.words()] == [p.Done]
    gate.open(b"c")
    (failed,) = gate.front.words()
    assert isinstance(failed, p.Failed)
    assert failed.code == E_LIMIT
    gate.hear(b"a", p.Bye())
    gate.open(b"c")
    assert [type(message) for message in gate.front.words()] == [p.Done]


def test_an_open_of_a_topic_with_parts_is_answered_with_their_places(gate: Gate) -> None:
    gate.hear(b"a", p.Open(9, "topic", "t", "", True, {}))
    (lookup,) = gate.asking.words()
    assert isinstance(lookup, p.Lookup)
    spread = p.Spread(lookup.request, "t", "u" * 32, ((0, 1),), ((1, ("tcp://b:4153",)),))
    for _ in range(2):  # only the first one answers
        gate.gateway.on_spread(cast("Any", gate.asking), cast("Any", None), spread)
    assert gate.front.words() == [replace(spread, request=9)]
    assert not gate.gateway.links
    gate.open(b"a")
    assert [type(message) for message in gate.front.words()] == [p.Done]


def test_a_push_that_is_not_complete_is_dropped(gate: Gate) -> None:
    wire = Wire()
    gate.gateway.routes[b"r"] = PushRoute("ipc://r", cast("Any", wire))
    whole = [b"r", *[b"x"] * (gateway.PUSH_FRAMES - 1)]
    gate.pushes.frames += [whole, whole[:-1], [*whole, b"x"], [b"other", *whole[1:]]]
    gate.gateway._forward_pushes()
    assert len(wire.sent) == 1
    assert gate.gateway.pushes_dropped == 3


@pytest.mark.parametrize(
    ("size", "mark"),
    [
        (1, options.PUSH_GATEWAY_MARK),
        (
            options.PUSH_GATEWAY_BYTES // (options.PUSH_GATEWAY_MARK_MIN + 5),
            options.PUSH_GATEWAY_MARK_MIN + 5,
        ),
        (options.PUSH_GATEWAY_BYTES, options.PUSH_GATEWAY_MARK_MIN),
    ],
)
def test_the_high_water_mark_of_a_route_follows_its_largest_block(size: int, mark: int) -> None:
    wire = Wire()
    route = PushRoute("ipc://r", cast("Any", wire))
    sized: Any = type("Sized", (), {"__len__": lambda self: size, "bytes": b""})()
    assert route.send([*[b"x"] * (gateway.PUSH_FRAMES - 1), sized])
    assert wire.marks == [mark]
    assert route.send([*[b"x"] * (gateway.PUSH_FRAMES - 1), sized])
    assert wire.marks == [mark], "told once"
    route.relax()
    assert wire.marks == [mark, options.PUSH_GATEWAY_MARK]


def test_a_client_that_was_silent_for_long_is_forgotten(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 10**15
    monkeypatch.setattr(time, "monotonic_ns", lambda: now)
    gate.open(b"a")
    gate.open(b"b")
    now += gateway._SILENT_NS
    gate.hear(b"b", p.Beat())
    gate.topic.sent.clear()
    gate.gateway._forget()
    assert {*gate.gateway.links} == {b"a", b"b"}
    now += 1
    gate.gateway._forget()
    assert {*gate.gateway.links} == {b"b"}
    assert gate.topic.sent == [[b"a", b"", encode(p.Bye(is_lost=True))]]


def test_a_client_is_told_the_run_directory(gate: Gate) -> None:
    gate.gateway.run_directory = {"run": "/run/zsq", "run_id": "r"}
    gate.open(b"a")
    (done,) = gate.front.words()
    assert isinstance(done, p.Done)
    assert done.data == {"uuid": "u", "run": "/run/zsq", "run_id": "r"}
