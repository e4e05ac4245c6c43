"""Bindings: which durable queues exist, and to which exchanges they are bound, in a topic.

A producer of Kombu may publish to an exchange whose queues other processes have declared. So the
declarations must be shared. Each change is one message of the topic `TOPIC`, and every connection
reads all of them, from the oldest. The topic keeps all messages. It stays small, because a change
that is already known is not published again, and because queues of single processes (replies,
events, remote control) are not in it: they exist only in memory. Of those, it has only the names of
the exchanges that they are bound to.

A process sees a change of another one after at most `FRESH_S`, and at once if it finds no queue for
a message.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Iterable
from typing import Any, Final

from ....transport.client.blocking.client import Admin, Producer, Reader
from ....transport.errors import NotFound

log = logging.getLogger("zsq")

TOPIC: Final = "kombu.bindings"
FRESH_S: Final = 5.0
Binding = tuple[str, str]  # routing key, queue
# The kinds of changes. A change is an object with one of these keys, and a text or three as value.
OF_QUEUE: Final = ("queue", "delete", "memory")
OF_BINDING: Final = ("bind", "unbind")


def change_of(value: bytes) -> dict[str, Any] | None:
    """Return the change that a message has, or None if another program made the message."""
    try:
        change = json.loads(value)
        [(kind, names)] = change.items()
        names = [names] if kind in OF_QUEUE else names
        for name in names:
            name.encode()  # a lone surrogate cannot become the name of a topic
    except (ValueError, AttributeError, TypeError, RecursionError):
        return None
    if kind in OF_QUEUE or (kind in OF_BINDING and type(names) is list and len(names) == 3):
        return dict(change)
    return None


class Bindings:
    """The shared table of one broker and prefix. It is thread-safe."""

    def __init__(self, producer: Producer, admin: Admin, reader: Reader, topic: str) -> None:
        self._producer = producer
        self._admin = admin
        self._reader = reader
        self._topic = topic
        self._lock = threading.RLock()
        self._next = 0
        self._read_s = float("-inf")
        self._queues: set[str] = set()
        self._bound: dict[str, set[Binding]] = {}
        self._in_memory: set[str] = set()
        self._warned = False

    # Questions

    def has_queue(self, queue: str) -> bool:
        """Return True if a durable queue has this name."""
        with self._lock:
            if queue not in self._queues:
                self.refresh()
            return queue in self._queues

    def queues(self) -> set[str]:
        """Return the durable queues."""
        with self._lock:
            self.refresh()
            return set(self._queues)

    def of(self, exchange: str) -> set[Binding]:
        """Return the bindings of an exchange to durable queues."""
        with self._lock:
            self._refresh_old()
            return set(self._bound.get(exchange, ()))

    def sends_to_memory(self, exchange: str) -> bool:
        """Return True if queues in memory are, or were, bound to this exchange."""
        with self._lock:
            self._refresh_old()
            return exchange in self._in_memory

    # Changes

    def declare(self, queue: str) -> bool:
        """Note that a durable queue exists. Return False if that was known."""
        with self._lock:
            return self._change({"queue": queue}, queue in self._queues)

    def bind(self, exchange: str, routing_key: str, queue: str) -> None:
        with self._lock:
            known = (routing_key, queue) in self._bound.get(exchange, ())
            self._change({"bind": [exchange, routing_key, queue]}, known)

    def unbind(self, exchange: str, routing_key: str, queue: str) -> None:
        with self._lock:
            known = (routing_key, queue) in self._bound.get(exchange, ())
            self._change({"unbind": [exchange, routing_key, queue]}, not known)

    def delete(self, queue: str) -> None:
        """Remove a queue and all its bindings."""
        with self._lock:
            self.refresh()
            self._change({"delete": queue}, queue not in self._queues)

    def note_memory(self, exchange: str) -> None:
        """Note that a queue in memory is bound to this exchange."""
        with self._lock:
            self._change({"memory": exchange}, exchange in self._in_memory)

    def _change(self, record: dict[str, Any], known: bool) -> bool:
        """Publish a change and apply it. `known`: it was already made, as far as is known here."""
        if known:
            self._refresh_old()
            return False
        with contextlib.suppress(NotFound):
            self.refresh()
        if self._next == 0 and self._topic not in self._admin.topics():
            self._admin.create_topic(self._topic, keep_bytes=-1)
        self._producer.publish(self._topic, json.dumps(record).encode())
        self._apply(record)
        return True

    # Reading

    def _refresh_old(self) -> None:
        if time.monotonic() - self._read_s > FRESH_S:
            self.refresh()

    def refresh(self) -> None:
        """Read what others have changed."""
        with self._lock:
            try:
                for record in self._records():
                    self._apply(record)
            except NotFound:
                self._next = 0
            self._read_s = time.monotonic()

    def _records(self) -> Iterable[dict[str, Any]]:
        while True:
            fetched = self._reader.read(max(self._next, 0))
            if not fetched.blocks:
                return
            for block in fetched.blocks:
                first = max(self._next - block.first_offset, 0)
                for index in range(first, block.count):
                    change = change_of(block.body.value(index) or b"")
                    if change is None:
                        self._warn(block.first_offset + index)
                    else:
                        yield change
            self._next = fetched.next_offset

    def _warn(self, offset: int) -> None:
        """Warn about the first message that another program has put into the topic."""
        if not self._warned:
            self._warned = True
            log.warning(
                "message %d of topic %s is no binding of Kombu, so it is skipped, as all others "
                "of this kind are; look for the program that publishes to this topic",
                offset,
                self._topic,
            )

    def _apply(self, record: dict[str, Any]) -> None:
        if (queue := record.get("queue")) is not None:
            self._queues.add(queue)
        elif (deleted := record.get("delete")) is not None:
            self._queues.discard(deleted)
            for exchange, bindings in self._bound.items():
                self._bound[exchange] = {binding for binding in bindings if binding[1] != deleted}
        elif (noted := record.get("memory")) is not None:
            self._in_memory.add(noted)
        elif (bound := record.get("bind")) is not None:
            self._queues.add(bound[2])
            self._bound.setdefault(bound[0], set()).add((bound[1], bound[2]))
        elif (bound := record.get("unbind")) is not None:
            self._bound.get(bound[0], set()).discard((bound[1], bound[2]))
