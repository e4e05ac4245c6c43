"""Tests of messages that are put off, with a broker that is killed and a standby."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.broker import Broker, kill, wait_for
from support.standby_pair import TOPIC, Pair

import zsq

WAIT_S = 60.0


def row(url: str, topic: str) -> dict[str, Any]:
    with zsq.Admin(url, timeout=20) as admin:
        rows = admin.stats(topic)["topics"][0]["channels"]
    return next((dict(one) for one in rows if one["channel_name"] == "c"), {})


def put_off(url: str, topic: str, delay_s: float) -> float:
    """Put off the only message of a channel. Return when that was done, by the monotonic clock."""
    with zsq.Consumer(topic, "c", url=url, max_attempts=1) as consumer:
        message = consumer.receive(WAIT_S)
        assert message is not None
        message.defer(delay_s)
        done_s = time.monotonic()
        wait_for(lambda: row(url, topic)["deferred_count"] == 1, WAIT_S, "it is deferred")
        # The confirmation of a later finish says that the deferral is on disk.
        with zsq.Producer(url) as producer:
            producer.publish(topic, b"last")
        last = consumer.receive(WAIT_S)
        assert last is not None
        last.finish(sync=True)
    return done_s


def test_a_kill_changes_neither_the_time_nor_the_attempt(own_broker: Broker) -> None:
    with zsq.Producer(own_broker.ipc) as producer:
        producer.publish("t", b"x")
    done_s = put_off(own_broker.ipc, "t", 5.0)
    assert own_broker.process is not None
    kill(own_broker.process.pid)
    own_broker.process.wait(20)
    own_broker.start()
    with zsq.Consumer("t", "c", url=own_broker.ipc) as consumer:
        message = consumer.receive(WAIT_S)
        assert message is not None
        assert time.monotonic() - done_s > 4.9
        assert (message.body, message.attempts) == (b"x", 1)
        message.finish(sync=True)
    assert row(own_broker.ipc, "t")["defer_count"] == 1


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    try:
        made.begin()
        yield made
    finally:
        made.close()


def test_a_standby_delivers_it_when_it_is_due(pair: Pair) -> None:
    with zsq.Admin(pair.one.tcp) as admin:
        admin.create_channel(TOPIC, "c", start="earliest")
    done_s = put_off(pair.one.tcp, TOPIC, 10.0)
    pair.wait_shipped(pair.one)
    pair.one.signal_all(signal.SIGKILL)
    pair.two.wait_ready()
    with zsq.Consumer(TOPIC, "c", url=pair.urls) as consumer:
        message = consumer.receive(WAIT_S)
        assert message is not None
        assert time.monotonic() - done_s > 9.9
        assert message.attempts == 1
        message.finish(sync=True)
    assert row(pair.two.tcp, TOPIC)["defer_count"] == 1
