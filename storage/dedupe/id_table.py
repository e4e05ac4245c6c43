"""Table of ids: finds the place of an id's entry in a file, with 16 bytes of memory for each id.

An id is known by its digest of 16 bytes. The table is an array of 64-bit numbers with open
addressing. Each number has 43 bits of the digest and the place of the entry, counted in entries of
the file. So a digest that is not there is almost always found missing without a read, and a digest
that is there is compared with the whole entry. At most half of the numbers are in use.

Rejected: a dictionary, which takes about 150 bytes for each id. Rejected too: sorted arrays, which
are slower to search, and stop the process while they are sorted. No I/O.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import Final

PLACE_BITS: Final = 21
PLACE_MASK: Final = (1 << PLACE_BITS) - 1
PLACES_MAX: Final = PLACE_MASK  # place + 1 must fit, because 0 means free
# The sizes of tables, as powers of 2. A table has room for half as many ids.
BITS_MIN: Final = 13
BITS_MAX: Final = PLACE_BITS
_FINGERPRINT: Final = ~PLACE_MASK & ((1 << 64) - 1)


def numbers_of(digests: Sequence[bytes]) -> tuple[int, ...]:
    """Return the first 64 bits of each digest."""
    return struct.unpack(f"<{2 * len(digests)}Q", b"".join(digests))[::2]


class IdTable:
    """The places of up to 2^(bits - 1) ids."""

    __slots__ = ("_mask", "bits", "capacity", "count", "numbers")

    def __init__(self, bits: int) -> None:
        assert BITS_MIN <= bits <= BITS_MAX
        self.bits = bits
        self.numbers = array("Q", bytes(8 << bits))
        self.capacity = 1 << (bits - 1)
        self.count = 0
        self._mask = (1 << bits) - 1

    @classmethod
    def of(cls, bits: int, data: bytes, count: int) -> IdTable:
        """Return the table that was stored as these bytes (`numbers`)."""
        table = cls.__new__(cls)
        table.bits = bits
        table.numbers = array("Q", data)
        table.capacity = 1 << (bits - 1)
        table.count = count
        table._mask = (1 << bits) - 1
        return table

    def places(self, digest: bytes) -> list[int]:
        """Return the places at which entries with this digest may be, the newest last."""
        number = int.from_bytes(digest[:8], "little")
        numbers, mask = self.numbers, self._mask
        at = number & mask
        places = []
        while found := numbers[at]:
            if (found ^ number) <= PLACE_MASK:
                places.append((found & PLACE_MASK) - 1)
            at = (at + 1) & mask
        return places

    def candidates(self, wanted: Sequence[int]) -> list[int]:
        """Return the indexes of those of these numbers (`numbers_of`) that may be in the table.

        This is one loop for many ids, because a call for each takes twice as long.
        """
        numbers, mask = self.numbers, self._mask
        indexes = []
        for index, number in enumerate(wanted):
            at = number & mask
            while found := numbers[at]:
                if (found ^ number) <= PLACE_MASK:
                    indexes.append(index)
                    break
                at = (at + 1) & mask
        return indexes

    def add(self, added: Sequence[int], place: int) -> None:
        """Add ids, given as `numbers_of`, whose entries follow each other from `place` on.

        The same id may be added again, and then has several places.
        """
        assert self.count + len(added) <= self.capacity
        assert place + len(added) < PLACES_MAX
        numbers, mask = self.numbers, self._mask
        for following, number in enumerate(added, place + 1):
            at = number & mask
            while numbers[at]:
                at = (at + 1) & mask
            numbers[at] = number & _FINGERPRINT | following
        self.count += len(added)
