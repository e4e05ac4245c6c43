"""Held endings: messages that a consumer holds, and that its channel ends. No I/O.

A message that expires or is cancelled while it waits here must not be begun. The channel says which
these are. A clock of the consumer was rejected: a delivery may wait unread in the connection while
the program works, so nobody here knows when it was sent.
"""

from __future__ import annotations

from ...wire.lifetime import revoke_keys
from ...wire.protocol import Cancelled
from .consumer_session import LeasedBlock


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
