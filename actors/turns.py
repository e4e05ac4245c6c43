"""Whose turn it is among a channel's consumers: that of those with room who got the fewest messages. Pure.

Turns by deliveries would not be fair: a delivery ends where its block ends, so with blocks of 1,000 and a credit of 300 one consumer would
get 300 each time and another one 100. Turns by credit would not be, either: what trickles in would lie with one of them until its credit is
used up, while the others wait. So messages count, and of few messages each goes to another consumer.

Who has no room stands aside, and comes back where the others are then: nobody saves up turns. A newcomer begins there too.
"""

from __future__ import annotations

import heapq

from . import options
from .lease import Consumer, Peer


def has_room(consumer: Consumer) -> bool:
    return consumer.ready > consumer.in_flight and consumer.bytes_out < options.CONSUMER_BYTES_MAX


class Turns:
    """Consumers by what they got: `served` is that, as if they all had been here from the beginning."""

    def __init__(self) -> None:
        self._line: list[tuple[int, int, Consumer]] = []  # a heap: served, number of the turn, who
        self._aside: dict[Peer, Consumer] = {}
        self._turn = 0
        self._floor = 0  # what the one served last had before

    def join(self, consumer: Consumer) -> None:
        consumer.served = 0
        self._aside[consumer.peer] = consumer
        self.look(consumer)

    def leave(self, consumer: Consumer) -> None:
        if self._aside.pop(consumer.peer, None) is None:
            self._line = [entry for entry in self._line if entry[2] is not consumer]
            heapq.heapify(self._line)

    def look(self, consumer: Consumer) -> None:
        """It may have room again."""
        if has_room(consumer) and self._aside.pop(consumer.peer, None) is not None:
            consumer.served = max(consumer.served, self._floor)
            self._push(consumer)

    def first(self, share: int = 0) -> Consumer | None:
        """Who is next; None: nobody has room. It stays where it is until `served`. `share`: those that hold fewer come first."""
        while self._line:
            consumer = self._line[0][2]
            if has_room(consumer):
                return self._below(share) or consumer
            heapq.heappop(self._line)
            self._aside[consumer.peer] = consumer
        return None

    def _below(self, share: int) -> Consumer | None:
        if not share or self._line[0][2].in_flight < share:
            return None
        return min((entry for entry in self._line if entry[2].in_flight < share and has_room(entry[2])), default=(0, 0, None))[2]

    def served(self, consumer: Consumer, count: int) -> None:
        """It got so many."""
        if self._line[0][2] is consumer:
            heapq.heappop(self._line)
        else:
            self._line = [entry for entry in self._line if entry[2] is not consumer]
            heapq.heapify(self._line)
        self._floor = max(self._floor, consumer.served)
        consumer.served += count
        self._push(consumer)

    def _push(self, consumer: Consumer) -> None:
        self._turn += 1
        heapq.heappush(self._line, (consumer.served, self._turn, consumer))
