"""Finish memory: finishes that the broker may not know, because a link was lost. No I/O.

A program finishes a message, and the link is lost before the broker has confirmed it. Or the link
is lost while a handler works, and its finish comes afterwards. In both cases the channel delivers
the message again. If it comes back to the same consumer, the consumer finishes it once more, and
the program does not see it.

If the program has learned that its finish failed (`finish(sync=True)` or `flush` raised
`LeaseLost`), it may have undone its work. So the message comes to it again.

In an ordered channel nothing is remembered. Another consumer may get an earlier message of the key
again, and then the later ones must follow it. Only a message that has come back already, while its
handler worked, is finished there.

A message is recognized by its offset and its time. The time makes a difference if the topic was
restored from a backup or created again, because another message may have the offset then. The
memory is bounded: it keeps the last MESSAGES_MAX finishes that are not confirmed, of blocks of at
most BYTES_MAX, and after a lost link it keeps them for KEEP_S. What it has forgotten is delivered
again, as at least once delivery allows. If somebody moves the channel back within that time, a
message whose confirmation was lost may be left out once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from ...block.block import Block
from .confirm import Confirm

MESSAGES_MAX: Final = 10_000
BYTES_MAX: Final = 16 * 1024 * 1024
KEEP_S: Final = 600


class Delivered(Protocol):
    """A delivery, of which the memory needs the offsets and the times of its messages."""

    block: Block

    def offset(self, index: int) -> int: ...


class FinishMemory:
    """The finishes of one session, within these bounds."""

    def __init__(self, *, messages_max: int = MESSAGES_MAX, max_bytes: int = BYTES_MAX) -> None:
        self._messages_max = messages_max
        self._bytes_max = max_bytes
        # Finishes that were sent on the present link, with the confirmation that covers them.
        self._sent: deque[tuple[Delivered, Sequence[int], Confirm]] = deque()
        self._messages = self._bytes = 0
        # Finishes that the broker may not know: offset -> time of the message.
        self._unknown: dict[int, int] = {}
        self._until_ns = 0

    def __bool__(self) -> bool:
        """True if some message must be finished when it comes back."""
        return bool(self._unknown)

    def sent(self, delivery: Delivered, indexes: Sequence[int], confirm: Confirm) -> None:
        """Note finishes that are sent now, and that `confirm` will cover."""
        self._sent.append((delivery, indexes, confirm))
        self._messages += len(indexes)
        self._bytes += delivery.block.length
        while self._sent and (
            self._messages > self._messages_max
            or self._bytes > self._bytes_max
            or _is_known(self._sent[0][2])
        ):
            old, gone, _ = self._sent.popleft()
            self._messages -= len(gone)
            self._bytes -= old.block.length

    def lost(self, now_ns: int) -> None:
        """Note that the link is lost. What it has not confirmed is not known to the broker."""
        for delivery, indexes, confirm in self._sent:
            if not _is_known(confirm):
                self.came_late(delivery, indexes, now_ns)
        self._sent.clear()
        self._messages = self._bytes = 0

    def came_late(self, delivery: Delivered, indexes: Iterable[int], now_ns: int) -> None:
        """Note finishes that cannot be sent, because the link of their delivery was lost."""
        for index in indexes:
            self._unknown[delivery.offset(index)] = delivery.block.time_of(index)
        self._until_ns = now_ns + KEEP_S * 1_000_000_000
        while len(self._unknown) > self._messages_max:
            del self._unknown[next(iter(self._unknown))]

    def forget(self) -> None:
        """Finish nothing that comes back."""
        self._unknown.clear()

    def came_back(self, delivery: Delivered, now_ns: int) -> list[int]:
        """Return which messages of this delivery were finished before, and forget them."""
        if now_ns >= self._until_ns:
            self._unknown.clear()
        if not self._unknown:
            return []
        indexes = [
            index
            for index in range(delivery.block.count)
            if self._unknown.get(delivery.offset(index)) == delivery.block.time_of(index)
        ]
        for index in indexes:
            del self._unknown[delivery.offset(index)]
        return indexes


def _is_known(confirm: Confirm) -> bool:
    return confirm.done and confirm.error is None
