"""Clients of `--bucket` that work while the broker is lost: a publisher, and delayed messages.

Both note what the broker acknowledged. The final check compares these notes with the topics.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from zsq.transport.client.blocking.client import Consumer, Producer, Receipt
from zsq.transport.errors import E_BUCKET, Refused, ZsqError
from zsq.transport.wire.spread import KeyParts

from . import work
from .flights import carrier_of, origin_of

BLOCK: Final = 50
PAUSE_S: Final = 0.05
CALL_S: Final = 120.0
END_WAIT_S: Final = 3.0
POLL_S: Final = 0.2
REMINDERS: Final = 10
FIRST_DELAY_S: Final = 30.0
MORE_DELAY_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Rows that the broker acknowledged: where they are, and the time.

    They follow each other from the offset on. `part` is -1 if the topic has no parts.
    """

    rows: Sequence[int]
    offset: int
    time_s: float
    part: int = -1


class LivePublisher(threading.Thread):
    """Publishes rows of the CSV in small blocks, one after the other.

    If the broker refuses a block because the bucket is behind, the block is published again, as any
    client must do. `hurry` ends the pauses between the blocks. The last quarter waits for it, so
    that there is always something left to publish after the loss.
    """

    def __init__(self, url: str, bodies: Sequence[bytes], first: int) -> None:
        super().__init__(name="live", daemon=True)
        self.acknowledged: list[Acknowledged] = []
        self.refused = 0
        self.error: Exception | None = None
        self._url = url
        self._bodies = bodies
        self._first = first
        self._hurry = threading.Event()
        self._over = threading.Event()

    def run(self) -> None:
        try:
            with Producer(self._url, timeout=CALL_S) as producer:
                end = len(self._bodies)
                held = end - (end - self._first) // 4
                for row in range(self._first, end, BLOCK):
                    self._hurry.wait(PAUSE_S if row < held else None)
                    self._publish(producer, row)
        except ZsqError as error:
            self.error = error

    def _publish(self, producer: Producer, row: int) -> None:
        """Publish a block. What is refused is published again, and nothing else."""
        left: Sequence[int] = range(row, min(row + BLOCK, len(self._bodies)))
        while left and not self._over.is_set():
            rows = [work.row_of(self._bodies[number]) for number in left]
            keys, tags = [carrier_of(one) for one in rows], [origin_of(one) for one in rows]
            bodies = [self._bodies[number] for number in left]
            receipt = producer.publish_many(work.TOPIC, bodies, keys=keys, tags=tags, wait=False)
            try:
                receipt.wait()
            except Refused as error:
                if error.code != E_BUCKET:
                    raise
                self.refused += 1
                self._over.wait(POLL_S)
            left = self._note(left, keys, receipt)

    def _note(self, rows: Sequence[int], keys: Sequence[bytes], receipt: Receipt) -> list[int]:
        """Note where rows are, and return the others.

        A part has its rows in the order in which they were given.
        """
        now_s, left = time.monotonic(), list(rows)
        if not receipt.places:
            for offset, _ in receipt.ranges:
                self.acknowledged.append(Acknowledged(rows, offset, now_s))
                left = []
        parts = KeyParts(work.PARTS)
        for part, offset, count in receipt.places:
            mine = [row for row, key in zip(rows, keys, strict=True) if parts.of(key) == part]
            assert len(mine) == count
            self.acknowledged.append(Acknowledged(mine, offset, now_s, part))
            left = [row for row in left if row not in mine]
        return left

    @property
    def rows(self) -> int:
        """The number of acknowledged rows."""
        return sum(len(block.rows) for block in list(self.acknowledged))

    @property
    def is_done(self) -> bool:
        """True when it has published all its rows, or failed."""
        return self.ident is not None and not self.is_alive()

    def hurry(self) -> None:
        self._hurry.set()

    def stop(self) -> None:
        self._over.set()
        self._hurry.set()
        self.join(END_WAIT_S)


class Reminders(threading.Thread):
    """Delayed messages: `publish` sends them, and this thread consumes them when they are due."""

    def __init__(self, url: str, bodies: Sequence[bytes]) -> None:
        super().__init__(name="reminders", daemon=True)
        self.due_ns: dict[bytes, int] = {}
        self.keys: set[str] = set()
        self.came: list[tuple[bytes, int]] = []
        self.error: Exception | None = None
        self._url = url
        self._bodies = bodies[:REMINDERS]
        self._over = threading.Event()

    def publish(self) -> None:
        """Publish the messages. They are acknowledged when this returns."""
        with Producer(self._url, timeout=CALL_S) as producer:
            for index, body in enumerate(self._bodies):
                delay = FIRST_DELAY_S + index * MORE_DELAY_S
                key = producer.publish(work.REMINDERS, body, delay=delay).delayed_key
                assert key is not None
                self.keys.add(key)
                self.due_ns[body] = due_ns_of(key)

    def run(self) -> None:
        try:
            with Consumer(work.REMINDERS, work.DESK, url=self._url, label="reminders") as consumer:
                while not self._over.is_set():
                    if (message := consumer.receive(timeout=POLL_S)) is not None:
                        self.came.append((message.body, time.time_ns()))
                        message.finish()
        except ZsqError as error:
            self.error = error

    @property
    def is_done(self) -> bool:
        """True when as many messages have come as were published."""
        return 0 < len(self.due_ns) <= len(self.came)

    @property
    def good(self) -> bool:
        """True if each message came exactly once, and none before it was due."""
        bodies = sorted(body for body, _ in self.came)
        return bodies == sorted(self.due_ns) and all(
            at_ns >= self.due_ns[body] for body, at_ns in self.came
        )

    def stop(self) -> None:
        self._over.set()
        self.join(END_WAIT_S)


def due_ns_of(key: str) -> int:
    """Return the time at which a delayed message is due. It is in the message's key."""
    return int(key[:16], 16)
