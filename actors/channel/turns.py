"""Turns of a channel's consumers. No I/O.

The next delivery goes to the consumer with room that has received the fewest messages. Counting
deliveries would be unfair: a delivery ends where its block ends. With blocks of 1,000 messages and
a ready count of 300, one consumer would get 300 messages each time and another one 100. Taking
turns by ready count would be unfair too: a slow stream would go to one consumer until its ready
count is used up, while the others wait. Counting messages spreads a slow stream over all consumers.
A consumer without room leaves the line, and returns with the count that the others have then. So a
consumer without room does not collect turns. A new consumer starts at that count too.
"""

from __future__ import annotations

import heapq

from ..settings import options
from .lease import Peer, Subscriber


def has_room(consumer: Subscriber) -> bool:
    return (
        consumer.ready > consumer.in_flight
        and consumer.bytes_out < options.CONSUMER_BYTES_MAX
        and not consumer.sifts
    )


class Turns:
    """The consumers in the order of their turns.

    `served` is the number of messages that a consumer received. For a later consumer, it is counted
    as if the consumer had subscribed at the beginning.
    """

    def __init__(self) -> None:
        # A heap: served, number of the turn, consumer.
        self._line: list[tuple[int, int, Subscriber]] = []
        self._aside: dict[Peer, Subscriber] = {}
        self._turn = 0
        # The count of the consumer that was served last, before that delivery.
        self._floor = 0

    def join(self, consumer: Subscriber) -> None:
        consumer.served = 0
        self._aside[consumer.peer] = consumer
        self.look(consumer)

    def leave(self, consumer: Subscriber) -> None:
        if self._aside.pop(consumer.peer, None) is None:
            self._line = [entry for entry in self._line if entry[2] is not consumer]
            heapq.heapify(self._line)

    def look(self, consumer: Subscriber) -> None:
        """Put the consumer in line again if it has room."""
        if has_room(consumer) and self._aside.pop(consumer.peer, None) is not None:
            consumer.served = max(consumer.served, self._floor)
            self._push(consumer)

    def first(self, share: int = 0) -> Subscriber | None:
        """Return the next consumer, or None if no consumer has room.

        This consumer stays first until `served` is called. With a `share`, consumers that hold
        fewer messages than `share` come first.
        """
        while self._line:
            consumer = self._line[0][2]
            if has_room(consumer):
                return self._below(share) or consumer
            heapq.heappop(self._line)
            self._aside[consumer.peer] = consumer
        return None

    def _below(self, share: int) -> Subscriber | None:
        if not share or self._line[0][2].in_flight < share:
            return None
        return min(
            (entry for entry in self._line if entry[2].in_flight < share and has_room(entry[2])),
            default=(0, 0, None),
        )[2]

    def served(self, consumer: Subscriber, count: int) -> None:
        """Note that the consumer received `count` messages."""
        if self._line[0][2] is consumer:
            heapq.heappop(self._line)
        else:
            self._line = [entry for entry in self._line if entry[2] is not consumer]
            heapq.heapify(self._line)
        self._floor = max(self._floor, consumer.served)
        consumer.served += count
        self._push(consumer)

    def _push(self, consumer: Subscriber) -> None:
        self._turn += 1
        heapq.heappush(self._line, (consumer.served, self._turn, consumer))
