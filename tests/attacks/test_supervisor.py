"""Tests of attacks on the supervisor: control frames, the audit log, and unknown clients that try
to cut off its gateways.

In the first tests the attacker is the admin of one topic and uses ZeroMQ. The limits on memory are
generous. docs/evidence.md has the figures that were measured.
"""

from __future__ import annotations

import hashlib
import json
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, Self

import msgpack
import pytest
import zmq
from support.broker import Broker, wait_for
from support.memory import Peak
from support.nsq_socket import NsqSocket

import zsq
from zsq.actors.security.audit import LINE_BYTES_MAX
from zsq.transport.wire import protocol as p
from zsq.transport.wire.codec import decode, encode

pytestmark = pytest.mark.slow

MIB = 1 << 20
ACCESS = """
[anonymous]
admin = ["mine", "other"]

[users.etl]
tokens = ["{token}"]
publish = ["victim"]
"""


def access(token: str) -> str:
    return ACCESS.format(token="sha256:" + hashlib.sha256(token.encode()).hexdigest())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Start one broker for all tests. The last test ends it."""
    folder = tmp_path_factory.mktemp("attacks")
    rules = folder / "access.toml"
    rules.write_text(access("secret"))
    with Broker(folder / "data", "--access", str(rules), nsq=True, http=True) as one:
        with zsq.Admin(one.ipc) as admin:
            admin.create_topic("mine")
            admin.create_topic("other")
            admin.create_channel("victim", "c")
        yield one


class Attacker:
    """A ZeroMQ socket that sends anything, without the checks of ZSQ's clients."""

    def __init__(self, broker: Broker) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(broker.tcp)
        self.send(encode(p.Open(1, "supervisor", "", "", False)))
        assert isinstance(self.answer(), p.Done)

    def send(self, frame: bytes) -> None:
        self._socket.send_multipart([b"", frame])

    def answer(self, timeout_s: float = 20.0) -> p.Wire:
        while True:
            assert self._socket.poll(int(timeout_s * 1000)), "no answer"
            word = decode(self._socket.recv_multipart()[-1])
            if not isinstance(word, p.Beat):  # a broker may send one at any time
                return word

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(linger=0)


def order(number: int, action: str, options: dict[str, Any], topic: str = "mine") -> bytes:
    """Return an order, packed with msgpack, of any size."""
    return bytes(msgpack.packb((p.Manage.op, number, action, topic, "", options, {})))


def nested(size: int) -> dict[str, Any]:
    """Return options of about `size` bytes, mostly in small maps."""
    return {"x" * 20: [{"k": {}}] * (size // 5)}


def lines(broker: Broker) -> list[bytes]:
    files = sorted(broker.data_dir.glob("audit.log*"), reverse=True)
    return [line for file in files for line in file.read_bytes().splitlines()]


def supervisor(broker: Broker) -> int:
    assert broker.process is not None
    return broker.process.pid


def answers_quickly(admin: zsq.Admin) -> None:
    begun = time.monotonic()
    assert "mine" in admin.topics()
    assert time.monotonic() - begun < 5


def test_orders_of_14_mb_are_refused_and_cost_no_memory_and_no_line(broker: Broker) -> None:
    frame = order(7, "configure", nested(13_800_000))
    watched = Peak([supervisor(broker), *broker.pids("gateway")])
    before = lines(broker)
    with Attacker(broker) as attacker, zsq.Admin(broker.ipc, timeout=20) as admin:
        for _ in range(40):
            attacker.send(frame)
            answer = attacker.answer()
            assert isinstance(answer, p.Failed)
            assert answer.code == "E_TOO_BIG"
        answers_quickly(admin)
    of_supervisor, of_gateway = watched.close().values()
    print(f"supervisor {of_supervisor / MIB:.1f} MiB, gateway {of_gateway / MIB:.1f} MiB")
    assert of_supervisor < 20 * MIB
    assert of_gateway < 120 * MIB
    assert lines(broker) == before


def test_the_largest_frame_of_all_does_not_cut_the_gateway_off(broker: Broker) -> None:
    """The gateway adds the name of the sender to each order. Even with this name, the order must
    not exceed the size limit of a frame.
    """
    empty = len(order(7, "configure", {"x": b""}))
    frame = order(7, "configure", {"x": b"x" * (p.FRAME_BYTES_MAX - empty - 10)})
    assert p.FRAME_BYTES_MAX - 20 < len(frame) <= p.FRAME_BYTES_MAX
    with Attacker(broker) as attacker, Attacker(broker) as other:
        attacker.send(frame)
        assert isinstance(attacker.answer(), p.Failed)
        other.send(encode(p.Manage(8, "list", "", "", {})))
        assert isinstance(other.answer(), p.Done)


def test_refused_orders_of_64_kib_leave_short_lines(broker: Broker) -> None:
    frame = order(
        7, "configure", {"x" * 1_000: "y" * 60_000} | {str(number): {} for number in range(900)}
    )
    watched = Peak([supervisor(broker)])
    begun = len(lines(broker))
    with Attacker(broker) as attacker, zsq.Admin(broker.ipc, timeout=20) as admin:
        for _ in range(4):  # more of them at once are refused by the gateway
            for _ in range(100):
                attacker.send(frame)
            for _ in range(100):
                assert isinstance(attacker.answer(), p.Failed)
        answers_quickly(admin)
        wait_for(lambda: len(lines(broker)) - begun >= 400, 20, "their lines")
        found = lines(broker)[begun:]
        assert max(map(len, found)) < 1_000 < LINE_BYTES_MAX
        assert {
            row["options"]["bytes"] > 60_000
            for row in map(json.loads, found)
            if row["action"] == "configure"
        } == {True}
        assert len(admin.audit(count=400)) == 400
    (of_supervisor,) = watched.close().values()
    print(f"supervisor {of_supervisor / MIB:.1f} MiB")
    assert of_supervisor < 60 * MIB


def test_orders_with_the_same_number_are_both_in_the_log(broker: Broker) -> None:
    with Attacker(broker) as attacker:
        attacker.send(order(7, "delete", {"force": True}, "other"))
        attacker.send(order(7, "pause", {}, "other"))
        assert {attacker.answer().request for _ in range(2)} == {7}  # type: ignore[attr-defined]

    def noted() -> set[str]:
        return {
            row["action"]
            for row in map(json.loads, lines(broker))
            if row["topic"] == "other" and row["via"] == "zeromq"
        }

    wait_for(lambda: noted() == {"delete", "pause"}, 30, "both lines")


def ping(broker: Broker) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{broker.http}/ping", timeout=20) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return error.read().decode()


def test_strangers_at_the_nsq_door_do_not_switch_revocation_off(broker: Broker) -> None:
    """Four unknown clients send 4.9 MB each in their IDENTIFY, and /ping requests the statistics of
    all clients. Then a token is revoked. The revocation must still work.
    """
    strangers = [NsqSocket(broker.nsq) for _ in range(4)]
    try:
        with NsqSocket(broker.nsq) as holder:
            holder.identify()
            holder.ask("AUTH", b"secret")
            assert holder.ask("PUB victim", b"before") == "OK"
            watched = Peak([supervisor(broker)])
            for one in strangers:
                one.send(
                    "IDENTIFY",
                    json.dumps({"client_id": "x", "user_agent": "u" * 4_900_000}).encode(),
                )
            for _ in range(3):
                assert ping(broker) == "OK"
            (broker.data_dir.parent / "access.toml").write_text(access("another"))
            assert broker.process is not None
            broker.process.send_signal(signal.SIGHUP)
            wait_for(lambda: b"reloaded: " in broker.log.read_bytes(), 30, "the reload")
            wait_for(lambda: refused(broker), 15, "the end of the revoked token")
            assert holder.ask("PUB victim", b"after").startswith(("E_UNAUTHORIZED", "E_AUTH"))
            wait_for(lambda: ping(broker) == "OK", 15, "good health")
            assert b"not reloaded" not in broker.log.read_bytes()
            (of_supervisor,) = watched.close().values()
            print(f"supervisor {of_supervisor / MIB:.1f} MiB")
            assert of_supervisor < 60 * MIB
    finally:
        for one in strangers:
            one.socket.close()


def refused(broker: Broker) -> bool:
    """Return True if the revoked token gives no access any more."""
    with NsqSocket(broker.nsq) as client:
        client.identify()
        client.ask("AUTH", b"secret")
        try:
            return client.ask("PUB victim", b"revoked") != "OK"
        except (EOFError, ConnectionError):
            return True


def test_one_admin_cannot_rotate_the_log_away(broker: Broker) -> None:
    """One user's orders beyond an allowance are only counted. The orders of the operator still get
    their lines.
    """
    frame = order(7, "configure", {str(number): "z" * 190 for number in range(10)}, "other")
    with Attacker(broker) as attacker, zsq.Admin(broker.ipc, timeout=20) as admin:
        for _ in range(60):
            for _ in range(100):
                attacker.send(frame)
            for _ in range(100):
                attacker.answer()
        admin.pause("victim")
        wait_for(
            lambda: any(b'"victim"' in line and b'"pause"' in line for line in lines(broker)),
            30,
            "the operator's line",
        )
        of_attacker = [
            line for line in lines(broker) if b'"other"' in line and b'"configure"' in line
        ]
        assert 400 < len(of_attacker) < 6_000
        assert sum(map(len, of_attacker)) < 2.1 * MIB
    assert broker.stop() == 0
    (folded,) = [json.loads(line) for line in lines(broker) if b'"folded"' in line]
    [(name, count)] = folded["options"].items()
    assert name.startswith("configure other: E_")
    assert count == 6_000 - len(of_attacker)
