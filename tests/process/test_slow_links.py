"""Tests of clients behind a slow link: what takes longer than two heartbeats arrives."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from support.broker import Broker, wait_for
from support.tcp_proxy import SlowLink

import zsq

pytestmark = pytest.mark.timeout(120)

LARGE: Final = b"." * 280_000
BYTES_PER_S: Final = 40_000  # at most; the message takes at least 7 s
COUNT: Final = 150


@pytest.fixture
def link(own_broker: Broker) -> Iterator[SlowLink]:
    one = SlowLink(own_broker.tcp, BYTES_PER_S)
    yield one
    one.close()


def test_a_large_message_arrives_over_a_slow_link(own_broker: Broker, link: SlowLink) -> None:
    """Heartbeats wait behind it, at each end of the link."""
    with (
        zsq.Producer(link.url, heartbeat_ms=3_000, timeout=120) as producer,
        zsq.Admin(own_broker.tcp) as admin,
    ):
        producer.publish("t", LARGE)
        row = admin.stats("t")["topics"][0]
        assert (row["head"], len(row["publishers"])) == (1, 1)
    with zsq.Consumer("t", "c", url=link.url, heartbeat_ms=2_000) as consumer:
        message = consumer.receive(120)
        assert message is not None
        assert (message.body, message.attempts) == (LARGE, 1)
        message.finish(sync=True)


def test_a_backlog_is_handled_over_a_slow_link(own_broker: Broker, link: SlowLink) -> None:
    """All defaults but a short lease. What waits in the link has no lease, and uses no attempt."""
    with zsq.Producer(own_broker.tcp) as producer, zsq.Admin(own_broker.tcp) as admin:
        admin.create_topic("t")
        admin.create_channel("t", "c", max_attempts=2)
        producer.publish_many("t", [b"." * 1_000] * COUNT)
        with zsq.Consumer("t", "c", url=link.url, message_timeout=1) as consumer:
            for _, message in zip(range(COUNT), consumer, strict=False):
                assert message.attempts == 1
                message.finish()
            consumer.flush()

        def is_done() -> bool:
            row = admin.stats("t", "c")["topics"][0]["channels"][0]
            ends = (row["finish_count"], row["timeout_count"], row["dead_letter_count"])
            return ends == (COUNT, 0, 0)

        wait_for(is_done, 20, "all are finished, once")


def test_a_broker_that_hangs_is_left_although_its_system_acknowledges(own_broker: Broker) -> None:
    """Each heartbeat is acknowledged by the system of a process that is stopped."""
    link = SlowLink(own_broker.tcp, 10_000_000)
    try:
        with zsq.Consumer("t", "c", url=link.url, heartbeat_ms=1_000) as consumer:
            assert consumer.receive(0.5) is None
            before = link.connections
            own_broker.signal_all(signal.SIGSTOP)
            try:
                assert consumer.receive(5) is None
                assert link.connections > before, "two heartbeats without an answer end a link"
            finally:
                own_broker.signal_all(signal.SIGCONT)
    finally:
        link.close()


def test_a_producer_that_hangs_is_forgotten_although_its_system_acknowledges(
    own_broker: Broker, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PRODUCER)
    process = subprocess.Popen([sys.executable, str(program), own_broker.tcp])
    try:
        with zsq.Admin(own_broker.tcp) as admin:
            admin.create_topic("t")

            def publishers() -> int:
                return len(admin.stats("t")["topics"][0]["publishers"])

            wait_for(lambda: publishers() == 1, 30, "it publishes")
            process.send_signal(signal.SIGSTOP)
            wait_for(lambda: publishers() == 0, 20, "it is forgotten")
    finally:
        process.kill()
        process.wait()


PRODUCER: Final = """\
import sys, threading
import zsq

producer = zsq.Producer(sys.argv[1], heartbeat_ms=1_000, transport="tcp")
producer.publish("t", b"x")
threading.Event().wait()
"""
