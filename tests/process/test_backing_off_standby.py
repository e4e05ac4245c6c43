"""Tests of consumers that back off while a standby takes over from their broker."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest
from support.broker import wait_for
from support.standby_pair import TOPIC, Pair

import zsq

COUNT: Final = 50
WAIT_S: Final = 60.0


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    try:
        made.begin()
        yield made
    finally:
        made.close()


class Failing:
    """A consumer whose handler fails until `works` is set, and the times of its calls."""

    def __init__(self, pair: Pair, backoff: zsq.Backoff) -> None:
        self.works = threading.Event()
        self.calls_s: list[float] = []
        self.handled: set[int] = set()
        self._consumer = zsq.Consumer(TOPIC, "c", url=pair.urls, backoff_s=0)
        options: Any = {"signals": False, "on_error": lambda *_: None, "backoff": backoff}
        self._thread = threading.Thread(
            target=self._consumer.run, args=(self._handle,), kwargs={**options, "concurrency": 4}
        )
        self._thread.start()

    def _handle(self, message: zsq.Message) -> None:
        self.calls_s.append(time.monotonic())
        if not self.works.is_set():
            raise ValueError("the database is down")
        self.handled.add(int(message.body))

    def close(self) -> None:
        self._consumer.close()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


def channel_row(url: str) -> dict[str, Any]:
    with zsq.Admin(url, timeout=20) as admin:
        rows = admin.stats(TOPIC)["topics"][0]["channels"]
    return next((dict(row) for row in rows if row["channel_name"] == "c"), {})


def backoff_s(url: str) -> float | None:
    clients = channel_row(url).get("clients")
    return clients[0]["backoff_s"] if clients else None


def take_over(pair: Pair) -> None:
    pair.wait_shipped(pair.one)
    pair.one.signal_all(signal.SIGKILL)
    pair.two.wait_ready()


def test_a_wait_goes_on_while_a_standby_takes_over(pair: Pair) -> None:
    """The wait is the consumer's, so the new broker shows what is left of it."""
    pair.publish(COUNT - 1)
    failing = Failing(pair, zsq.Backoff(600, 1800, failures=3))
    try:
        wait_for(lambda: backoff_s(pair.one.tcp), WAIT_S, "a backoff")
        wait_for(lambda: not channel_row(pair.one.tcp)["in_flight_count"], WAIT_S, "a rest")
        calls, before = len(failing.calls_s), backoff_s(pair.one.tcp)
        take_over(pair)
        wait_for(lambda: backoff_s(pair.two.tcp), WAIT_S, "the backoff at the new broker")
        after = backoff_s(pair.two.tcp)
        assert before is not None
        assert after is not None
        assert before - 120 < after < before
        row = channel_row(pair.two.tcp)
        assert (row["depth"] + row["deferred_count"], row["in_flight_count"]) == (COUNT, 0)
        assert len(failing.calls_s) == calls, "no message came meanwhile"
    finally:
        failing.close()


def test_a_consumer_that_backs_off_probes_at_the_standby_and_gets_all_messages(
    pair: Pair,
) -> None:
    """Its wait ends while there is no broker. At the new one, it gets one message at a time."""
    pair.publish(COUNT - 1)
    failing = Failing(pair, zsq.Backoff(0.5, 1, failures=3))
    try:
        wait_for(lambda: backoff_s(pair.one.tcp) is not None, WAIT_S, "a backoff")
        take_over(pair)
        ready_s = time.monotonic()
        wait_for(lambda: failing.calls_s[-1] > ready_s + 3, WAIT_S, "probes at the new broker")
        calls_s = [at_s for at_s in failing.calls_s if at_s > ready_s]
        waits_s = [later - at for at, later in pairwise(calls_s)]
        assert min(waits_s) > 0.9, "one probe after each wait, and no storm"
        failing.works.set()
        wait_for(lambda: len(failing.handled) == COUNT, WAIT_S, "all messages")
        wait_for(lambda: backoff_s(pair.two.tcp) is None, WAIT_S, "the end of the backoff")
    finally:
        failing.close()
    row = channel_row(pair.two.tcp)
    assert row["depth"] + row["in_flight_count"] + row["deferred_count"] == 0
