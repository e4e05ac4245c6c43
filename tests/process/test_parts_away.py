"""Tests of publishers to a topic with parts while one of its two brokers is gone: they go on at the
other one. What may be stored is never sent to another part, and nothing is stored twice.
"""

from __future__ import annotations

import json
import signal
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.broker import Broker
from support.cluster import Cluster, running
from support.nsq_socket import NsqSocket

import zsq
from zsq.transport.errors import E_TIMEOUT
from zsq.transport.wire.spread import KeyParts

PARTS = 4
BOUND_S = 10.0  # a publish that waits for the broker that is gone takes longer


class Half(NamedTuple):
    """A cluster of which the second broker was killed. The parts 0 and 2 are left."""

    live: Broker
    cluster: Cluster

    def heads(self, topic: str) -> dict[str, int]:
        with zsq.Admin(self.live.tcp) as admin:
            found = admin.stats(topic, partial=True)
        assert sorted(found["unanswered"]) == [f"{topic}#1", f"{topic}#3"]
        return {row["topic_name"]: row["head"] for row in found["topics"]}


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Half]:
    with running(tmp_path_factory.mktemp("cluster"), nsq=True) as made:
        live, gone = made.brokers
        with zsq.Admin(made.url) as admin:
            for topic in ("http", "counted", "nsq", "new", "lingers", "keyed"):
                admin.create_topic(topic, parts=PARTS, brokers=[0, 1])
        gone.signal_all(signal.SIGKILL)
        yield Half(live, made)


def post(broker: Broker, topic: str, body: bytes) -> float:
    """Publish over HTTP. Return how many seconds that took."""
    began = time.monotonic()
    url = f"http://127.0.0.1:{broker.http}/pub?topic={topic}"
    with urllib.request.urlopen(url, body, timeout=60) as answer:
        assert answer.read() == b"OK"
    return time.monotonic() - began


def test_http_clients_publish_to_the_parts_that_are_left(half: Half) -> None:
    times = [post(half.live, "http", b"%d" % number) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        times += pool.map(lambda number: post(half.live, "http", b"%d" % number), range(8, 40))
    assert max(times) < BOUND_S
    assert sum(half.heads("http").values()) == 40


def test_http_and_the_console_say_which_parts_they_do_not_count(half: Half) -> None:
    def get(path: str) -> dict[str, Any]:
        url = f"http://127.0.0.1:{half.live.http}{path}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found

    post(half.live, "counted", b"x")
    rows = get("/stats?format=json&topic=counted")["topics"]
    assert [row["topic_name"] for row in rows] == ["counted#0", "counted#2"]
    found = get("/api/preview?action=topic.delete&topic=counted")
    assert found["loses"] == [{"what": "messages in the log", "count": 1}]
    assert (found["unknown"], found["harmless"]) == (True, False)
    assert found["says"][-1].startswith("counted#1 and counted#3 did not answer and are left out")


def test_nsq_clients_publish_to_the_parts_that_are_left(half: Half) -> None:
    began = time.monotonic()
    with NsqSocket(half.live.nsq) as client:
        for number in range(20):
            assert client.ask("PUB nsq", b"%d" % number) == "OK"
    assert time.monotonic() - began < BOUND_S
    assert sum(half.heads("nsq").values()) == 20


def test_new_producers_publish_to_the_parts_that_are_left(half: Half) -> None:
    for number in range(2 * PARTS):
        with zsq.Producer(half.live.tcp, timeout=BOUND_S) as producer:
            assert producer.publish("new", b"%d" % number).part in (0, 2)
    # A block in which only some messages have a key is cut.
    with zsq.Producer(half.live.tcp, timeout=BOUND_S) as producer:
        key = next(key for key in keys() if KeyParts(PARTS).of(key) == 2)
        producer.publish_many("new", [b"x"] * 20, keys=[key, None] * 10)
    assert sum(half.heads("new").values()) == 2 * PARTS + 20


def test_messages_that_linger_go_to_the_parts_that_are_left(half: Half) -> None:
    with zsq.Producer(half.live.tcp, timeout=BOUND_S, linger_ms=5) as producer:
        receipts = [producer.publish("lingers", b"x") for _ in range(3)]
        for _ in range(3):
            producer.flush()
            receipts += [producer.publish("lingers", b"x") for _ in range(100)]
        producer.flush()
        assert {receipt.part for receipt in receipts} <= {0, 2}
    assert sum(half.heads("lingers").values()) == 303


def keys() -> Iterator[bytes]:
    yield from (b"%d" % number for number in range(10_000))


def test_a_key_of_a_part_that_is_gone_fails_in_time_and_holds_up_nothing(half: Half) -> None:
    lost = next(key for key in keys() if KeyParts(PARTS).of(key) == 1)
    kept = next(key for key in keys() if KeyParts(PARTS).of(key) == 2)
    with zsq.Producer(half.live.tcp, timeout=5) as producer, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(producer.publish, "keyed", b"x", key=lost)
        for _ in range(2 * PARTS):
            assert producer.publish("keyed", b"x").part in (0, 2)
            assert producer.publish("keyed", b"x", key=kept).part == 2
        with pytest.raises(zsq.BrokerUnreachable, match=E_TIMEOUT) as failed:
            waiting.result(30)
    assert "keyed#1" in failed.value.text
    assert f"the part is at {half.cluster.brokers[1].tcp}, which does not answer" in str(failed)
    assert "nothing was sent" in failed.value.text
    assert sum(half.heads("keyed").values()) == 4 * PARTS


def test_publishers_go_on_while_a_broker_is_killed_and_nothing_is_stored_twice(
    tmp_path: Path,
) -> None:
    with running(tmp_path) as cluster:
        live, gone = cluster.brokers
        with zsq.Admin(cluster.url) as admin:
            admin.create_topic("t", parts=PARTS, brokers=[0, 1])
            admin.create_channel("t", "c")
        bodies = iter(range(1_000_000))
        with (
            ThreadPoolExecutor(40) as posting,
            ThreadPoolExecutor(40) as publishing,
            zsq.Producer(live.tcp, timeout=60) as producer,
        ):
            for _ in range(100):
                post(live, "t", b"%d" % next(bodies))
            publish = producer.publish
            sent = [publishing.submit(publish, "t", b"%d" % next(bodies)) for _ in range(400)]
            gone.signal_all(signal.SIGKILL)
            # A block that was sent waits for its broker. It holds up no other one.
            posts: list[Future[float]] = []
            for _ in range(10):
                wave = [posting.submit(post, live, "t", b"%d" % next(bodies)) for _ in range(4)]
                wait(wave, timeout=2)
                posts += wave
            done, _ = wait(posts, timeout=BOUND_S, return_when=FIRST_EXCEPTION)
            gone.start(60)
            for receipt in sent:
                receipt.result(60)
            for answer in posts:
                answer.result(60)
            assert len(done) >= 30
        count, found = next(bodies), []
        with zsq.Consumer("t", "c", url=cluster.url) as consumer:
            for _ in range(count):
                message = consumer.receive(timeout=30)
                assert message is not None
                found.append(int(message.body))
                message.finish()
            assert sorted(found) == list(range(count))
            assert consumer.receive(timeout=0.5) is None
