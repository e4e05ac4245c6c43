"""Change queue: the commits of a topic's stores, in their order, until a piece has them.

The threads that own the stores note each commit, and each dump of all rows. So the order of both is
known. The queue is not the dump: that one belongs to `base_dump.py`, which takes it from here.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ....storage.row_changes import DELAYED, Change, encode_frames
from .sync_marks import MARKS_MAX


@dataclass(frozen=True, slots=True)
class Entry:
    """The frames of one commit, or of a dump of all rows. `kind` is STATE or DELAYED.

    A dump may be in a file, at `path`. `serial` is the entry's place among those in the queue.
    """

    kind: int
    frames: tuple[bytes, ...]
    time_ns: int
    begins: bool = False
    path: str = ""
    serial: int = 0

    @property
    def size(self) -> int:
        return sum(map(len, self.frames))


class ChangeQueue:
    """The changes of one topic that are in no piece. It notes nothing while it is not `is_open`."""

    def __init__(self) -> None:
        self.is_open = True
        self._noted: deque[Entry] = deque()  # filled by the threads of the stores
        self._entries: deque[Entry] = deque()
        self.size = 0
        """Bytes of the changes that `drain` has taken."""
        self.delayed = 0
        """Entries about delayed messages among them."""
        self.serial = 1
        """The serial of the last entry that `drain` has taken. Entry 1: the rows at the start."""
        # Commits of delayed messages that are not shipped: their serials, and their times.
        self._delayed_marks: deque[tuple[int, int]] = deque()

    def __len__(self) -> int:
        return len(self._entries) + len(self._noted)

    def __bool__(self) -> bool:
        """Return True if `drain` has taken changes."""
        return bool(self._entries)

    def note(self, entry: Entry, *, first: bool = False) -> None:
        """Note a commit or a dump, with `first` before all others. Any thread may call this."""
        if self.is_open:
            (self._noted.appendleft if first else self._noted.append)(entry)

    def note_changes(self, kind: int, changes: Iterable[Change]) -> None:
        """Note a commit. A thread of a store calls this."""
        if self.is_open and (frames := tuple(encode_frames(kind, changes))):
            self.note(Entry(kind, frames, time.monotonic_ns()))

    def note_unknown_delayed(self) -> None:
        """Note that the delayed messages of the process before may be in no piece yet."""
        self._delayed_marks.append((self.serial, time.monotonic_ns()))

    def drain(self, takes_dump: Callable[[Entry], bool]) -> None:
        """Take what the threads noted. `takes_dump` returns True if it keeps a dump.

        That dump replaces all earlier changes of its store. Any other entry is a change.
        """
        while self._noted:
            entry = self._noted.popleft()
            if entry.begins and takes_dump(entry):
                self._replace([other for other in self._entries if other.kind != entry.kind])
            else:
                self._add(entry)

    def _replace(self, entries: Iterable[Entry]) -> None:
        self._entries = deque(entries)
        self.size = sum(entry.size for entry in self._entries)
        self.delayed = sum(entry.kind == DELAYED for entry in self._entries)

    def _add(self, entry: Entry) -> None:
        self.serial += 1
        self._entries.append(replace(entry, serial=self.serial))
        self.size += entry.size
        if entry.kind != DELAYED:
            return
        self.delayed += 1
        time_ns = entry.time_ns
        if len(self._delayed_marks) >= MARKS_MAX:
            time_ns = self._delayed_marks.pop()[1]
        self._delayed_marks.append((self.serial, time_ns))

    def take(self, max_bytes: int, frames_max: int, frames: list[bytes]) -> int:
        """Move the frames of the first entries to `frames`. Return the size of all frames there.

        Entries are taken until that is `max_bytes`. If frames are there before an entry, it is
        taken only if all then fit in `frames_max`.
        """
        size = sum(map(len, frames))
        while self._entries and size < max_bytes:
            entry = self._entries[0]
            if frames and size + entry.size > frames_max:
                break
            self._entries.popleft()
            self.size -= entry.size
            self.delayed -= entry.kind == DELAYED
            frames += entry.frames
            size += entry.size
        return size

    @property
    def taken_serial(self) -> int:
        """The serial of the last entry that is not in the queue any more."""
        return self._entries[0].serial - 1 if self._entries else self.serial

    def clear(self) -> None:
        """Forget the changes that `drain` has taken."""
        self._replace(())

    def close(self) -> None:
        """Forget all, and note nothing any more."""
        self.is_open = False
        self._noted.clear()
        self._delayed_marks.clear()
        self.clear()

    # Ages

    @property
    def oldest_ns(self) -> int:
        """Since when the first change waits (monotonic), 0 for none."""
        return self._entries[0].time_ns if self._entries else 0

    @property
    def delayed_ns(self) -> int:
        """Since when the oldest delayed message that is not shipped waits, 0 for none."""
        return self._delayed_marks[0][1] if self._delayed_marks else 0

    def shipped(self, serial: int) -> None:
        """Note that the entries up to this one are shipped."""
        while self._delayed_marks and self._delayed_marks[0][0] <= serial:
            self._delayed_marks.popleft()
