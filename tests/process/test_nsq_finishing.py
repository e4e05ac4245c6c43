"""FINs of whole reads, in whatever order a client sends them: each message is finished once, and only it."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from support.broker import Broker, wait_for
from support.nsq_socket import NsqSocket

import zsq

EACH = 50
DELIVERIES = 3


@pytest.fixture(scope="module")
def nsq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("nsq") / "data", nsq=True)
    try:
        yield broker.start()
    finally:
        broker.close()


def orders() -> dict[str, list[int]]:
    every = list(range(EACH * DELIVERIES))
    shuffled = every.copy()
    random.Random(7).shuffle(shuffled)
    others = [first + EACH * which for first in range(EACH) for which in range(DELIVERIES)]
    return {"as they came": every, "the last first": every[::-1], "in turns": others, "shuffled": shuffled}


@pytest.mark.parametrize("pieces", [1, 2, 7])
@pytest.mark.parametrize("order", orders())
def test_each_is_finished_once(nsq: Broker, order: str, pieces: int) -> None:
    topic = f"{order.replace(' ', '-')}-{pieces}"
    with NsqSocket(nsq.nsq) as client:
        for which in range(DELIVERIES):
            assert client.mpub(topic, *[b"%d" % (which * EACH + number) for number in range(EACH)]) == "OK"
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

        wait_for(lambda: row()["finish_count"] == len(lines), 10, "the finishes")
        assert row()["in_flight_count"] == 1
        client.socket.sendall(again + kept + again)
        assert client.frame()[1] == client.frame()[1] == b"E_FIN_FAILED FIN %s failed ID not in flight" % again.split()[1]
        wait_for(lambda: row()["finish_count"] == len(lines) + 1, 10, "the last finish")
        assert (row()["in_flight_count"], row()["depth"], row()["requeue_count"]) == (0, 0, 0)
