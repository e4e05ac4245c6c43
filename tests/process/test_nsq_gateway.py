"""Tests of NSQ clients with a real broker, over raw sockets: messages are durable and leased,
memory is bounded, and a client that leaves keeps no message.
"""

from __future__ import annotations

import socket
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.broker import Broker, free_port, kill, wait_for
from support.nsq_socket import NsqSocket
from support.topic_names import topic_name_of

import zsq


@pytest.fixture(scope="module")
def nsq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("nsq") / "data", nsq=True) as broker:
        yield broker


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return topic_name_of(request.node.name)


def channel_row(broker: Broker, topic: str, channel: str = "c") -> dict[str, Any]:
    with zsq.Admin(broker.ipc) as admin:
        return dict(admin.stats(topic, channel)["topics"][0]["channels"][0])


@pytest.mark.smoke
def test_what_nsq_publishes_is_ours_and_the_other_way_round(nsq: Broker, topic: str) -> None:
    with NsqSocket(nsq.nsq) as client:
        assert client.ask(f"PUB {topic}", b"one") == "OK"
        assert client.mpub(topic, b"two", b"three") == "OK"
    with zsq.Producer(nsq.ipc) as producer:
        producer.publish(topic, b"four", key=b"k", tag="t")
    with NsqSocket(nsq.nsq) as client:
        client.subscribe(topic, "c", ready=10)
        got = [client.message() for _ in range(4)]
        assert [(message.body, message.attempts) for message in got] == [
            (b"one", 1),
            (b"two", 1),
            (b"three", 1),
            (b"four", 1),
        ]
        assert [message.id for message in got] == [b"%016x" % offset for offset in range(4)], (
            "ids are offsets"
        )
        assert abs(got[0].timestamp_ns - time.time_ns()) < 60_000_000_000
        for message in got:
            client.answer("FIN", message)
        wait_for(lambda: channel_row(nsq, topic)["finish_count"] == 4, 30, "the finishes")
        client.answer("FIN", got[0])
        assert client.frame() == (1, b"E_FIN_FAILED FIN 0000000000000000 failed ID not in flight")


def test_what_an_nsq_client_published_survives_a_kill(tmp_path: Path) -> None:
    """The gateway answered OK, so the message must survive a power cut, as with any
    other producer.
    """
    with Broker(tmp_path / "data", nsq=True) as broker:
        with NsqSocket(broker.nsq) as client:
            for number in range(20):
                assert client.ask("PUB t", b"%d" % number) == "OK"
        everyone = [actor["pid"] for actor in broker.actors()]
        assert broker.process is not None
        kill(broker.process.pid)
        broker.process.wait(20)
        broker.wait_gone(everyone)
        broker.start()
        with NsqSocket(broker.nsq) as client:
            client.subscribe("t", "c", ready=20)
            assert [client.message().body for _ in range(20)] == [
                b"%d" % number for number in range(20)
            ]


@pytest.mark.parametrize("how", ["cut", "closed"])
def test_who_vanishes_gives_its_messages_to_others_within_a_second(
    nsq: Broker, topic: str, how: str
) -> None:
    with NsqSocket(nsq.nsq) as other:
        victim = NsqSocket(nsq.nsq)
        victim.subscribe(topic, "c", ready=5)
        assert other.mpub(topic, *(b"%d" % number for number in range(5))) == "OK"
        held = [victim.message() for _ in range(5)]
        assert len(held) == 5
        other.subscribe(topic, "c", ready=5)
        wait_for(lambda: channel_row(nsq, topic)["client_count"] == 2, 30, "the other one")
        if how == "cut":
            # This makes the kernel send a RST.
            victim.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        victim.close()
        gone = time.monotonic()
        again = [other.message() for _ in range(5)]
        took = time.monotonic() - gone
        assert [(message.id, message.attempts) for message in again] == [
            (message.id, 2) for message in held
        ]
        assert took < 5, "a busy machine may take its time; it is some milliseconds"


def test_a_touch_means_one_message(nsq: Broker, topic: str) -> None:
    """Two messages belong to one delivery. The one that is touched stays, and the other one times
    out.
    """
    with NsqSocket(nsq.nsq) as client, NsqSocket(nsq.nsq) as other:
        client.identify(msg_timeout=2_000)
        assert client.mpub(topic, b"kept", b"lost") == "OK"
        client.subscribe(topic, "c", ready=2)
        kept, lost = client.message(), client.message()
        began = time.monotonic()
        other.subscribe(topic, "c", ready=1)
        wait_for(lambda: time.monotonic() - began > 1.0, 5, "a second")
        client.answer("TOUCH", kept)
        again = other.message()
        assert (again.id, again.attempts) == (lost.id, 2)
        assert time.monotonic() - began >= 1.9
        client.answer("FIN", kept)
        client.answer("FIN", lost)
        assert client.frame() == (
            1,
            b"E_FIN_FAILED FIN " + lost.id + b" failed client does not own message",
        )
        other.answer("FIN", again)
        wait_for(lambda: channel_row(nsq, topic)["finish_count"] == 2, 30, "both finishes")
        row = channel_row(nsq, topic)
        assert (row["timeout_count"], row["requeue_count"]) == (1, 0)


def test_an_nsq_client_can_defer_requeue_and_close(nsq: Broker, topic: str) -> None:
    with NsqSocket(nsq.nsq) as client:
        began = time.monotonic()
        assert client.ask(f"DPUB {topic} 300", b"later") == "OK"
        client.subscribe(topic, "c", ready=1)
        message = client.message()
        assert time.monotonic() - began >= 0.3
        client.answer("REQ", message, 200)
        asked = time.monotonic()
        message = client.message()
        assert (message.body, message.attempts) == (b"later", 2)
        assert time.monotonic() - asked >= 0.2
        assert client.ask("CLS") == "CLOSE_WAIT"
        client.answer("FIN", message)
        wait_for(lambda: channel_row(nsq, topic)["finish_count"] == 1, 30, "a finish after CLS")


def test_who_does_not_read_costs_bounded_memory_and_disturbs_nobody(
    nsq: Broker, topic: str
) -> None:
    body = b"x" * 100_000
    with NsqSocket(nsq.nsq) as slow, NsqSocket(nsq.nsq) as other, zsq.Producer(nsq.ipc) as producer:
        slow.subscribe(topic, "slow", ready=2500)
        for _ in range(30):
            producer.publish_many(topic, [body] * 40)
        (gateway,) = nsq.pids("nsq_gateway")
        assert other.ask(f"PUB {topic}2", b"fine") == "OK"
        other.subscribe(f"{topic}2", "c", ready=1)
        assert other.message().body == b"fine"
        row = channel_row(nsq, topic, "slow")
        assert row["in_flight_count"] < 1_200, (
            "120 MB were published, and what is handed out is bounded by bytes"
        )
        with open(f"/proc/{gateway}/status") as status:
            peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
        assert peak < 200_000, f"{peak} KiB"


def test_a_gateway_that_dies_is_started_again(nsq: Broker, topic: str) -> None:
    with NsqSocket(nsq.nsq) as client:
        client.subscribe(topic, "c", ready=1)
        assert client_count(nsq, topic) == 1
        (gateway,) = nsq.pids("nsq_gateway")
        kill(gateway)
        nsq.wait_gone([gateway])
        with pytest.raises((EOFError, ConnectionError)):
            client.frame()
    wait_for(lambda: connects(nsq.nsq), 20, "the next gateway")
    with NsqSocket(nsq.nsq) as client:
        assert client.ask(f"PUB {topic}", b"a") == "OK"
        client.subscribe(topic, "c", ready=1)
        assert client.message().body == b"a"


def client_count(broker: Broker, topic: str) -> int:
    return int(channel_row(broker, topic)["client_count"])


def connects(port: int) -> bool:
    try:
        NsqSocket(port).close()
    except OSError:
        return False
    return True


def test_a_deleted_channel_ends_its_connections(nsq: Broker, topic: str) -> None:
    with NsqSocket(nsq.nsq) as client:
        client.subscribe(topic, "c", ready=1)
        with zsq.Admin(nsq.ipc) as admin:
            admin.delete_channel(topic, "c", force=True)
        with pytest.raises((EOFError, ConnectionError)):
            client.frame()


def test_unix_sockets_and_places_that_are_taken(tmp_path: Path) -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    path = tmp_path / "nsq.sock"
    broker = Broker(
        tmp_path / "data",
        "--nsq-listen",
        f"unix:{path}",
        "--nsq-listen",
        f"127.0.0.1:{free_port()}",
    )
    broker.extra = tuple(one for one in broker.extra if one != "--no-nsq")
    other = Broker(tmp_path / "other", "--nsq-listen", f"127.0.0.1:{port}")
    other.extra = tuple(one for one in other.extra if one != "--no-nsq")
    try:
        broker.start()
        with NsqSocket(str(path)) as client:
            assert client.ask("PUB t", b"a") == "OK"
        with zsq.Admin(broker.ipc) as admin:
            admin.create_channel("t", "c")
            assert admin.topics() == {"t": ["c"]}
        assert broker.stop() == 0
        assert not path.exists()
        other.launch()
        assert other.process is not None
        assert other.process.wait(30) == 1
        assert "cannot listen for NSQ clients" in other.log.read_text()
    finally:
        broker.close()
        other.close()
        taken.close()


def test_a_bomb_of_commands_holds_nobody_up(nsq: Broker, topic: str) -> None:
    """Some kilobytes of deflate unpack to millions of commands. Other clients get their turn
    between two pieces of it.
    """
    pack = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = b"".join(pack.compress(b"NOP\n" * 100_000) for _ in range(100)) + pack.flush(
        zlib.Z_SYNC_FLUSH
    )
    assert len(bomb) < 100_000
    with NsqSocket(nsq.nsq) as hostile, NsqSocket(nsq.nsq) as other:
        assert hostile.identify(deflate=True)["deflate"]
        hostile.socket.sendall(bomb)
        assert other.ask(f"PUB {topic}", b"fine") == "OK"
        other.subscribe(topic, "c", ready=1)
        other.answer("FIN", other.message())
        wait_for(lambda: channel_row(nsq, topic)["finish_count"] == 1, 30, "the finish")


def test_clients_get_a_clean_end_while_they_send_and_the_broker_stops(tmp_path: Path) -> None:
    """A reset would destroy answers that the client has not read, and ansq never notices a reset.
    A client that has not said anything ends, too (nsqio/nsq#1534).
    """
    broker = Broker(tmp_path / "data", nsq=True)
    failures: list[OSError] = []

    def send(client: NsqSocket) -> None:
        try:
            client.socket.sendall(b"NOP\n" * 1_000_000)
        except OSError as error:
            failures.append(error)

    try:
        broker.start()
        silent = socket.create_connection(("127.0.0.1", broker.nsq), timeout=20)
        with silent, NsqSocket(broker.nsq, 20) as client:
            client.subscribe("t", "c")
            assert client.ask("PUB t", b"x") == "OK"
            # The gateway needs about a second to carry these out, so it stops before.
            sender = threading.Thread(target=send, args=(client,))
            sender.start()
            assert broker.stop() == 0
            sender.join(20)
            with pytest.raises(EOFError):
                client.frame()
            assert silent.recv(1) == b""
            assert failures == []
    finally:
        broker.close()
