"""The base of both brokers for tests: their clients, and `with`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from ...transport.client.blocking.client import Admin, Consumer, Producer, Reader


class BrokerForTests(ABC):
    """A broker at `url` that makes its clients. `with` starts and stops it."""

    url: str

    @abstractmethod
    def start(self) -> Self: ...

    @abstractmethod
    def stop(self) -> None: ...

    @abstractmethod
    def now_ns(self) -> int:
        """Return the time by the broker's clock, in nanoseconds since 1970."""

    @abstractmethod
    def advance(self, step: float | timedelta) -> None:
        """Move the broker's clock forward by `step`."""

    def producer(self, **options: Any) -> Producer:
        """Return a new producer of this broker. `options`: see `zsq.Producer`."""
        return Producer(self.url, **options)

    def consumer(self, topic: str | Sequence[str], channel: str, **options: Any) -> Consumer:
        """Return a new consumer of this broker. `options`: see `zsq.Consumer`."""
        return Consumer(topic, channel, url=self.url, **options)

    def reader(self, topic: str, **options: Any) -> Reader:
        """Return a new reader of this broker. `options`: see `zsq.Reader`."""
        return Reader(topic, url=self.url, **options)

    def admin(self, **options: Any) -> Admin:
        """Return a new admin of this broker. `options`: see `zsq.Admin`."""
        return Admin(self.url, **options)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
