"""Endings: messages that must not be delivered any more, although nobody has finished them. No I/O.

    expired     stored longer ago than the channel's `max_age_s`, or than the message itself says
                (`transport/wire/lifetime.py`), or than the topic's `expires_s`, if it says nothing
    cancelled   revoked by its key

Both are looked at before each delivery, and not when they happen: a channel has no list of its
messages, and ten million of them cost no work while no consumer wants any. So a message that ends
waits as others do, counts in the depth, and is given up when its turn comes.

A block is examined only if it has the flag. Of a block with messages that expire, the headers are
read once, and after that one comparison of times says that none has expired.

A revocation is a key and an end: it ends the messages with this key below this offset. It is kept
until no message below its end is left in the channel. So a message that is published later with the
same key is delivered, and so are messages after a seek back.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable, Sequence
from typing import Final, TypeVar

from ...transport.block.block import Block
from ...transport.block.block_format import EXPIRES, REVOCABLE
from ...transport.errors import E_LIMIT, Refused
from ...transport.settings import NONE
from ...transport.units import NS_PER_MS, NS_PER_S
from ...transport.wire.lifetime import lifetimes_ms, revoke_keys
from ...transport.wire.protocol import Range
from ..settings import options

ALIVE: Final = 0
BLOCKS_KNOWN: Final = 8  # the examined blocks that are remembered, because they come in pieces
ROWS_FREE: Final = 1_000  # rows of held messages that are not looked through
FAR_NS: Final = 1 << 62
_T = TypeVar("_T")
Part = tuple[Block, int, int]


class Deadlines:
    """When the messages of one block expire.

    The mask of those that have expired is kept until the next one does, because consumers may take
    a block in thousands of pieces.
    """

    def __init__(self, block: Block, else_ns: int) -> None:
        """`else_ns`: when those messages expire that have no lifetime of their own."""
        stored_ns = block.header.time_ns
        self.times_ns = [
            else_ns if lives_ms is None else stored_ns + lives_ms * NS_PER_MS
            for lives_ms in lifetimes_ms(block)
        ]
        self._mask: bytes | None = None
        self._from_ns, self._until_ns = -FAR_NS, min(self.times_ns)

    def mask(self, expired: int, wall_ns: int) -> bytes | None:
        """Return a mask with the value `expired` for what has expired, or None for nothing."""
        if not self._from_ns <= wall_ns < self._until_ns:
            found = [expired if wall_ns >= time_ns else ALIVE for time_ns in self.times_ns]
            self._mask = bytes(found) if any(found) else None
            over = [time_ns for time_ns in self.times_ns if time_ns <= wall_ns]
            left = [time_ns for time_ns in self.times_ns if time_ns > wall_ns]
            self._from_ns, self._until_ns = max(over, default=-FAR_NS), min(left, default=FAR_NS)
        return self._mask


class Endings:
    """The endings of one channel.

    `expired` and `cancelled` are the values that a mask has for them.
    """

    def __init__(self, expired: int, cancelled: int) -> None:
        self._expired = expired
        self._cancelled = cancelled
        self.max_age_ns = 0
        self.lifetime_s: float = NONE
        self._lifetime_ns = 0  # of messages without one of their own, or 0
        # Key -> end. The messages below this offset that have the key are cancelled.
        self.revoked: dict[str, int] = {}
        self._end = 0  # the highest end
        self._deadlines: dict[tuple[int, int], Deadlines] = {}
        # The last masks with cancelled messages, each with the mask to which they were added.
        self._marked: dict[tuple[int, int], tuple[bytes | None, bytes | None]] = {}

    def looks_at(self, block: Block) -> bool:
        """Return True if messages of this block may have ended for another reason than its age."""
        flags = block.header.flags
        return bool(flags & EXPIRES or (flags & REVOCABLE and block.first_offset < self._end))

    def set_lifetime(self, lifetime_s: float) -> None:
        """Set the lifetime of messages that have none of their own, or NONE. It applies at once,
        but not to messages that consumers hold.
        """
        self.lifetime_s = lifetime_s
        self._lifetime_ns = int(lifetime_s * NS_PER_S) if lifetime_s > 0 else 0
        self._deadlines.clear()

    def end_ns(self, block: Block) -> int:
        """Return when messages of the block expire that have no lifetime of their own."""
        return block.header.time_ns + self._lifetime_ns if self._lifetime_ns else FAR_NS

    def _is_too_old(self, block: Block, wall_ns: int) -> bool:
        """Return True if the block was stored too long ago. All its messages have the same time."""
        if self.max_age_ns and wall_ns - block.header.time_ns > self.max_age_ns:
            return True
        return wall_ns >= self.end_ns(block) and not block.header.flags & EXPIRES

    def mask(self, block: Block, wall_ns: int) -> bytes | None:
        """Return a mask with one byte for each message, or None if none of them has ended."""
        mask: bytes | None = None
        if self._is_too_old(block, wall_ns):
            mask = bytes([self._expired]) * block.count
        elif block.header.flags & EXPIRES:
            mask = self.deadlines(block).mask(self._expired, wall_ns)
        if self._end > block.first_offset and block.header.flags & REVOCABLE:
            mask = self._mask_cancelled(block, mask)
        return mask

    def deadlines(self, block: Block) -> Deadlines:
        place = (block.first_offset, block.count)
        known = self._deadlines.get(place)
        if known is None:
            known = Deadlines(block, self.end_ns(block))
            _remember(self._deadlines, place, known)
        return known

    def _mask_cancelled(self, block: Block, mask: bytes | None) -> bytes | None:
        """Add the cancelled messages. One that has expired too counts as cancelled."""
        place = (block.first_offset, block.count)
        known = self._marked.get(place)
        if known is None or known[0] is not mask:
            known = mask, self._mark(block, mask)
            _remember(self._marked, place, known)
        return known[1]

    def _mark(self, block: Block, mask: bytes | None) -> bytes | None:
        revoked = self.revoked
        marked = bytearray(mask or bytes(block.count))
        for offset, key in enumerate(revoke_keys(block), block.first_offset):
            if key is not None and offset < revoked.get(key, 0):
                marked[offset - block.first_offset] = self._cancelled
        return bytes(marked) if any(marked) else None

    # Revocations

    def revoke(self, keys: Iterable[str], end: int) -> None:
        """Cancel the messages with these keys below `end`.

        Raises `Refused` (E_LIMIT), and changes nothing, if there would be too many keys.
        """
        revoked = {**self.revoked, **dict.fromkeys(keys, end)}
        if len(revoked) > max(options.REVOKED_MAX, len(self.revoked)):
            text = f"a channel keeps at most {options.REVOKED_MAX:,} revoked keys"
            raise Refused(
                E_LIMIT,
                f"{text}, each until it has passed all messages that were published before; let "
                "its consumers catch up",
            )
        self._take(revoked)

    def go_on_with(self, revoked: Iterable[tuple[str, int]]) -> None:
        """Take over the stored revocations."""
        self._take(dict(revoked))

    def forget_below(self, first: int) -> None:
        """Forget the revocations of messages below `first`. The channel has none of these left."""
        self._take({key: end for key, end in self.revoked.items() if end > first})

    def _take(self, revoked: dict[str, int]) -> None:
        if revoked != self.revoked:
            self._marked.clear()
        self.revoked = revoked
        self._end = max(revoked.values(), default=0)


class HeldExpiries:
    """When messages expire that consumers hold, and that no handler has begun."""

    def __init__(self, endings: Endings) -> None:
        self._endings = endings
        self._heap: list[tuple[int, int, int, int]] = []
        self._most = ROWS_FREE  # beyond so many rows, those of answered deliveries are dropped

    def add(self, token: int, parts: Sequence[Part], living: Container[int]) -> None:
        """Note a delivery. Adjacent messages with the same time share a row.

        `living`: the tokens of deliveries that are not answered. The rows of others are dropped
        now and then. Otherwise each message that lives for a week would leave a row for a week,
        although it was finished at once.
        """
        rows: list[tuple[int, int, int]] = []
        for block, start, stop in parts:
            if not block.header.flags & EXPIRES:
                end_ns = self._endings.end_ns(block)
                if end_ns != FAR_NS:
                    rows.append((end_ns, block.first_offset + start, stop - start))
                continue
            times_ns = self._endings.deadlines(block).times_ns
            for index in range(start, stop):
                time_ns, offset = times_ns[index], block.first_offset + index
                if rows and (rows[-1][0], rows[-1][1] + rows[-1][2]) == (time_ns, offset):
                    rows[-1] = (time_ns, rows[-1][1], rows[-1][2] + 1)
                elif time_ns != FAR_NS:
                    rows.append((time_ns, offset, 1))
        for time_ns, first, count in rows:
            heapq.heappush(self._heap, (time_ns, token, first, count))
        if len(self._heap) > self._most:
            self._heap = [row for row in self._heap if row[1] in living]
            heapq.heapify(self._heap)
            self._most = 2 * len(self._heap) + ROWS_FREE

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_ns(self) -> int:
        """When the next message expires by the wall clock, or 0."""
        return self._heap[0][0] if self._heap else 0

    def due(self, wall_ns: int) -> dict[int, list[Range]]:
        """Return what has expired, by delivery. It may be begun or answered."""
        found: dict[int, list[Range]] = {}
        while self._heap and self._heap[0][0] <= wall_ns:
            _, token, first, count = heapq.heappop(self._heap)
            found.setdefault(token, []).append((first, count))
        return found


def _remember(known: dict[tuple[int, int], _T], place: tuple[int, int], value: _T) -> None:
    known[place] = value
    if len(known) > BLOCKS_KNOWN:
        del known[next(iter(known))]
