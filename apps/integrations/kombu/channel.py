"""Channel: what Kombu calls to declare, publish, receive and answer.

A durable queue is a topic for each priority level. All other queues, and all queues of fanout
exchanges, get their messages from the topic in memory of each exchange that they are bound to, by a
channel of their own. `names.py` has the names, and `bindings.py` says who knows which queue exists.

A message with an ETA in the future is published with ZSQ's delay. So it is on disk, and no worker
holds it until it is due. In the Redis transport, a worker holds it as unacknowledged, and it runs
twice when its ETA is later than the visibility timeout.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from itertools import count
from queue import Empty
from typing import Any, Final

from amqp.protocol import queue_declare_ok_t
from kombu.transport import virtual
from kombu.utils.json import dumps, loads

from ....transport.client.core.consumer_backoff import Outcome
from ....transport.errors import NotFound, UsageError
from ....transport.names import base_of
from ....transport.reports import TopicStats
from ....transport.units import NS_PER_MS
from ....transport.whole_topic import whole_topic
from ..naming import CHANNEL
from ..queues import SETTINGS
from ..source import ConsumerThread, Held
from .names import exchange_topic, key_of, level_of, queue_topic, tag_of
from .patterns import pattern_of
from .revokes import revoke, revoke_key_of, revoked_ids

log = logging.getLogger("zsq")

DELAY_S_MAX: Final = 366 * 86_400.0
EARLY_S: Final = 60.0  # a message that arrives so much before its ETA is published again
READY: Final = 1000  # messages that a worker without a prefetch limit holds
GET_S: Final = 0.25  # how long `basic_get` waits for a message of a queue that seems empty
GET_FILLED_S: Final = 2.0  # and of one in which messages wait, which other workers may take first
POLL_S: Final = 0.005
# How long a new consumer waits for a level that has messages, before it delivers from a lower one.
AWAIT_S: Final = 0.5
DEFAULT_EXCHANGE: Final = ""


def seconds_until(message: dict[str, Any]) -> float:
    """Return the seconds until the ETA of a task message, or 0 without one."""
    eta = (message.get("headers") or {}).get("eta")
    if not isinstance(eta, str):
        return 0.0
    try:
        due = datetime.fromisoformat(eta)
        due = due if due.tzinfo is not None else due.replace(tzinfo=UTC)
        due_s = due.timestamp()
    except (ValueError, OverflowError):
        return 0.0
    return min(max(0.0, due_s - time.time()), DELAY_S_MAX)


def is_expired(message: dict[str, Any], stored_ns: int) -> bool:
    """Return True if the `expiration` of a message, in milliseconds, has passed.

    Tasks of Celery that expire do not count. A worker that gets one records it as revoked, and
    otherwise a program that waits for its result would wait for ever.
    """
    limit_ms = message["properties"].get("expiration")
    if limit_ms is None or (message.get("headers") or {}).get("expires"):
        return False
    try:
        return time.time_ns() > stored_ns + float(limit_ms) * NS_PER_MS
    except (TypeError, ValueError, OverflowError):
        return False


class QoS(virtual.QoS):
    """The messages that Kombu has and has not acknowledged."""

    def ack(self, delivery_tag: str) -> None:
        super().ack(delivery_tag)
        self.channel.answer(delivery_tag, Held.finish)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        self._quick_ack(delivery_tag)

        def answer(held: Held) -> None:
            held.outcome = Outcome.FAILURE
            if requeue:
                # Without the backoff of the channel, a message uses up all attempts at once.
                held.requeue(backoff=self.channel.connection.backs_off)
            else:
                held.reject(REJECTED)

        self.channel.answer(delivery_tag, answer)

    def restore_unacked(self) -> list[Any]:
        """Return all messages that are not acknowledged to their queues."""
        self._flush()
        for delivery_tag in list(self._delivered):
            self.channel.answer(delivery_tag, give_back)
        self._delivered.clear()
        return []

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Do nothing: the broker delivers messages again when the consumers close."""
        self._on_collect.cancel()


def give_back(held: Held) -> None:
    """Return a message to its queue that the consumer has not handled."""
    held.outcome = Outcome.NEITHER
    held.requeue()


REJECTED: Final = "rejected without requeue by the consumer (Kombu)"


def parsed(held: Held) -> dict[str, Any] | None:
    """Return the message as Kombu made it. Finish it and return None if it has expired.

    Reject it and return None if another program made it. Otherwise it would end each worker that
    gets it, one after the other.
    """
    try:
        raw = loads((held.message.body or b"").decode())
        if not is_message(raw):
            raise ValueError("it is not an object with the properties of a message")
    except Exception as error:  # Kombu's decoder raises many kinds for the types that it adds
        refuse(held, error)
        return None
    if is_expired(raw, held.message.timestamp_ns):
        held.outcome = Outcome.NEITHER
        held.finish()
        return None
    return dict(raw)


def is_message(raw: Any) -> bool:
    """Return True if this value has the form of Kombu's messages."""
    if not isinstance(raw, dict) or "body" not in raw:
        return False
    properties, headers = raw.get("properties"), raw.get("headers")
    return (
        isinstance(properties, dict)
        and isinstance(properties.get("delivery_info", {}), dict)
        and (headers is None or isinstance(headers, dict))
    )


def refuse(held: Held, error: Exception) -> None:
    log.error("%s is no message of Kombu, and becomes a dead letter: %s", held.message, error)
    held.outcome = Outcome.NEITHER
    held.reject(f"no message of Kombu: {error}")


class Binding:
    """A queue in memory that is bound to an exchange. It receives from the start."""

    def __init__(self, exchange: str, kind: str, routing_key: str, source: ConsumerThread) -> None:
        self.exchange = exchange
        self.kind = kind
        self.routing_key = routing_key
        self.source = source

    def matches(self, tag: str) -> bool:
        if self.kind == "fanout":
            return True
        if self.kind == "topic":
            return pattern_of(self.routing_key).matches(tag)
        return tag == self.routing_key


class Channel(virtual.Channel):
    """A channel of Kombu on ZSQ."""

    QoS = QoS
    supports_fanout = True
    do_restore = False
    priority_steps = (0, 3, 6, 9)
    highest_priority = 0
    from_transport_options = (
        *virtual.Channel.from_transport_options,
        "priority_steps",
        "highest_priority",
    )

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        steps = tuple(sorted({int(step) for step in self.priority_steps} | {0}))
        if not 0 <= steps[0] <= steps[-1] <= 9 or self.highest_priority not in {0, 9}:
            raise UsageError(
                "E_BAD_ARGUMENT",
                f"priority_steps must be numbers from 0 to 9, not {self.priority_steps!r}, and "
                f"highest_priority 0 or 9, not {self.highest_priority!r}",
            )
        # The level that is delivered first comes first.
        self._levels = steps if self.highest_priority == 0 else steps[::-1]
        self._tags = count(1)
        self._held: dict[str, Held] = {}
        self._sources: dict[str, dict[int, ConsumerThread]] = {}  # of durable queues, by level
        self._getters: dict[tuple[str, int], ConsumerThread] = {}  # by queue and level
        # Levels that had messages when their consumer began, and until when it waits for them.
        self._awaited: dict[tuple[str, int], float] = {}
        self._ending: list[
            ConsumerThread
        ] = []  # of cancelled consumers that have unanswered messages
        self._on_message: dict[str, tuple[Callable[[Any], None], bool]] = {}
        self._turn = 0

    # Declaring

    @property
    def link(self) -> Any:
        return self.connection.link

    @property
    def prefix(self) -> str:
        return str(self.link.place.prefix)

    def _new_queue(
        self,
        queue: str,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        **kwargs: Any,
    ) -> None:
        if durable and not exclusive and not auto_delete:
            self.link.topics.make(queue_topic(self.prefix, queue, 0))
            self.link.bindings.declare(queue)
        else:
            self.connection.transient.add(queue)

    def queue_declare(self, queue: str | None = None, passive: bool = False, **kwargs: Any) -> Any:
        if passive and queue and self._has_queue(queue):
            return queue_declare_ok_t(queue, self._size(queue), 0)
        return super().queue_declare(queue, passive, **kwargs)

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return self._is_transient(queue) or self.link.bindings.has_queue(queue)

    def _is_transient(self, queue: str) -> bool:
        return queue in self.connection.transient

    def _in_memory(self, queue: str) -> list[Binding]:
        """Return what the queue gets from topics in memory."""
        bindings: list[Binding] = self.connection.in_memory.get(queue, [])
        return bindings

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **kwargs: Any,
    ) -> None:
        exchange = exchange or "amq.direct"
        kind = self.typeof(exchange).type
        if kind == "fanout" or self._is_transient(queue):
            self.connection.bind_in_memory(queue, exchange, kind, routing_key or "")
            if kind != "fanout":
                self.link.bindings.note_memory(exchange)
        else:
            self.link.bindings.bind(exchange, routing_key or "", queue)

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **kwargs: Any,
    ) -> None:
        exchange = exchange or "amq.direct"
        bound = self._in_memory(queue)
        for binding in [
            binding
            for binding in bound
            if (binding.exchange, binding.routing_key) == (exchange, routing_key)
        ]:
            bound.remove(binding)
            binding.source.close()
        self.link.bindings.unbind(exchange, routing_key or "", queue)

    def list_bindings(self) -> Iterator[tuple[str, str, str]]:
        for exchange in self.state.exchanges:
            for routing_key, queue in self.link.bindings.of(exchange):
                yield queue, exchange, routing_key

    def get_table(self, exchange: str) -> list[tuple[str, None, str]]:
        """Return the routing key and the queue of each durable binding, as Kombu's rows."""
        return [(key, None, queue) for key, queue in self.link.bindings.of(exchange)]

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any
    ) -> None:
        if if_empty and self._size(queue):
            return
        self.connection.forget_in_memory(queue)
        if self._is_transient(queue):
            self.connection.transient.discard(queue)
            return
        for source in self._sources.pop(queue, {}).values():
            source.close()
        for key in [key for key in self._getters if key[0] == queue]:
            self._getters.pop(key).close()
        for topic in self._topics(queue).values():
            self.link.topics.forget(topic)
            self.link.admin.delete_topic(topic, force=True)
        self.link.bindings.delete(queue)

    def _topics(self, queue: str) -> dict[int, str]:
        """Return the topics of a durable queue that exist, by level. The most urgent is first."""
        existing = {base_of(name) for name in self.link.admin.topics()}
        names = {level: queue_topic(self.prefix, queue, level) for level in self._levels}
        return {level: name for level, name in names.items() if name in existing}

    def _rows(self, topics: Iterable[str]) -> Iterator[tuple[str, TopicStats]]:
        """Return each of these topics with its statistics, if it still exists."""
        for topic in topics:
            try:
                yield topic, whole_topic(self.link.admin.stats(topic), topic).row
            except NotFound:
                continue

    def _filled(self, topics: dict[int, str]) -> list[int]:
        """Return the levels in which messages wait for a worker, the most urgent first."""
        filled = {topic for topic, row in self._rows(topics.values()) if waiting(row)}
        return [level for level, topic in topics.items() if topic in filled]

    def _size(self, queue: str) -> int:
        """Return how many messages wait. Those of workers, and delayed ones, do not count."""
        arrived = sum(binding.source.arrived for binding in self._in_memory(queue))
        if self._is_transient(queue):
            return arrived
        topics = self._topics(queue).values()
        return arrived + sum(waiting(row) for _, row in self._rows(topics))

    def _purge(self, queue: str) -> int:
        """Remove all messages that wait, also the delayed ones. Return their number."""
        removed = 0
        for binding in self._in_memory(queue):
            while (held := binding.source.take()) is not None:
                held.finish()
                removed += 1
        if self._is_transient(queue):
            return removed
        for topic, row in self._rows(self._topics(queue).values()):
            removed += waiting(row) + self.link.admin.delayed_cancel_all(topic)
            channels = row["channels"]
            self.link.admin.empty(topic, CHANNEL if channels else None)
        return removed

    # Publishing

    def basic_publish(
        self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any
    ) -> None:
        self._inplace_augment_message(message, exchange, routing_key)
        routing_key = routing_key or ""
        if not exchange:
            if self.link.bindings.has_queue(routing_key):
                self._put(routing_key, message)
            else:
                self._put_in_memory(exchange, routing_key, message)
            return
        if self.typeof(exchange).type == "fanout":
            self._put_fanout(exchange, message, routing_key)
            return
        queues = self._routed(exchange, routing_key)
        to_memory = self.link.bindings.sends_to_memory(exchange)
        if not queues and not to_memory:
            # Another process may have declared the queue a moment ago.
            self.link.bindings.refresh()
            queues = self._routed(exchange, routing_key)
            to_memory = self.link.bindings.sends_to_memory(exchange)
        if not queues and not to_memory and self.deadletter_queue:
            queues = {self.deadletter_queue}
        for queue in queues:
            self._put(queue, message)
        if to_memory:
            self._put_in_memory(exchange, routing_key, message)

    def _routed(self, exchange: str, routing_key: str) -> set[str]:
        if self.typeof(exchange).type == "topic":
            return {
                queue
                for key, queue in self.link.bindings.of(exchange)
                if pattern_of(key).matches(routing_key)
            }
        return {queue for key, queue in self.link.bindings.of(exchange) if key == routing_key}

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        level = level_of(message["properties"].get("priority"), tuple(sorted(self._levels)))
        topic = queue_topic(self.prefix, queue, level)
        body, delay = dumps(message).encode(), seconds_until(message) or None
        with self.link.publishing():
            self.link.topics.publish(topic, body, delay, self._revoke_key(message))

    def _revoke_key(self, message: dict[str, Any]) -> str | None:
        return revoke_key_of(message) if self.connection.revokes else None

    def _put_fanout(
        self, exchange: str, message: dict[str, Any], routing_key: str, **kwargs: Any
    ) -> None:
        self._put_in_memory(exchange, routing_key, message)
        if self.connection.revokes and (ids := revoked_ids(exchange, message)):
            revoke(self.link.admin, self._all_topics(), ids)

    def _all_topics(self) -> set[str]:
        """Return the topics of all durable queues."""
        existing = {base_of(name) for name in self.link.admin.topics()}
        return existing & {
            queue_topic(self.prefix, queue, level)
            for queue in self.link.bindings.queues()
            for level in self._levels
        }

    def _put_in_memory(self, exchange: str, routing_key: str, message: dict[str, Any]) -> None:
        with self.link.publishing():
            self.link.producer.publish(
                exchange_topic(self.prefix, exchange),
                dumps(message).encode(),
                tag=tag_of(routing_key) or None,
            )

    def encode_body(self, body: Any, encoding: str | None = None) -> tuple[Any, str | None]:
        """Keep a text as it is. Only bytes need base64, because the message is JSON."""
        if isinstance(body, str):
            return body, "utf-8"
        encoded: tuple[Any, str | None] = super().encode_body(body, encoding)
        return encoded

    # Receiving

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Callable[[Any], None],
        consumer_tag: str,
        **kwargs: Any,
    ) -> None:
        self._tag_to_queue[consumer_tag] = queue
        self._consumers.add(consumer_tag)
        self._active_queues.append(queue)
        self._on_message[queue] = (callback, no_ack)
        if self._is_transient(queue):
            self._bind_to_default(queue)
        else:
            if not self.link.bindings.has_queue(queue):
                self._new_queue(queue)
            if queue not in self._sources:
                self._begin(queue)
        self.connection.wake()

    def _begin(self, queue: str) -> None:
        """Receive from a durable queue. The most urgent of the messages that wait comes first."""
        topics = self._topics(queue)
        filled = self._filled(topics) if len(topics) > 1 else []
        until_s = time.monotonic() + AWAIT_S
        self._awaited.update({(queue, level): until_s for level in filled})
        self._sources[queue] = {}
        self._open_level(queue, 0)
        self.open_new_levels()

    def _bind_to_default(self, queue: str) -> None:
        """Let a queue in memory that is bound to no exchange get what is sent to its name."""
        if not self._in_memory(queue):
            self.connection.bind_in_memory(queue, DEFAULT_EXCHANGE, "direct", queue)

    def basic_cancel(self, consumer_tag: str) -> None:
        if consumer_tag not in self._consumers:
            return
        self._consumers.remove(consumer_tag)
        queue = self._tag_to_queue.pop(consumer_tag)
        self._active_queues.remove(queue)
        if queue in self._active_queues:
            return
        self._on_message.pop(queue, None)
        for key in [key for key in self._awaited if key[0] == queue]:
            del self._awaited[key]
        for source in self._sources.pop(queue, {}).values():
            source.cancel()
            self._ending.append(source)

    def _open_level(self, queue: str, level: int) -> None:
        topic = queue_topic(self.prefix, queue, level)
        self._sources[queue][level] = self._source(topic, self._ready(), backs_off=True)

    def _source(self, topic: str, ready: int, *, backs_off: bool = False) -> ConsumerThread:
        self.link.topics.make(topic, works=True)
        source: ConsumerThread = self.connection.open_source(
            topic, CHANNEL, ready, backs_off=backs_off, **SETTINGS
        )
        return source

    def open_new_levels(self) -> None:
        """Receive from priority levels that have got their first message since."""
        wanted = {
            queue_topic(self.prefix, queue, level): (queue, level)
            for queue, sources in self._sources.items()
            for level in self._levels
            if level not in sources
        }
        if wanted:
            for topic in wanted.keys() & {base_of(name) for name in self.link.admin.topics()}:
                self._open_level(*wanted[topic])

    def _ready(self) -> int:
        return int(self.qos.prefetch_count) or READY

    def basic_qos(
        self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False
    ) -> None:
        self.qos.prefetch_count = prefetch_count
        for source in self._queue_sources():
            source.set_ready(self._ready())
        self.connection.wake()

    def _queue_sources(self) -> Iterator[ConsumerThread]:
        for sources in self._sources.values():
            yield from sources.values()

    def deliver(self) -> bool:
        """Give one message to its consumer. Return False if there is none, or no room for it."""
        if not self._on_message or not self.qos.can_consume():
            return False
        queues = list(self._on_message)
        for step in range(len(queues)):
            queue = queues[(self._turn + step) % len(queues)]
            held = self._next(queue)
            if held is not None and self._hand_over(queue, held):
                self._turn += step + 1
                return True
            if held is not None:
                self.connection.wake()  # that one was not for the consumer: look for the next one
        return False

    def _next(self, queue: str) -> Held | None:
        """Return the next message of a queue, of the most urgent level that has one."""
        sources = self._sources.get(queue, {})
        for level in self._levels:
            source = sources.get(level)
            if source is None:
                continue
            held = self._usable(source)
            if held is not None:
                self._awaited.pop((queue, level), None)
                return held
            if self._awaited.get((queue, level), 0.0) > time.monotonic():
                return None
        for binding in self._in_memory(queue):
            while (held := self._usable(binding.source)) is not None:
                if binding.matches(key_of(held.message.tag or "")):
                    return held
                held.finish()
        return None

    def _usable(self, source: ConsumerThread) -> Held | None:
        """Return the next message of a source. Raises the broker's refusal."""
        if source.error is not None:
            error, source.error = source.error, None
            raise error
        return source.take()

    def _hand_over(self, queue: str, held: Held) -> bool:
        """Call the consumer. Return False if the message is not to be delivered, or not yet."""
        callback, no_ack = self._on_message[queue]
        raw = parsed(held)
        if raw is None:
            return False
        if seconds_until(raw) > EARLY_S and held.source in self._queue_sources():
            # The delay was cut to the longest one.
            self.link.producer.publish(
                held.message.topic,
                held.message.body,
                delay=seconds_until(raw),
                revoke_key=self._revoke_key(raw),
            )
            held.outcome = Outcome.NEITHER
            held.finish()
            return False
        message = self._note(raw, held, no_ack)
        if message is None:
            return False
        callback(message)
        return True

    def _note(self, raw: dict[str, Any], held: Held, no_ack: bool) -> Any:
        """Return Kombu's message, and remember how to answer it. None: its body is not readable."""
        tag = str(next(self._tags))
        raw["properties"]["delivery_tag"] = tag
        if held.message.attempts > 1:
            raw["properties"].setdefault("delivery_info", {})["redelivered"] = True
        try:
            message = self.Message(raw, channel=self)
        except Exception as error:  # the body has another encoding than the message says
            refuse(held, error)
            return None
        if no_ack:
            held.finish()
        else:
            self._held[tag] = held
            self.qos.append(message, tag)
        return message

    def answer(self, delivery_tag: str, how: Callable[[Held], None]) -> None:
        """Answer a message that was handed over. A second answer changes nothing."""
        held = self._held.pop(delivery_tag, None)
        if held is not None:
            how(held)
            if self.connection is not None:
                self.connection.wake()

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Return one message, the most urgent one, or None if none arrives within `GET_S`."""
        deadline_s = time.monotonic() + GET_S
        getter = None
        if self._is_transient(queue):
            self._bind_to_default(queue)
        elif queue not in self._sources:
            filled = self._filled(self._topics(queue))
            deadline_s += GET_FILLED_S if filled else 0.0
            key = (queue, filled[0] if filled else 0)
            getter = self._getters.get(key)
            if getter is None:
                getter = self._source(queue_topic(self.prefix, *key), 1)
                self._getters[key] = getter
            getter.resume(sum(held.source is getter for held in self._held.values()) + 1)
        try:
            while True:
                held = self._next(queue) if getter is None else self._usable(getter)
                raw = None if held is None else parsed(held)
                if held is not None and raw is not None:
                    message = self._note(raw, held, no_ack)
                    if message is not None:
                        return message
                if time.monotonic() > deadline_s:
                    return None
                time.sleep(POLL_S)
        finally:
            if getter is not None:
                getter.cancel()

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        raise Empty  # `basic_get` and `deliver` replace it

    def look_after(self) -> None:
        """Do what is due from time to time. The transport calls this about once a second."""
        for source in [source for source in self._ending if source.idle]:
            self._ending.remove(source)
            source.close()
        now_s = time.monotonic()
        for key in [key for key, until_s in self._awaited.items() if until_s < now_s]:
            del self._awaited[key]
            self.connection.wake()

    def close(self) -> None:
        """Close the channel. Messages that are not acknowledged return to their queues."""
        if self.closed:
            return
        sources = [*self._queue_sources(), *self._ending, *self._getters.values()]
        super().close()
        for source in {id(source): source for source in [*sources, *self._ending]}.values():
            source.close()
        self._held.clear()


def waiting(row: TopicStats) -> int:
    """Return how many messages of a topic wait for a worker, from its statistics."""
    for channel in row["channels"]:
        if channel["channel_name"] == CHANNEL:
            return int(channel["depth"])
    return int(row["depth"])
