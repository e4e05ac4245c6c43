"""Tests of the limit on the size of a message: it is an option of the broker, all gateways observe
it, and clients learn it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest
from support.broker import Broker

import zsq
from zsq.transport.block.block import MESSAGE_BYTES_LARGEST, pack
from zsq.transport.client.blocking.stage_writer import StageWriter

MIB = 1024 * 1024
LIMIT = 3 * MIB


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    made = Broker(
        tmp_path_factory.mktemp("broker") / "data",
        "--max-msg-size",
        str(LIMIT),
        nsq=True,
        http=True,
    ).start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    made = Broker(tmp_path_factory.mktemp("broker") / "data", "--max-msg-size", "1000").start()
    yield made
    made.stop()


@pytest.mark.parametrize("door", ["tcp", "ipc"])
@pytest.mark.parametrize("linger_ms", [0, 5])
def test_messages_up_to_the_limit_come_whole(door: str, linger_ms: float, wide: Broker) -> None:
    url, topic = getattr(wide, door), f"{door}-{linger_ms}"
    body = bytes(range(256)) * (LIMIT // 256)
    with (
        zsq.Producer(url, linger_ms=linger_ms) as producer,
        zsq.Consumer(topic, "c", url=url) as consumer,
    ):
        producer.publish(topic, body).wait()
        too_big = f"message of {LIMIT + 1} bytes is over the limit of {LIMIT} bytes"
        with pytest.raises(zsq.UsageError, match=too_big):
            producer.publish(topic, body + b"x")
        with pytest.raises(zsq.UsageError, match=too_big):
            producer.publish_many(topic, [b"a", body + b"x"])
        producer.publish_many(topic, [b"a", body, b"b"], wait=True)
        for wanted in (body, b"a", body, b"b"):
            message = consumer.receive(20)
            assert message is not None
            assert message.body == wanted
            message.finish()


def test_an_asyncio_producer_refuses_a_message_over_the_limit(wide: Broker) -> None:
    async def main() -> None:
        async with zsq.aio.Producer(wide.tcp) as producer:
            await producer.publish("aio", bytes(LIMIT))
            with pytest.raises(zsq.UsageError, match=f"over the limit of {LIMIT} bytes"):
                await producer.publish("aio", bytes(LIMIT + 1))

    asyncio.run(main())


def test_a_message_that_no_broker_accepts_is_refused_by_the_client() -> None:
    with (
        zsq.Producer("tcp://127.0.0.1:1") as producer,
        pytest.raises(zsq.UsageError, match=f"over the limit of {MESSAGE_BYTES_LARGEST}"),
    ):
        producer.publish("t", bytes(MESSAGE_BYTES_LARGEST + 1))


def test_a_large_dead_letter_keeps_its_body(wide: Broker) -> None:
    body = b"x" * LIMIT
    with zsq.Producer(wide.ipc) as producer, zsq.Consumer("dying", "c", url=wide.ipc) as consumer:
        producer.publish("dying", body)
        message = consumer.receive(20)
        assert message is not None
        message.reject("too heavy")
        with zsq.Consumer("dying.c.dead", "c", url=wide.ipc, start="earliest") as dead:
            letter = dead.receive(20)
            assert letter is not None
            assert letter.body == body


def test_a_smaller_limit_holds_for_every_door(narrow: Broker) -> None:
    with zsq.Producer(narrow.tcp) as producer:
        producer.publish("t", bytes(1000))
        with pytest.raises(
            zsq.UsageError, match="message of 1001 bytes is over the limit of 1000 bytes"
        ):
            producer.publish("t", bytes(1001))
        assert producer.publish("t", b"after").offset == 1
    with StageWriter("t", "app", 1, url=narrow.ipc) as writer:
        writer.push(pack([bytes(1001)]))
        with pytest.raises(zsq.UsageError, match="over the limit of 1000 bytes"):
            writer.seal()


@pytest.mark.parametrize("door", ["tcp", "ipc"])
def test_a_message_over_the_limit_costs_only_itself(door: str, narrow: Broker) -> None:
    """The producer does not know the limit when it packs the first block."""
    url = getattr(narrow, door)
    with zsq.Producer(url, linger_ms=1000) as producer:
        receipts = []
        for number in range(100):
            body = b"%03d" % number + bytes(5000 if number in (3, 50, 51) else 97)
            receipts.append(producer.publish(f"one-{door}", body))
            producer.publish(f"other-{door}", body[:100])
        with pytest.raises(zsq.UsageError, match=f"3 messages were not stored. 3 to one-{door}: "):
            producer.flush()
        assert [number for number, one in enumerate(receipts) if one.error] == [3, 50, 51]
        assert [one.offset for one in receipts if not one.error] == [*range(97)]
        assert receipts[50].ranges == ()
        with pytest.raises(zsq.UsageError, match="message of 5003 bytes is over the limit"):
            receipts[50].wait()
        producer.flush()  # each failure is raised once
        # Now the limit is known.
        with pytest.raises(zsq.UsageError, match="message of 1001 bytes is over the limit"):
            producer.publish(f"one-{door}", bytes(1001))
    for topic, count in ((f"one-{door}", 97), (f"other-{door}", 100)):
        with zsq.Reader(topic, url=url) as reader:
            assert reader.bounds() == (0, count)


def test_publish_many_says_how_many_messages_failed(narrow: Broker) -> None:
    with zsq.Producer(narrow.tcp) as producer:
        with pytest.raises(zsq.UsageError, match="2 of the 5 messages failed, the others are"):
            producer.publish_many("many", [b"a", bytes(1001), b"b", bytes(1002), b"c"])
        producer.flush()
    with zsq.Reader("many", url=narrow.tcp) as reader:
        assert [row.body for row in map(reader.message, range(3))] == [b"a", b"b", b"c"]


def test_an_asyncio_producer_loses_only_the_message_over_the_limit(narrow: Broker) -> None:
    async def main() -> None:
        async with zsq.aio.Producer(narrow.tcp, linger_ms=1000) as producer:
            receipts = [
                await producer.publish("aio", bytes(1001 if number == 7 else 10))
                for number in range(20)
            ]
            with pytest.raises(zsq.UsageError, match="message of 1001 bytes"):
                await producer.flush()
            assert [number for number, one in enumerate(receipts) if one.error] == [7]

    asyncio.run(main())


def test_http_and_nsq_keep_it_too(wide: Broker) -> None:
    def post(size: int) -> bytes:
        """Return the status line. A body that is too large is refused before it is read."""
        head = (
            f"POST /pub?topic=http HTTP/1.1\r\nHost: 127.0.0.1:{wide.http}\r\nContent-Length: "
            f"{size}\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", wide.http), 20) as client:
            client.sendall(head.encode() + (bytes(size) if size <= LIMIT else b""))
            return client.recv(1000).partition(b"\r\n")[0]

    assert post(LIMIT) == b"HTTP/1.1 200 OK"
    assert post(LIMIT + 1).startswith(b"HTTP/1.1 413")
    for size, said in ((LIMIT, b"OK"), (LIMIT + 1, b"E_BAD_MESSAGE")):
        with socket.create_connection(("127.0.0.1", wide.nsq), 20) as client:
            client.sendall(b"  V2PUB nsq\n" + size.to_bytes(4, "big") + bytes(size))
            assert said in client.recv(1000)
