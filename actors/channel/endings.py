"""Endings: messages that must not be delivered any more, although nobody has finished them. No I/O.

    expired     stored longer ago than the channel's `max_age_s`, or than the message itself says
                (`transport/wire/lifetime.py`)
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

from collections.abc import Iterable
from typing import Final, TypeVar

from ...transport.block.block import Block
from ...transport.block.block_format import EXPIRES, REVOCABLE
from ...transport.errors import E_LIMIT, Refused
from ...transport.units import NS_PER_MS
from ...transport.wire.lifetime import lifetimes_ms, revoke_keys
from ..settings import options

ALIVE: Final = 0
BLOCKS_KNOWN: Final = 8  # the examined blocks that are remembered, because they come in pieces
FAR_NS: Final = 1 << 62
_T = TypeVar("_T")


class Deadlines:
    """When the messages of one block expire. `first_ns` is the earliest of these times."""

    def __init__(self, block: Block) -> None:
        stored_ns = block.header.time_ns
        self.times_ns = [
            FAR_NS if lives_ms is None else stored_ns + lives_ms * NS_PER_MS
            for lives_ms in lifetimes_ms(block)
        ]
        self.first_ns = min(self.times_ns)


class Endings:
    """The endings of one channel.

    `expired` and `cancelled` are the values that a mask has for them.
    """

    def __init__(self, expired: int, cancelled: int) -> None:
        self._expired = expired
        self._cancelled = cancelled
        self.max_age_ns = 0
        # Key -> end. The messages below this offset that have the key are cancelled.
        self.revoked: dict[str, int] = {}
        self._end = 0  # the highest end
        self._deadlines: dict[tuple[int, int], Deadlines] = {}
        self._keys: dict[tuple[int, int], list[str | None]] = {}

    def looks_at(self, block: Block) -> bool:
        """Return True if messages of this block may have ended for another reason than its age."""
        flags = block.header.flags
        return bool(flags & EXPIRES or (flags & REVOCABLE and block.first_offset < self._end))

    def is_too_old(self, block: Block, wall_ns: int) -> bool:
        """Return True if the block was stored too long ago. All its messages have the same time."""
        return self.max_age_ns > 0 and wall_ns - block.header.time_ns > self.max_age_ns

    def mask(self, block: Block, wall_ns: int) -> bytes | None:
        """Return a mask with one byte for each message, or None if none of them has ended."""
        mask: bytes | None = None
        if self.is_too_old(block, wall_ns):
            mask = bytes([self._expired]) * block.count
        elif block.header.flags & EXPIRES:
            mask = self._mask_expired(block, wall_ns)
        if self._end > block.first_offset and block.header.flags & REVOCABLE:
            mask = self._mask_cancelled(block, mask)
        return mask

    def _mask_expired(self, block: Block, wall_ns: int) -> bytes | None:
        place = (block.first_offset, block.count)
        known = self._deadlines.get(place)
        if known is None:
            known = Deadlines(block)
            _remember(self._deadlines, place, known)
        if wall_ns < known.first_ns:
            return None
        expired = self._expired
        return bytes([expired if wall_ns >= time_ns else ALIVE for time_ns in known.times_ns])

    def _mask_cancelled(self, block: Block, mask: bytes | None) -> bytes | None:
        """Add the cancelled messages. One that has expired too counts as cancelled."""
        place = (block.first_offset, block.count)
        keys = self._keys.get(place)
        if keys is None:
            keys = revoke_keys(block)
            _remember(self._keys, place, keys)
        revoked = self.revoked
        found = [
            offset - block.first_offset
            for offset, key in enumerate(keys, block.first_offset)
            if key is not None and offset < revoked.get(key, 0)
        ]
        if not found:
            return mask
        marked = bytearray(mask or bytes(block.count))
        for index in found:
            marked[index] = self._cancelled
        return bytes(marked)

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
        self.revoked = revoked
        self._end = max(revoked.values(), default=0)


def _remember(known: dict[tuple[int, int], _T], place: tuple[int, int], value: _T) -> None:
    known[place] = value
    if len(known) > BLOCKS_KNOWN:
        del known[next(iter(known))]
