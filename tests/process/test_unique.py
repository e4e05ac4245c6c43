"""Tests of unique keys on a real broker: kills, takeovers, races, and the other doors."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.broker import Broker, wait_for
from support.standby_pair import TOPIC, Pair
from support.zsq_command import run_text

import zsq
from zsq import aio

WORKING: dict[str, Any] = {"unique_key": "one", "unique": "while-working"}
WAITING: dict[str, Any] = {"unique_key": "one", "unique": "while-waiting"}


@pytest.fixture
def producer(own_broker: Broker) -> Iterator[zsq.Producer]:
    with zsq.Producer(own_broker.ipc, timeout=60) as one:
        yield one


def test_keys_outlive_kills(own_broker: Broker, producer: zsq.Producer) -> None:
    """Also of a message that a handler has begun, and of one that waits for its next attempt."""
    with zsq.Consumer("t", "c", url=own_broker.ipc) as consumer:
        for name in ("waiting", "begun", "failed", "finished"):
            producer.publish("t", name.encode(), unique_key=name, unique="while-working")
        held = {}
        for _ in range(4):
            message = consumer.receive(30)
            assert message is not None
            held[message.body] = message
        held[b"failed"].requeue(3600)
        held[b"finished"].finish(sync=True)
        own_broker.signal_all(signal.SIGKILL)
    own_broker.start()
    again = {
        name: producer.publish("t", b"x", unique_key=name, unique="while-working").duplicate
        for name in ("waiting", "begun", "failed", "finished")
    }
    assert again == {"waiting": True, "begun": True, "failed": True, "finished": False}
    for round_ in range(2):  # also of a message that was stored just before the kill
        assert producer.publish("t", b"late", **WORKING).duplicate == bool(round_)
        own_broker.signal_all(signal.SIGKILL)
        own_broker.start()


def test_a_finish_before_a_kill_frees_the_key(own_broker: Broker, producer: zsq.Producer) -> None:
    for body in (b"1", b"2", b"3"):
        assert not producer.publish("t", body, **WORKING).duplicate
        with zsq.Consumer("t", "c", url=own_broker.ipc) as consumer:
            message = consumer.receive(30)
            assert message is not None
            assert message.body == body
            message.finish(sync=True)
        own_broker.signal_all(signal.SIGKILL)
        own_broker.start()


def test_one_of_many_producers_stores_the_message(own_broker: Broker) -> None:
    start = threading.Barrier(8)

    def publish(number: int) -> list[bool]:
        with zsq.Producer(own_broker.ipc, timeout=60) as one:
            start.wait(60)
            return [
                one.publish(
                    "t", b"%d" % number, unique_key=f"{key}", unique="while-working"
                ).duplicate
                for key in range(20)
            ]

    with ThreadPoolExecutor(8) as pool:
        found = [*pool.map(publish, range(8))]
    assert [column.count(False) for column in zip(*found, strict=True)] == [1] * 20


def test_the_other_doors(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", http=True) as broker:
        url = f"http://127.0.0.1:{broker.http}/pub"
        where = {"topic": "t", "unique_key": "one", "unique": "while-working"}
        answers = [httpx.post(url, params=where, content=b"x").json() for _ in range(2)]
        assert answers[0] == {"offset": 0, "duplicate": False, "duplicates": []}
        assert answers[1] == {"offset": 0, "duplicate": True, "duplicates": [0]}
        for wrong in ({"unique": "always"}, {"defer": "9"}, {"unique_key": ""}):
            bad = httpx.post(url, params=where | wrong, content=b"x")
            assert (bad.status_code, bad.json()["message"]) == (400, "INVALID_UNIQUE_KEY")
        command = ("pub", "t", "x", "--unique-key", "one", "--unique", "while-waiting", "--json")
        answer = json.loads(run_text("--url", broker.ipc, *command).stdout)
        assert (answer["messages"], answer["duplicates"], answer["offset"]) == (0, 1, 0)
        with zsq.Admin(broker.ipc) as admin:
            wait_for(lambda: admin.stats("t")["topics"][0]["duplicate_count"] == 2)


def test_the_asyncio_producer(broker: Broker) -> None:
    async def main() -> list[bool]:
        async with aio.Producer(broker.ipc, timeout=60) as producer:
            receipts = [await producer.publish("unique-aio", b"x", **WAITING) for _ in range(2)]
            return [receipt.duplicate for receipt in receipts]

    assert aio.run(main()) == [False, True]


def test_what_cannot_be(own_broker: Broker, producer: zsq.Producer) -> None:
    for how, code in (
        ({"unique_key": "one"}, "E_BAD_ARGUMENT"),
        ({"unique_key": "one", "unique": "always"}, "E_BAD_ARGUMENT"),
        (WORKING | {"dedupe_id": "one"}, "E_BAD_ARGUMENT"),
        (WORKING | {"delay": 60}, "E_UNSUPPORTED"),
        (WORKING | {"unique_key": "x" * 257}, "E_TOO_BIG"),
    ):
        with pytest.raises(zsq.UsageError) as caught:
            producer.publish("t", b"x", **how)
        assert caught.value.code == code
    # The broker refuses what a client of another make sends.
    own = {"zsq-unique-key": "one", "zsq-unique": "while-working"}
    for headers, delay, code in (
        (own | {"zsq-unique": "always"}, None, "E_BAD_BLOCK"),
        (own | {"zsq-dedupe-id": "one"}, None, "E_BAD_BLOCK"),
        (own, 60, "E_UNSUPPORTED"),
    ):
        with pytest.raises(zsq.ZsqError) as refused:
            producer.publish("t", b"x", headers=headers, delay=delay)
        assert refused.value.code == code


def test_keys_outlive_a_takeover(tmp_path: Path) -> None:
    pair = Pair(tmp_path, "--sync", "bucket")
    try:
        pair.begin()
        with zsq.Producer(pair.urls, timeout=60) as producer:
            first = producer.publish(TOPIC, b"1", **WORKING)
            pair.one.signal_all(signal.SIGKILL)
            pair.two.wait_ready()
            again = producer.publish(TOPIC, b"2", **WORKING)
            assert (again.duplicate, again.offset) == (True, first.offset)
            assert not producer.publish(TOPIC, b"3", **WORKING | {"unique_key": "two"}).duplicate
    finally:
        pair.close()
