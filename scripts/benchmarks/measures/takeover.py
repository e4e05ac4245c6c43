"""Takeover: how long publishes wait when the primary is killed or stopped, or hands over to its
standby.

A producer knows both brokers. The time ends when its next publish is in the bucket (--sync bucket).
Each round begins with a handover from the first broker to the second, which then is killed, or
stopped as a machine that hangs. Its connections stay open then.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Final

from local_setup.broker import BrokerFailed, standby_of, temporary_broker
from local_setup.processes import kill_group
from local_setup.s3_servers import free_ports
from zsq.transport.client.blocking.client import Admin
from zsq.transport.client.blocking.producer import Producer
from zsq.transport.errors import ZsqError

from ..harness.report import Report

TOPIC: Final = "takeover"
PATIENCES_S: Final = (2.0, 10.0)
KNOWN_S: Final = 60.0
POLL_S: Final = 0.05
TIMEOUT_S: Final = 60.0


def takeover(report: Report, url: str, rounds: int) -> None:
    """Measure takeovers with each patience, and handovers."""
    for patience_s in PATIENCES_S:
        for number in range(rounds):
            for name, end in (("kill -9", signal.SIGKILL), ("kill -STOP", signal.SIGSTOP)):
                _round(report, f"{url}-{patience_s:g}-{number}-{end}", patience_s, name, end)


def _round(report: Report, url: str, patience_s: float, name: str, end: signal.Signals) -> None:
    """Measure a handover, and what happens after all processes of the primary get the signal."""
    ports = free_ports(4)
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(temporary_broker(*_options(url, patience_s, *ports[:2])))
        urls = f"tcp://127.0.0.1:{ports[0]},tcp://127.0.0.1:{ports[2]}"
        with Admin(urls, timeout=TIMEOUT_S) as admin:
            admin.create_topic(TOPIC, sync="bucket")
        two = stack.enter_context(standby_of(one, "two", *_options(url, patience_s, *ports[2:])))
        _wait_until_known(urls)
        with Admin(urls, timeout=TIMEOUT_S) as admin, _timed() as took:
            admin.handover()
            with Producer(f"tcp://127.0.0.1:{ports[2]}", timeout=TIMEOUT_S) as second:
                _publish(second)  # the standby answers when it is primary
        report.add("planned, zsq handover", "s", took())
        with Producer(urls, timeout=TIMEOUT_S) as producer:
            _publish(producer)
            _wait_until_known(urls)
            try:
                with _timed() as took:
                    # The broker was started in a session of its own.
                    os.killpg(two.process.pid, end)
                    _publish(producer)
            finally:
                kill_group(two.process)  # it may be stopped
            report.add(f"{name}, --patience {patience_s:g}s", "s", took())
            report.add(f"{name}, --patience {patience_s:g}s, beyond it", "s", took() - patience_s)


def _options(url: str, patience_s: float, port: int, push: int) -> tuple[str, ...]:
    return (
        *("--listen", f"127.0.0.1:{port}", "--listen-push", f"127.0.0.1:{push}"),
        *("--bucket", url, "--patience", f"{patience_s:g}s", "--no-nsq", "--no-http"),
    )


def _wait_until_known(urls: str) -> None:
    """Wait until the primary knows its standby."""
    deadline = time.monotonic() + KNOWN_S
    while time.monotonic() < deadline:
        with contextlib.suppress(ZsqError), Admin(urls, timeout=TIMEOUT_S) as admin:
            if admin.stats()["bucket"]["standbys"]:
                return
        time.sleep(POLL_S)
    raise BrokerFailed(f"the primary did not notice its standby within {KNOWN_S:g} s")


def _publish(producer: Producer) -> None:
    producer.publish(TOPIC, b"x")
    producer.flush()


@contextlib.contextmanager
def _timed() -> Iterator[Callable[[], float]]:
    begun, ended = time.monotonic(), 0.0
    yield lambda: ended - begun
    ended = time.monotonic()
