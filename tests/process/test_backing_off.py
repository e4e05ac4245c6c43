"""Tests of consumers that back off at a real broker: with parts, over restarts, at signals, and in
each view of the statistics.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from support.broker import Broker, wait_for
from support.cluster import running

import zsq
from tests.support.shapes import misfits
from zsq.transport.reports import BrokerStats

WAIT_S: Final = 30.0
LONG: Final = zsq.Backoff(600, 1800, failures=3)
SHORT: Final = zsq.Backoff(0.05, 0.1, failures=3)


class Failing:
    """A consumer whose handler fails until `works` is set."""

    def __init__(self, broker: Broker, backoff: zsq.Backoff, **options: Any) -> None:
        self.works = threading.Event()
        self.calls = 0
        self.handled: list[bytes] = []
        self.consumer = zsq.Consumer("t", "c", url=broker.ipc, label="worker", backoff_s=0)
        options = {"signals": False, "on_error": lambda *_: None, "backoff": backoff, **options}
        self._thread = threading.Thread(
            target=self.consumer.run, args=(self._handle,), kwargs=options
        )
        self._thread.start()

    def _handle(self, message: zsq.Message) -> None:
        self.calls += 1
        if not self.works.is_set():
            raise ValueError
        self.handled.append(message.body)

    def close(self) -> None:
        self.consumer.close()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


@pytest.fixture
def fail(own_broker: Broker) -> Iterator[Callable[..., Failing]]:
    started: list[Failing] = []

    def start(backoff: zsq.Backoff, **options: Any) -> Failing:
        started.append(Failing(own_broker, backoff, **options))
        return started[-1]

    yield start
    for failing in started:
        failing.close()


def publish(broker: Broker, count: int) -> None:
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc) as producer:
        admin.create_channel("t", "c", backoff_s=0)
        producer.publish_many("t", [b"%d" % number for number in range(count)])


def client(admin: zsq.Admin) -> dict[str, Any]:
    stats = admin.stats("t", "c")
    assert not misfits(stats, BrokerStats)
    clients = stats["topics"][0]["channels"][0]["clients"]
    return dict(clients[0]) if clients else {}


def test_each_view_shows_a_consumer_that_backs_off(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", http=True) as broker:
        publish(broker, 100)
        failing = Failing(broker, LONG)
        try:
            with zsq.Admin(broker.ipc) as admin:
                wait_for(lambda: client(admin).get("backoff_s"), what="a backoff")
                found = client(admin)
                assert 1000 < found["backoff_s"] <= 1200
                assert (found["ready_count"], found["in_flight_count"]) == (0, 0)
                shown = zsq_stats(broker, "t", "c")
                assert "1 back off" in shown
                assert "backing off, next probe in 1" in " ".join(shown.split())
                page = fetch(broker, "/api/channel?topic=t&channel=c")
                assert 1000 < json.loads(page)["clients"][0]["backoff_s"] <= 1200
                metrics = fetch(broker, "/metrics")
                assert re.search(r'^zsq_channel_backing_off{.*channel="c".*} 1', metrics, re.M)
        finally:
            failing.close()


def zsq_stats(broker: Broker, *arguments: str) -> str:
    command = [sys.executable, "-m", "zsq", "stats", *arguments, "--url", broker.ipc]
    environment = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment
    ).stdout


def fetch(broker: Broker, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.http}{path}") as answer:
        return str(answer.read(), "utf-8")


def test_a_probe_is_shown_and_the_end_too(own_broker: Broker, fail: Callable[..., Failing]) -> None:
    publish(own_broker, 3)
    failing = fail(SHORT, requeue_delay=0)
    with zsq.Admin(own_broker.ipc) as admin:
        wait_for(lambda: failing.calls > 5, what="probes")
        admin.empty("t", "c")
        wait_for(lambda: client(admin)["backoff_s"] == 0, what="a probe that finds no message")
        failing.works.set()
        publish(own_broker, 50)
        wait_for(lambda: len(failing.handled) == 50, what="all messages")
        wait_for(lambda: client(admin)["backoff_s"] is None, what="the end of the backoff")
        assert client(admin)["ready_count"] > 0


def kill(broker: Broker) -> None:
    pids = [actor["pid"] for actor in broker.actors()]
    broker.signal_all(signal.SIGKILL)
    broker.wait_gone(pids)


@pytest.mark.parametrize("end", [Broker.stop, kill])
def test_the_wait_goes_on_over_a_restart_of_the_broker(
    own_broker: Broker, fail: Callable[..., Failing], end: Callable[[Broker], None]
) -> None:
    publish(own_broker, 50)
    failing = fail(LONG)
    with zsq.Admin(own_broker.ipc) as admin:
        wait_for(lambda: client(admin).get("backoff_s"), what="a backoff")
        before = client(admin)["backoff_s"]
        end(own_broker)
        own_broker.start()
        wait_for(lambda: client(admin).get("backoff_s"), what="the same backoff")
        assert before - 60 < client(admin)["backoff_s"] <= before
    assert failing.calls == 3


def test_with_parts_a_probe_is_one_message_of_all_parts(tmp_path: Path) -> None:
    with running(tmp_path) as cluster, zsq.Admin(cluster.url) as admin:
        admin.create_topic("t", parts=3)
        with zsq.Producer(cluster.url) as producer:
            for number in range(60):
                producer.publish("t", b"%d" % number, key=b"%d" % number)
        active, most = 0, 0
        lock, works = threading.Lock(), threading.Event()
        handled: set[bytes] = set()
        calls = 0

        def handle(message: zsq.Message) -> None:
            nonlocal active, most, calls
            with lock:
                active += 1
                calls += 1
                if calls > 12:
                    most = max(most, active)
            try:
                if not works.wait(0.02):
                    raise ValueError
                handled.add(message.body)
            finally:
                with lock:
                    active -= 1

        consumer = zsq.Consumer("t", "c", url=cluster.url, backoff_s=0)
        options: Any = {"signals": False, "on_error": lambda *_: None, "backoff": SHORT}
        thread = threading.Thread(
            target=consumer.run, args=(handle,), kwargs={**options, "concurrency": 4}
        )
        thread.start()
        wait_for(lambda: calls > 20, what="probes")
        assert most == 1, "one handler at a time"
        works.set()
        wait_for(lambda: len(handled) == 60, what="all messages of all parts")
        consumer.close()
        thread.join(WAIT_S)


@pytest.mark.parametrize("end", [Broker.stop, kill])
def test_a_link_that_is_lost_while_it_probes_does_not_stop_the_consumer(
    own_broker: Broker, fail: Callable[..., Failing], end: Callable[[Broker], None]
) -> None:
    publish(own_broker, 50)
    failing = fail(SHORT, requeue_delay=0)
    wait_for(lambda: failing.calls > 5, what="probes")
    end(own_broker)
    own_broker.start()
    seen = failing.calls
    wait_for(lambda: failing.calls > seen + 5, what="probes at the new broker")
    failing.works.set()
    wait_for(lambda: len(set(failing.handled)) == 50, what="all messages")


PROGRAM: Final = """
import sys, zsq

def handle(message):
    print("failed", flush=True)
    raise ValueError("the database is down")

zsq.Consumer("t", "c", url=sys.argv[1]).run(handle, on_error=lambda *_: None)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_ends_a_program_that_backs_off(own_broker: Broker, number: int) -> None:
    publish(own_broker, 1000)
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, own_broker.ipc], stdout=subprocess.PIPE, text=True
    ) as program:
        try:
            assert program.stdout is not None
            with zsq.Admin(own_broker.ipc) as admin:
                wait_for(lambda: client(admin).get("backoff_s"), what="a backoff")
            program.send_signal(number)
            said, _ = program.communicate(timeout=WAIT_S)
            assert program.returncode == 0
            assert 5 <= said.count("failed") <= 6
        finally:
            program.kill()


def test_two_processes_back_off_each_for_itself(
    own_broker: Broker, fail: Callable[..., Failing]
) -> None:
    publish(own_broker, 200)
    failing, healthy = fail(LONG), fail(LONG)
    healthy.works.set()
    wait_for(lambda: failing.calls == 3 or len(healthy.handled) >= 197, what="work")
    wait_for(lambda: len(set(healthy.handled)) >= 197, what="the work of the other one")
    assert failing.calls <= 3


def test_a_wait_that_ends_while_the_broker_is_away_is_followed_by_a_probe(
    own_broker: Broker, fail: Callable[..., Failing]
) -> None:
    """go-nsq 106, nsq 1069 and gnsq 6: the consumer stayed at RDY 0."""
    publish(own_broker, 50)
    failing = fail(zsq.Backoff(0.5, 1, failures=3), requeue_delay=0)
    wait_for(lambda: failing.calls >= 3, what="a backoff")
    own_broker.stop()
    with pytest.raises(zsq.BrokerUnreachable), zsq.Admin(own_broker.ipc, timeout=2) as admin:
        admin.topics()  # the wait ends meanwhile
    failing.works.set()
    own_broker.start()
    wait_for(lambda: len(set(failing.handled)) == 50, what="all messages")


def test_failures_at_the_same_time_raise_the_level_once(
    own_broker: Broker, fail: Callable[..., Failing]
) -> None:
    """nsqjs 170: each failure of the messages in flight doubled the wait."""
    publish(own_broker, 100)
    failing = fail(zsq.Backoff(100, 3600, failures=3), concurrency=16)
    with zsq.Admin(own_broker.ipc) as admin:
        wait_for(lambda: client(admin).get("backoff_s"), what="a backoff")
        wait_for(lambda: client(admin)["in_flight_count"] == 0, what="the end of all handlers")
        assert 150 < client(admin)["backoff_s"] <= 200
    assert failing.calls <= 18


def test_a_probe_that_is_requeued_is_followed_by_another_one(own_broker: Broker) -> None:
    """pynsq 89: after a probe that was requeued without backoff, none followed."""
    publish(own_broker, 10)
    calls: list[int] = []

    def handle(message: zsq.Message) -> None:
        calls.append(message.offset)
        if len(calls) <= 3:
            raise ValueError
        if len(calls) <= 6:
            message.requeue(0)

    consumer = zsq.Consumer("t", "c", url=own_broker.ipc)
    options: Any = {"signals": False, "on_error": lambda *_: None, "backoff": SHORT}
    thread = threading.Thread(target=consumer.run, args=(handle,), kwargs=options)
    thread.start()
    wait_for(lambda: len(set(calls[6:])) == 10, what="all messages")
    consumer.close()
    thread.join(WAIT_S)
