"""Log cursor: which bytes of a topic's log go into its next piece.

It follows the synced bytes of the chunk files. It leaves out what the archive has, and ends a piece
between two blocks where it can. It reads no file.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, NamedTuple

from ....storage.bucket.shipping.log_facts import is_adopted, size_of
from ....storage.directory.store import Store
from .piece_window import Shipped
from .sync_marks import SyncMarks

# A topic that was never shipped begins with it when only this many log files are not archived.
CATCH_UP_CHUNKS: Final = 3

Place = tuple[int, int]
"""The base offset of a chunk, and a position in its file."""


class LogStretch(NamedTuple):
    """Ranges of chunk files, the place where they end, and the offset that the log has then.

    `is_full` is True if more of the log is synced.
    """

    ranges: list[tuple[int, int, int]]
    place: Place
    end: int
    is_full: bool

    @property
    def size(self) -> int:
        return sum(stop - start for _, start, stop in self.ranges)


class LogCursor:
    """The log of one topic, as far as its pieces have it."""

    def __init__(self, store: Store, marks: SyncMarks, shipped: Shipped) -> None:
        self._store = store
        self._log = store.log
        self._marks = marks
        self._shipped = shipped
        self.place: Place = (-1, 0)
        """The next byte to put into a piece."""
        self.end = -1
        """The end of the messages in the pieces."""
        self.kept_from = 0
        """The first offset that is not archived, as far as the rows in the pieces say it."""

    def begin(self, place: Place, end: int) -> None:
        """Go on behind what the log of ticks has."""
        self.place, self.end, self.kept_from = place, end, 0

    def goal(self) -> Place:
        """Return the place up to which the log can be shipped.

        A chunk without messages is left out. It cannot be ended, so the log of ticks could not
        become shorter than to the tick that has it.
        """
        chunk, position, offset = self._log.synced_place
        return chunk, position if offset > chunk else 0

    @property
    def is_behind(self) -> bool:
        """True if more of the log can be shipped."""
        return self.goal() > self.place

    @property
    def is_start_missing(self) -> bool:
        """True if messages have expired that were never shipped."""
        return self.end < self._log.start

    @property
    def waits_for_archive(self) -> bool:
        """True if old log files go to the archive first, instead of in ticks too."""
        if self._shipped.is_caught_up:
            return False
        archived = self._store.archived
        return sum(base not in archived for base in self._log.chunks) > CATCH_UP_CHUNKS

    def new_bytes(self, if_unknown: int) -> int:
        """Return how much is in no piece, or `if_unknown` if that begins in an older log file."""
        chunk, position, _ = self._log.synced_place
        return position - self.place[1] if chunk == self.place[0] else if_unknown

    def first_kept(self) -> int:
        """Return the first offset that is in no archived chunk at the start of the log."""
        archived, bases = self._store.archived, self._log.reader.bases
        first = bisect_left(bases, self.kept_from)
        return next(base for base in bases[first:] if base not in archived)

    def next_stretch(self, max_bytes: int) -> LogStretch:
        """Return what goes into the next piece."""
        ranges, place, is_full = self._ranges(max_bytes)
        if is_full:
            ranges, place = self._cut_at_mark(ranges, place)
        return LogStretch(ranges, place, self.end_at(place), is_full)

    def advance(self, stretch: LogStretch) -> None:
        """Note that a piece has this stretch."""
        self.place, self.end = stretch.place, stretch.end

    def _ranges(self, max_bytes: int) -> tuple[list[tuple[int, int, int]], Place, bool]:
        """Return the next ranges of the log, where they end, and whether more is left."""
        active, synced_position = self.goal()
        chunk, position = self.place
        if chunk < self._log.chunks[0]:  # retention has removed it
            chunk, position = self._log.chunks[0], 0
        ranges: list[tuple[int, int, int]] = []
        left = max_bytes
        while True:
            if chunk != active and (
                self.is_archived(chunk, position) or chunk not in self._log.chunks
            ):
                following = self._log.reader.next_base(chunk)
                chunk, position = (active, 0) if following is None else (following, 0)
                continue
            stop = synced_position if chunk == active else size_of(self._store, chunk)
            take = min(stop - position, left)
            if take > 0:
                ranges.append((chunk, position, position + take))
                position += take
                left -= take
            if position < stop:
                return ranges, (chunk, position), True
            if chunk == active:
                return ranges, (chunk, position), False
            following = self._log.reader.next_base(chunk)
            assert following is not None
            chunk, position = following, 0

    def is_archived(self, chunk: int, position: int) -> bool:
        """Return True if a chunk is in the archive, and a restore will know this.

        The end of a chunk is shipped if its first bytes are, up to `position`. Otherwise a restore
        would find it without its footer, until the rows about it are shipped.
        """
        row = self._store.archived.get(chunk)
        if row is None:
            return False
        # A chunk whose file may leave the disk is in a manifest.
        is_listed = chunk in self._log.reader.remote
        is_known = chunk < self.kept_from or (row.next_offset <= self._shipped.end and not position)
        return is_listed or is_known or not self._shipped.is_caught_up

    def _cut_at_mark(
        self, ranges: list[tuple[int, int, int]], place: Place
    ) -> tuple[list[tuple[int, int, int]], Place]:
        """Cut the ranges at the last sync, so that they end between two blocks, if there is one."""
        cut = self._marks.last_within(self.place, place)
        if cut is None:
            return ranges, place
        chunk, position = cut
        kept = [entry for entry in ranges if entry[0] < chunk]
        kept += [
            (chunk, start, min(stop, position)) for base, start, stop in ranges if base == chunk
        ]
        return [entry for entry in kept if entry[1] < entry[2]], cut

    def end_at(self, place: Place) -> int:
        """Return the offset up to which the log is covered at this place.

        It is never inside a group, because a restore keeps what is below it.
        """
        if place >= self.goal():
            return max(self.end, self._log.synced_end)
        end = max(self.end, self._marks.offset_at(place))
        return place[0] if place[0] > end and not is_adopted(self._store, place[0]) else end
