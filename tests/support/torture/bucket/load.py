"""The clients of the bucket torture: producers and consumers of one broker, each in its own thread.
They record what they send and what is answered (see `history.py`).
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
import traceback
from collections import Counter, deque
from typing import Any, Final

from support.torture.bucket.history import BucketHistory, Sent

import zsq
from zsq.transport.errors import E_BUCKET, E_FENCED, E_STANDBY

CHANNEL: Final = "work"
PATIENCE_S: Final = 180.0  # a client waits so long for the broker: a restore must not end it
HEARTBEAT_MS: Final = 1_000
TICK_S: Final = 0.004
PACE_S: Final = 0.05  # seconds between two publishes of a producer to one topic
WINDOW: Final = 6  # the most unanswered publishes of a producer to one topic
MESSAGES: Final = 8  # the most messages of a publish
DELAYED_SHARE: Final = 0.1
DELAY_S_MAX: Final = 2.0
READY: Final = 500
BATCHES: Final = 32  # the most batches that are finished together
RECEIVE_S: Final = 0.05
CLOSE_S: Final = 0.2
SENT_MAX: Final = 5_000  # publishes of a producer to one topic that are remembered for checks


class Load:
    """The clients of one broker. They go on while the broker is killed and started again.

    `lifetime` is that of the broker's data directory. With several addresses in `url`, `lifetimes`
    has that of each. Each producer uses another transport.
    """

    def __init__(self, history: BucketHistory, url: str, lifetime: int, seed: int) -> None:
        self.history = history
        self.url = url
        self.lifetime = lifetime
        self.lifetimes: dict[str, int] = {}
        self.counts: Counter[str] = Counter()
        self.pausing = threading.Event()
        self._ending = threading.Event()
        self._producers = [
            Producing(self, transport, random.Random(f"{seed}/{transport}"))
            for transport in ("auto", "tcp")
        ]
        self._consumers: list[Consuming] = []
        self._others: list[LoadThread] = []

    def start(self, other: LoadThread) -> None:
        other.start()
        self._others.append(other)

    def start_producers(self) -> None:
        for producer in self._producers:
            producer.start()

    def start_consumers(self) -> None:
        self._consumers = [Consuming(self, topic) for topic in range(len(self.history.topics))]
        for consumer in self._consumers:
            consumer.start()

    def stop_consumers(self) -> None:
        for consumer in self._consumers:
            consumer.ending.set()
        for consumer in self._consumers:
            consumer.join(PATIENCE_S)
        self._consumers = []

    def lifetime_of(self, client: zsq.Producer | zsq.Consumer) -> int:
        """Return the lifetime of the data directory whose broker this client has reached last."""
        made: Any = client._made
        place = getattr(made.engine.rotation, "_last", None) if made is not None else None
        return self.lifetimes.get(place.url if place is not None else "", self.lifetime)

    def sent(self, topic: int) -> list[Sent]:
        """Return the last publishes to this topic."""
        found = [sent for producer in self._producers for sent in tuple(producer.sent[topic])]
        return found + [sent for other in self._others for sent in other.publishes(topic)]

    def close(self) -> None:
        """End all clients. What they have not got an answer for stays without one."""
        self._ending.set()
        for producer in self._producers:
            producer.join(PATIENCE_S)
        for other in self._others:
            other.join(PATIENCE_S)
        self.stop_consumers()

    @property
    def is_ending(self) -> bool:
        return self._ending.is_set()

    def wait(self, seconds: float = TICK_S) -> None:
        """Wait for the next turn of a client."""
        self._ending.wait(seconds)

    @property
    def is_idle(self) -> bool:
        """True when a paused load has an answer for everything that it sent."""
        return all(one.is_idle for one in (*self._producers, *self._others))

    @property
    def turns(self) -> int:
        """The number of turns that the slowest producer has made. A turn takes in all answers."""
        return min(producer.turns for producer in self._producers)

    def silent(self, since_s: float) -> list[str]:
        """Return the clients without an answer for what they sent or received after this time."""
        names = [topic.name for topic in self.history.topics]
        found = [
            f"producer {producer.transport} of {name}"
            for producer in self._producers
            for name, at_s in zip(names, producer.answered_s, strict=True)
            if at_s <= since_s
        ]
        return found + [
            f"consumer of {names[consumer.topic]}"
            for consumer in self._consumers
            if consumer.answered_s <= since_s
        ]

    def failed(self, error: Exception, what: str) -> None:
        """Record that a publish failed. It is not known whether it is stored."""
        code = getattr(error, "code", "")
        if code in (E_FENCED, E_STANDBY):  # a broker that was replaced is a standby soon
            self.counts["fenced"] += 1
        elif code == E_BUCKET:
            self.counts["refused"] += 1
        elif not self.is_ending:
            self.history.complain(f"{what} failed: {error!r}")


class LoadThread(threading.Thread):
    """A thread whose errors are complaints."""

    def __init__(self, load: Load, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.load = load

    def run(self) -> None:
        try:
            self.work()
        except Exception:
            if not self.load.is_ending:
                self.load.history.complain(f"{self.name} ended by {traceback.format_exc()}")

    @property
    def is_idle(self) -> bool:
        """True when its load is paused, and it has an answer for everything that it sent."""
        return True

    def publishes(self, topic: int) -> list[Sent]:
        """Return its last publishes to this topic."""
        return []

    def work(self) -> None:
        raise NotImplementedError


class Producing(LoadThread):
    """A producer of all topics. It always has some publishes without an answer."""

    def __init__(self, load: Load, transport: str, chance: random.Random) -> None:
        super().__init__(load, f"producer {transport}")
        topics = len(load.history.topics)
        self.transport = transport
        self.identity = f"{load.url} {transport} {id(self)}"
        self.turns = 0
        self.sent: list[deque[Sent]] = [deque(maxlen=SENT_MAX) for _ in range(topics)]
        self.answered_s = [0.0] * topics  # when the newest answered publish was sent
        self._random = chance
        self._out: list[deque[tuple[Sent, zsq.Receipt]]] = [deque() for _ in range(topics)]
        self._next_s = [0.0] * topics

    @property
    def is_idle(self) -> bool:
        return self.load.pausing.is_set() and not any(self._out)

    def work(self) -> None:
        load = self.load
        producer = zsq.Producer(
            load.url, heartbeat_ms=HEARTBEAT_MS, timeout=PATIENCE_S, transport=self.transport
        )
        try:
            while not load.is_ending:
                for topic in range(len(self._out)):
                    self._take_answers(producer, topic)
                    if not load.pausing.is_set() and self._is_due(topic):
                        self._send(producer, topic)
                self.turns += 1
                load.wait()
        finally:
            with contextlib.suppress(zsq.ZsqError):
                producer.close(CLOSE_S)

    def _is_due(self, topic: int) -> bool:
        return len(self._out[topic]) < WINDOW and time.monotonic() >= self._next_s[topic]

    def _send(self, producer: zsq.Producer, topic: int) -> None:
        history, chance, now = self.load.history, self._random, time.monotonic()
        self._next_s[topic] = now + chance.uniform(0.5, 1.5) * PACE_S
        delay = chance.uniform(0.1, DELAY_S_MAX) if chance.random() < DELAYED_SHARE else None
        count = 1 if delay is not None else chance.randint(1, MESSAGES)
        sent = history.send(count, now, is_delayed=delay is not None, producer=self.identity)
        self.sent[topic].append(sent)
        try:
            receipt = producer.publish_many(
                history.topics[topic].name, history.bodies(sent), delay=delay, wait=False
            )
        except zsq.ZsqError as error:
            self.load.failed(error, f"{self.name}: a publish of {count} messages")
        else:
            self._out[topic].append((sent, receipt))

    def _take_answers(self, producer: zsq.Producer, topic: int) -> None:
        out, load = self._out[topic], self.load
        while out and out[0][1].done:
            sent, receipt = out.popleft()
            if receipt.error is not None:
                load.failed(receipt.error, f"{self.name}: a publish of {sent.count} messages")
                continue
            offset = receipt.offset
            lifetime = load.lifetime_of(producer)
            load.history.acknowledged(
                topic, sent, -1 if offset is None else offset, time.monotonic(), lifetime
            )
            self.answered_s[topic] = max(self.answered_s[topic], sent.sent_s)


class Consuming(LoadThread):
    """The consumer of one topic's channel. It finishes all that it gets."""

    def __init__(self, load: Load, topic: int) -> None:
        super().__init__(load, f"consumer of {load.history.topics[topic].name}")
        self.topic = topic
        self.answered_s = 0.0  # when the newest message with a confirmed finish was received
        self.ending = threading.Event()

    def work(self) -> None:
        name = self.load.history.topics[self.topic].name
        consumer = zsq.Consumer(
            name, CHANNEL, url=self.load.url, ready=READY, heartbeat_ms=HEARTBEAT_MS, timeout=PATIENCE_S
        )  # fmt: skip
        try:
            while not self.load.is_ending and not self.ending.is_set():
                self._take(consumer)
        finally:
            with contextlib.suppress(zsq.ZsqError):
                consumer.close(CLOSE_S)

    def _take(self, consumer: zsq.Consumer) -> None:
        """Receive some batches, finish them, and wait for the confirmation of all."""
        load, received_s, lifetime = self.load, time.monotonic(), -1
        numbers: list[int] = []
        wait_s = RECEIVE_S
        try:
            for _ in range(BATCHES):
                batch = consumer.receive_batch(wait_s)
                if batch is None:
                    break
                lifetime = load.lifetime_of(consumer)
                numbers += [
                    load.history.deliver(self.topic, offset, body or b"", lifetime)
                    for offset, body in zip(batch.offsets, batch.bodies, strict=True)
                ]
                batch.finish()
                wait_s = 0.0
            if numbers:
                consumer.flush()
        except (zsq.LeaseLost, zsq.BrokerUnreachable, zsq.Refused):
            load.counts["finishes in doubt"] += len(numbers)
            return
        if numbers:
            load.history.finish(self.topic, numbers, time.monotonic(), lifetime)
            self.answered_s = received_s
