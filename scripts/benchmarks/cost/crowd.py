"""Many consumers or topics in few processes, as threads of the public clients.

With a process for each client (up to 64), the load of the clients would hide that of the broker.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from typing import Final

from zsq.transport.client.blocking.client import Consumer, Producer, Receipt

from ..harness.loads import WAIT_S, WINDOW_BYTES, Shape, Start, make_bodies

PROCESSES_MAX: Final = 2
# After this many seconds without a message, all messages count as delivered. Pauses in deliveries
# are far shorter.
IDLE_S: Final = 3.0
READY_ALL: Final = 40_000  # messages that all consumers of a channel together may hold
Place = tuple[str, str]


def shares(count: int) -> list[int]:
    """Return how many clients each process gets."""
    processes = min(PROCESSES_MAX, count)
    return [count // processes + (index < count % processes) for index in range(processes)]


def consume_all(
    start: Start, url: str, places: list[Place], ready: int, expected: int
) -> tuple[int, float]:
    """Run a consumer at each place (topic, channel).

    They end when they have `expected` messages together or no message arrives. Return the number of
    messages, and the time of the last one.
    """
    seen = [0] * len(places)
    ends = [0.0] * len(places)
    failures: list[BaseException] = []
    together = threading.Barrier(len(places) + 1, timeout=60)

    def one(index: int, topic: str, channel: str) -> None:
        with Consumer(topic, channel, url=url, ready=ready) as consumer:
            together.wait()
            deadline = time.monotonic() + WAIT_S
            last = time.monotonic() + IDLE_S  # the first message may take longer
            while time.monotonic() < deadline and sum(seen) < expected:
                batch = consumer.receive_batch(timeout=0.1)
                if batch is not None:
                    seen[index] += len(batch)
                    batch.finish()
                    last = ends[index] = time.monotonic()
                elif time.monotonic() - last > IDLE_S:
                    break
            consumer.flush()

    def kept(index: int, topic: str, channel: str) -> None:
        try:
            one(index, topic, channel)
        except BaseException as error:
            failures.append(error)
            together.abort()

    threads = [
        threading.Thread(target=kept, args=(index, *place), daemon=True)
        for index, place in enumerate(places)
    ]
    for thread in threads:
        thread.start()
    start()
    with contextlib.suppress(threading.BrokenBarrierError):
        together.wait()
    for thread in threads:
        thread.join(WAIT_S)
    if failures:
        raise failures[0]  # the other threads may fail later because of the broken barrier
    return sum(seen), max(ends)


def publish_to(start: Start, url: str, topics: list[str], shape: Shape) -> float:
    """Publish blocks to the topics in turn.

    Return the time when the last block was known to be durable.
    """
    bodies = make_bodies(Shape(shape.block, shape.size, shape.block))
    out_max = max(2, WINDOW_BYTES // (shape.block * (shape.size + 8)))
    receipts: deque[Receipt] = deque()
    with Producer(url) as producer:
        for topic in topics:
            producer.publish_many(topic, bodies[:1])
        start()
        for number in range(shape.blocks):
            receipts.append(producer.publish_many(topics[number % len(topics)], bodies, wait=False))
            if len(receipts) > out_max:
                receipts.popleft().wait(WAIT_S)
        for receipt in receipts:
            receipt.wait(WAIT_S)
        return time.monotonic()
