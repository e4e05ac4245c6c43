"""Tests of a client that sends the FINs of many messages together, in any order: each message is
finished once, and no other message is.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator

import pytest
from support.broker import Broker, wait_for
from support.nsq_socket import NsqSocket

import zsq

EACH = 50
DELIVERIES = 3


@pytest.fixture(scope="module")
def nsq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("nsq") / "data", nsq=True) as broker:
        yield broker


def orders() -> dict[str, list[int]]:
    every = list(range(EACH * DELIVERIES))
    shuffled = every.copy()
    random.Random(7).shuffle(shuffled)
    others = [first + EACH * which for first in range(EACH) for which in range(DELIVERIES)]
    return {
        "as they came": every,
        "the last first": every[::-1],
        "in turns": others,
        "shuffled": shuffled,
    }


@pytest.mark.parametrize("pieces", [1, 2, 7])
@pytest.mark.parametrize("order", orders())
def test_each_is_finished_once(nsq: Broker, order: str, pieces: int) -> None:
    topic = f"{order.replace(' ', '-')}-{pieces}"
    with NsqSocket(nsq.nsq) as client:
        for which in range(DELIVERIES):
            assert (
                client.mpub(topic, *[b"%d" % (which * EACH + number) for number in range(EACH)])
                == "OK"
            )
    with NsqSocket(nsq.nsq) as client, zsq.Admin(nsq.ipc) as admin:
        client.subscribe(topic, "c", ready=1000)
        got = [client.message() for _ in range(EACH * DELIVERIES)]
        lines = [b"FIN %s\n" % got[number].id for number in orders()[order]]
        kept = lines.pop(30)
        again = lines[10]
        size = -(-len(lines) // pieces)
        for first in range(0, len(lines), size):
            client.socket.sendall(b"".join(lines[first : first + size]))

        def row() -> dict[str, int]:
            found: dict[str, int] = admin.stats(topic)["topics"][0]["channels"][0]
            return found

        wait_for(lambda: row()["finish_count"] == len(lines), 30, "the finishes")
        assert row()["in_flight_count"] == 1
        client.socket.sendall(again + kept + again)
        assert (
            client.frame()[1]
            == client.frame()[1]
            == b"E_FIN_FAILED FIN %s failed ID not in flight" % again.split()[1]
        )
        wait_for(lambda: row()["finish_count"] == len(lines) + 1, 30, "the last finish")
        assert (row()["in_flight_count"], row()["depth"], row()["requeue_count"]) == (0, 0, 0)


@pytest.mark.parametrize("way", ["requeued", "returned"])
def test_unfinished_messages_of_a_consumer_go_to_the_next_one_in_order(
    nsq: Broker, way: str
) -> None:
    """Each message was published separately, and its block is no longer in memory when the next
    consumer comes.
    """
    with NsqSocket(nsq.nsq) as client:
        for number in range(20):
            assert client.ask(f"PUB left-{way}", b"%d" % number) == "OK"
    with NsqSocket(nsq.nsq) as client:
        client.subscribe(f"left-{way}", "c", ready=20)
        got = [client.message() for _ in range(20)]
        for message in got[:5]:
            client.answer("FIN", message)
        assert client.ask("CLS") == "CLOSE_WAIT"
        for message in got[5:] if way == "requeued" else ():
            client.answer("REQ", message, 0)
    with NsqSocket(nsq.nsq) as client, zsq.Admin(nsq.ipc) as admin:

        def waits() -> bool:
            row = admin.stats(f"left-{way}")["topics"][0]["channels"][0]
            return (row["depth"], row["in_flight_count"], row["client_count"]) == (15, 0, 0)

        wait_for(waits, 30, "what was not finished")
        client.subscribe(f"left-{way}", "c", ready=100)
        assert [client.message().body for _ in range(15)] == [
            b"%d" % number for number in range(5, 20)
        ]


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("command", ["FIN {} ", "REQ {} 0", "TOUCH {} "])
def test_an_answer_for_a_message_that_was_emptied_fails(
    nsq: Broker, command: str, whole: bool
) -> None:
    """nsqd does the same. It does not matter whether the answer is for a whole delivery or for one
    message of it.
    """
    topic = f"emptied-{command[:3]}-{whole}"
    with NsqSocket(nsq.nsq) as client, zsq.Admin(nsq.ipc) as admin:
        assert client.mpub(topic, *[b"x"] * (1 if whole else 3)) == "OK"
        client.subscribe(topic, "c", ready=10)
        message, *_ = [client.message() for _ in range(1 if whole else 3)]
        admin.empty(topic, "c")
        client.send(command.format(message.id.decode()).strip())
        what = command.split()[0]
        assert client.frame() == (
            1,
            f"E_{what}_FAILED {what} {message.id.decode()} failed ID not in flight".encode(),
        )


def test_an_answer_for_a_message_of_another_client_says_so(nsq: Broker) -> None:
    with NsqSocket(nsq.nsq) as owner, NsqSocket(nsq.nsq) as other:
        assert owner.mpub("owned", b"x") == "OK"
        owner.subscribe("owned", "c", ready=1)
        message = owner.message()
        other.subscribe("owned", "c")
        for what, more in (("FIN", ""), ("REQ", " 0"), ("TOUCH", "")):
            other.send(f"{what} {message.id.decode()}{more}")
            text = (
                f"E_{what}_FAILED {what} {message.id.decode()} failed client does not own message"
            )
            assert other.frame() == (1, text.encode())
        owner.answer("FIN", message)
        assert owner.ask("CLS") == "CLOSE_WAIT"


def test_ready_is_ignored_after_cls_whatever_it_says(nsq: Broker) -> None:
    with NsqSocket(nsq.nsq) as client:
        client.subscribe("closing", "c")
        assert client.ask("CLS") == "CLOSE_WAIT"
        for count in ("1", "-1", "x", "99999999"):
            client.send(f"RDY {count}")
        client.send(f"FIN {'0' * 16}")
        assert client.frame()[1].startswith(b"E_FIN_FAILED"), "the connection goes on"


def test_a_client_that_reads_slowly_is_heard(nsq: Broker) -> None:
    """Its FINs free what it holds, so they are read while megabytes wait to be read by the client.

    Otherwise both wait for each other: the client for messages that are behind others, and the
    broker for the client to read.
    """
    count, body = 1_500, b"." * 10_000
    with NsqSocket(nsq.nsq) as client:
        for _ in range(count // 100):
            assert client.mpub("slow", *[body] * 100) == "OK"
    with NsqSocket(nsq.nsq) as client, zsq.Admin(nsq.ipc) as admin:
        # The kernel takes less than the broker has for the client.
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        client.subscribe("slow", "c", ready=2_500)
        got = [client.message() for _ in range(100)]

        def row() -> dict[str, int]:
            found: dict[str, int] = admin.stats("slow", "c")["topics"][0]["channels"][0]
            return found

        wait_for(lambda: row()["in_flight_count"] > 1_000, 20, "megabytes wait for the client")
        for message in got:
            client.answer("FIN", message)
        wait_for(lambda: row()["finish_count"] == len(got), 20, "its FINs are read")
        for message in (client.message() for _ in range(count - len(got))):
            client.answer("FIN", message)
        wait_for(lambda: row()["finish_count"] == count, 20, "all are finished")
