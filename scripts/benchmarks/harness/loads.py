"""Clients to measure. They use only the public Producer and Consumer, and messages that differ."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from zsq.transport.client.blocking.client import Consumer, Producer, Receipt

BODIES_MAX: Final = 100_000  # the number of different bodies; after these they repeat
# The limit of bytes in unanswered blocks; the client's own window is smaller.
WINDOW_BYTES: Final = 32 << 20
WAIT_S: Final = 120.0

Start = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Shape:
    """The load of one round: number of messages, bytes of a body, and messages in a block.

    `single` means one call for each message.
    """

    messages: int
    size: int
    block: int
    single: bool = False

    @property
    def blocks(self) -> int:
        return -(-self.messages // self.block)

    @property
    def bytes(self) -> int:
        """The bytes of all bodies."""
        return self.messages * self.size


def make_bodies(shape: Shape) -> list[bytes]:
    """Return bodies that differ from each other and cannot be compressed."""
    padding = max(0, shape.size - 16)
    noise = os.urandom(padding + (1 << 16))
    return [
        (
            b"%0*d" % (min(16, shape.size), number)
            + noise[(start := number * 7919 % (len(noise) - padding)) : start + padding]
        )[: shape.size]
        for number in range(min(shape.messages, BODIES_MAX))
    ]


def publish(start: Start, url: str, topic: str, shape: Shape) -> float:
    """Publish all messages. Return the time at which the last block was known to be durable."""
    bodies = make_bodies(shape)
    with Producer(url, linger_ms=2.0 if shape.single else 0.0, batch_count=shape.block) as producer:
        producer.publish_many(topic, [b"warm"]).wait(WAIT_S)
        start()
        if shape.single:
            _publish_singles(producer, topic, bodies, shape)
        else:
            _publish_blocks(producer, topic, bodies, shape)
        return time.monotonic()


def _publish_blocks(producer: Producer, topic: str, bodies: list[bytes], shape: Shape) -> None:
    receipts: deque[Receipt] = deque()
    out_max = max(2, WINDOW_BYTES // (shape.block * (shape.size + 8)))
    at = 0
    left = shape.messages
    while left:
        count = min(shape.block, left, len(bodies) - at)
        receipts.append(producer.publish_many(topic, bodies[at : at + count], wait=False))
        at = (at + count) % len(bodies)
        left -= count
        if len(receipts) > out_max:
            receipts.popleft().wait(WAIT_S)
    for receipt in receipts:
        receipt.wait(WAIT_S)


def _publish_singles(producer: Producer, topic: str, bodies: list[bytes], shape: Shape) -> None:
    publish_one = producer.publish
    for number in range(shape.messages):
        publish_one(topic, bodies[number % len(bodies)])
    producer.flush(WAIT_S)


def consume(start: Start, url: str, topic: str, channel: str, shape: Shape, expected: int) -> float:
    """Unpack and finish `expected` messages. Return the time when the last finish was committed.

    Raises `ValueError` if bodies are wrong or messages are missing.
    """
    with Consumer(
        topic, channel, url=url, ready=max(20_000, 4 * shape.block) if not shape.single else 5_000
    ) as consumer:
        start()
        seen = 0
        total = 0
        deadline = time.monotonic() + WAIT_S
        while seen < expected:
            batch = consumer.receive_batch(timeout=1.0)
            if batch is None:
                if time.monotonic() > deadline:
                    raise ValueError(
                        f"{seen:,} of {expected:,} messages arrived within {WAIT_S:.0f} s"
                    )
                continue
            if shape.single:
                for message in batch.messages():
                    total += len(message.body)
                    message.finish()
            else:
                total += sum(map(len, batch.bodies))
                batch.finish()
            seen += len(batch)
        consumer.flush()
        end = time.monotonic()
    if total != shape.bytes + (expected - shape.messages) * len(b"warm"):
        raise ValueError(
            f"the {expected:,} messages have {total:,} bytes in all, which is not what was "
            "published"
        )
    return end


def drain(start: Start, url: str, topic: str, channel: str, count: int) -> float:
    """Finish at least `count` messages. Return the time when that is done."""
    seen = 0
    deadline = time.monotonic() + WAIT_S
    with Consumer(topic, channel, url=url, ready=20_000) as consumer:
        start()
        while seen < count and time.monotonic() < deadline:
            batch = consumer.receive_batch(timeout=1.0)
            if batch is not None:
                seen += len(batch)
                batch.finish()
        consumer.flush()
    if seen < count:
        raise ValueError(f"{seen:,} of {count:,} messages arrived within {WAIT_S:.0f} s")
    return time.monotonic()
