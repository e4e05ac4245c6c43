"""Public bug reports of nsqd and of its clients, played against the gateway: RDY, FINs that come
late, publishes whose connection breaks, and many consumers of one channel. Each test names its
report.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import zlib
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from support.broker import Broker, wait_for
from support.nsq_socket import Message, NsqSocket

import zsq

CONSUMERS = 40


@pytest.fixture(scope="module")
def nsq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("nsq") / "data", nsq=True) as broker:
        yield broker


def publish(nsq: Broker, topic: str, count: int) -> None:
    with NsqSocket(nsq.nsq) as client:
        assert client.mpub(topic, *[b"%d" % number for number in range(count)]) == "OK"


def is_silent(client: NsqSocket, wait_s: float = 0.3) -> bool:
    """Return True if no frame comes within this time."""
    client.socket.settimeout(wait_s)
    try:
        client.frame()
    except TimeoutError:
        return True
    finally:
        client.socket.settimeout(10)
    return False


def channel(nsq: Broker, topic: str) -> dict[str, int]:
    with zsq.Admin(nsq.ipc) as admin:
        row: dict[str, int] = admin.stats(topic)["topics"][0]["channels"][0]
        return row


def test_a_raised_rdy_counts_what_is_in_flight(nsq: Broker) -> None:
    """nsqio/nsq#382."""
    publish(nsq, "raised", 30)
    with NsqSocket(nsq.nsq) as client:
        client.subscribe("raised", "c", ready=8)
        messages = [client.message() for _ in range(8)]
        client.send("RDY 12")
        messages += [client.message() for _ in range(4)]
        assert is_silent(client)
        assert len({message.id for message in messages}) == 12


def test_rdy_is_not_used_up(nsq: Broker) -> None:
    """nsqio/nsq#884 and nsqio/nsq#1440."""
    publish(nsq, "kept", 20)
    with NsqSocket(nsq.nsq) as client:
        client.subscribe("kept", "c", ready=1)
        for number in range(19):
            message = client.message()
            assert message.body == b"%d" % number
            if number == 18:
                client.send("RDY 0")
            client.answer("FIN", message)
        assert is_silent(client)
        client.send("RDY 1")
        assert client.message().body == b"19"


def test_a_compressed_message_does_not_wait_for_the_next_heartbeat(nsq: Broker) -> None:
    """nsqio/nsq#532."""

    class Deflate:
        def __init__(self) -> None:
            self.packer = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
            self.unpacker = zlib.decompressobj(-zlib.MAX_WBITS)

        def pack(self, data: bytes) -> bytes:
            return self.packer.compress(data) + self.packer.flush(zlib.Z_SYNC_FLUSH)

        def unpack(self, data: bytes) -> bytes:
            return self.unpacker.decompress(data)

    with NsqSocket(nsq.nsq) as client, NsqSocket(nsq.nsq) as publisher:
        assert client.identify(deflate=True, heartbeat_interval=60_000)["deflate"]
        client.compress(Deflate())
        assert client.frame() == (0, b"OK")
        client.subscribe("packed", "c", ready=1)
        for size in (100, 6_000, 60_000):
            assert publisher.ask("PUB packed", os.urandom(size)) == "OK"
            message = client.message()
            assert len(message.body) == size
            client.answer("FIN", message)


def test_a_handler_that_hangs_gets_its_message_again_and_never_more_than_rdy(nsq: Broker) -> None:
    """nsqio/go-nsq#348 and nsqio/go-nsq#116."""
    publish(nsq, "hangs", 3)
    with NsqSocket(nsq.nsq, 20) as client, NsqSocket(nsq.nsq) as other:
        client.identify(msg_timeout=1_000)
        client.subscribe("hangs", "c", ready=1)
        messages = [client.message() for _ in range(3)]
        assert [message.attempts for message in messages][-1] == 2, "an earlier one came again"
        late = messages[0]
        client.send("RDY 0")
        client.answer("FIN", messages[-1])
        client.answer("FIN", late)
        if late.id != messages[-1].id:
            assert client.frame() == (1, b"E_FIN_FAILED FIN %s failed ID not in flight" % late.id)
        else:
            assert client.frame()[0] == 1
        left = {message.id for message in messages} - {messages[-1].id}
        other.subscribe("hangs", "c", ready=3)
        while left:
            message = other.message()
            other.answer("FIN", message)
            left.discard(message.id)
        assert client.ask("CLS") == "CLOSE_WAIT", "the connection is as before"


@pytest.mark.parametrize("reads", [True, False])
def test_what_was_sent_before_the_connection_broke_is_stored_once(nsq: Broker, reads: bool) -> None:
    """wistia/nsq-ruby#51."""
    topic = f"broken-{reads}"
    publishes = b"".join(
        b"PUB %s\n" % topic.encode() + struct.pack(">i", 3) + b"%03d" % number
        for number in range(200)
    )
    with NsqSocket(nsq.nsq) as client:
        client.socket.sendall(publishes + publishes[: len(publishes) // 200 - 2])
        if reads:
            client.socket.shutdown(socket.SHUT_WR)
            assert [client.frame()[1] for _ in range(200)] == 200 * [b"OK"]
    with NsqSocket(nsq.nsq) as client:
        client.subscribe(topic, "c", ready=300)
        bodies = [client.message().body for _ in range(200)]
        assert sorted(bodies) == [b"%03d" % number for number in range(200)]
        assert is_silent(client)


def test_each_of_many_consumers_gets_its_share_and_what_a_lost_one_held(nsq: Broker) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(NsqSocket(nsq.nsq)) for _ in range(CONSUMERS)]
        for client in clients:
            client.subscribe("many", "c", ready=2)
        publish(nsq, "many", 2 * CONSUMERS)
        held: dict[NsqSocket, list[Message]] = {
            client: [client.message() for _ in range(2)] for client in clients
        }
        assert len({message.id for two in held.values() for message in two}) == 2 * CONSUMERS
        lost = clients.pop()
        lost.close()
        for client in clients:
            for message in held[client]:
                client.answer("FIN", message)
        again = {message.id for message in held[lost]}
        wait_for(lambda: channel(nsq, "many")["in_flight_count"] == 2, 30, "what the lost one held")
        row = channel(nsq, "many")
        assert (row["client_count"], row["finish_count"]) == (CONSUMERS - 1, 2 * CONSUMERS - 2)
        for client in clients:
            client.socket.settimeout(0.05)
            try:
                while again:
                    message = client.message()
                    assert message.attempts == 2
                    again.discard(message.id)
            except TimeoutError:
                continue
        assert not again


def test_consumers_of_a_gateway_that_was_killed_lose_their_messages_at_once(nsq: Broker) -> None:
    """The channel does not wait for their heartbeats."""
    publish(nsq, "killed", 10)
    with NsqSocket(nsq.nsq) as client, zsq.Admin(nsq.ipc) as admin:
        client.subscribe("killed", "c", ready=10)
        messages = [client.message() for _ in range(10)]
        [gateway] = [row for row in admin.stats()["processes"] if row["kind"] == "nsq_gateway"]
        os.kill(gateway["pid"], signal.SIGKILL)
        with zsq.Consumer("killed", "c", url=nsq.ipc) as consumer:
            again: set[bytes | None] = set()
            for _ in messages:
                message = consumer.receive(5)
                assert message is not None
                assert message.attempts == 2
                again.add(message.body)
                message.finish()
            assert again == {message.body for message in messages}
