"""Tests of topics that share processes, on a real broker: quiet topics live together, a busy one
moves out while it is used, and the end of a shared process costs nothing that was acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Self

import pytest
from support.broker import Broker, kill, wait_for

import zsq
import zsq.aio
from zsq import ZsqError
from zsq.actors.runtime.placement import ROOM

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    options = ("--own-process", "busy", "--share-after", "1s", "--busy-at", "10")
    with Broker(tmp_path / "data", *options) as broker:
        yield broker


def places(broker: Broker) -> dict[str, int]:
    """Return the process of each topic and channel."""
    return {row["name"]: row["pid"] for row in broker.actors() if row["kind"] in KINDS}


KINDS = ("topic", "channel")


def pids(broker: Broker, topic: str) -> set[int]:
    ours = (f"topic {topic}", f"channel {topic}/")
    return {pid for name, pid in places(broker).items() if name.startswith(ours)}


def is_elsewhere(broker: Broker, pid: int) -> bool:
    return bool(pids(broker, "bad") - {pid})


def make(broker: Broker, *topics: str) -> None:
    with zsq.Admin(broker.ipc, timeout=30) as admin:
        for topic in topics:
            admin.create_channel(topic, "c")


class Busy:
    """Publishes to a topic, and consumes it, as fast as it can until the end of the context."""

    def __init__(self, broker: Broker, topic: str, handle: Callable[[], object] = lambda: None):
        self._broker, self._topic, self._handle = broker, topic, handle
        self._ends, self._has_ended = threading.Event(), threading.Event()
        self._threads = [threading.Thread(target=run) for run in (self._publish, self._consume)]
        self.sent = 0
        self.received: Counter[bytes] = Counter()
        self.attempts: Counter[int] = Counter()
        self.offsets: list[int] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), f"{len(self.received)} of {self.sent} messages came"

    def _publish(self) -> None:
        with zsq.Producer(self._broker.ipc, timeout=60) as producer:
            while not self._ends.is_set():
                producer.publish_many(self._topic, [b"%d" % (self.sent + i) for i in range(50)])
                self.sent += 50
        self._has_ended.set()

    def _consume(self) -> None:
        with zsq.Consumer(self._topic, "c", url=self._broker.ipc) as consumer:
            while not self._has_ended.is_set() or len(self.received) < self.sent:
                message = consumer.receive(1)
                if message is None:
                    continue
                self.received[message.body] += 1
                self.attempts[message.attempts] += 1
                self.offsets.append(message.offset)
                self._handle()
                message.finish()

    def check(self) -> None:
        """Each message came, and came once, with its first attempt, and all came in order."""
        assert len(self.received) == self.sent
        assert set(self.received.values()) == {1}
        assert set(self.attempts) == {1}
        assert self.offsets == sorted(self.offsets)


def test_quiet_topics_share_a_process_and_a_busy_one_moves_out_and_back(broker: Broker) -> None:
    make(broker, "a", "b")
    assert len(pids(broker, "a") | pids(broker, "b")) == 1
    (before,) = pids(broker, "b")
    with Busy(broker, "a") as busy:
        wait_for(lambda: len(pids(broker, "a")) == 2, 40, "processes of topic a alone")
        assert before not in pids(broker, "a")
        moved_at = busy.sent
        wait_for(lambda: busy.sent > moved_at + 1_000, 40, "messages after the move")
    busy.check()
    assert pids(broker, "b") == {before}
    wait_for(lambda: len(pids(broker, "a")) == 1, 60, "topic a in a shared process again")
    with zsq.Admin(broker.ipc) as admin:
        row = admin.stats("a")["topics"][0]
        assert row["message_count"] == busy.sent, "counters go on over a move"
        assert row["channels"][0]["finish_count"] == busy.sent
        assert row["channels"][0]["depth"] == 0
        assert admin.stats()["health"] == "OK"


def test_a_handler_that_works_keeps_its_topic_and_its_message_and_the_neighbours_leave(
    broker: Broker,
) -> None:
    """Another channel makes the topic busy. The message of the long handler is not delivered a
    second time, and after a few tries the quiet neighbour leaves the busy topic.
    """
    make(broker, "a", "b")
    (before,) = pids(broker, "a")
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc) as producer:
        admin.create_channel("a", "slow")
        producer.publish("a", b"0")
    with zsq.Consumer("a", "slow", url=broker.ipc, ready=1) as consumer:
        message = consumer.receive(20)
        assert message is not None
        with Busy(broker, "a"):
            wait_for(lambda: pids(broker, "b") != {before}, 60, "the neighbour's move")
            assert pids(broker, "a") == {before}
        message.finish()
        consumer.flush()
        with zsq.Admin(broker.ipc) as admin:
            channels = admin.stats("a")["topics"][0]["channels"]
            (slow,) = (row for row in channels if row["channel_name"] == "slow")
            assert slow["requeue_count"] == slow["timeout_count"] == 0
            assert slow["finish_count"] == 1


def test_the_end_of_a_shared_process_loses_nothing_and_starts_all_of_it_again(
    broker: Broker,
) -> None:
    topics = [f"t{number}" for number in range(6)]
    make(broker, *topics)
    with zsq.Producer(broker.ipc, timeout=30) as producer:
        for topic in topics:
            producer.publish_many(topic, [b"1", b"2"])
        (host,) = {pid for topic in topics for pid in pids(broker, topic)}
        kill(host)
        for topic in topics:
            producer.publish(topic, b"3")
    for topic in topics:
        with zsq.Consumer(topic, "c", url=broker.ipc) as consumer:
            messages = [consumer.receive(20) for _ in range(3)]
            assert [message.body for message in messages if message] == [b"1", b"2", b"3"]
            for message in filter(None, messages):
                message.finish()
            consumer.flush()


def test_the_log_names_a_shared_process_that_ended_and_not_each_of_its_topics(
    broker: Broker,
) -> None:
    make(broker, "a", "b", "c")
    (host,) = pids(broker, "a")
    kill(host)
    broker.wait_said(f"shared process quiet 1 (pid {host}) ended and gave no reason")
    broker.wait_said("; its topics (3) start again")
    wait_for(lambda: pids(broker, "c") - {host}, 40, "the topic's next process")
    assert broker.log.read_text().count(" WARNING ") == 1


def test_a_shared_process_has_no_more_actors_than_room_after_a_restart_of_the_broker(
    broker: Broker,
) -> None:
    """The broker learns only after a topic's start how many channels the topic has."""
    topics = [f"t{number}" for number in range(15)]
    with zsq.Admin(broker.ipc, timeout=30) as admin:
        for topic in topics:
            for number in range(9):
                admin.create_channel(topic, f"c{number}")
    assert broker.stop() == 0
    broker.start()

    def actors() -> list[int]:
        counts = Counter(places(broker).values())
        return sorted(counts.values()) if counts.total() == 150 else []

    wait_for(lambda: sum(actors()[:-1]) >= 22 and max(actors()) <= ROOM, 60, "room for all")
    with zsq.Admin(broker.ipc, timeout=30) as admin:
        assert admin.stats()["health"] == "OK"


def test_unexplained_ends_of_a_process_separate_its_topics_until_the_cause_is_alone(
    broker: Broker,
) -> None:
    """Whoever kills the process of topic `bad` kills ever fewer of its neighbours."""
    topics = [f"t{number}" for number in range(20)]
    make(broker, "bad", *topics)
    neighbours = [len(topics)]
    while len(pids(broker, "bad")) == 1:
        (host,) = pids(broker, "bad")
        kill(host)
        broker.wait_gone([host])
        wait_for(partial(is_elsewhere, broker, host), 40, "the topic's next process")
        wait_for(lambda: len(places(broker)) == 42, 40, "all others")
        alone = pids(broker, "bad")
        neighbours.append(sum(pids(broker, topic) == alone for topic in topics))
    assert neighbours == sorted(neighbours, reverse=True)
    assert neighbours[-1] == 0
    assert len(neighbours) <= 5


def test_a_topic_that_cannot_start_takes_no_neighbour_along_for_long(broker: Broker) -> None:
    """Its failure says that it is the cause. So the others share a process all the same."""
    make(broker, "a", "b", "broken")
    broker.stop()
    first, _, last = sorted((broker.data_dir / "topics").iterdir())
    (last / "topic").write_bytes((first / "topic").read_bytes())
    broker.start()
    with zsq.Producer(broker.ipc, timeout=30) as producer:
        producer.publish("a", b"1")
        producer.publish("b", b"1")
    wait_for(lambda: len(pids(broker, "a") | pids(broker, "b")) == 1, 40, "the neighbours")
    with zsq.Admin(broker.ipc) as admin:
        assert "broken" in admin.stats()["health"]


def test_the_deletion_of_a_topic_that_starts_a_channel_leaves_its_neighbours_alone(
    broker: Broker,
) -> None:
    make(broker, "a")
    before = places(broker)

    def create(admin: zsq.Admin) -> None:
        with contextlib.suppress(ZsqError):  # the deletion came first
            admin.create_channel("b", "d")

    with zsq.Admin(broker.ipc, timeout=30) as admin, zsq.Admin(broker.ipc, timeout=30) as other:
        for _ in range(10):
            admin.create_channel("b", "c")
            creation = threading.Thread(target=create, args=(other,))
            creation.start()
            admin.delete_topic("b", force=True)
            creation.join()
            with contextlib.suppress(ZsqError):  # the creation came last
                admin.delete_topic("b", force=True)
    assert places(broker) == before


def test_a_shared_process_that_is_stopped_does_not_stop_the_broker(tmp_path: Path) -> None:
    """It takes no actors, and its pipe is full after a few dozen of them."""
    names = [f"t{number:030d}" for number in range(120)]
    data_dir = tmp_path / ("a-data-directory-" * 3)
    with Broker(data_dir, "--own-process", "never") as broker:
        make(broker, "a")
        (host,) = pids(broker, "a")
        os.kill(host, signal.SIGSTOP)

        async def create_all() -> None:
            async with zsq.aio.Admin(broker.ipc, timeout=40) as admin:
                creations = [asyncio.create_task(admin.create_topic(name)) for name in names]
                assert await asyncio.create_task(admin.ping())  # it comes after them
                os.kill(host, signal.SIGCONT)
                await asyncio.gather(*creations)

        asyncio.run(create_all())
        assert set(names) <= {name.removeprefix("topic ") for name in places(broker)}


def test_topics_that_sleep_count_as_little_as_those_that_share(tmp_path: Path) -> None:
    options = ("--own-process", "busy", "--sleep-after", "1s", "--processes-max", "30")
    with Broker(tmp_path / "data", *options) as broker, zsq.Admin(broker.ipc) as admin:
        for number in range(20):
            admin.create_channel(f"t{number}", "c")
        wait_for(lambda: not places(broker), 40, "sleep")
        admin.create_channel("last", "c")


def test_a_topic_in_a_shared_process_without_others_has_the_new_level_of_the_log(
    tmp_path: Path,
) -> None:
    file = tmp_path / "zsq.toml"
    file.write_text('log-level = "info"')
    options = ("--own-process", "never", "--config", str(file))
    with Broker(tmp_path / "data", *options) as broker, zsq.Admin(broker.ipc) as admin:
        make(broker, "a")
        admin.delete_topic("a", force=True)
        file.write_text('log-level = "debug"')
        assert broker.process is not None
        broker.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "configuration reloaded" in broker.log.read_text(), 20, "the reload")
        make(broker, "b")
        with pytest.raises(ZsqError):
            admin.seek("b", "c", 99)
        wait_for(lambda: "DEBUG [channel b/c] " in broker.log.read_text(), 20, "a text of b")


def test_by_default_quiet_topics_share(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker:
        make(broker, "a", "b")
        assert len(set(places(broker).values())) == 1


def test_a_topic_that_may_not_share_has_its_own_processes_at_once(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", "--own-process", "always") as broker:
        make(broker, "a", "b")
        assert len(set(places(broker).values())) == 4


def test_a_setting_moves_a_topic_to_its_own_processes_and_back(broker: Broker) -> None:
    make(broker, "a", "b")
    with zsq.Admin(broker.ipc) as admin:
        admin.configure_topic("a", own_process="always")
        wait_for(lambda: len(pids(broker, "a")) == 2, 20, "processes of topic a alone")
        admin.configure_topic("a", own_process=None)
        wait_for(lambda: pids(broker, "a") == pids(broker, "b"), 40, "a shared process again")


def test_without_own_processes_a_busy_topic_stays(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", "--own-process", "never", "--busy-at", "1") as broker:
        make(broker, "a", "b")
        before = places(broker)
        with Busy(broker, "a") as busy:
            began = time.monotonic()
            wait_for(lambda: time.monotonic() > began + 3, 10, "some pulses")
        busy.check()
        assert places(broker) == before
