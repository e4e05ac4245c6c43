"""A cluster of real brokers, which share a folder as bucket."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

import zsq

from .broker import Broker, wait_for


class Cluster:
    """Brokers that share a folder as bucket. `extra` are more options of all."""

    def __init__(self, folder: Path, *extra: str, nsq: bool = False, count: int = 2) -> None:
        self._extra, self._nsq = extra, nsq
        self.folder = folder
        self.place = f"file://{folder}/bucket"
        self.brokers = [self.add() for _ in range(count)]

    def add(self) -> Broker:
        """Return one more broker, which is not started yet."""
        folder = self.folder
        names = itertools.chain(("one", "two"), map(str, itertools.count(3)))
        name = next(name for name in names if not (folder / "bucket" / name).exists())
        (folder / "bucket" / name).mkdir(parents=True)
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
            wait_for(lambda: len(admin.cluster()["brokers"]) == len(self.brokers))

    def close(self) -> None:
        for broker in self.brokers:
            broker.close()


@contextlib.contextmanager
def running(folder: Path, *extra: str, nsq: bool = False, count: int = 2) -> Iterator[Cluster]:
    """Run a cluster until the end of the context, however it ends."""
    made = Cluster(folder, *extra, nsq=nsq, count=count)
    try:
        yield made.start()
    finally:
        made.close()
