"""The clients of the soak: threads that publish and consume, and record in the ledger what they ask
and what the broker answers.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from support.soak.ledger import Channel, Ledger, Topic, body_of

import zsq

# Seconds that a client waits for the broker: a restart must not end the client.
PATIENCE_S: Final = 180.0
HEARTBEAT_MS: Final = 1_000
MESSAGE_TIMEOUT_S: Final = 3.0
READY: Final = 400
FLUSH_S: Final = 0.3
WINDOW: Final = 4  # the most publishes of a producer without an answer
BLOCK: Final = 60  # the most messages of one publish
PACE_S: Final = 0.2  # seconds between two publishes of a producer, on average
DELAYED_SHARE: Final = 0.15
LONG_SHARE: Final = 0.02
REQUEUED_EVERY: Final = 97
# One of this many messages is rejected, in a channel with dead letters.
REJECTED_EVERY: Final = 211
# In such a channel, one of this many messages is never finished, and uses up its attempts.
POISON_EVERY: Final = 307


class Worker(threading.Thread):
    """A thread that reports its failure to the ledger as a complaint. A worker that can be paused
    sets `idle` when none of its requests is unanswered.
    """

    def __init__(self, ledger: Ledger, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.ledger = ledger
        self.ending = threading.Event()
        self.pause = threading.Event()
        self.idle = threading.Event()

    def run(self) -> None:
        try:
            self.work()
        except BaseException:
            self.ledger.complain(f"{self.name} ended by {traceback.format_exc()}")

    def work(self) -> None:
        raise NotImplementedError


class Publishing(Worker):
    """A producer: it publishes blocks, single messages and delayed messages to the permanent
    topics, without waiting for each answer.
    """

    def __init__(
        self, ledger: Ledger, name: str, url: str, topics: Sequence[Topic], seed: int, pace_s: float
    ) -> None:
        super().__init__(ledger, name)
        self.topics = topics
        self.random = random.Random(seed)
        self.pace_s = pace_s
        self.url = url
        # (topic, number, key, due time) of each delayed message that may be cancelled.
        self.keys: deque[tuple[Topic, int, str, int]] = deque(maxlen=4_000)
        self._out: deque[tuple[Topic, range, int, zsq.Receipt]] = deque()

    def work(self) -> None:
        with zsq.Producer(self.url, timeout=PATIENCE_S, heartbeat_ms=HEARTBEAT_MS) as producer:
            while not self.ending.is_set():
                self._reap()
                if self.pause.is_set():
                    if not self._out:
                        self.idle.set()
                elif len(self._out) < WINDOW:
                    self.idle.clear()
                    self._send(producer)
                self.ending.wait(self.random.uniform(0.5, 1.5) * self.pace_s)
            producer.flush(PATIENCE_S)
            self._reap()

    def _send(self, producer: zsq.Producer) -> None:
        chance = self.random.random()
        topic = self.random.choice(self.topics)
        count = 1 if self.random.random() < 0.1 else self.random.randint(2, BLOCK)
        delay = None
        if chance < DELAYED_SHARE:
            delay = (
                self.random.uniform(60, 600) if chance < LONG_SHARE else self.random.uniform(0.1, 8)
            )
        due_ns = 0 if delay is None else time.time_ns() + int(delay * 1000) * 1_000_000
        numbers = self.ledger.sent(topic, count, due_ns)
        bodies = [
            body_of(number, self.random.randrange(1 << self.random.randrange(5, 11)))
            for number in numbers
        ]
        keys = [f"key-{number % 50}" for number in numbers]
        receipt = producer.publish_many(topic.name, bodies, keys=keys, delay=delay, wait=False)
        self._out.append((topic, numbers, due_ns, receipt))

    def _reap(self) -> None:
        while self._out and self._out[0][3].done:
            topic, numbers, due_ns, receipt = self._out.popleft()
            if receipt.error is not None:
                self.ledger.complain(
                    f"a publish of {len(numbers)} messages to {topic.name} failed: {receipt.error}"
                )
                continue
            if not due_ns:
                self.ledger.acknowledged(numbers, receipt.wait())
                continue
            self.ledger.acknowledged(numbers)
            names = receipt.delayed_keys()
            if len(names) == len(numbers) and due_ns - time.time_ns() > 2_000_000_000:
                self.keys.extend(
                    (topic, number, name, due_ns)
                    for number, name in zip(numbers, names, strict=True)
                )


class Consuming(Worker):
    """One consumer of one channel. It finishes, requeues, rejects and touches messages, and leaves
    some without an answer.
    """

    def __init__(
        self,
        ledger: Ledger,
        channel: Channel,
        number: int,
        url: str,
        seed: int,
        dying: bool,
        ordered: bool,
    ) -> None:
        super().__init__(ledger, f"consumer {number} of {channel.topic.name}/{channel.name}")
        self.channel = channel
        self.number = number
        self.random = random.Random(seed)
        self.dying = dying
        self.url = url
        self.ordered = ordered
        # If set, the consumer subscribes again, and keeps nothing of the old subscription.
        self.renew = threading.Event()
        self.unconfirmed: list[int] = []
        self._flushed_s = time.monotonic()

    def _new(self) -> zsq.Consumer:
        return zsq.Consumer(
            self.channel.topic.name, self.channel.name, url=self.url, ready=READY, message_timeout=MESSAGE_TIMEOUT_S,
            heartbeat_ms=HEARTBEAT_MS, timeout=PATIENCE_S, ordered=self.ordered,
        )  # fmt: skip

    def work(self) -> None:
        consumer = self._new()
        while not self.ending.is_set():
            if self.renew.is_set():
                self._close(consumer)
                consumer = self._new()
                consumer.subscribe(PATIENCE_S)
                self.renew.clear()
            batch = consumer.receive_batch(0.2)
            if batch is not None:
                self._take(batch)
            if self.unconfirmed and time.monotonic() - self._flushed_s > FLUSH_S:
                self._settle(consumer.flush)
        self._close(consumer)

    def _take(self, batch: zsq.Batch) -> None:
        ledger, chance = self.ledger, self.random.random()
        messages = batch.messages()
        mine = []
        for message in messages:
            if ledger.got(
                self.channel, self.number, message.offset, message.attempts, message.body
            ):
                mine.append(message)
            else:
                self._must_be_refused(message)
        if chance < 0.01:
            return  # no answer: the leases will end, and the messages are delivered again
        if chance < 0.05:
            batch.touch()
        finished = []
        for message in mine:
            number = int(message.body[:12])
            if self.dying and number % POISON_EVERY == 1:
                message.requeue(0.0, error="poison")
            elif self.dying and number % REJECTED_EVERY == 2:
                message.reject("rejected by the soak")
            elif message.attempts == 1 and number % REQUEUED_EVERY == 3:
                message.requeue(self.random.choice((0.0, 0.05, 0.8)))
            else:
                finished.append(message)
        ledger.told(self.channel, offsets := [message.offset for message in finished])
        self.unconfirmed += offsets
        for message in finished:
            message.finish()

    def _must_be_refused(self, message: zsq.Message) -> None:
        """Finish a message although another consumer's finish of it was confirmed. The broker must
        refuse.
        """
        try:
            message.finish(sync=True)
        except (zsq.LeaseLost, zsq.BrokerUnreachable):
            return
        if not self.channel.turbulent:
            text = f"{self.name}: offset {message.offset} (attempt {message.attempts})"
            self.ledger.complain(f"{text} was under a lease after another finish was confirmed")

    def _settle(self, settle: Callable[[], object]) -> None:
        """Wait until the finishes are confirmed. If it is unknown whether they took effect, they
        stay recorded as sent, and their messages may be delivered again.
        """
        offsets, self.unconfirmed = self.unconfirmed, []
        try:
            settle()
        except (zsq.LeaseLost, zsq.BrokerUnreachable):
            self.ledger.counts["finishes in doubt"] += len(offsets)
        else:
            self.ledger.confirmed(self.channel, self.number, offsets)
        self._flushed_s = time.monotonic()

    def _close(self, consumer: zsq.Consumer) -> None:
        with contextlib.suppress(zsq.LeaseLost, zsq.BrokerUnreachable, zsq.NotFound):
            # Do this here, because `close` would only log which finishes were lost with an earlier
            # connection.
            self._settle(consumer.flush)
        with contextlib.suppress(zsq.LeaseLost, zsq.BrokerUnreachable, zsq.NotFound):
            consumer.close(PATIENCE_S)


class Group:
    """The consumers of one channel, one for each URL."""

    def __init__(
        self,
        ledger: Ledger,
        channel: Channel,
        urls: Sequence[str],
        seed: int,
        *,
        dying: bool = False,
        ordered: bool = False,
    ) -> None:
        self.ledger, self.channel, self.urls, self.seed = ledger, channel, urls, seed
        self.dying, self.ordered = dying, ordered
        self.members: list[Consuming] = []

    def start(self) -> None:
        self.members = [
            Consuming(
                self.ledger, self.channel, number, url, self.seed + number, self.dying, self.ordered
            )
            for number, url in enumerate(self.urls)
        ]
        for member in self.members:
            member.start()

    def stop(self) -> None:
        """Close all consumers. The messages that they hold are given back to the channel."""
        for member in self.members:
            member.ending.set()
        for member in self.members:
            member.join(PATIENCE_S)
            if member.is_alive():
                raise AssertionError(f"{member.name} did not end within {PATIENCE_S:g} s")
        self.members = []

    def renew(self) -> None:
        """Make each consumer subscribe again, and return when all have done so."""
        for member in self.members:
            member.renew.set()
        deadline = time.monotonic() + PATIENCE_S
        while any(member.renew.is_set() and member.is_alive() for member in self.members):
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"the consumers of {self.channel.name} did not subscribe again within "
                    f"{PATIENCE_S:g} s"
                )
            threading.Event().wait(0.02)

    @property
    def idle(self) -> bool:
        return not any(member.unconfirmed for member in self.members)
