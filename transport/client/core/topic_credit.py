"""Topic credit: how many messages a consumer may hold of each of its topics. No I/O.

A topic without messages uses no credit. So an idle topic gets READY_IDLE, which is enough to see
that it has messages, and the busy ones share the rest equally. If all topics had equal shares, a
consumer of one busy topic among 50 idle ones would wait for the broker after each few messages.
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


def share_of_topic(ready: int, unanswered: Sequence[int]) -> int:
    """Return how many messages a consumer may hold of each busy topic.

    `unanswered` has the number of messages that it holds now, for each of them. What a topic holds
    above its share is taken from all shares until it is answered, so that the sum stays below
    `ready`. Each topic gets at least one message.
    """
    if not ready:
        return 0
    count = max(1, len(unanswered))
    share = ready // count
    if ready == READY_MOST:
        share = max(share, min(READY_OF_PART, READY_OF_TOPICS // count))
    above = sum(max(0, held - share) for held in unanswered)
    return max(1, (share * count - above) // count)
