"""Tests of a consumer of several topics at real brokers: kills, parts, deletions, permissions, and
the credit of busy topics among idle ones.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Self

import pytest
from support.broker import Broker, kill, wait_for
from support.cluster import Cluster, running
from support.keys import Keyring

import zsq
from zsq.transport.client.core import topic_list

COUNT = 400  # messages of each topic, before and after a kill
MS = 1_000_000


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_list, "LISTED_NS", 200 * MS)


class Handled:
    """What the handlers of `run` got, in a thread."""

    def __init__(self, consumer: zsq.Consumer, **options: Any) -> None:
        self.consumer = consumer
        self.counts: Counter[tuple[str, bytes]] = Counter()
        self.error: BaseException | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, kwargs=options)

    def _handle(self, message: zsq.Message) -> None:
        with self._lock:
            self.counts[message.topic, message.body] += 1

    def _run(self, **options: Any) -> None:
        try:
            self.consumer.run(self._handle, signals=False, **options)
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.consumer.close()
        self._thread.join(30)

    def wait_for(self, wanted: set[tuple[str, bytes]], timeout_s: float = 60) -> None:
        def have() -> bool:
            assert self.error is None, self.error
            with self._lock:
                return wanted <= self.counts.keys()

        wait_for(have, timeout_s, f"{len(wanted)} messages")


def publish(producer: zsq.Producer, topics: list[str], first: int) -> set[tuple[str, bytes]]:
    """Publish COUNT messages to each topic. Return (topic, body) of each."""
    bodies = [b"%d" % number for number in range(first, first + COUNT)]
    for topic in topics:
        producer.publish_many(topic, bodies, keys=bodies)
    return {(topic, body) for topic in topics for body in bodies}


@pytest.mark.parametrize("whole", [["a.1", "a.2", "a.3"], "a.*"], ids=["list", "pattern"])
@pytest.mark.parametrize("kind", ["topic", "channel", "all"])
def test_kills_during_a_run_over_three_topics_lose_nothing(
    tmp_path: Path, whole: str | list[str], kind: str
) -> None:
    topics = ["a.1", "a.2", "a.3"]
    apart = Broker(tmp_path / "data", "--own-process", "always")
    with apart as broker, zsq.Producer(broker.ipc) as producer:
        sent = publish(producer, topics, 0)
        consumer = zsq.Consumer(whole, "c", url=broker.ipc, heartbeat_ms=1_000)
        with Handled(consumer, concurrency=4) as handled:
            wait_for(lambda: len(handled.counts) > COUNT // 2)
            if kind == "all":
                broker.signal_all(signal.SIGKILL)
                broker.start()
            else:
                pids = set(broker.pids(kind))
                assert len(pids) == len(topics)
                for pid in sorted(pids)[:2]:
                    kill(pid)
            sent |= publish(producer, topics, COUNT)
            handled.wait_for(sent)
        with zsq.Admin(broker.ipc) as admin:
            assert [admin.unfinished(topic, "c") for topic in topics] == [0, 0, 0]


def test_a_topic_with_parts_is_one_of_several(tmp_path: Path) -> None:
    cluster: Cluster
    with running(tmp_path) as cluster, zsq.Admin(cluster.url) as admin:
        admin.create_topic("p.parts", parts=4)
        topics = ["p.parts", "p.plain"]
        with zsq.Producer(cluster.url) as producer:
            sent = publish(producer, topics, 0)
            for whole in (topics, "p.*"):
                channel = "c" if isinstance(whole, list) else "d"
                # It has parts at both brokers, and the other topic is only at the first one.
                consumer = zsq.Consumer(whole, channel, url=cluster.url, start="earliest")
                with Handled(consumer) as handled:
                    handled.wait_for(sent)
                    assert consumer.topics == ("p.parts", "p.plain")
            consumer = zsq.Consumer("p.*", "e", url=cluster.url, start="earliest")
            with Handled(consumer) as handled:
                handled.wait_for(sent)
                admin.delete_topic("p.parts", force=True)
                wait_for(lambda: consumer.topics == ("p.plain",), 30)
                more = publish(producer, ["p.plain"], COUNT)
                handled.wait_for(more)


def test_topics_come_and_go_during_a_run_by_pattern(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker, zsq.Admin(broker.ipc) as admin:
        consumer = zsq.Consumer("g.*", "c", url=broker.ipc)
        with Handled(consumer, concurrency=4) as handled:
            for number in range(6):
                topics = [f"g.{number}", f"g.{number}x"]
                with zsq.Producer(broker.ipc) as producer:
                    sent = publish(producer, topics, 0)
                handled.wait_for(sent)
                wait_for(lambda names=topics: not sum(admin.unfinished(n, "c") for n in names))  # type: ignore[misc]
                admin.delete_topic(topics[0])
            wait_for(lambda: consumer.topics == tuple(f"g.{n}x" for n in range(6)))
            assert [name for name in admin.topics() if name.startswith("g.")] == [
                f"g.{number}x" for number in range(6)
            ]


def test_a_busy_topic_among_idle_ones_has_almost_all_credit(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker, zsq.Producer(broker.ipc) as producer:
        names = [f"i.{number}" for number in range(20)]
        for name in names:
            producer.publish(name, b"first")
        with zsq.Consumer(names, "c", url=broker.ipc, ready=100) as consumer:
            for _ in names:
                message = consumer.receive(30)
                assert message is not None
                message.finish()
            producer.publish_many("i.7", [b"x"] * 1_000)
            held: list[zsq.Message] = []
            deadline = time.monotonic() + 30
            while len(held) < 81 and time.monotonic() < deadline:
                message = consumer.receive(0.5)
                if message is not None:
                    held.append(message)
            assert len(held) >= 81, "the idle topics have one of the 100 each"
            more = consumer.receive(0.5)
            while more is not None:
                held.append(more)
                more = consumer.receive(0.5)
            assert len(held) <= 100


USERS = """
[users.owner]
curve = ["KEY owner"]
publish = ["*"]
subscribe = ["*"]
admin = ["*"]
[users.reader]
curve = ["KEY reader"]
subscribe = ["s.mine*"]
view = ["s.*"]
"""


def test_a_pattern_follows_the_topics_that_the_key_may_consume(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keyring = Keyring(tmp_path, ("owner", "reader"))
    keyring.allow(USERS)
    with (
        Broker(tmp_path / "data", *keyring.options()) as broker,
        zsq.Producer(broker.tcp, key_file=str(keyring.file("owner"))) as producer,
    ):
        for name in ("s.mine", "s.mine.2", "s.seen", "t.mine"):
            producer.publish(name, name.encode())
        options: dict[str, Any] = {"url": broker.tcp, "key_file": str(keyring.file("reader"))}
        consumer = zsq.Consumer("*mine*", "c", **options)
        with Handled(consumer) as handled:
            handled.wait_for({("s.mine", b"s.mine"), ("s.mine.2", b"s.mine.2")})
        assert len(handled.counts) == 2
        assert "left out" not in caplog.text, "topics that it may not view are not listed"
        with Handled(zsq.Consumer("s.*", "d", start="earliest", **options)) as handled:
            handled.wait_for({("s.mine", b"s.mine"), ("s.mine.2", b"s.mine.2")})
            wait_for(lambda: "topic s.seen is left out" in caplog.text)
        refused = zsq.Consumer("s.seen*", "d", **options)
        with pytest.raises(zsq.Refused, match=r"E_FORBIDDEN.*s\.seen"):
            refused.subscribe(30)
        refused.close()
