"""Topic credit: how many messages a consumer may hold of each of its topics. No I/O.

A topic without messages uses no credit. So each topic has a *demand*. It is one message for an idle
topic, which is enough to see that it has messages. It doubles each time that the topic holds as
many messages as it may, and halves while it does not. The topics with the largest demands share
what the others leave. If all topics had equal shares, a consumer of one busy topic among 50 idle
ones would wait for the broker after each few messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .prefetch import READY_MOST

READY_IDLE: Final = 1
# With the largest window, a consumer holds at least so many messages of each part of a topic, and
# of each topic. With fewer, the broker would cut blocks of 1,000 messages, which costs more than to
# deliver them.
READY_OF_PART: Final = 1_000
READY_OF_TOPICS: Final = 4 * READY_MOST  # the most that this may be for all topics together


def share_of(ready: int, count: int) -> int:
    """Return how many messages a consumer may hold of each part of a topic with `count` parts."""
    if not ready:
        return 0
    share = max(1, ready // count)
    return max(share, READY_OF_PART) if ready == READY_MOST else share


def divide(ready: int, demands: Sequence[int], held: Sequence[int]) -> list[int]:
    """Return how many messages a consumer may hold of each topic.

    `held` is how many it holds now. What a topic holds above its credit is taken from the credit of
    all until it is answered, so that the sum stays near `ready`. Each topic gets at least one
    message.
    """
    if not ready:
        return [0] * len(demands)
    pool = ready
    if ready == READY_MOST:
        busy = sum(demand > READY_IDLE for demand in demands)
        pool = max(ready, min(READY_OF_TOPICS, READY_OF_PART * busy))
    level = _level(pool, demands)
    above = sum(max(0, count - level) for count in held)
    if above:
        level = _level(pool - above, demands)
    return [max(READY_IDLE, min(demand, level)) for demand in demands]


def _level(pool: int, demands: Sequence[int]) -> int:
    """Return the largest credit with which all demands together take not more than `pool`."""
    left = pool
    for number, demand in enumerate(sorted(demands)):
        share = left // (len(demands) - number)
        if demand > share:
            return share
        left -= demand
    return pool
