"""Pair: a broker and its standby in real processes, with a folder as bucket."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from typing import Any, Final

import httpx

import zsq

from .broker import Broker, wait_for

TOPIC: Final = "clicks"
PATIENCE_S: Final = 2.0


class Pair:
    """A primary and its standby, which know each other."""

    def __init__(self, folder: Path, *extra: str) -> None:
        self.bucket = folder / "bucket"
        self.bucket.mkdir()
        more = ("--bucket", f"file://{self.bucket}", "--patience", f"{PATIENCE_S:g}s", *extra)
        self.one = Broker(folder / "one", *more, http=True)
        self.two = Broker(folder / "two", *more, http=True)
        self.two.command = "standby"
        self.number = 0
        self.urls = f"{self.one.tcp},{self.two.tcp}"

    def begin(self) -> None:
        """Start both. The primary starts twice, because it looks for standbys at its start."""
        self.one.start()
        self.publish(1)
        wait_for(lambda: self.lag_of(self.one) == 0.0, what="everything is shipped")
        self.one.stop()
        self.two.launch()
        self.two.wait_said("follows file://")
        self.one.start()
        self.one.wait_said("takes over when this broker is gone for 2 s")
        wait_for(
            lambda: 0 <= self.status(self.two)["takes_over_in_s"] <= PATIENCE_S, what="a heartbeat"
        )

    def publish(self, count: int, url: str = "") -> None:
        bodies = [f"{self.number + at}".encode() for at in range(count)]
        with zsq.Producer(url or self.one.tcp, timeout=30) as producer:
            for body in bodies:
                producer.publish(TOPIC, body)
        self.number += count

    def read(self, url: str) -> list[int]:
        with zsq.Reader(TOPIC, url=url, timeout=20) as reader:
            start, end = reader.bounds()
        with zsq.RangeReader(TOPIC, start, end, url=url, timeout=20) as blocks:
            return [int(bytes(body or b"")) for block in blocks for body in block.body.values()]

    def lag_of(self, broker: Broker) -> float:
        with zsq.Admin(broker.tcp, timeout=10) as admin:
            return float(admin.stats()["bucket"]["lag_s"])

    def status(self, broker: Broker) -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"http://127.0.0.1:{broker.http}/health").json()
        return found

    def wait_shipped(self, broker: Broker) -> None:
        def is_shipped() -> bool:
            with zsq.Admin(broker.tcp, timeout=10) as admin:
                return all(row["ship_lag_s"] == 0.0 for row in admin.stats()["topics"])

        wait_for(is_shipped, what="everything is shipped")

    def close(self) -> None:
        for broker in (self.one, self.two):
            with contextlib.suppress(ProcessLookupError, AssertionError):
                broker.signal_all(signal.SIGCONT)
            broker.close()
