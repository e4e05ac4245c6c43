"""Index of a chunk: sparse entries, to find the block of an offset or a time.

An index is a cache, in memory and in a file beside the chunk. It has at most one entry for each
`every_bytes` of the chunk. Each entry is the position of a block's header. A search walks through
the blocks between two entries. The index of the ongoing chunk is kept in memory (1.5 MiB for 256
MiB of the smallest blocks). It is written to its file when the chunk is sealed, and several times
before that, so that recovery need not read all bytes that were synced long ago. The index is never
synced.

The head of the file contains the chunk's seed, the number of entries and a checksum. If the file is
missing, too short, of another chunk, or damaged, it is not used, and the index is rebuilt. A reader
that uses an entry checks that the header at its position agrees with it, because the chunk may have
changed after the index was written.

Rejected: one entry for each block, written together with the block. Every append would write to a
second file, which recovery does not need. Rejected too: a binary search in the file by pread. It
needs no memory, but 17 system calls for each search.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

from .log_format import (
    CHUNK_HEADER_BYTES,
    INDEX_ENTRY_BYTES,
    INDEX_FIELDS,
    decode_index,
    encode_index,
)

INDEX_EVERY_BYTES: Final = 4096  # the density of the indexes of a broker


class IndexEntry(NamedTuple):
    """An entry for a block: offset and time relative to the chunk, and position in the file."""

    offset: int
    position: int
    time_ns: int


class Index:
    """The entries of one chunk, in ascending order."""

    __slots__ = ("_every_bytes", "_offsets", "_positions", "_times", "next_position")

    def __init__(self, every_bytes: int) -> None:
        self._every_bytes = every_bytes
        self._offsets = array("q")
        self._positions = array("q")
        self._times = array("q")
        self.next_position = 0
        """Blocks before this position need no entry."""

    def __len__(self) -> int:
        return len(self._offsets)

    def note(self, offset: int, position: int, time_ns: int) -> None:
        """Add a block. The next block to add is the first one at or after `next_position`."""
        assert not self._positions or position > self._positions[-1]
        self._offsets.append(offset)
        self._positions.append(position)
        self._times.append(time_ns)
        self.next_position = position + self._every_bytes

    def cut(self, position: int) -> None:
        """Remove the entries at or after `position`."""
        keep = bisect_left(self._positions, position)
        for column in (self._offsets, self._positions, self._times):
            del column[keep:]
        self.next_position = self._positions[-1] + self._every_bytes if keep else CHUNK_HEADER_BYTES

    def by_offset(self, offset: int) -> IndexEntry | None:
        """Return the last entry at or before `offset`."""
        return self._entry(bisect_right(self._offsets, offset) - 1)

    def by_time(self, time_ns: int) -> IndexEntry | None:
        """Return the last entry of a block stored before `time_ns`."""
        return self._entry(bisect_left(self._times, time_ns) - 1)

    def by_position(self, position: int) -> IndexEntry | None:
        """Return the last entry at or before `position`."""
        return self._entry(bisect_right(self._positions, position) - 1)

    def entries(self) -> Iterator[IndexEntry]:
        return map(IndexEntry, self._offsets, self._positions, self._times)

    def _entry(self, number: int) -> IndexEntry | None:
        return (
            None
            if number < 0
            else IndexEntry(self._offsets[number], self._positions[number], self._times[number])
        )

    def encode(self, seed: int) -> bytes:
        flat = array("q", bytes(INDEX_ENTRY_BYTES * len(self)))
        flat[0::INDEX_FIELDS] = self._offsets
        flat[1::INDEX_FIELDS] = self._positions
        flat[2::INDEX_FIELDS] = self._times
        return encode_index(flat.tobytes(), seed)

    @classmethod
    def decode(cls, data: bytes, seed: int, every_bytes: int) -> Index | None:
        """Decode the index of the chunk with this seed.

        Returns None if the check of the bytes fails.
        """
        entries = decode_index(data, seed)
        if entries is None:
            return None
        flat = array("q")
        flat.frombytes(entries)
        index = cls(every_bytes)
        index._offsets, index._positions, index._times = (
            flat[0::INDEX_FIELDS],
            flat[1::INDEX_FIELDS],
            flat[2::INDEX_FIELDS],
        )
        return index
