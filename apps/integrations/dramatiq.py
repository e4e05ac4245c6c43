"""Broker of Dramatiq on ZSQ: `dramatiq.set_broker(ZsqBroker("tcp://127.0.0.1:4153"))`.

A queue is a topic, and all workers share its channel. Delays are ZSQ's: a delayed message, such as
a retry, waits on the broker's disk, and no worker holds it until it is due. So there are no delay
queues. A message that Dramatiq gives up becomes a dead letter of ZSQ.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any, Final

import dramatiq
from dramatiq.errors import ConnectionClosed, DecodeError, QueueJoinTimeout, QueueNotFound

from ...transport.client.blocking.client import Admin, Consumer, Producer
from ...transport.errors import NotFound, ZsqError
from ...transport.wire.addresses import Url
from ...transport.wire.credentials import KeyFile
from .naming import CHANNEL, TOPIC_CHARS_MAX, check_lease, legal
from .source import Held, Source

LEASE_S: Final = 60.0
JOIN_POLL_S: Final = 0.05
JOIN_SEEN: Final = 2  # how often in a row a queue must be empty
NO_LIMIT: Final = -1
REASON: Final = "given up by Dramatiq"


class Proxy(dramatiq.MessageProxy):
    """A message of Dramatiq, and the message of ZSQ that carried it."""

    def __init__(self, message: dramatiq.Message[Any], held: Held) -> None:
        super().__init__(message)
        self.held = held


class ZsqConsumer(dramatiq.Consumer):
    """The messages of one queue. `timeout_s`: how long the next one is awaited."""

    def __init__(self, consumer: Consumer, prefetch: int, lease_s: float, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._arrived = threading.Event()
        self._working: dict[Any, Proxy] = {}  # by place
        try:
            self._source = Source(consumer, prefetch, lease_s, self._arrived.set).start()
        except ZsqError as error:
            consumer.close()
            raise ConnectionClosed(error) from error

    def __next__(self) -> dramatiq.MessageProxy | None:
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            self._arrived.clear()
            if self._source.error is not None:
                raise ConnectionClosed(self._source.error)
            while (held := self._source.take()) is not None:
                if (proxy := self._proxy(held)) is not None:
                    return proxy
            if not self._arrived.wait(max(0.0, deadline_s - time.monotonic())):
                return None

    def _proxy(self, held: Held) -> Proxy | None:
        """Return the message, or None if it is one that is being worked on, or not readable."""
        if (working := self._working.get(held.place)) is not None:
            # The lease ended with the connection, and the message has come back.
            working.held.drop()
            working.held = held
            return None
        try:
            message = dramatiq.Message.decode(held.message.body)
        except DecodeError as error:
            held.reject(f"not a message of Dramatiq: {error}")
            return None
        self._working[held.place] = proxy = Proxy(message, held)
        return proxy

    def _forget(self, message: Any) -> Held:
        held: Held = message.held
        self._working.pop(held.place, None)
        return held

    def ack(self, message: dramatiq.MessageProxy) -> None:
        self._forget(message).finish()

    def nack(self, message: dramatiq.MessageProxy) -> None:
        self._forget(message).reject(repr(message._exception) if message._exception else REASON)

    def requeue(self, messages: Iterable[dramatiq.MessageProxy]) -> None:
        for message in messages:
            self._forget(message).requeue()

    def close(self) -> None:
        self._source.close()


class ZsqBroker(dramatiq.Broker):
    """A broker of Dramatiq.

    - `url`, `key_file`, `transport`: See `zsq.Producer`.
    - `prefix`: A text before the name of each topic.
    - `message_timeout`: The seconds after which a message of a killed worker goes to another one. A
      worker extends this time while it runs.
    - `middleware`: See `dramatiq.Broker`.
    """

    def __init__(
        self,
        url: Url = None,
        *,
        prefix: str = "dramatiq.",
        message_timeout: float = LEASE_S,
        key_file: KeyFile = None,
        transport: str | None = None,
        middleware: list[Any] | None = None,
    ) -> None:
        super().__init__(middleware=middleware)
        self._client: Any = {"url": url, "key_file": key_file, "transport": transport}
        self._prefix = prefix
        self._lease_s = check_lease(message_timeout)
        self._producer = Producer(**self._client)
        self._admin = Admin(**self._client)
        self._made: set[str] = set()

    def topic(self, queue_name: str) -> str:
        """Return the topic of a queue."""
        return legal(f"{self._prefix}{queue_name}", TOPIC_CHARS_MAX)

    def declare_queue(self, queue_name: str) -> None:
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues[queue_name] = None
            self.emit_after("declare_queue", queue_name)

    def _make(self, queue_name: str) -> str:
        """Create the topic and the channel of a queue if they do not exist. Return the topic.

        A worker may hold a message for any time, because an actor may run for any time.
        """
        topic = self.topic(queue_name)
        if topic not in self._made:
            self._admin.create_topic(topic)
            self._admin.create_channel(topic, CHANNEL, start="earliest", max_hold_s=NO_LIMIT)
            self._made.add(topic)
        return topic

    def enqueue(
        self, message: dramatiq.Message[Any], *, delay: int | None = None
    ) -> dramatiq.Message[Any]:
        """Publish a message. It is on disk when this returns. `delay` is in milliseconds."""
        self.declare_queue(message.queue_name)
        self.emit_before("enqueue", message, delay)
        try:
            topic = self._make(message.queue_name)
            seconds = None if not delay else delay / 1000
            self._producer.publish(topic, message.encode(), delay=seconds)
        except ZsqError as error:
            raise ConnectionClosed(error) from error
        self.emit_after("enqueue", message, delay)
        return message

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30000) -> ZsqConsumer:
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        try:
            topic = self._make(queue_name)
        except ZsqError as error:
            raise ConnectionClosed(error) from error
        consumer = Consumer(
            topic, CHANNEL, ready=prefetch, message_timeout=self._lease_s, **self._client
        )
        return ZsqConsumer(consumer, prefetch, self._lease_s, timeout / 1000)

    def flush(self, queue_name: str) -> None:
        """Remove all messages that wait in a queue, also the delayed ones."""
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        try:
            topic = self._make(queue_name)
            self._admin.delayed_cancel_all(topic)
            self._admin.empty(topic, CHANNEL)
        except NotFound:
            self._made.discard(self.topic(queue_name))

    def flush_all(self) -> None:
        for queue_name in list(self.queues):
            self.flush(queue_name)

    def join(self, queue_name: str, *, timeout: int | None = None) -> None:
        """Wait until a queue has no message. `timeout` is in milliseconds."""
        deadline_s = None if timeout is None else time.monotonic() + timeout / 1000
        seen = 0
        while seen < JOIN_SEEN:
            seen = 0 if self._left(queue_name) else seen + 1
            if deadline_s is not None and time.monotonic() > deadline_s:
                raise QueueJoinTimeout(queue_name)
            time.sleep(JOIN_POLL_S)

    def _left(self, queue_name: str) -> int:
        row = self._admin.stats(self._make(queue_name))["topics"][0]
        counts = ("depth", "in_flight_count", "deferred_count")
        channels = sum(channel[count] for channel in row["channels"] for count in counts)
        return int(channels + row["delayed_count"])

    def close(self) -> None:
        self._producer.close()
        self._admin.close()
