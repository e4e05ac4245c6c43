"""Tests that `zsq sub` and `zsq tail` continue when their broker was stopped and started again."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.broker import Broker, wait_for

import zsq

WAIT_S = 60.0
FOLLOWING = [("sub", "t", "c"), ("tail", "t", "--from", "earliest")]


class Running:
    """A running command of `zsq`, and its output so far."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self.process = process
        self.said = {process.stdout: b"", process.stderr: b""}
        self._selector = selectors.DefaultSelector()
        for stream in self.said:
            self._selector.register(stream, selectors.EVENT_READ)

    @property
    def out(self) -> bytes:
        return self.said[self.process.stdout]  # type: ignore[index]

    @property
    def err(self) -> bytes:
        return self.said[self.process.stderr]  # type: ignore[index]

    def until(self, out: bytes = b"", err: bytes = b"") -> None:
        """Wait until the command has printed both texts. Fail if it ends, or after the time-out."""
        deadline = time.monotonic() + WAIT_S
        while out not in self.out or err not in self.err:
            assert time.monotonic() < deadline, self.said
            for key, _ in self._selector.select(1.0):
                found = os.read(key.fd, 65_536)
                assert found, f"it ended: {self.said}"
                self.said[key.fileobj] += found  # type: ignore[index]


@contextmanager
def running(url: str, *arguments: str) -> Iterator[Running]:
    line = [sys.executable, "-P", "-m", "zsq", *arguments, "--url", url]
    with subprocess.Popen(
        line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            yield Running(process)
        finally:
            if process.poll() is None:
                process.kill()


def publish(broker: Broker, body: bytes) -> None:
    with zsq.Producer(broker.ipc) as producer:
        producer.publish("t", body)


@pytest.mark.parametrize("arguments", FOLLOWING)
@pytest.mark.parametrize("over", ["tcp", "ipc"])
def test_sub_and_tail_continue_after_a_restart_however_long_it_took(
    own_broker: Broker, arguments: tuple[str, ...], over: str
) -> None:
    url = own_broker.tcp if over == "tcp" else own_broker.ipc
    publish(own_broker, b"before")
    with running(url, *arguments) as one:
        one.until(out=b"before\n")
        if arguments[0] == "sub":  # it prints a message, and finishes it a moment later
            with zsq.Admin(own_broker.ipc) as admin:
                wait_for(lambda: admin.stats("t")["topics"][0]["channels"][0]["finish_count"] == 1)
        own_broker.stop()
        one.until(err=b"for 10 s")  # longer than --timeout is by default
        own_broker.start()
        publish(own_broker, b"after")
        one.until(out=b"after\n")
        one.process.send_signal(signal.SIGINT)
        assert one.process.wait(WAIT_S) == 0
    assert one.out == b"before\nafter\n"
    assert b"no broker at" in one.err


@pytest.mark.parametrize("arguments", FOLLOWING)
def test_a_time_out_that_is_given_ends_it(own_broker: Broker, arguments: tuple[str, ...]) -> None:
    publish(own_broker, b"before")
    with running(own_broker.tcp, *arguments, "--timeout", "2") as one:
        one.until(out=b"before\n")
        own_broker.stop()
        assert one.process.wait(WAIT_S) == 3
        assert b"within 2 s" in one.process.stderr.read()  # type: ignore[union-attr]


@pytest.mark.parametrize("arguments", FOLLOWING)
def test_a_signal_ends_it_while_the_broker_is_gone(
    own_broker: Broker, arguments: tuple[str, ...]
) -> None:
    publish(own_broker, b"before")
    with running(own_broker.tcp, *arguments) as one:
        one.until(out=b"before\n")
        own_broker.stop()
        one.until(err=b"for 1 s")
        one.process.send_signal(signal.SIGTERM)
        assert one.process.wait(WAIT_S) == 0


@pytest.mark.parametrize("arguments", FOLLOWING)
def test_sub_and_tail_fail_at_once_if_nothing_listens(
    own_broker: Broker, arguments: tuple[str, ...]
) -> None:
    own_broker.stop()
    begun = time.monotonic()
    with running(own_broker.tcp, *arguments) as one:
        assert one.process.wait(WAIT_S) == 3
    assert time.monotonic() - begun < 20, "after a second, and its start"


def test_a_topic_that_is_killed_is_waited_for_too(own_broker: Broker) -> None:
    publish(own_broker, b"before")
    with running(own_broker.tcp, *FOLLOWING[1]) as one:
        one.until(out=b"before\n")
        [topic] = own_broker.pids("topic")
        os.kill(topic, signal.SIGKILL)
        own_broker.wait_gone([topic])
        publish(own_broker, b"after")
        one.until(out=b"after\n")
