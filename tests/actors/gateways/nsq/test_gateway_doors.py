"""Tests of the ZeroMQ gateway's security, with sockets that only record what was sent: to whom a
link belongs, who may push, and which links end when the rules change.
"""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import zmq

from zsq.actors.gateways.questions import Questions
from zsq.actors.gateways.stage_owners import StageOwners
from zsq.actors.gateways.unread import Unread
from zsq.actors.gateways.zeromq import (
    OPENS_AHEAD_MAX,
    OPENS_MAX,
    PushRoute,
    ZeroMqGateway,
)
from zsq.actors.runtime.port import Port
from zsq.actors.security.curve import CurveAuthentication
from zsq.actors.security.policy import EVERYBODY, NOBODY
from zsq.actors.settings import options
from zsq.actors.settings.options import SecurityOptions
from zsq.actors.settings.starts import ZeroMqStart
from zsq.transport.errors import E_FORBIDDEN, E_HELLO, E_LIMIT, Refused
from zsq.transport.wire import protocol as p
from zsq.transport.wire.codec import decode, encode

ETL, OTHER = (zmq.curve_keypair() for _ in range(2))
RULES = f"""
[users.etl]
curve = ["{ETL[0].decode()}"]
publish = ["t"]
subscribe = ["t"]
admin = ["t"]
[users.other]
curve = ["{OTHER[0].decode()}"]
publish = ["t"]
subscribe = ["t"]
"""
STAGE = b"s" * 16


A, B, C = b"\0\0\0\0a", b"\0\0\0\0b", b"\0\0\0\0c"  # peer names as libzmq makes them


class Frame:
    """A replacement for a zmq.Frame of an encrypted connection."""

    def __init__(self, data: bytes, key: bytes) -> None:
        self.bytes = data
        self.buffer = memoryview(data)
        self._key = key.decode()

    def __len__(self) -> int:
        return len(self.bytes)

    def get(self, name: str | int) -> str | int:
        if isinstance(name, int):
            return -1  # no descriptor
        return {"User-Id": self._key, "Peer-Address": "10.0.0.9", "Identity": ""}[name]


class Wire:
    """A replacement for a port."""

    def __init__(self) -> None:
        self.socket = self
        self.frames: list[list[Frame]] = []
        self.sent: list[list[bytes]] = []
        self.takes = True

    def recv_multipart(self, flags: int, *, copy: bool) -> list[Frame]:
        if not self.frames:
            raise zmq.Again
        return self.frames.pop(0)

    def send_frames(self, frames: list[Any]) -> bool:
        self.sent.append([bytes(getattr(frame, "bytes", frame)) for frame in frames])
        return self.takes

    def send(self, envelope: tuple[bytes, ...], message: p.Wire) -> bool:
        return self.send_frames([*envelope, b"", encode(message)])

    def setsockopt(self, option: int, value: int) -> None: ...

    def words(self) -> list[Any]:
        found, self.sent = [decode(frames[frames.index(b"") + 1]) for frames in self.sent], []
        return found


class Gate:
    def __init__(self, folder: Path) -> None:
        self.rules = folder / "access.toml"
        self.rules.write_text(RULES)
        key = folder / "broker.key"
        public, secret = zmq.curve_keypair()
        key.write_text(f'public = "{public.decode()}"\nsecret = "{secret.decode()}"\n')
        key.chmod(0o600)
        self.front, self.pushes, self.actor, self.asking = Wire(), Wire(), Wire(), Wire()
        self.gateway = ZeroMqGateway(
            7, "gateway", ZeroMqStart(supervisor="ipc://supervisor", listen="", push="")
        )
        parts: dict[str, Any] = {
            "front": self.front, "pushes": self.pushes, "asking": self.asking, "routes": {}, "links": {},
            "actors": {}, "_seen": {}, "_moved": {},
            "_opens": {}, "run_directory": {"run": "/run", "run_id": "r"},
            "_request": 0, "pushes_dropped": 0, "push_port": 1, "open_dealer": lambda endpoint, name=b"": self.actor,
            "_routing_id": bytes, "zap": None, "doors": CurveAuthentication(SecurityOptions(str(self.rules), str(key))),
            "owners": StageOwners(), "questions": Questions(), "lookups": Questions(OPENS_MAX, ahead_max=OPENS_AHEAD_MAX),
            "_route": lambda endpoint: b"r", "unread": Unread(),
            "ends": SimpleNamespace(note=lambda peer, descriptor: None),
        }  # fmt: skip
        vars(self.gateway).update(parts)

    def hear(self, client: bytes, key: bytes, message: p.Wire) -> None:
        self.front.frames.append([Frame(part, key) for part in (client, b"", encode(message))])
        self.gateway._forward_in()

    def found(self) -> None:
        """Answer the gateway's requests as the supervisor does."""
        for asked in self.asking.words():
            data = {kind: f"ipc://{kind}" for kind in ("topic", "reader", "stage", "push")} | {
                "uuid": "u"
            }
            self.gateway.on_done(
                cast("Any", self.asking), cast("Any", None), p.Done(asked.request, data)
            )

    def open(self, client: bytes, key: bytes, kind: str = "reader") -> Any:
        self.hear(client, key, p.Open(1, kind, "t", "", False))
        self.found()
        return self.front.words()[-1]

    def answer(self, client: bytes, message: p.Wire) -> list[Any]:
        """Send an actor's answer to this client, and return what the client receives."""
        self.actor.frames.append([Frame(part, b"") for part in (client, b"", encode(message))])
        self.gateway._forward_out(cast("Any", self.actor))
        return self.front.words()

    def push(self, key: bytes, stage: bytes = STAGE, route: bytes = b"r") -> int:
        wire = Wire()
        self.gateway.routes[b"r"] = PushRoute("ipc://r", cast("Any", wire))
        self.pushes.frames.append(
            [
                Frame(part, key)
                for part in (route, b"", encode(p.Push(stage)), b"header", b"columns")
            ]
        )
        self.gateway._forward_pushes()
        return len(wire.sent)


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


def test_a_client_with_anothers_routing_id_does_not_get_its_link(gate: Gate) -> None:
    assert isinstance(gate.open(A, ETL[0]), p.Done)
    gate.actor.sent.clear()
    gate.hear(A, OTHER[0], p.Fetch(2, 0, 1))
    assert gate.front.words() == [
        p.Failed(0, E_HELLO, "this connection has no open link: send Open first")
    ]
    assert gate.actor.words() == [p.Bye()], "the reader's actor hears that its client is gone"
    assert gate.answer(A, p.Done(2, {"what": "was etl's"})) == []


def test_an_answer_reaches_only_a_client_with_a_link_to_its_sender(gate: Gate) -> None:
    assert gate.answer(A, p.Done(1, {})) == []
    gate.open(A, ETL[0])
    assert gate.answer(A, p.Done(1, {})) == [p.Done(1, {})]
    gate.gateway.links[A] = gate.gateway.links[A]._replace(port=cast("Any", Wire()))
    assert gate.answer(A, p.Done(1, {})) == []


def test_a_push_is_accepted_only_from_the_user_who_opened_the_stage(gate: Gate) -> None:
    assert gate.push(ETL[0]) == 0, "not opened"
    gate.open(A, ETL[0], "stage")
    gate.hear(A, ETL[0], p.OpenStage(2, STAGE, "app", 1, "app", 0))
    assert gate.push(ETL[0]) == 1
    assert gate.push(OTHER[0]) == 0
    assert gate.push(ETL[0], stage=b"t" * 16) == 0
    gate.open(B, OTHER[0], "stage")
    gate.hear(B, OTHER[0], p.OpenStage(2, STAGE, "app", 1, "app", 0))
    assert gate.push(OTHER[0]) == 0, "it is not taken over"
    gate.hear(B, OTHER[0], p.Bye())
    assert gate.push(ETL[0]) == 1, "nor ended by who does not own it"
    gate.hear(A, ETL[0], p.Bye())
    assert gate.push(ETL[0]) == 0
    assert not len(gate.gateway.owners)


def test_a_push_that_is_no_push_is_dropped(gate: Gate) -> None:
    gate.open(A, ETL[0], "stage")
    gate.hear(A, ETL[0], p.OpenStage(2, STAGE, "app", 1, "app", 0))
    gate.gateway.routes[b"r"] = PushRoute("ipc://r", cast("Any", wire := Wire()))
    for control in (b"", b"\xc1", encode(p.Beat()), encode(p.Abort(1, "", 0, ()))):
        gate.pushes.frames.append(
            [Frame(part, ETL[0]) for part in (b"r", b"", control, b"header", b"columns")]
        )
    gate.gateway._forward_pushes()
    assert wire.sent == []
    whole = (b"r", b"", encode(p.Push(STAGE)), b"header", b"columns", b"more")
    for count in (1, 2, 3, 4, 6):
        gate.pushes.frames.append([Frame(part, ETL[0]) for part in whole[:count]])
    gate.gateway._forward_pushes()
    assert (wire.sent, gate.gateway.pushes_dropped) == ([], 9), (
        "nor does one without a word end the gateway"
    )


def test_stages_of_a_link_are_bounded() -> None:
    owners = StageOwners()
    for number in range(options.STAGES_PER_LINK_MAX + 5):
        owners.opened(A, (b"r", b"%d" % number), "etl")
    assert len(owners) == options.STAGES_PER_LINK_MAX
    owners.opened(B, (b"r", b"0"), "etl")
    owners.ended(A)
    assert len(owners) == 1
    owners.ended(B)
    owners.ended(b"never there")
    assert not len(owners)


def test_new_rules_end_only_the_links_that_they_do_not_permit(gate: Gate) -> None:
    gate.open(A, ETL[0])
    gate.open(B, OTHER[0], "topic")
    gate.open(C, OTHER[0], "reader")
    gate.actor.sent.clear()
    gate.rules.write_text(RULES.rpartition("subscribe")[0])
    gate.gateway.take_rules(p.ReloadGateway(1, "info", str(gate.rules)))
    assert {*gate.gateway.links} == {A, B}
    (told,) = gate.front.words()
    assert (told.request, told.code) == (0, E_FORBIDDEN)
    assert gate.actor.words() == [p.Bye()]


def test_rules_that_cannot_be_read_change_nothing(gate: Gate) -> None:
    gate.open(A, ETL[0])
    gate.rules.write_text("nonsense")
    with pytest.raises(Refused, match="not valid TOML"):
        gate.gateway.take_rules(p.ReloadGateway(1, "info", str(gate.rules)))
    gate.rules.unlink()
    with pytest.raises(Refused, match="cannot be read"):
        gate.gateway.take_rules(p.ReloadGateway(1, "info", str(gate.rules)))
    assert {*gate.gateway.links} == {A}
    gate.gateway.take_rules(p.ReloadGateway(1, "info", ""))
    assert gate.gateway.doors.principal(ETL[0].decode()).name == "etl"


def test_a_permission_revoked_while_a_link_opens_is_not_granted(gate: Gate) -> None:
    gate.hear(A, ETL[0], p.Open(1, "topic", "t", "", False))
    gate.rules.write_text("")
    gate.gateway.take_rules(p.ReloadGateway(1, "info", str(gate.rules)))
    gate.found()
    (told,) = gate.front.words()
    assert told.code == E_FORBIDDEN
    assert not gate.gateway.links


def test_the_gateway_and_not_the_client_names_the_user_of_an_order(gate: Gate) -> None:
    gate.open(A, ETL[0], "supervisor")
    gate.actor.sent.clear()
    gate.hear(A, ETL[0], p.Manage(2, "pause", "t", "", {}, {"user": "root", "more": "x"}))
    assert gate.actor.words() == [
        p.Manage(2, "pause", "t", "", {}, {"user": "etl", "from": "10.0.0.9", "via": "zeromq"})
    ]
    gate.hear(A, ETL[0], p.Manage(3, "pause", "u", "", {}))
    assert gate.actor.words() == []
    (told,) = gate.front.words()
    assert (told.request, told.code) == (3, E_FORBIDDEN)


def test_links_that_are_being_opened_are_bounded(gate: Gate) -> None:
    gate.asking.takes = False
    gate.hear(A, ETL[0], p.Open(1, "topic", "t", "", False))
    assert gate.front.words()[0].code == E_LIMIT
    assert not gate.gateway._opens
    gate.asking.takes = True
    for number in range(OPENS_MAX.each + 1):
        gate.hear(b"\0" + number.to_bytes(4), ETL[0], p.Open(1, "topic", "t", "", False))
    assert [told.code for told in gate.front.words()] == [E_LIMIT]
    assert len(gate.gateway.lookups) == OPENS_MAX.each


def test_without_rules_all_is_permitted_and_without_keys_all_are_anonymous(tmp_path: Path) -> None:
    assert CurveAuthentication(SecurityOptions()).principal("") is EVERYBODY
    rules = tmp_path / "access.toml"
    rules.write_text('[anonymous]\nview = ["*"]\n')
    doors = CurveAuthentication(SecurityOptions(str(rules)))
    assert doors.principal("").name == "anonymous"
    assert not doors.encrypts
    rules.write_text("")
    doors.reload(str(rules))
    assert doors.principal("") is NOBODY


def test_refused_requests_do_not_fill_the_log(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(50):
        gate.hear(A, ETL[0], p.Open(1, "topic", "u", "", True))
    assert [record.message for record in caplog.records] == [
        "10.0.0.9: etl may not publish to topic 'u': that needs publish in the broker's access file"
    ]
    assert gate.gateway.statistics()["clients_refused"] == 50


def test_a_client_that_does_not_read_its_answers_loses_its_link(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate.open(A, ETL[0])
    monkeypatch.setattr(gate.gateway.unread, "full", lambda client: client == A)
    gate.actor.sent.clear()
    assert gate.answer(A, p.Done(1, {})) == []
    assert gate.actor.words() == [p.Bye(is_lost=True)]
    gate.hear(A, ETL[0], p.Open(1, "reader", "t", "", False))
    assert gate.front.words()[-1].code == E_LIMIT
    assert isinstance(gate.open(B, ETL[0]), p.Done)


def opened_with(*properties: bytes) -> list[Any]:
    """Return the frames that a ROUTER gets from a peer that sends these properties in its
    handshake, besides its socket type.
    """
    greeting = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL".ljust(64, b"\0")
    body = b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER" + b"".join(properties)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    number = router.bind_to_random_port("tcp://127.0.0.1")
    with socket.create_connection(("127.0.0.1", number), 10) as client:
        client.sendall(greeting + bytes([4, len(body)]) + body)
        answered = b""
        while b"READY" not in answered:
            answered += (more := client.recv(1024))
            assert more
        client.sendall(b"\x01\0" + b"\0\4open")
        assert router.poll(30_000)
        frames: list[Any] = router.recv_multipart(copy=False)
    context.destroy(linger=0)
    assert frames[2].bytes == b"open"
    return frames


def identity(name: bytes) -> bytes:
    return b"\x08Identity" + len(name).to_bytes(4, "big") + name


def test_a_client_without_an_identity_chose_no_routing_id(gate: Gate) -> None:
    """libzmq's clients always send an identity, even if it is empty. Other clients need not.
    Reading an identity that was not sent raises an exception, and this once ended the gateway.
    """
    for said in ((), (identity(b""),)):
        frames = opened_with(*said)
        assert not gate.gateway.doors.chose_its_name(frames[0].bytes, frames[2])


@pytest.mark.parametrize(
    "names", [(b"victim",), (b"", b"victim"), (b"victim", b""), (b"", b"\0victim"), (b"", b"four")]
)
def test_a_client_that_chooses_a_routing_id_is_detected(
    gate: Gate, names: tuple[bytes, ...]
) -> None:
    """The gateway also detects a client that sends its identity twice. libzmq uses the last one but
    reports the first one.
    """
    frames = opened_with(*map(identity, names))
    assert gate.gateway.doors.chose_its_name(frames[0].bytes, frames[2])


def test_a_port_is_guarded_before_it_is_bound(gate: Gate) -> None:
    """ZeroMQ closes a connection that has not finished its handshake within 5 s."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    port = Port(context, zmq.PULL)
    gate.gateway.doors.guard(port)
    found = [
        port.socket.getsockopt(option)
        for option in (zmq.HANDSHAKE_IVL, zmq.CURVE_SERVER, zmq.ZAP_DOMAIN)
    ]
    port.close()
    context.destroy(linger=0)
    assert found == [5_000, 1, b"zsq"]
