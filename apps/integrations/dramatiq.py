"""Broker of Dramatiq on ZSQ: `dramatiq.set_broker(ZsqBroker("tcp://127.0.0.1:4153"))`.

A queue is a topic, and all workers share its channel. Delays are ZSQ's: a delayed message, such as
a retry, waits on the broker's disk, and no worker holds it until it is due. So there are no delay
queues. A message that Dramatiq gives up becomes a dead letter of ZSQ.

A message is finished after what follows it is on disk: its retry, the next message of its pipeline,
or a callback. Dramatiq's middleware publishes these in `after_process_message`, and its base class
only logs an error there. So this broker notes such an error, and the message then is not finished.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

import dramatiq
from dramatiq.errors import ConnectionClosed, DecodeError, QueueJoinTimeout, QueueNotFound

from ...transport.client.blocking.client import Admin, Consumer, Producer
from ...transport.client.core.consumer_backoff import (
    Backoff,
    ConsumerBackoff,
    Outcome,
    backoff_of,
)
from ...transport.errors import NotFound, UsageError, ZsqError
from ...transport.whole_topic import whole_topic
from ...transport.wire.addresses import Url
from ...transport.wire.credentials import KeyFile
from .naming import CHANNEL, TOPIC_CHARS_MAX, check_lease, legal
from .queues import SETTINGS, QueueTopics
from .source import ConsumerThread, Held, OpenWork

log = logging.getLogger("zsq")

LEASE_S: Final = 60.0
JOIN_POLL_S: Final = 0.05
JOIN_SEEN: Final = 2  # how often in a row a queue must be empty
REASON: Final = "given up by Dramatiq"


class Proxy(dramatiq.MessageProxy):
    """A message of Dramatiq, and the message of ZSQ that carried it."""

    def __init__(self, message: dramatiq.Message[Any], held: Held) -> None:
        super().__init__(message)
        self.held = held
        # Why what follows the message is not stored. Then the message is delivered again.
        self.refused: ZsqError | None = None


class ZsqConsumer(dramatiq.Consumer):
    """The messages of one queue. `timeout_s`: how long the next one is awaited."""

    def __init__(
        self,
        consumer: Consumer,
        prefetch: int,
        lease_s: float,
        timeout_s: float,
        work: OpenWork,
        backoff: ConsumerBackoff | None,
    ) -> None:
        self._timeout_s = timeout_s
        self._arrived = threading.Event()
        try:
            self._source = ConsumerThread(
                consumer, prefetch, lease_s, self._arrived.set, work, backoff
            ).start()
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
        """Return the message, or None if it is not readable."""
        try:
            message: dramatiq.Message[Any] = dramatiq.Message.decode(held.message.body)
            check_fields(message)
        except DecodeError as error:
            log.error("%s is no message of Dramatiq, and becomes a dead letter", held.message)
            held.outcome = Outcome.NEITHER
            held.reject(f"not a message of Dramatiq: {error}")
            return None
        return Proxy(message, held)

    def _held(self, message: dramatiq.MessageProxy) -> Held | None:
        if isinstance(message, Proxy):
            return message.held
        log.warning("%s did not come from this consumer, so nothing is done", message)
        return None

    def ack(self, message: dramatiq.MessageProxy) -> None:
        if (held := self._held(message)) is None:
            return
        refused: ZsqError | None = message.refused
        if refused is None:
            held.finish()
        else:
            held.requeue(backoff=True, error=refused)

    def nack(self, message: dramatiq.MessageProxy) -> None:
        if (held := self._held(message)) is not None:
            held.reject(repr(message._exception) if message._exception else REASON)

    def requeue(self, messages: Iterable[dramatiq.MessageProxy]) -> None:
        for message in messages:
            if (held := self._held(message)) is not None:
                held.requeue()

    def close(self) -> None:
        """Receive no more.

        Messages that were delivered stay with this process until they are answered, or until the
        broker is closed: a worker that is paused closes its consumers, and still works on them.
        """
        self._source.leave()

    @property
    def closed(self) -> bool:
        return self._source.closed

    def end(self) -> None:
        """Close at once. Messages that are not answered return to the queue."""
        self._source.close()


class ZsqBroker(dramatiq.Broker):
    """A broker of Dramatiq.

    - `url`, `key_file`, `transport`: See `zsq.Producer`.
    - `prefix`: A text before the name of each topic.
    - `message_timeout`: The seconds after which a message of a killed worker goes to another one. A
      worker extends this time while it runs.
    - `middleware`: See `dramatiq.Broker`.
    - `backoff`: With True or a `zsq.Backoff`, the consumer of a queue backs off as a whole when
      actors fail in a row, as that of `zsq.Consumer.run` does.
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
        backoff: bool | Backoff = False,
    ) -> None:
        super().__init__(middleware=middleware)
        backoff_of(backoff)
        self._backoff = backoff
        self._client: Any = {"url": url, "key_file": key_file, "transport": transport}
        self._prefix = prefix
        self._lease_s = check_lease(message_timeout)
        self._producer = Producer(**self._client)
        self._admin = Admin(**self._client)
        self._topics = QueueTopics(self._admin, self._producer)
        self._consumers: list[ZsqConsumer] = []
        self._work = OpenWork()
        self._after = threading.local()

    def topic(self, queue_name: str) -> str:
        """Return the topic of a queue."""
        return legal(f"{self._prefix}{queue_name}", TOPIC_CHARS_MAX)

    def declare_queue(self, queue_name: str) -> None:
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues[queue_name] = None
            self.emit_after("declare_queue", queue_name)

    def enqueue(
        self, message: dramatiq.Message[Any], *, delay: int | None = None
    ) -> dramatiq.Message[Any]:
        """Publish a message. It is on disk when this returns. `delay` is in milliseconds.

        Raises `ConnectionClosed` if the broker cannot be reached, or refuses messages now, and
        `zsq.UsageError` for a message that is too large or a delay that is too long.
        """
        self.declare_queue(message.queue_name)
        self.emit_before("enqueue", message, delay)
        seconds = None if delay is None or delay <= 0 else delay / 1000
        try:
            self._topics.publish(self.topic(message.queue_name), message.encode(), seconds)
        except ZsqError as error:
            self._after.refused = error
            raise translated(error) from error
        self.emit_after("enqueue", message, delay)
        return message

    def emit_after(self, signal: str, *arguments: Any, **named: Any) -> None:
        if signal != "process_message":
            super().emit_after(signal, *arguments, **named)
            return
        self._after.refused = None
        super().emit_after(signal, *arguments, **named)
        refused: ZsqError | None = self._after.refused
        (message,) = arguments
        if isinstance(message, Proxy):
            message.held.outcome = outcome_of(named.get("exception"))
        if refused is not None:
            if isinstance(refused, UsageError):  # it would be refused again
                message.stuff_exception(refused)
                message.fail()
            else:
                message.refused = refused

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30000) -> ZsqConsumer:
        self._check_declared(queue_name)
        topic = self.topic(queue_name)
        with translating():
            self._topics.make(topic, works=True)
            consumer = Consumer(
                topic,
                CHANNEL,
                ready=prefetch,
                message_timeout=self._lease_s,
                **SETTINGS,
                **self._client,
            )
        zsq_consumer = ZsqConsumer(
            consumer,
            prefetch,
            self._lease_s,
            timeout / 1000,
            self._work,
            backoff_of(self._backoff),
        )
        self._consumers = [each for each in self._consumers if not each.closed] + [zsq_consumer]
        return zsq_consumer

    def _check_declared(self, queue_name: str) -> None:
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)

    def flush(self, queue_name: str) -> None:
        """Remove all messages that wait in a queue, also the delayed ones, but not dead letters."""
        self._check_declared(queue_name)
        topic = self.topic(queue_name)
        with translating():
            try:
                self._topics.make(topic)
                self._admin.delayed_cancel_all(topic)
                self._admin.empty(topic, CHANNEL)
            except NotFound:
                self._topics.forget(topic)

    def flush_all(self) -> None:
        for queue_name in list(self.queues):
            self.flush(queue_name)

    def join(self, queue_name: str, *, timeout: int | None = None) -> None:
        """Wait until a queue has no message, also no delayed one. `timeout` is in milliseconds."""
        self._check_declared(queue_name)
        deadline_s = None if timeout is None else time.monotonic() + timeout / 1000
        seen = 0
        while seen < JOIN_SEEN:
            with translating():
                seen = 0 if self._left(queue_name) else seen + 1
            if deadline_s is not None and time.monotonic() > deadline_s:
                raise QueueJoinTimeout(queue_name)
            time.sleep(JOIN_POLL_S)

    def _left(self, queue_name: str) -> int:
        topic = self.topic(queue_name)
        self._topics.make(topic)
        try:
            row = whole_topic(self._admin.stats(topic, CHANNEL), topic).row
            (channel,) = row["channels"]
        except (NotFound, IndexError, ValueError):
            # The topic was deleted. A message may have created it again, without the channel.
            self._topics.forget(topic)
            return 1
        held = channel["depth"] + channel["in_flight_count"] + channel["deferred_count"]
        return held + row["delayed_count"]

    def close(self) -> None:
        """Close the connections. Messages that a consumer holds return to their queues."""
        for consumer in self._consumers:
            consumer.end()
        self._producer.close()
        self._admin.close()


def check_fields(message: dramatiq.Message[Any]) -> None:
    """Raise `DecodeError` if a field has a wrong type, which would end each worker's consumer."""
    for name, kind in (("actor_name", str), ("kwargs", dict), ("options", dict)):
        value = getattr(message, name)
        if not isinstance(value, kind):
            text = f"{name} is not a {kind.__name__}: {value!r:.80}"
            raise DecodeError(text, value, None)


def outcome_of(error: BaseException | None) -> Outcome:
    """Return what an actor has made of its message, for the backoff of the consumer."""
    if error is None:
        return Outcome.SUCCESS
    return Outcome.NEITHER if isinstance(error, dramatiq.errors.Retry) else Outcome.FAILURE


def translated(error: ZsqError) -> Exception:
    """Return the error that Dramatiq expects. After `ConnectionClosed` it tries again."""
    return error if isinstance(error, UsageError) else ConnectionClosed(error)


@contextlib.contextmanager
def translating() -> Iterator[None]:
    try:
        yield
    except ZsqError as error:
        raise translated(error) from error
