"""A cluster of two real brokers, which share a folder as bucket."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import zsq

from .broker import Broker, wait_for


class Cluster:
    """Two brokers that share a folder as bucket. `extra` are more options of both."""

    def __init__(self, folder: Path, *extra: str, nsq: bool = False) -> None:
        self._extra, self._nsq = extra, nsq
        for name in ("one", "two"):
            (folder / "bucket" / name).mkdir(parents=True)
        self.place = f"file://{folder}/bucket"
        self.brokers = [self._broker(folder, name) for name in ("one", "two")]

    def _broker(self, folder: Path, name: str) -> Broker:
        options = ("--bucket", f"{self.place}/{name}", "--bucket-lag", "100ms")
        more = ("--cluster", self.place, *self._extra)
        return Broker(folder / name, *options, *more, nsq=self._nsq, http=name == "one")

    @property
    def url(self) -> str:
        return ",".join(broker.tcp for broker in self.brokers)

    def start(self) -> Cluster:
        for count, broker in enumerate(self.brokers, 1):
            broker.start()
            with zsq.Admin(broker.tcp) as admin:
                wait_for(lambda: len(admin.cluster()["brokers"]) >= count)  # noqa: B023
        self.wait_known()
        return self

    def wait_known(self) -> None:
        with zsq.Admin(self.brokers[0].tcp) as admin:
            wait_for(lambda: len(admin.cluster()["brokers"]) == 2)

    def close(self) -> None:
        for broker in self.brokers:
            broker.close()


@contextlib.contextmanager
def running(folder: Path, *extra: str, nsq: bool = False) -> Iterator[Cluster]:
    """Run a cluster until the end of the context, however it ends."""
    made = Cluster(folder, *extra, nsq=nsq)
    try:
        yield made.start()
    finally:
        made.close()
