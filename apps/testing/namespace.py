"""Namespaces: the topics of one test, on a broker that other tests use, too."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from ...transport.client.blocking.client import Admin, Consumer, Producer, Reader, Receipt
from ...transport.client.core.message import StoredMessage
from ...transport.errors import NotFound
from .asserting import WAIT_S, assert_published, messages_of
from .clients import BrokerForTests

_PREFIX_BYTES: Final = 4


_ClientT = TypeVar("_ClientT", Producer, Consumer, Reader, Admin)


class Namespace:
    """The topics of one test: their names begin with a prefix that no other test has.

    The methods take the names that the test uses, such as "orders". `topic("orders")` returns the
    name at the broker, such as "t-1f2e3d4c-orders", for code that is given the name of its topic.
    Names that begin with the prefix stay as they are. `close` closes all clients that the namespace
    has made, and deletes its topics with all messages.
    """

    def __init__(self, broker: BrokerForTests) -> None:
        self.broker = broker
        self.prefix = f"t-{os.urandom(_PREFIX_BYTES).hex()}-"
        self._clients = contextlib.ExitStack()
        self._publisher: Producer | None = None

    @property
    def url(self) -> str:
        """The address of the broker."""
        return self.broker.url

    def topic(self, name: str) -> str:
        """Return the name of this topic at the broker."""
        return name if name.startswith(self.prefix) else f"{self.prefix}{name}"

    def _kept(self, client: _ClientT) -> _ClientT:
        self._clients.callback(client.close)
        return client

    def producer(self, **options: Any) -> Producer:
        """Return a new producer. It publishes to `topic(name)`. `options`: see `zsq.Producer`."""
        return self._kept(self.broker.producer(**options))

    def consumer(self, topic: str | Sequence[str], channel: str, **options: Any) -> Consumer:
        """Return a new consumer of a channel. `options`: see `zsq.Consumer`.

        A pattern matches only topics of this namespace.
        """
        topics = self.topic(topic) if isinstance(topic, str) else [*map(self.topic, topic)]
        return self._kept(self.broker.consumer(topics, channel, **options))

    def reader(self, topic: str, **options: Any) -> Reader:
        """Return a new reader of a topic. `options`: see `zsq.Reader`."""
        return self._kept(self.broker.reader(self.topic(topic), **options))

    def admin(self, **options: Any) -> Admin:
        """Return a new admin of the broker. `options`: see `zsq.Admin`."""
        return self._kept(self.broker.admin(**options))

    def publish(self, topic: str, body: bytes, **options: Any) -> Receipt:
        """Publish one message to a topic of this namespace. `options`: see `Producer.publish`."""
        self._publisher = self._publisher or self.producer()
        return self._publisher.publish(self.topic(topic), body, **options)

    def messages(self, topic: str) -> list[StoredMessage]:
        """Return all messages that a topic has now. It is empty if the topic does not exist."""
        return messages_of(self.topic(topic), self.broker)

    def assert_published(
        self, topic: str, *, timeout: float = WAIT_S, **expected: Any
    ) -> list[StoredMessage]:
        """Call `zsq.testing.assert_published` for a topic of this namespace."""
        __tracebackhide__ = True
        return assert_published(self.topic(topic), broker=self.broker, timeout=timeout, **expected)

    def advance(self, step: Any) -> None:
        """Move the broker's clock forward, see `LocalBroker.advance`."""
        self.broker.advance(step)

    def close(self) -> None:
        """Close all clients of this namespace, and delete its topics with all messages."""
        try:
            self._clients.close()
        finally:
            with self.broker.admin() as admin:
                for name in admin.topics():
                    if name.startswith(self.prefix):
                        with contextlib.suppress(NotFound):
                            admin.delete_topic(name, force=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
