"""Held endings: messages that a consumer holds, and that end before a handler begins them. No I/O.

A message that expires or is cancelled while it waits here must not be begun. The consumer gives it
back, and the channel gives it up: it counts the message, or makes it a dead letter. So there is one
place that decides what happens to it. A message that was begun stays with its handler.

The channel says how long the messages live when it sends them, and that time is measured by this
machine's monotonic clock. The way to the consumer takes some time, so the channel agrees with what
comes back.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final

from ...units import NS_PER_MS
from ...wire.lifetime import revoke_keys
from ...wire.protocol import Cancelled, Run
from ..link.timeouts import FAR_NS
from .consumer_session import LeasedBlock

NO_INDEXES: Final = frozenset[int]()


class Expiring:
    """The messages of one session that expire, by the time when they do."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, LeasedBlock, int, int]] = []
        self._number = 0

    def add(self, delivery: LeasedBlock, rows: Sequence[Run]) -> None:
        """Note the messages of a delivery: rows (index, count, milliseconds)."""
        for index, count, left_ms in rows:
            self._number += 1
            due_ns = delivery.received_ns + left_ms * NS_PER_MS
            heapq.heappush(self._heap, (due_ns, self._number, delivery, index, count))

    @property
    def next_ns(self) -> int:
        """When the next message expires, or FAR_NS."""
        return self._heap[0][0] if self._heap else FAR_NS

    def due(self, now_ns: int) -> list[tuple[LeasedBlock, list[int]]]:
        """Return the messages that have expired, by delivery. They may be begun or answered."""
        found: list[tuple[LeasedBlock, list[int]]] = []
        while self._heap and self._heap[0][0] <= now_ns:
            _, _, delivery, index, count = heapq.heappop(self._heap)
            if delivery.live and not delivery.closed:
                found.append((delivery, list(range(index, index + count))))
        return found


def cancelled_in(delivery: LeasedBlock, message: Cancelled) -> list[int]:
    """Return the indexes of the messages of a delivery that the channel has cancelled."""
    ranges, keys = message.ranges, frozenset(message.keys)
    by_key = revoke_keys(delivery.block) if keys else []
    found: list[int] = []
    index = 0
    for first, count, _ in delivery.runs:
        for offset in range(first, first + count):
            if (by_key and by_key[index] in keys and offset < message.end) or any(
                start <= offset < start + size for start, size in ranges
            ):
                found.append(index)
            index += 1
    return found
