"""Tests of SIGTERM while clients wait for a topic that is still starting: all of them are answered,
and the broker ends.
"""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.broker import Broker, wait_for
from support.nsq_socket import NsqSocket

import zsq

ANSWER_S = 3.0
"""The time limit for each answer. An answer takes milliseconds, but the machine may be busy. Before
a fix, 5 s passed without an answer.
"""
END_S = 8.0
"""The time limit for the end of the broker. A topic that is starting waits up to 10 s for the lock
that these tests hold.
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """Start a broker whose topic `new` cannot start, because another process holds its lock."""
    with Broker(tmp_path / "data", nsq=True, http=True) as one:
        with zsq.Producer(one.ipc) as producer:
            producer.publish("new", b"body")
        assert one.stop() == 0
        (lock,) = (one.data_dir / "topics").glob("*/lock")
        held = os.open(lock, os.O_RDWR)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            one.launch()
            wait_for(lambda: listens(one.nsq) and listens(one.http), 20, "the gateways")
            yield one
        finally:
            os.close(held)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def end(broker: Broker) -> None:
    assert broker.process is not None
    assert broker.process.wait(END_S) == 0
    said = broker.log.read_text()
    assert "ends with unanswered requests" not in said
    assert "did not stop within" not in said


def terminate(broker: Broker) -> None:
    assert broker.process is not None
    broker.process.send_signal(signal.SIGTERM)


def answers_of(broker: Broker, *paths: str, body: bytes = b"") -> list[tuple[int, Any]]:
    """Return the answers to requests that are in progress when the broker is told to end."""
    asked = [http.client.HTTPConnection("127.0.0.1", broker.http, timeout=ANSWER_S) for _ in paths]
    after = http.client.HTTPConnection("127.0.0.1", broker.http, timeout=ANSWER_S)
    try:
        for one, path in zip(asked, paths, strict=True):
            one.request("POST", path, body)
        after.request("GET", "/info")
        assert after.getresponse().status == 200  # so the requests before it were read
        terminate(broker)
        answers = [one.getresponse() for one in asked]
        return [(one.status, json.loads(one.read())) for one in answers]
    finally:
        for one in (*asked, after):
            one.close()


def test_http_publishes_to_a_topic_on_its_way_up_are_answered_when_the_broker_stops(
    broker: Broker,
) -> None:
    paths = ("/pub?topic=new", "/mpub?topic=new", "/pub?topic=new&defer=1000")
    assert answers_of(broker, *paths, body=b"body") == [(503, {"message": "EXITING"})] * 3
    end(broker)


def test_http_orders_for_a_topic_on_its_way_up_are_answered_when_the_broker_stops(
    broker: Broker,
) -> None:
    paths = ("/topic/create?topic=new", "/channel/create?topic=new&channel=c")
    assert answers_of(broker, *paths) == [(503, {"message": "EXITING"})] * 2
    end(broker)


def test_nsq_publishes_to_a_topic_on_its_way_up_are_answered_when_the_broker_stops(
    broker: Broker,
) -> None:
    with (
        NsqSocket(broker.nsq, ANSWER_S) as pub,
        NsqSocket(broker.nsq, ANSWER_S) as dpub,
        NsqSocket(broker.nsq, ANSWER_S) as after,
    ):
        pub.send("PUB new", b"body")
        dpub.send("DPUB new 1000", b"body")
        after.identify()  # it was answered, so the commands before it were read
        terminate(broker)
        answers = [client.frame()[1].decode() for client in (pub, dpub)]
    assert [answer.split()[0] for answer in answers] == ["E_PUB_FAILED", "E_DPUB_FAILED"], answers
    assert all("E_CLOSING" in answer for answer in answers), answers
    end(broker)


def test_a_topic_that_is_asked_for_while_the_broker_stops_is_refused(tmp_path: Path) -> None:
    """If the broker started the topic, nothing would stop the topic's processes, and the broker
    would never end.
    """
    with Broker(tmp_path / "data") as broker:
        with zsq.Producer(broker.ipc) as producer:
            producer.publish("old", b"body")
        (storage,) = broker.pids("topic")
        os.kill(storage, signal.SIGSTOP)  # the broker does not end before this process goes on
        try:
            with zsq.Admin(broker.ipc, timeout=5) as admin:
                admin.topics()  # the client is connected now
                terminate(broker)
                wait_for(lambda: b" stopping" in broker.log.read_bytes(), 30, "the stop")
                with pytest.raises(zsq.Refused, match="the broker is stopping"):
                    admin.create_topic("new")
        finally:
            os.kill(storage, signal.SIGCONT)
        end(broker)
