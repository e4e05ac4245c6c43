"""Tests of rate limits and fair channels on real processes: the rate over consumers of all doors, a
kill of the broker, a takeover by a standby, and what users see.
"""

from __future__ import annotations

import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from support.broker import Broker, wait_for
from support.standby_pair import TOPIC, Pair
from support.zsq_command import run_text

import zsq

HOUR_S = 3_600.0


def channel_row(url: str, topic: str = "t") -> zsq.ChannelStats:
    with zsq.Admin(url, timeout=20) as admin:
        (row,) = admin.stats(topic)["topics"][0]["channels"]
    return row


def make(url: str, count: int, topic: str = "t", **settings: object) -> None:
    with zsq.Admin(url) as admin, zsq.Producer(url) as producer:
        admin.create_channel(topic, "c", **settings)  # type: ignore[arg-type]
        producer.publish_many(topic, [b"%d" % number for number in range(count)])


def drain(consumer: zsq.Consumer, seconds: float = 0.3) -> list[int]:
    got = []
    while (message := consumer.receive(seconds)) is not None:
        got.append(int(message.body))
        message.finish(sync=True)
    return got


def test_the_rate_is_that_of_all_consumers_together(own_broker: Broker) -> None:
    make(own_broker.ipc, 2_000, max_rate=400.0)
    times_s: list[float] = []
    stop = threading.Event()

    def consume(ready: int) -> None:
        with zsq.Consumer("t", "c", url=own_broker.ipc, ready=ready) as consumer:
            while not stop.is_set():
                if (message := consumer.receive(0.1)) is not None:
                    times_s.append(time.monotonic())
                    message.finish()

    threads = [threading.Thread(target=consume, args=(ready,)) for ready in (1, 50, 1_000)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(times_s) >= 1_000, 60, "a thousand messages")
    stop.set()
    for thread in threads:
        thread.join()
    spans = [after - before for before, after in zip(times_s, times_s[440:], strict=False)]
    assert min(spans) > 0.95, "no second has more than the rate and a burst"
    took_s = times_s[999] - times_s[40]
    assert took_s == pytest.approx(960 / 400, rel=0.1), "and the limit is used"


def test_a_kill_gives_no_new_burst_and_loses_nothing(own_broker: Broker) -> None:
    make(own_broker.ipc, 10, max_rate=3 / HOUR_S, max_rate_burst=3)
    with zsq.Consumer("t", "c", url=own_broker.ipc, ready=10) as consumer:
        assert drain(consumer) == [0, 1, 2]
        wait_for(lambda: channel_row(own_broker.ipc)["limited_since_s"], what="it is limited")
    text = run_text("channel", "show", "t", "c", "--url", own_broker.ipc).stdout
    assert "rate       at most 3/h, burst 3" in text
    own_broker.signal_all(signal.SIGKILL)
    own_broker.close()
    own_broker.start()
    with zsq.Consumer("t", "c", url=own_broker.ipc, ready=10) as consumer:
        assert drain(consumer) == []
        with zsq.Admin(own_broker.ipc) as admin:
            admin.configure_channel("t", "c", max_rate=None)
        assert drain(consumer) == [*range(3, 10)]


def test_fairness_and_its_limits_survive_a_kill(own_broker: Broker) -> None:
    """The backlog is larger than the channel's memory."""
    with zsq.Admin(own_broker.ipc) as admin, zsq.Producer(own_broker.ipc) as producer:
        admin.create_channel("t", "c", fair_by="key", max_in_flight_per_key=5)
        for _ in range(40):
            producer.publish_many("t", [b"x" * 1_000] * 500, keys=[b"big"] * 500)
        producer.publish_many("t", [b"y"] * 3, keys=[b"a", b"b", None])
    wait_for(lambda: channel_row(own_broker.ipc)["depth"] == 20_003, what="the depth")
    for _ in range(2):
        with zsq.Consumer("t", "c", url=own_broker.ipc, ready=1_000) as consumer:
            wait_for(
                lambda: channel_row(own_broker.ipc)["tenant_count"] == 3, 30, "it has read all"
            )
            held = []
            while (message := consumer.receive(1)) is not None:
                held.append(message)
            assert "keys limited" in run_text("stats", "--url", own_broker.ipc).stdout
            assert sorted(message.key or b"" for message in held) == [
                b"",
                b"a",
                *[b"b"],
                *[b"big"] * 5,
            ]
        own_broker.signal_all(signal.SIGKILL)
        own_broker.close()
        own_broker.start()
    with zsq.Admin(own_broker.ipc) as admin:
        admin.configure_channel("t", "c", max_in_flight_per_key=None)
    count = 0
    with zsq.Consumer("t", "c", url=own_broker.ipc, ready=2_000) as consumer:
        while count < 20_003:
            batch = consumer.receive_batch(20)
            assert batch is not None, count
            count += len(batch)
            batch.finish(sync=True)
        assert consumer.receive(0.1) is None


@pytest.fixture
def doors(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "data", nsq=True, http=True) as broker:
        yield broker


def test_consumers_of_nsq_and_http_share_the_limit(doors: Broker) -> None:
    make(doors.ipc, 20, max_rate=4 / HOUR_S, max_rate_burst=4)
    url = f"http://127.0.0.1:{doors.http}/api/v1/topics/t/channels/c/receive"
    answer = httpx.post(url, json={"max": 1}, timeout=30).json()
    assert len(answer["messages"]) == 1
    with socket.create_connection(("127.0.0.1", doors.nsq), 20) as client:
        client.sendall(b"  V2SUB t c\nRDY 10\n")
        client.settimeout(1)
        received = b""
        try:
            while True:
                received += client.recv(65_536)
        except TimeoutError:
            pass
        count = received.count(struct.pack(">i", 2))  # frames of messages
        assert 3 <= count <= 4, "three messages, and perhaps the number in another place"
        row = channel_row(doors.ipc)
        assert (row["in_flight_count"], row["depth"]) == (4, 16)
        assert row["limited_since_s"]
        assert " limited " in run_text("stats", "t", "--url", doors.ipc).stdout
        metrics = httpx.get(f"http://127.0.0.1:{doors.http}/metrics", timeout=30).text
        assert 'zsq_channel_limited{channel="c",topic="t"} 1.0' in metrics


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    try:
        made.begin()
        yield made
    finally:
        made.close()


def test_a_takeover_gives_no_new_burst(pair: Pair) -> None:
    with zsq.Admin(pair.one.tcp) as admin:
        admin.create_channel(TOPIC, "c", max_rate=3 / HOUR_S, max_rate_burst=3, start="latest")
    pair.publish(10)
    with zsq.Consumer(TOPIC, "c", url=pair.one.tcp, ready=10) as consumer:
        assert len(drain(consumer)) == 3
    pair.wait_shipped(pair.one)
    pair.one.signal_all(signal.SIGKILL)
    pair.two.wait_ready()
    with zsq.Consumer(TOPIC, "c", url=pair.two.tcp, ready=10) as consumer:
        assert drain(consumer) == []
        assert channel_row(pair.two.tcp, TOPIC)["limited_since_s"]
        with zsq.Admin(pair.two.tcp) as admin:
            admin.configure_channel(TOPIC, "c", max_rate=None)
        assert len(drain(consumer)) == 7


@pytest.mark.parametrize(
    "settings", [{"max_rate": 4.0}, {"fair_by": "tag", "max_rate_per_key": 4.0}]
)
def test_a_quiet_channel_wakes_for_its_next_message(
    broker: Broker, settings: dict[str, object]
) -> None:
    """Nothing else happens in its process, which it shares with others."""
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc) as producer:
        admin.create_channel("t", "c", **settings)  # type: ignore[arg-type]
        producer.publish_many("t", [b"0", b"1", b"2", b"3"], tags=["x"] * 4)
    with zsq.Consumer("t", "c", url=broker.ipc, ready=10) as consumer:
        times_s = []
        for _ in range(4):
            message = consumer.receive(20)
            assert message is not None
            times_s.append(time.monotonic())
            message.finish()
    assert all(0.2 < after - before < 2 for before, after in pairwise(times_s))


def test_a_new_key_waits_for_a_few_handlers_only(broker: Broker) -> None:
    """The consumer decides how many messages it holds. In a plain channel it holds those of a
    second.
    """
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc) as producer:
        admin.create_channel("t", "c", fair_by="key")
        producer.publish_many("t", [b"big"] * 5_000, keys=[b"big"] * 5_000)
        between, work = 0, threading.Event()
        with zsq.Consumer("t", "c", url=broker.ipc) as consumer:
            for number, message in enumerate(consumer):
                if number == 200:
                    producer.publish("t", b"small", key=b"small")
                between += number > 200
                work.wait(0.005)  # the handler
                message.finish()
                if message.key == b"small":
                    break
        assert between < 60
