"""Tests of NSQ clients that end their connection right behind their last commands: what the gateway
has received before the end of the connection reaches the channel.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import cramjam
import pytest
from support.broker import Broker, wait_for
from support.certificates import Certificates, make
from support.nsq_socket import Message, NsqSocket
from support.topic_names import topic_name_of

import zsq

COUNT: Final = 2_000
READY: Final = 2_500  # the largest RDY by default
IDENTIFIER: Final = b"\xff\x06\x00\x00sNaPpY"


class Deflate:
    def __init__(self) -> None:
        self._packer = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._unpacker = zlib.decompressobj(-zlib.MAX_WBITS)

    def pack(self, data: bytes) -> bytes:
        return self._packer.compress(data) + self._packer.flush(zlib.Z_SYNC_FLUSH)

    def unpack(self, data: bytes) -> bytes:
        return self._unpacker.decompress(data)


class Snappy:
    """The framing format. Each call of cramjam is for a stream with its identifier."""

    def __init__(self) -> None:
        self._rest = b""
        self._begun = False

    def pack(self, data: bytes) -> bytes:
        packed = bytes(cramjam.snappy.compress(data))
        begun, self._begun = self._begun, True
        return packed.removeprefix(IDENTIFIER) if begun else packed

    def unpack(self, data: bytes) -> bytes:
        self._rest += data
        end = 0
        while len(self._rest) - end >= 4:
            size = 4 + int.from_bytes(self._rest[end + 1 : end + 4], "little")
            if len(self._rest) - end < size:
                break
            end += size
        chunks, self._rest = self._rest[:end], self._rest[end:]
        return bytes(cramjam.snappy.decompress(IDENTIFIER + chunks.removeprefix(IDENTIFIER)))


def add_layers(client: NsqSocket, layers: str, certificates: Certificates) -> None:
    """Negotiate these layers, as "tls+snappy"."""
    names = layers.split("+")
    wanted = {{"tls": "tls_v1"}.get(name, name): True for name in names if name}
    if not wanted:
        return
    client.identify(**wanted)
    for name in names:
        if name == "tls":
            context = certificates.client()
            client.socket = context.wrap_socket(client.socket, server_hostname="localhost")
        else:
            client.compress(Deflate() if name == "deflate" else Snappy())
        assert client.frame() == (0, b"OK")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def nsq(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Broker]:
    tls = ("--nsq-tls-cert", certificates.cert, "--nsq-tls-key", certificates.key)
    with Broker(tmp_path_factory.mktemp("nsq") / "data", *tls, nsq=True) as broker:
        yield broker


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return topic_name_of(request.node.name)


def publish(broker: Broker, topic: str) -> None:
    with NsqSocket(broker.nsq) as client:
        for first in range(0, COUNT, 100):
            bodies = [b"%d" % number for number in range(first, first + 100)]
            assert client.mpub(topic, *bodies) == "OK"


def receive(client: NsqSocket, topic: str, ready: int = READY) -> list[Message]:
    client.subscribe(topic, "c", ready)
    return [client.message() for _ in range(COUNT)]


def fins(messages: list[Message]) -> bytes:
    return b"".join(b"FIN %s\n" % message.id for message in messages)


def settled_row(broker: Broker, topic: str) -> dict[str, Any]:
    """Return the channel's row when no client and no message is left in it."""
    row: dict[str, Any] = {}

    def settled() -> bool:
        row.update(admin.stats(topic, "c")["topics"][0]["channels"][0])
        return (row["client_count"], row["in_flight_count"]) == (0, 0)

    with zsq.Admin(broker.ipc) as admin:
        wait_for(settled, 20, "the end of the subscription")
    return row


@pytest.mark.parametrize("layers", ["", "tls", "deflate", "snappy", "tls+deflate", "tls+snappy"])
def test_fins_before_the_end_of_the_connection_are_carried_out(
    nsq: Broker, topic: str, layers: str, certificates: Certificates
) -> None:
    publish(nsq, topic)
    with NsqSocket(nsq.nsq) as client:
        add_layers(client, layers, certificates)
        messages = receive(client, topic)
        client.socket.sendall(fins(messages))
    row = settled_row(nsq, topic)
    assert (row["depth"], row["finish_count"], row["timeout_count"]) == (0, COUNT, 0)


@pytest.mark.parametrize("order", ["cls first", "cls last"])
def test_fins_around_cls_are_carried_out(nsq: Broker, topic: str, order: str) -> None:
    publish(nsq, topic)
    with NsqSocket(nsq.nsq) as client:
        messages = receive(client, topic)
        cls = b"CLS\n"
        answers = fins(messages)
        client.socket.sendall(cls + answers if order == "cls first" else answers + cls)
    row = settled_row(nsq, topic)
    assert (row["depth"], row["finish_count"]) == (0, COUNT)


def test_requeues_before_the_end_of_the_connection_are_carried_out(nsq: Broker, topic: str) -> None:
    publish(nsq, topic)
    with NsqSocket(nsq.nsq) as client:
        messages = receive(client, topic)
        requeues = b"".join(b"REQ %s 3600000\n" % message.id for message in messages[::2])
        client.socket.sendall(fins(messages[1::2]) + requeues)
    row = settled_row(nsq, topic)
    assert (row["finish_count"], row["requeue_count"]) == (COUNT // 2, COUNT // 2)
    assert row["deferred_count"] == COUNT // 2


def test_fins_before_a_reset_are_carried_out(nsq: Broker, topic: str) -> None:
    """A client that ends with a reset has sent its FINs before."""
    publish(nsq, topic)
    with NsqSocket(nsq.nsq) as client:
        messages = receive(client, topic)
        client.socket.sendall(fins(messages))
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    row = settled_row(nsq, topic)
    assert (row["depth"], row["finish_count"]) == (0, COUNT)


@pytest.mark.parametrize("command", [b"TOUCH %s\n", b"REQ %s 0\n"])
def test_answers_that_cross_deliveries_are_carried_out(
    nsq: Broker, topic: str, command: bytes
) -> None:
    """The client closes its socket while it may get more, so that deliveries reset the connection.
    The gateway carries out so many commands in several pieces.
    """
    for _ in range(2):
        publish(nsq, topic)
    with NsqSocket(nsq.nsq) as client:
        messages = receive(client, topic, COUNT)
        pairs = zip(messages[::2], messages[1::2], strict=True)
        answers = (command % one.id + b"FIN %s\n" % other.id for one, other in pairs)
        client.socket.sendall(b"".join(answers))
    row = settled_row(nsq, topic)
    assert row["finish_count"] == COUNT // 2
    assert row["requeue_count"] == (COUNT // 2 if command.startswith(b"REQ") else 0)


@pytest.mark.parametrize("process", ["gateway", "broker"])
def test_fins_before_a_sigterm_are_carried_out(tmp_path: Path, process: str) -> None:
    with Broker(tmp_path / "data", nsq=True) as broker:
        publish(broker, "t")
        with NsqSocket(broker.nsq) as client:
            messages = receive(client, "t")
            client.socket.sendall(fins(messages + messages[-1:]))
            assert client.frame()[1].startswith(b"E_FIN_FAILED"), "the gateway has the others"
            if process == "gateway":
                os.kill(broker.pids("nsq_gateway")[0], signal.SIGTERM)
            else:
                broker.stop()
                broker.start()
        row = settled_row(broker, "t")
        assert (row["depth"], row["timeout_count"]) == (0, 0)
