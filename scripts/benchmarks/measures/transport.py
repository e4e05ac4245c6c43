"""Rates of a client on the broker's machine: by its default address, by ipc, and by the gateway.

With the gateway's address, a local client must be almost as fast as with ipc, because such a client
connects to the actors directly. With $ZSQ_TRANSPORT=tcp it goes through the gateway.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from local_setup.broker import LocalBroker
from zsq.transport.client.blocking.client import Admin

from ..harness.crew import Crew
from ..harness.loads import Shape
from ..harness.report import Report, percentile
from .single import publish_stamps, receive_stamps
from .throughput import rate_through

IPC: Final = "ipc"
MESSAGES: Final = 500_000
BLOCK: Final = 1_000
A_SECOND: Final = 500.0


@contextmanager
def _transport(name: str) -> Iterator[None]:
    before = os.environ.get("ZSQ_TRANSPORT")
    os.environ["ZSQ_TRANSPORT"] = name
    try:
        yield
    finally:
        del os.environ["ZSQ_TRANSPORT"]
        if before is not None:
            os.environ["ZSQ_TRANSPORT"] = before


def transport(
    broker: LocalBroker, report: Report, gateway: str, size: int, seconds: float, rounds: int
) -> None:
    """Measure blocks end to end and single messages over the three ways, once in each round."""
    ways = {
        IPC: (broker.url, "auto"),
        "default address": (gateway, "auto"),
        "gateway": (gateway, "tcp"),
    }
    for number in range(rounds):
        for name, (url, chosen) in ways.items():
            with _transport(chosen):
                topic = f"transport-{number}-{name.split()[0]}"
                shape = Shape(MESSAGES, size, BLOCK)
                rate = rate_through(broker, topic, shape, url=url)
                taken = _single(broker, url, f"{topic}-single", size, int(seconds * A_SECOND))
            report.add(f"{name}, blocks of {BLOCK:,}", "messages/s", rate, limit=name == IPC)
            report.add(
                f"{name}, publish to handler, p50",
                "ms",
                percentile(taken, 0.5) * 1000,
                limit=name == IPC,
            )


def _single(broker: LocalBroker, url: str, topic: str, size: int, count: int) -> list[float]:
    with Admin(broker.url) as admin:
        admin.create_channel(topic, "bench")
    with Crew() as crew:
        crew.add(receive_stamps, url, topic, count)
        crew.add(publish_stamps, url, topic, size, count, A_SECOND)
        crew.go()
        taken: list[float] = crew.results()[0]
        return taken
