"""Tests of the broker as a service: what it reports to its service manager, its log as JSON, and
clients that continue through a restart.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.broker import Broker, wait_for

import zsq


class Heard:
    """The messages that came to NOTIFY_SOCKET, in order."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.words: list[str] = []

    def look(self) -> list[str]:
        self.socket.setblocking(False)
        while True:
            try:
                self.words += self.socket.recv(65536).decode().split("\n")
            except BlockingIOError:
                return self.words


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Heard]:
    one = Heard(tmp_path_factory.mktemp("n") / "notify")
    yield one
    one.socket.close()


@pytest.fixture(scope="module")
def service(heard: Heard, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    one = Broker(
        tmp_path_factory.mktemp("service") / "data", "--log-format", "json", "--log-level", "debug"
    )
    os.environ |= {"NOTIFY_SOCKET": heard.socket.getsockname(), "WATCHDOG_USEC": "1000000"}
    try:
        one.launch()
        del os.environ["NOTIFY_SOCKET"], os.environ["WATCHDOG_USEC"]
        one.wait_ready()
        yield one
    finally:
        one.close()


def rows(broker: Broker) -> list[dict[str, Any]]:
    return [json.loads(line) for line in broker.log.read_text().splitlines()]


def test_the_manager_hears_of_its_life(service: Broker, heard: Heard) -> None:
    wait_for(lambda: "READY=1" in heard.look(), what="READY=1")
    assert heard.words[0] == "WATCHDOG=1"
    with zsq.Producer(service.tcp) as producer:  # the broker is ready, so the gateway listens
        producer.publish("t", b"x").wait(20)
    beats = heard.look().count("WATCHDOG=1")
    wait_for(lambda: heard.look().count("WATCHDOG=1") >= beats + 3, what="more beats")
    assert service.process is not None
    service.process.send_signal(signal.SIGHUP)
    wait_for(
        lambda: (
            heard.look()[-2:] == ["READY=1", "STATUS=settings reloaded"]
            or "RELOADING=1" in heard.words
        ),
        what="the reload",
    )
    wait_for(lambda: heard.look().count("READY=1") == 2, what="its end")


def test_each_line_is_an_object(service: Broker) -> None:
    with (
        zsq.Producer(service.ipc) as producer,
        zsq.Consumer("logged", "c", url=service.ipc) as consumer,
    ):
        producer.publish("logged", b"x").wait(20)
        message = consumer.receive(20)
        assert message is not None
        message.finish()
    wait_for(
        lambda: any(row["actor"] == "topic logged" for row in rows(service)),
        what="a line of storage's",
    )
    for row in rows(service):
        assert {"time", "level", "actor", "pid", "message"} <= set(row)
    assert "supervisor" in {row["actor"] for row in rows(service)}
    [ready] = [row for row in rows(service) if " ready: " in row["message"]]
    assert ready["pid"] == service.process.pid if service.process else False


class Client:
    """A publisher and a consumer that do not handle restarts in any special way."""

    def __init__(self, url: str) -> None:
        self.over = threading.Event()
        self.stored: list[tuple[float, bytes]] = []
        self.seen: set[bytes] = set()
        self.errors: list[Exception] = []
        self._url = url
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,))
            for work in (self._publish, self._consume)
        ]
        for thread in self._threads:
            thread.start()

    def _guarded(self, work: Any) -> None:
        try:
            work()
        except Exception as error:
            self.errors.append(error)

    def _publish(self) -> None:
        with zsq.Producer(self._url, timeout=60) as producer:
            while not self.over.wait(0.002):
                body = b"%d" % len(self.stored)
                producer.publish("moved", body).wait(60)
                self.stored.append((time.monotonic(), body))

    def _consume(self) -> None:
        with zsq.Consumer("moved", "c", url=self._url, timeout=60) as consumer:
            while self._threads[0].is_alive() or len(self.seen) < len(self.stored):
                message = consumer.receive(0.2)
                if message is not None:
                    self.seen.add(message.body)
                    message.finish()

    def end(self) -> None:
        """Let the consumer read until it has received everything."""
        self.over.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        assert not self.errors, self.errors


@pytest.mark.parametrize("way", ["ipc", "tcp"])
def test_clients_live_through_a_restart(service: Broker, heard: Heard, way: str) -> None:
    """An upgrade is such a restart: stop, install, start. No message is lost, no client gets an
    error, and messages that are published in the meantime wait.
    """
    client = Client(service.ipc if way == "ipc" else service.tcp)
    try:
        wait_for(lambda: len(client.seen) > 50, what="some messages")
        began = time.monotonic()
        assert service.stop() == 0
        service.start()
        there = time.monotonic()
        wait_for(
            lambda: client.stored[-1][0] > there and len(client.seen) > len(client.stored) - 20,
            what="more messages",
        )
    finally:
        client.end()
    assert client.seen == {body for _, body in client.stored}
    gap = max(
        after - before
        for (before, _), (after, _) in zip(client.stored, client.stored[1:], strict=False)
    )
    print(f"{way}: stopped and started in {there - began:.2f} s, no answer for {gap:.2f} s")
    assert gap < 30
    assert "STOPPING=1" in heard.look()
