"""The consuming clients of the torture: they finish batches and single messages, requeue, touch,
and leave some without an answer until the lease ends.
"""

from __future__ import annotations

import random
import time
from collections import deque

from support.torture import ledger as l
from support.torture.ledger import Ledger
from support.torture.producing import HEARTBEAT_MS, PATIENCE_S

import zsq

READY = 1_500
MESSAGE_TIMEOUT_S = 3.0
LATE_S = MESSAGE_TIMEOUT_S + 0.7
FLUSH_BATCHES = 8
FLUSH_S = 0.15
REQUEUED_EVERY = 97  # one of this many messages is requeued at its first delivery


class Consuming:
    """One consumer of one channel, in a separate thread."""

    def __init__(self, ledger: Ledger, channel: int, number: int, url: str, seed: int) -> None:
        self.ledger = ledger
        self.channel = channel
        self.number = number
        self.row = ledger.shape.row_of_consumer(channel, number)
        self.random = random.Random(seed)
        topic, name = ledger.shape.channels[channel]
        self.consumer = zsq.Consumer(
            ledger.shape.topics[topic], name, url=url, ready=READY, message_timeout=MESSAGE_TIMEOUT_S,
            heartbeat_ms=HEARTBEAT_MS, timeout=PATIENCE_S, ordered=channel == ledger.shape.ordered,
        )  # fmt: skip
        self.unconfirmed: list[int] = []
        self.batches = 0
        self.epoch = 0  # epoch of the oldest batch that is not confirmed
        # Batches that this client will finish after their leases have ended.
        self.late: deque[tuple[float, zsq.Batch, list[int]]] = deque()
        self.flushed_s = time.monotonic()
        ledger.words[self.row + l.SETTLED] = ledger.words[self.row + l.TOLD]

    def run(self) -> None:
        words = self.ledger.words
        while not words[l.STOP]:
            epoch = words[l.EPOCH]
            batch = self.consumer.receive_batch(0.05)
            if batch is not None:
                if not self.batches:
                    self.epoch = epoch
                self.take(batch)
            if self.batches >= FLUSH_BATCHES or (
                self.batches and time.monotonic() - self.flushed_s > FLUSH_S
            ):
                self.flush()
            if self.late and time.monotonic() > self.late[0][0]:
                self._finish_late(*self.late.popleft()[1:])
        self.consumer.close(10)

    def take(self, batch: zsq.Batch) -> None:
        ledger = self.ledger
        numbers, gone = ledger.got(self.channel, self.number, batch.delivery.runs, batch.bodies)
        left = dict(enumerate(numbers))
        messages = batch.messages() if gone or self.random.random() < 0.2 else []
        for index in gone:
            self._must_be_refused(messages[index], left.pop(index))
        chance = self.random.random()
        if chance < 0.004:
            return  # no answer: the leases will end, and the messages are delivered again
        if chance < 0.01 and not gone:
            self.late.append((time.monotonic() + LATE_S, batch, numbers))
            return
        if chance < 0.03:
            batch.touch()
        for message in messages:
            index = message._index
            if index in left and message.attempts == 1 and left[index] % REQUEUED_EVERY == 5:
                del left[index]
                message.requeue(self.random.choice((0.0, 0.0, 0.05, 0.6)))
        told = [number for number in left.values() if number >= 0]
        ledger.told(self.channel, told)
        ledger.words[self.row + l.TOLD] += len(told)
        self.unconfirmed += told
        self.batches += 1
        if 0.1 < chance < 0.15 and messages:
            for message in messages:
                if not message.answered and message._index in left:
                    message.finish()
        else:
            batch.finish()

    def _must_be_refused(self, message: zsq.Message, number: int) -> None:
        """Finish a message that the broker must not accept: another consumer's finish was
        confirmed, or another consumer holds the message's predecessor.
        """
        self.ledger.words[self.row + l.STALE] += 1
        try:
            message.finish(sync=True)
        except (zsq.LeaseLost, zsq.BrokerUnreachable):
            return
        name = self.ledger.shape.channels[self.channel][1]
        why = "after its finish was confirmed, or before its predecessor was finished"
        self.ledger.complain(
            f"{name}: {number} (attempt {message.attempts}) came under a lease {why}"
        )

    def _finish_late(self, batch: zsq.Batch, numbers: list[int]) -> None:
        """Finish a batch whose lease has ended. The broker must refuse this finish. If the broker
        confirms it, the check fails, because the messages are delivered again.
        """
        self.flush()
        self.unconfirmed = numbers
        self.ledger.told(self.channel, numbers)
        self.ledger.words[self.row + l.TOLD] += len(numbers)
        batch.finish()
        self.flush()

    def flush(self) -> None:
        ledger, words = self.ledger, self.ledger.words
        try:
            self.consumer.flush()
        except (zsq.LeaseLost, zsq.BrokerUnreachable):
            words[self.row + l.DOUBTED] += len(self.unconfirmed)
        else:
            ledger.confirmed(self.channel, self.number, self.unconfirmed)
            words[self.row + l.CONFIRMED] += len(self.unconfirmed)
            words[self.row + l.EPOCHS] = self.epoch
        words[self.row + l.SETTLED] += len(self.unconfirmed)
        self.unconfirmed = []
        self.batches = 0
        self.flushed_s = time.monotonic()
